//! Decides whether to restart a failed job.

use super::cause::{Cause, Remedy};
use super::event::Status;
use std::time::Duration;

/// The pause between a failure and the first restart. Each later pause is twice as long as the one
/// before it, up to `PAUSE_MAX`.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
/// The maximum pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A counter of the job's restarts. Only the launcher that decides about restarts uses it.
#[derive(Debug)]
pub(super) struct Restarts {
    allowed: u16,
    done: u16,
    /// The link speed table from the first attempt in which rank 0 measured one.
    tuning: Option<String>,
}

impl Restarts {
    /// Creates the counter for a job that may restart `allowed` times.
    pub(super) fn new(allowed: u16) -> Self {
        Restarts {
            allowed,
            done: 0,
            tuning: None,
        }
    }

    /// Returns the number of the next attempt and the link speed table for it. `table` is the table
    /// that rank 0 measured in the last attempt, if it measured one.
    pub(super) fn next(&mut self, table: Option<String>) -> (u16, Option<String>) {
        self.tuning = self.tuning.take().or(table);
        (self.done, self.tuning.clone())
    }

    /// Returns the action to take after the failure `cause`: restart the job or end it.
    pub(super) fn after(&mut self, cause: &Cause) -> Status {
        let mut cause = cause.clone();
        let allowed = self.allowed;
        cause.then = match cause.remedy {
            Remedy::Restart if self.done < allowed => {
                self.done += 1;
                cause.then = Some(format!("restart {} of {allowed}", self.done));
                let pause = pause_before(self.done);
                return Status::Restart { cause, pause };
            }
            Remedy::Restart if allowed > 0 => Some("no restarts left".to_owned()),
            Remedy::Correction if allowed > 0 => {
                let why = "no restart: exit code 2 indicates a usage error";
                Some(why.to_owned())
            }
            _ => None,
        };
        Status::Final(cause)
    }
}

/// Returns the pause before attempt `attempt`. A job that has failed once restarts almost
/// immediately, while a job that keeps failing does not keep the machine busy.
fn pause_before(attempt: u16) -> Duration {
    let doublings = u32::from(attempt).saturating_sub(1).min(16);
    (PAUSE_FIRST * 2_u32.pow(doublings)).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests;
