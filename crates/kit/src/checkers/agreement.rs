//! Checks that the survivors of a failure agree on the last step that all of them have completed.

use super::order::synchronizes;
use crate::cluster::Outcome;

/// Checks the agreed mark. All survivors that learned a mark must have learned the same mark. The
/// agreed mark must not be below the mark that a rank had when it started a synchronizing call that
/// succeeded. Unless rank 0 was killed, every survivor with a failed call must have learned the
/// mark. The script must be the same on all ranks.
///
/// # Errors
/// Returns a message with the first rank that violates this.
pub fn check(outcome: &Outcome) -> Result<(), String> {
    let Some((first, agreed)) = survivors(outcome).find_map(|rank| {
        let agreed = outcome.agreed[rank]?;
        Some((rank, agreed))
    }) else {
        return check_all_learned(outcome);
    };
    for rank in survivors(outcome) {
        match outcome.agreed[rank] {
            Some(other) if other != agreed => {
                return Err(format!(
                    "rank {first} learned {agreed}, but rank {rank} learned {other}"
                ));
            }
            Some(_) | None => {}
        }
    }
    let passed = outcome.records.iter().find(|record| {
        let synchronized = synchronizes(&record.call, outcome.ends.len());
        synchronized && record.result == Some(Ok(())) && record.mark > agreed
    });
    if let Some(record) = passed {
        return Err(format!(
            "rank {} relied on {} since {} #{}, but {agreed} was agreed",
            record.rank,
            record.mark,
            record.call.kind.name(),
            record.sequence
        ));
    }
    check_all_learned(outcome)
}

/// Checks that the agreed mark is the lowest mark of the survivors. Do not use this check if a rank
/// was silent until the others stopped waiting for it. The agreed mark may or may not take into
/// account the marks of ranks that were killed after the first failure.
///
/// # Errors
/// Returns a message with the agreed mark and all marks.
pub fn check_is_lowest(outcome: &Outcome) -> Result<(), String> {
    let least = survivors(outcome).map(|rank| outcome.marks[rank]).min();
    let kills = outcome.kills.iter().flatten().count();
    let least_of_all = match kills {
        0 | 1 => least,
        _ => outcome.marks.iter().min().copied(),
    };
    for rank in survivors(outcome) {
        let Some(agreed) = outcome.agreed[rank] else {
            continue;
        };
        if Some(agreed) > least || Some(agreed) < least_of_all {
            return Err(format!(
                "rank {rank} learned {agreed}, but the marks are {:?}",
                outcome.marks
            ));
        }
    }
    Ok(())
}

fn survivors(outcome: &Outcome) -> impl Iterator<Item = usize> {
    (0..outcome.kills.len()).filter(|rank| outcome.kills[*rank].is_none())
}

/// Checks that every survivor with a failed call knows the agreed mark, unless rank 0 was killed.
fn check_all_learned(outcome: &Outcome) -> Result<(), String> {
    if outcome.kills[0].is_some() {
        return Ok(());
    }
    let failed = outcome
        .survivors()
        .filter(|record| matches!(record.result, Some(Err(_))));
    for record in failed {
        if outcome.agreed[record.rank].is_none() {
            return Err(format!(
                "rank {} learned no mark, though rank 0 is alive",
                record.rank
            ));
        }
    }
    Ok(())
}
