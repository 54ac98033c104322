//! What a supervisor asks of, and hears from, the launchers of the other hosts.

use super::attempt::Attempt;
use super::cause::Cause;
use super::job::Job;
use super::meet::link::Heard;
use super::restarts::Restarts;
use crate::error::Result;
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
    /// Every launcher stops its ranks, to start them again.
    Restart {
        /// The line that everybody tells.
        text: String,
        /// From now on, how long the next attempt is held back.
        pause: Duration,
    },
    /// No rank runs anywhere, and the next attempt may begin: see [`Peers::again`].
    Stopped,
}

/// The other launchers of a job.
pub(super) trait Peers {
    /// Tells them that the attempt fails, as far as is known here because of `cause`. May be
    /// called again with a better cause.
    fn failed(&mut self, cause: &Cause);

    /// How long a better cause may arrive after the first.
    fn settling_time(&self) -> Duration;

    /// Nothing better came: `cause` stands. What follows, if that is known here.
    fn settled(&mut self, cause: &Cause) -> Verdict;

    /// Tells them that all ranks of this host have ended well.
    fn finished(&mut self) -> Verdict;

    /// Tells them that no rank of this host is left and that it may start the next attempt.
    fn stopped(&mut self) -> Verdict;

    /// The next attempt, which begins with this call; after [`Verdict::Stopped`].
    fn again(&mut self) -> Result<Attempt>;

    /// Whose word is still waited for before the next attempt.
    fn awaited(&self) -> String;

    /// Takes note of what another launcher said.
    fn handle(&mut self, heard: Heard) -> Verdict;
}

/// A job of one host has no others.
pub(super) struct Alone {
    endpoint: Option<String>,
    restarts: Restarts,
}

impl Alone {
    /// The launcher of `job`, which is of this host alone.
    pub(super) fn new(job: &Job) -> Self {
        Alone {
            endpoint: job.meeting.as_ref().map(|meeting| meeting.endpoint.clone()),
            restarts: Restarts::new(job.max_restarts),
        }
    }
}

impl Peers for Alone {
    fn failed(&mut self, _: &Cause) {}

    fn settling_time(&self) -> Duration {
        Duration::from_millis(30)
    }

    fn settled(&mut self, cause: &Cause) -> Verdict {
        self.restarts.after(cause)
    }

    fn finished(&mut self) -> Verdict {
        Verdict::Succeeded
    }

    fn stopped(&mut self) -> Verdict {
        Verdict::Stopped
    }

    fn again(&mut self) -> Result<Attempt> {
        Attempt::alone(self.restarts.attempt(), self.endpoint.as_deref())
    }

    fn awaited(&self) -> String {
        "nobody".to_owned()
    }

    fn handle(&mut self, _: Heard) -> Verdict {
        Verdict::Open
    }
}
