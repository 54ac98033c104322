//! No rank leaves a synchronising call before every rank has come.

use crate::cluster::Outcome;
use crate::script::Call;
use ringtree::plan::spec::Collective;
use std::collections::BTreeMap;
use std::time::Duration;

/// Whether the call of `world_size` ranks ends on none before all have begun it.
pub(super) fn synchronises(call: &Call, world_size: usize) -> bool {
    match call.collective() {
        Some(Collective::Barrier) => true,
        Some(Collective::AllReduce) => call.count > 0,
        Some(Collective::AllGather) => call.count >= world_size,
        _ => false,
    }
}

/// Looks at barriers, and at all-reduces and all-gathers that move data.
///
/// # Errors
/// The first rank that left too early, and the rank it did not wait for.
pub fn check(outcome: &Outcome) -> Result<(), String> {
    // By call: how many ranks came, and the last of them.
    let mut came: BTreeMap<u64, (usize, usize, Duration)> = BTreeMap::new();
    for record in &outcome.records {
        let (ranks, rank, last) = came.entry(record.sequence).or_default();
        *ranks += 1;
        if record.start >= *last {
            (*rank, *last) = (record.rank, record.start);
        }
    }
    for record in &outcome.records {
        let waits = synchronises(&record.call, outcome.ends.len());
        let Some(end) = record
            .end
            .filter(|_| waits && record.result == Some(Ok(())))
        else {
            continue;
        };
        let (ranks, last_rank, last) = came[&record.sequence];
        if ranks < outcome.ends.len() || last > end {
            return Err(format!(
                "rank {} left {} #{} at {end:?}; {ranks} ranks ever came, the last was rank \
                 {last_rank} at {last:?}",
                record.rank,
                record.call.kind.name(),
                record.sequence
            ));
        }
    }
    Ok(())
}
