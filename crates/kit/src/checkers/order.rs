//! Checks that no rank leaves a synchronizing call before every rank has started it.

use crate::cluster::Outcome;
use crate::script::Call;
use ringtree::plan::Collective;
use std::collections::BTreeMap;
use std::time::Duration;

/// Returns whether the call cannot complete on any of `world_size` ranks before all of them have
/// started it.
pub(super) fn synchronizes(call: &Call, world_size: usize) -> bool {
    match call.collective() {
        Some(Collective::Barrier) => true,
        Some(Collective::AllReduce) => call.count > 0,
        Some(Collective::AllGather) => call.count >= world_size,
        _ => false,
    }
}

/// Checks barriers, and those all-reduces and all-gathers to which every rank contributes data.
///
/// # Errors
/// Returns a message with the first rank that left a call too early and the last rank that started
/// the call.
pub fn check(outcome: &Outcome) -> Result<(), String> {
    // For each call: the number of ranks that started it, the last rank to start it, and the time
    // when that rank did so.
    let mut came: BTreeMap<u64, (usize, usize, Duration)> = BTreeMap::new();
    for record in &outcome.records {
        let (ranks, rank, last) = came.entry(record.sequence).or_default();
        *ranks += 1;
        if record.start >= *last {
            (*rank, *last) = (record.rank, record.start);
        }
    }
    for record in &outcome.records {
        let waits = synchronizes(&record.call, outcome.ends.len());
        let Some(end) = record
            .end
            .filter(|_| waits && record.result == Some(Ok(())))
        else {
            continue;
        };
        let (ranks, last_rank, last) = came[&record.sequence];
        if ranks < outcome.ends.len() || last > end {
            return Err(format!(
                "rank {} left {} #{} at {end:?}, too early: {ranks} ranks started it, the last was \
                 rank {last_rank} at {last:?}",
                record.rank,
                record.call.kind.name(),
                record.sequence
            ));
        }
    }
    Ok(())
}
