//! Checks each rank's plan without executing it.

use super::{At, Fault};
use crate::ir::{ChunkRange, Plan, Request, Round, Source, Step};
use crate::spec::is_blocked;
use std::collections::HashMap;

type Checked = Result<(), Fault>;

/// Checks that the plans belong together and that each is well formed.
pub(super) fn check(plans: &[Plan]) -> Checked {
    let Some(first) = plans.first() else {
        return Err(Fault::new(At::rank(0), "there are no plans to verify"));
    };
    for (rank, plan) in plans.iter().enumerate() {
        belongs(plan, first, rank, plans.len())?;
        let mut written = vec![None; plan.chunks + plan.scratch];
        for (round, steps) in plan.rounds.iter().enumerate() {
            if steps.iter().any(Step::is_message) {
                check_messages(plan, rank, round, &mut written)?;
                check_order(plan, rank, round, &written)?;
            } else {
                check_local(plan, rank, round)?;
            }
        }
    }
    Ok(())
}

fn belongs(plan: &Plan, first: &Plan, rank: usize, ranks: usize) -> Checked {
    let expected = Request {
        rank,
        ..first.request.clone()
    };
    let blocks = if is_blocked(expected.collective) {
        ranks
    } else {
        1
    };
    let problem = if plan.request != expected {
        "the request differs from rank 0's in more than the rank number"
    } else if expected.world_size != ranks || expected.root >= ranks {
        "expected one plan per rank and a root that is one of the ranks"
    } else if plan.chunks == 0 || plan.chunks != first.chunks {
        "the number of chunks is 0 or differs from rank 0's"
    } else if !plan.chunks.is_multiple_of(blocks) {
        "the number of chunks must be a multiple of the number of ranks, because there is one \
         block per rank"
    } else if plan.scratch > plan.chunks.saturating_mul(ranks) {
        "the scratch space exceeds the size of the buffer times the number of ranks"
    } else if plan.rounds.len() != first.rounds.len() {
        "the number of rounds differs from rank 0's"
    } else {
        return Ok(());
    };
    Err(Fault::new(At::rank(rank), problem))
}

/// The last receive of a chunk.
#[derive(Clone, Copy)]
struct Written {
    round: usize,
    step: usize,
    /// Number of chunks that precede this chunk in the receive's stream.
    place: usize,
}

/// Checks a round of messages. Updates `written`, which holds the last receive of each chunk.
fn check_messages(
    plan: &Plan,
    rank: usize,
    round: usize,
    written: &mut [Option<Written>],
) -> Checked {
    let ranks = plan.request.world_size;
    let mut first_receive = None;
    let mut sent_to = HashMap::new();
    let first_message = plan.rounds[round].iter().position(Step::is_message);
    for (index, step) in plan.rounds[round].iter().enumerate() {
        let at = At::step(rank, round, index);
        let fault = |problem: &str| Err(Fault::new(at, problem));
        match step {
            Step::Send { peers, ranges } => {
                if let Some(receive) = first_receive {
                    let problem = "a send follows a receive in the same round";
                    return Err(Fault::new(at, problem).or(At::step(rank, round, receive)));
                }
                check_peers(peers, at, ranks)?;
                check_ranges(ranges, at, plan)?;
                for peer in peers {
                    if let Some(first) = sent_to.insert(*peer, index) {
                        let problem =
                            format!("this is the second message to rank {peer} in this round");
                        return Err(Fault::new(at, problem).or(At::step(rank, round, first)));
                    }
                }
            }
            Step::Receive {
                sources, ranges, ..
            } => {
                first_receive.get_or_insert(index);
                if sources.iter().filter(|&&one| one == Source::Own).count() > 1 {
                    return fault("`Own` is listed twice");
                }
                check_peers(&peers_of(sources), at, ranks)?;
                check_ranges(ranges, at, plan)?;
                let stream = ranges.iter().flat_map(|range| range.first..range.end());
                for (place, chunk) in stream.enumerate() {
                    let new = Written {
                        round,
                        step: index,
                        place,
                    };
                    let old = written[chunk].replace(new);
                    if let Some(old) = old.filter(|old| old.round == round) {
                        let problem = "the chunk is received twice in one round";
                        let first = At::step(rank, round, old.step);
                        return Err(Fault::new(at.chunk(chunk), problem).or(first));
                    }
                }
            }
            _ => {
                let problem = "a round with messages contains a local step";
                let first = first_message.map(|first| At::step(rank, round, first));
                return Err(Fault::new(at, problem).or(first.unwrap_or(at)));
            }
        }
    }
    Ok(())
}

