//! Checks that every successful call produced the exact result.

use crate::cluster::Outcome;

/// Checks the results of all successful calls.
///
/// # Errors
/// Returns a message with the first rank and call with a wrong element.
pub fn check(outcome: &Outcome) -> Result<(), String> {
    match outcome.records.iter().find(|record| record.wrong > 0) {
        None => Ok(()),
        Some(record) => Err(format!(
            "rank {} has {} wrong elements of {} after {} #{}",
            record.rank,
            record.wrong,
            record.call.count,
            record.call.kind.name(),
            record.sequence
        )),
    }
}
