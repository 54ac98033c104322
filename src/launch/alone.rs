//! A job of one host.

use super::attempt::Attempt;
use super::cause::{Cause, Standing};
use super::event::{Heard, Peers, Status};
use super::restarts::Restarts;
use crate::error::Result;
use std::time::Duration;

/// How long a better cause may arrive after the first failure.
const CAUSE_GRACE: Duration = Duration::from_millis(100);
/// The same after one that another rank's end has led to: that rank ends soon.
const CONSEQUENCE_GRACE: Duration = Duration::from_secs(1);

/// Stands for the other launchers of a job that has none.
pub(super) struct Alone {
    endpoint: Option<String>,
    restarts: Restarts,
    /// The table of link speeds that rank 0 measured first.
    tuning: Option<String>,
}

impl Alone {
    /// For a job that may be restarted, and whose rank 0 answers at `endpoint` if one is given.
    pub(super) fn new(endpoint: Option<&str>, max_restarts: u16) -> Self {
        Alone {
            endpoint: endpoint.map(str::to_owned),
            restarts: Restarts::new(max_restarts),
            tuning: None,
        }
    }
}

impl Peers for Alone {
    fn failed(&mut self, _: &Cause) {}

    fn settling_time(&self, cause: &Cause, is_last: bool) -> Duration {
        match cause.standing {
            _ if is_last => Duration::ZERO,
            Standing::Consequence | Standing::Unknown => CONSEQUENCE_GRACE,
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
        self.tuning = self.tuning.take().or(table);
        let (number, endpoint) = (self.restarts.attempt(), self.endpoint.as_deref());
        Attempt::alone(number, endpoint, self.tuning.clone())
    }

    fn awaited(&self) -> String {
        "nobody".to_owned()
    }

    fn handle(&mut self, _: Heard) -> Status {
        Status::Undecided
    }
}
