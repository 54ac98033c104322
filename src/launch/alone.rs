//! Implements [`Peers`] for a job on a single host, which has no other launchers.

use super::attempt::Attempt;
use super::cause::{Cause, Confidence};
use super::event::{PeerEvent, Peers, Status};
use super::restarts::Restarts;
use crate::error::Result;
use std::time::Duration;

/// Time window after the first failure in which a better cause may still replace it.
const CAUSE_GRACE: Duration = Duration::from_millis(100);
/// Like [`CAUSE_GRACE`], but used if the failure may be a consequence of another rank's failure.
/// The other rank is then expected to exit soon.
const CONSEQUENCE_GRACE: Duration = Duration::from_secs(1);

/// Stands in for the other launchers in a job that has none.
pub(super) struct Alone {
    endpoint: Option<String>,
    restarts: Restarts,
}

impl Alone {
    /// Creates the peers for a job that may restart `max_restarts` times. If `endpoint` is given,
    /// `MASTER_ADDR` and `MASTER_PORT` are taken from it.
    pub(super) fn new(endpoint: Option<&str>, max_restarts: u16) -> Self {
        Alone {
            endpoint: endpoint.map(str::to_owned),
            restarts: Restarts::new(max_restarts),
        }
    }
}

impl Peers for Alone {
    fn failed(&mut self, _: &Cause) {}

    fn settling_time(&self, cause: &Cause, is_last: bool) -> Duration {
        match cause.standing {
            _ if is_last => Duration::ZERO,
            Confidence::Consequence | Confidence::Unknown => CONSEQUENCE_GRACE,
            _ => CAUSE_GRACE,
        }
    }

    fn settled(&mut self, cause: &Cause) -> Status {
        self.restarts.after(cause)
    }

    fn finished(&mut self) -> Status {
        Status::Succeeded
    }

    fn stopped(&mut self) -> Status {
        Status::Stopped
    }

    fn again(&mut self, table: Option<String>) -> Result<Attempt> {
        let (number, tuning) = self.restarts.next(table);
        Attempt::alone(number, self.endpoint.as_deref(), tuning)
    }

    fn awaited(&self) -> String {
        "this launcher".to_owned()
    }

    fn handle(&mut self, _: PeerEvent) -> Status {
        Status::Undecided
    }
}
