//! Determines how soon a call can follow another call that uses the same plan.
//!
//! Concurrent calls on a communicator use each link in the order in which they were issued: a call
//! sends its first message to a peer only after the previous call has sent its last message to that
//! peer. A plan that uses a link both early and late therefore blocks the next call for nearly its
//! entire duration. The ring algorithm does this, and so does circulant on 2^k ranks, where a
//! rank's first and last messages go to the opposite rank. If a plan uses each link only once, the
//! next call can start immediately and is limited only by the ports.
//!
//! *May import* what `cost` imports.

use crate::algorithms::plan_of;
use crate::error::PlanError;
use crate::ir::{ChunkRange, Plan, Request, Source, Step};
use crate::limits::REUSE_COUNTED_RANKS_MAX;
use std::collections::BTreeMap;

/// Returns the longest time between the first and the last message on a link to another host, as a
/// fraction of the duration of `request`'s plans. It is 0 if no link carries two messages, and 1
/// for a ring.
///
/// Examines the plans of the first two ranks and of the last rank, which differ the most. Returns 1
/// without examining any plan if there are more than [`REUSE_COUNTED_RANKS_MAX`] ranks.
///
/// # Errors
/// Returns an error if there is no plan for `request`.
pub(crate) fn reused_part(request: &Request) -> Result<f64, PlanError> {
    let ranks = request.world_size;
    if ranks > REUSE_COUNTED_RANKS_MAX {
        return Ok(1.0);
    }
    let mut most: f64 = 0.0;
    for rank in [0, 1.min(ranks - 1), ranks - 1] {
        most = most.max(of_plan(&plan_of(request, rank)?));
    }
    Ok(most)
}

/// Returns the fraction described at [`reused_part`] for one plan. Time is measured in *hops*: the
/// number of messages that precede the content of a chunk, each waiting for the previous one. The
/// peers of this rank are assumed to be at the same hop.
fn of_plan(plan: &Plan) -> f64 {
    let topology = plan.request.topology();
    let host = topology.host_of(plan.request.rank);
    let mut hops = vec![0_usize; plan.chunks + plan.scratch];
    let mut uses: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    let mut end = 0;
    for steps in &plan.rounds {
        let mut sent = None;
        for step in steps {
            match step {
                Step::Send { peers, ranges } => {
                    let at = most(&hops, ranges);
                    sent = sent.max(Some(at));
                    for peer in peers.iter().filter(|peer| topology.host_of(**peer) != host) {
                        uses.entry(*peer).or_insert((at, at)).1 = at;
                    }
                }
                Step::Receive {
                    sources, ranges, ..
                } => {
                    let mut at = sent.unwrap_or(end) + 1;
                    if sources.contains(&Source::Own) {
                        at = at.max(most(&hops, ranges));
                    }
                    end = end.max(at);
                    set(&mut hops, ranges, at);
                }
                Step::Copy { from, to } => {
                    let at = most(&hops, &[*from]);
                    set(&mut hops, &[*to], at);
                }
                Step::Reduce { from, to, .. } => {
                    let at = most(&hops, from);
                    set(&mut hops, &[*to], at);
                }
            }
        }
    }
    let reused = uses.values().filter(|(first, last)| last > first);
    let longest = reused.map(|(first, last)| last + 1 - first).max();
    longest.unwrap_or(0) as f64 / end.max(1) as f64
}

fn most(hops: &[usize], ranges: &[ChunkRange]) -> usize {
    let all = ranges
        .iter()
        .flat_map(|range| &hops[range.first..range.end()]);
    all.copied().max().unwrap_or(0)
}

fn set(hops: &mut [usize], ranges: &[ChunkRange], at: usize) {
    for range in ranges {
        hops[range.first..range.end()].fill(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Algorithm, Collective};
    use crate::topology::Hosts;

    #[test]
    fn plans_that_return_to_a_rank_reuse_its_link() {
        let part = |algorithm, world_size| {
            let request = Request {
                collective: Collective::AllReduce,
                algorithm,
                world_size,
                rank: 0,
                root: 0,
                pieces: 1,
                hosts: Hosts::APART,
            };
            reused_part(&request).unwrap()
        };
        assert_eq!(part(Algorithm::Ring, 8), 1.0);
        assert_eq!(part(Algorithm::RecursiveDoubling, 8), 0.0);
        assert_eq!(part(Algorithm::TwoShot, 8), 1.0);
        // Skips of 4, 2 and 1 ranks, forward and then back. Over 8 ranks, +4 equals -4. Over 7, it
        // does not.
        assert_eq!(part(Algorithm::Circulant, 8), 1.0);
        assert_eq!(part(Algorithm::Circulant, 7), 0.0);
        assert_eq!(part(Algorithm::Ring, REUSE_COUNTED_RANKS_MAX + 1), 1.0);
    }
}
