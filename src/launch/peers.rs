//! What a supervisor asks of, and hears from, the launchers of the other hosts.

use super::cause::Cause;
use super::meet::link::Heard;
use std::time::Duration;

/// What the other launchers make of the job.
#[derive(Debug)]
pub(super) enum Verdict {
    /// Nothing yet.
    Open,
    /// Every rank everywhere has ended well.
    Succeeded,
    /// Some rank elsewhere failed.
    Failed(Cause),
    /// The job has ended, and this is the cause that everybody tells.
    Final(Cause),
}

/// The other launchers of a job.
pub(super) trait Peers {
    /// Tells them that the job fails, as far as is known here because of `cause`. May be called
    /// again with a better cause.
    fn failed(&mut self, cause: &Cause);

    /// How long a better cause may arrive after the first.
    fn settling_time(&self) -> Duration;

    /// Tells them that `cause` stands.
    fn settled(&mut self, cause: &Cause);

    /// Tells them that all ranks of this host have ended well.
    fn finished(&mut self) -> Verdict;

    /// Takes note of what another launcher said.
    fn handle(&mut self, heard: Heard) -> Verdict;
}

/// A job of one host has no others.
pub(super) struct Alone;

impl Peers for Alone {
    fn failed(&mut self, _: &Cause) {}

    fn settling_time(&self) -> Duration {
        Duration::from_millis(30)
    }

    fn settled(&mut self, _: &Cause) {}

    fn finished(&mut self) -> Verdict {
        Verdict::Succeeded
    }

    fn handle(&mut self, _: Heard) -> Verdict {
        Verdict::Open
    }
}