/// Checks that no receive of the round can reach a chunk before the chunk has been sent, for any
/// chunk lengths and link capacities. Everything that precedes a chunk in a send must also precede
/// it in the receive that overwrites the chunk.
fn check_order(plan: &Plan, rank: usize, round: usize, written: &[Option<Written>]) -> Checked {
    for (index, step) in plan.rounds[round].iter().enumerate() {
        let Step::Send { ranges, .. } = step else {
            continue;
        };
        let mut before = Before::Nothing;
        for chunk in ranges.iter().flat_map(|range| range.first..range.end()) {
            let receive = written[chunk].filter(|receive| receive.round == round);
            let is_fine = match (receive, before) {
                (None, _) | (Some(_), Before::Nothing) => true,
                (Some(receive), Before::In { step, place }) => {
                    step == receive.step && place < receive.place
                }
                (Some(_), Before::Elsewhere) => false,
            };
            if !is_fine {
                let at = At::step(rank, round, index).chunk(chunk);
                let problem = "all chunks that precede this chunk in the send must also precede it \
                               in the receive that overwrites it; otherwise, links with little \
                               buffer space would block";
                let fault = Fault::new(at, problem);
                return Err(match receive {
                    Some(receive) => fault.or(At::step(rank, round, receive.step)),
                    None => fault,
                });
            }
            before = match (receive, before) {
                (Some(Written { step, place, .. }), Before::Nothing | Before::In { .. }) => {
                    Before::In { step, place }
                }
                _ => Before::Elsewhere,
            };
        }
    }
    Ok(())
}

/// The place where the same round overwrites the chunks of a send that have been seen so far.
#[derive(Clone, Copy)]
enum Before {
    /// No chunks of the send have been seen.
    Nothing,
    /// One step receives all of these chunks in the send's order, the last one at position `place`.
    In { step: usize, place: usize },
    /// Anything else.
    Elsewhere,
}

/// Returns the peers among the sources.
pub(super) fn peers_of(sources: &[Source]) -> Vec<usize> {
    let peer = |source: &Source| match *source {
        Source::Peer(peer) => Some(peer),
        Source::Own => None,
    };
    sources.iter().filter_map(peer).collect()
}

fn check_peers(peers: &[usize], at: At, ranks: usize) -> Checked {
    if peers.is_empty() {
        return Err(Fault::new(at, "no peers are listed"));
    }
    let mut sorted = peers.to_vec();
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Fault::new(at, "a peer is listed twice"));
    }
    match peers.iter().find(|&&peer| peer >= ranks || peer == at.rank) {
        Some(peer) => Err(Fault::new(
            at,
            format!("peer {peer} is this rank itself or does not exist"),
        )),
        None => Ok(()),
    }
}

fn check_ranges(ranges: &[ChunkRange], at: At, plan: &Plan) -> Checked {
    if ranges.is_empty() {
        return Err(Fault::new(at, "no chunks are listed"));
    }
    let chunks = plan.chunks + plan.scratch;
    for range in ranges {
        let end = range.first.checked_add(range.count);
        if range.count == 0 || end.is_none_or(|end| end > chunks) {
            let problem = format!(
                "the {} chunks from here on are out of range: expected chunks in 0..{chunks}",
                range.count
            );
            return Err(Fault::new(at.chunk(range.first), problem));
        }
        if range.first < plan.chunks && range.end() > plan.chunks {
            let problem = "the range begins in the buffer but ends in the scratch space";
            return Err(Fault::new(at.chunk(range.first), problem));
        }
    }
    Ok(())
}

/// Checks each local step in a round, and checks that no step uses a chunk that another step
/// writes.
fn check_local(plan: &Plan, rank: usize, round: usize) -> Checked {
    let steps: &Round = &plan.rounds[round];
    let touched: Vec<(&[ChunkRange], ChunkRange)> = steps.iter().filter_map(touched).collect();
    for (index, &(from, to)) in touched.iter().enumerate() {
        let at = At::step(rank, round, index);
        check_ranges(&[to], at, plan)?;
        check_ranges(from, at, plan)?;
        check_operands(&steps[index], from, to, at)?;
        let conflicts = |&(other_from, other_to): &(&[ChunkRange], ChunkRange)| {
            overlap(to, other_to)
                || other_from.iter().any(|&other| overlap(to, other))
                || from.iter().any(|&one| overlap(one, other_to))
        };
        if let Some(other) = touched[..index].iter().position(conflicts) {
            let problem =
                "a chunk written by one local step is used by another local step in the same round";
            let other = At::step(rank, round, other);
            return Err(Fault::new(at.chunk(to.first), problem).or(other));
        }
    }
    Ok(())
}

fn check_operands(step: &Step, from: &[ChunkRange], to: ChunkRange, at: At) -> Checked {
    let is_reduce = matches!(step, Step::Reduce { .. });
    if is_reduce && from.len() < 2 {
        return Err(Fault::new(at, "the reduction has fewer than two operands"));
    }
    if from.iter().any(|one| one.count != to.count) {
        return Err(Fault::new(at, "the ranges have different lengths"));
    }
    let is_own = |one: ChunkRange| is_reduce && one == to;
    if from.iter().any(|&one| overlap(one, to) && !is_own(one)) {
        return Err(Fault::new(at.chunk(to.first), "the ranges overlap"));
    }
    if from.iter().filter(|&&one| is_own(one)).count() > 1 {
        return Err(Fault::new(at, "the target is listed twice as an operand"));
    }
    Ok(())
}

/// Returns the ranges that a local step reads, and the range that it writes.
fn touched(step: &Step) -> Option<(&[ChunkRange], ChunkRange)> {
    match step {
        Step::Copy { from, to } => Some((std::slice::from_ref(from), *to)),
        Step::Reduce { from, to, .. } => Some((from, *to)),
        _ => None,
    }
}

fn overlap(one: ChunkRange, other: ChunkRange) -> bool {
    one.first < other.end() && other.first < one.end()
}
