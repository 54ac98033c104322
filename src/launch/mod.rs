//! Starting ranks and standing by them until the last is gone.
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
//! *May import* `comm`, `bootstrap`, `sys`, the pure rooms and the base files.

mod attempt;
mod cause;
mod job;
mod meet;
mod output;
mod peers;
mod restarts;
mod secret;
mod supervise;

pub use job::{Job, Meeting, Output, run, spawn_self};
