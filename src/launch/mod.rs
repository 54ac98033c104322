//! Starts ranks and supervises them until the last one exits.
//!
//! [`spawn_self`] starts the running program once per rank. [`is_rank`] returns
//! whether a launcher started this process.
//! [`run`] implements the command `ringtree run`.

// For contributors.
//
// *Purpose.* Implements `ringtree run` and supports programs that spawn themselves. A launcher
// starts the ranks on one host, sets torchrun's environment variables for them, and forwards their
// output and signals. When a rank fails, the launcher stops the job and names the rank and the
// cause. If a job runs on several hosts, their launchers first connect to each other (see
// `Rendezvous`) and stop together. A failed job is restarted on all hosts as often as the user
// allows.
//
// *Invariants.* No process outlives the job, no matter which process is killed. A failure stops
// the job within two seconds and is reported in a single line. The launchers of a job on several
// hosts act only on messages that are authenticated with the job's secret.
//
// *May import* `bootstrap`, `control`, `protocol`, `sys` and the base files.

mod affinity;
mod alone;
mod attempt;
pub(crate) mod cause;
mod event;
mod job;
mod log;
pub(crate) mod message;
mod output;
mod record;
mod rendezvous;
mod restarts;
mod route;
pub(crate) mod run;
mod secret;
pub(crate) mod streams;
mod supervise;
mod terminal;
mod words;

pub use job::{Job, Output, Rendezvous};

pub use run::{is_rank, run, spawn_self};
