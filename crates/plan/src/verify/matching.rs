//! Checks that every message has a matching receive, which must be in the same round and have the
//! same number of chunks with the same lengths.
//!
//! *Why plans that pass do not deadlock, if each rank executes its steps in order and a channel
//! holds one message.* Suppose that some ranks wait forever, and consider one that waits in the
//! lowest round. If this rank waits at a send, the channel holds an earlier message. This message
//! belongs to an earlier round, because each round has at most one message per channel. The
//! receiver has not taken the message, so it waits in a lower round, which contradicts the choice
//! of the lowest round. If the rank waits at a receive, the sender has not sent the message, so the
//! sender waits in the same round. The sender must be waiting at a send, because sends come first,
//! but this case has just been ruled out.

use super::shape::peers_of;
use super::{At, Fault};
use crate::ir::{ChunkRange, Plan, Step};
use crate::spec::moves_blocks;
use std::collections::HashMap;

/// A send without a receive, or a receive without a send.
struct UnmatchedEnd {
    at: At,
    is_send: bool,
    from: usize,
    to: usize,
}

/// Checks the messages of plans whose shape has already been checked.
pub(super) fn check(plans: &[Plan]) -> Result<(), Fault> {
    let mut lonely = Vec::new();
    let mut mismatch = Ok(());
    for round in 0..plans[0].rounds.len() {
        let mut sent = sends(plans, round);
        for (rank, plan) in plans.iter().enumerate() {
            for (index, step) in plan.rounds[round].iter().enumerate() {
                let Step::Receive {
                    sources, ranges, ..
                } = step
                else {
                    continue;
                };
                let at = At::step(rank, round, index);
                for from in peers_of(sources) {
                    match sent.remove(&(from, rank)) {
                        Some((step, chunks)) => {
                            let send = At::step(from, round, step);
                            let same = same_chunks(plan, (at, ranges), (send, chunks));
                            mismatch = mismatch.and(same);
                        }
                        None => lonely.push(UnmatchedEnd {
                            at,
                            is_send: false,
                            from,
                            to: rank,
                        }),
                    }
                }
            }
        }
        let mut left: Vec<_> = sent.into_iter().collect();
        left.sort_unstable_by_key(|(ranks, _)| *ranks);
        lonely.extend(
            left.into_iter()
                .map(|((from, to), (step, _))| UnmatchedEnd {
                    at: At::step(from, round, step),
                    is_send: true,
                    from,
                    to,
                }),
        );
    }
    match lonely.first() {
        Some(first) => Err(told(first, &lonely)),
        None => mismatch,
    }
}

/// Returns the step index and the chunks of each send in a round, indexed by sender and receiver.
fn sends(plans: &[Plan], round: usize) -> HashMap<(usize, usize), (usize, &[ChunkRange])> {
    let mut sent = HashMap::new();
    for (rank, plan) in plans.iter().enumerate() {
        for (index, step) in plan.rounds[round].iter().enumerate() {
            if let Step::Send { peers, ranges } = step {
                let ends = peers.iter().map(|peer| (rank, *peer));
                sent.extend(ends.map(|ends| (ends, (index, ranges.as_slice()))));
            }
        }
    }
    sent
}

/// Returns the fault for the first unmatched end. If there is a related unmatched end of the
/// opposite kind, it makes the fault more precise. It is either the other end of the same message
/// in a different round, or an end in the same round that has the same sender or the same receiver.
/// In the first case, the fault is located at the sender's step, and in the second case, at the
/// step of the rank that both ends have in common.
fn told(first: &UnmatchedEnd, all: &[UnmatchedEnd]) -> Fault {
    let opposite = || all.iter().filter(|one| one.is_send != first.is_send);
    let is_moved = |one: &&UnmatchedEnd| (one.from, one.to) == (first.from, first.to);
    let shares = |one: &&UnmatchedEnd| {
        one.at.round == first.at.round && (one.from == first.from || one.to == first.to)
    };
    let moved = opposite().find(is_moved);
    let Some(second) = moved.or_else(|| opposite().find(shares)) else {
        return first.fault(None);
    };
    // The common rank sends to both receivers, or receives from both senders.
    let common = if first.from == second.from {
        first.from
    } else {
        first.to
    };
    match second.at.rank == common {
        true => second.fault(Some(first.at)),
        false => first.fault(Some(second.at)),
    }
}

impl UnmatchedEnd {
    fn fault(&self, other: Option<At>) -> Fault {
        let problem = match self.is_send {
            true => format!(
                "rank {} does not receive this message in this round",
                self.to
            ),
            false => format!(
                "rank {} does not send this message in this round",
                self.from
            ),
        };
        let fault = Fault::new(self.at, problem);
        match other {
            Some(other) => fault.or(other),
            None => fault,
        }
    }
}

/// Checks that a message has as many chunks as its receive, and that each chunk is stored in a
/// chunk of the same length.
fn same_chunks(
    plan: &Plan,
    (receive, expected): (At, &[ChunkRange]),
    (send, sent): (At, &[ChunkRange]),
) -> Result<(), Fault> {
    let count = |ranges: &[ChunkRange]| ranges.iter().map(|one| one.count).sum::<usize>();
    let (are_sent, are_expected) = (count(sent), count(expected));
    if are_sent != are_expected {
        let problem = format!(
            "rank {} sends {are_sent} chunks, but {are_expected} are expected",
            send.rank
        );
        return Err(Fault::new(receive, problem).or(send));
    }
    let chunks = |ranges: &[ChunkRange]| -> Vec<usize> {
        let chunks = ranges.iter().flat_map(|range| range.first..range.end());
        chunks.collect()
    };
    for (from, to) in chunks(sent).into_iter().zip(chunks(expected)) {
        if place(plan, from) != place(plan, to) {
            let problem = format!(
                "receives chunk {from} from rank {}, but the two chunks may differ in length",
                send.rank
            );
            return Err(Fault::new(receive.chunk(to), problem).or(send));
        }
    }
    Ok(())
}

/// Returns the length class of `chunk`, which may be a scratch chunk. Chunks of the same class have
/// the same length, so content may move between them.
pub(super) fn place(plan: &Plan, chunk: usize) -> usize {
    let chunks = plan.chunks;
    match moves_blocks(plan.request.collective) {
        true => chunk % (chunks / plan.request.world_size),
        false => chunk % chunks,
    }
}
