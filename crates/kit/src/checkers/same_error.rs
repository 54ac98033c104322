//! Checks that all ranks that fail report the same first error.

use crate::cluster::Outcome;
use ringtree::{Error, ErrorKind};

/// Compares the errors of all failed calls. Two errors that report a lost rank agree if they report
/// the same rank, even if different ranks detected the loss. Other errors must be equal.
///
/// # Errors
/// Returns a message with the first two errors that differ.
pub fn check(outcome: &Outcome) -> Result<(), String> {
    let failures = outcome.survivors().filter_map(|record| {
        let error = record.result.as_ref()?.as_ref().err()?;
        Some((record.rank, error))
    });
    let mut first: Option<(usize, &Error)> = None;
    for (rank, error) in failures {
        let (first_rank, first) = *first.get_or_insert((rank, error));
        if !agree(first, error) {
            return Err(format!(
                "rank {first_rank} reports \"{first}\", but rank {rank} reports \"{error}\""
            ));
        }
    }
    Ok(())
}

fn agree(one: &Error, other: &Error) -> bool {
    match one.kind() == ErrorKind::PeerLost && other.kind() == ErrorKind::PeerLost {
        true => one.peer() == other.peer(),
        false => one == other,
    }
}
