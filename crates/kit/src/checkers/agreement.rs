//! After a failure the survivors agree on how far all of them had come.

use super::order::synchronises;
use crate::cluster::Outcome;

/// Looks at what the survivors learned: all that learned a mark learned the same one; it is not
/// below what any rank relied on that passed a synchronising call; and unless rank 0 was killed,
/// every rank that a failure hit learned it. The script must be the same on all ranks.
///
/// # Errors
/// The first rank of which that is not true.
pub fn check(outcome: &Outcome) -> Result<(), String> {
    let Some((first, agreed)) = survivors(outcome).find_map(|rank| {
        let agreed = outcome.agreed[rank]?;
        Some((rank, agreed))
    }) else {
        return all_answered(outcome);
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
        let synchronised = synchronises(&record.call, outcome.ends.len());
        synchronised && record.result == Some(Ok(())) && record.mark > agreed
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
    all_answered(outcome)
}

/// Looks at whether the agreed mark is the survivors' least, where no rank was silent for so long
/// that it was given up. Of ranks that were killed after a first failure, the mark may count.
///
/// # Errors
/// How it differs.
pub fn check_least(outcome: &Outcome) -> Result<(), String> {
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

/// Every survivor with a failed call knows the agreed mark, unless rank 0 was killed.
fn all_answered(outcome: &Outcome) -> Result<(), String> {
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
