//! Checks that every call of a surviving rank ends soon after the last fault.

use crate::cluster::Outcome;
use std::time::Duration;

/// Checks that every call and every script of a surviving rank ends, and that no call ends later
/// than `grace` after the last kill, or after the start if no rank was killed.
///
/// # Errors
/// Returns a message about the first violation.
pub fn check(outcome: &Outcome, grace: Duration) -> Result<(), String> {
    let last_kill = outcome.kills.iter().flatten().max().copied();
    let limit = last_kill.unwrap_or_default() + grace;
    for record in outcome.survivors() {
        let name = format!(
            "{} #{} of rank {}",
            record.call.kind.name(),
            record.sequence,
            record.rank
        );
        match record.end {
            None => return Err(format!("{name} did not end")),
            Some(end) if end > limit => {
                return Err(format!("{name} ended at {end:?}, later than {limit:?}"));
            }
            Some(_) => {}
        }
    }
    let pairs = outcome.ends.iter().zip(&outcome.kills).enumerate();
    match pairs.into_iter().find(|(_, pair)| *pair == (&None, &None)) {
        Some((rank, _)) => Err(format!("the script of rank {rank} did not end")),
        None => Ok(()),
    }
}
