//! Starting ranks and supervising them until the last has ended.
//!
//! *Purpose.* What `ringtree run` does, and what programs that spawn themselves do: start the
//! ranks of one host with torchrun's variables in their environment, pass their output on line by
//! line, forward signals, and end the whole job when one rank fails, saying which and how. With
//! several hosts the launchers meet first ([`Meeting`]) and then end together. A job that failed is
//! started again, on all hosts, as often as its user allows.
//!
//! *Invariants.* No process is left behind, whatever is killed. A failure ends the job within two
//! seconds and is told in one line. Launchers of several hosts obey only messages authenticated
//! with the job's secret.
//!
//! *May import* `bootstrap`, `control`, `protocol`, `sys` and the base files.

mod alone;
mod attempt;
pub(crate) mod cause;
mod event;
mod job;
mod log;
mod meet;
pub(crate) mod message;
mod output;
mod record;
mod restarts;
mod route;
mod run;
mod secret;
mod streams;
mod supervise;
mod terminal;
mod words;

pub use job::{Job, Meeting, Output};
#[doc(hidden)]
pub use run::on_this_host;
pub use run::{run, spawn, spawn_self};
pub use streams::tell;

#[doc(hidden)]
pub use crate::sys::process::bind_to_parent;
