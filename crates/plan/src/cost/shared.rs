//! Predicts the time of a plan whose ranks all share memory.
//!
//! Shared memory has no ports. A rank publishes the data that it sends as a single copy for any
//! number of readers. A receiver copies the data out or reduces it in place. The cost of a round
//! for a rank consists of the following parts:
//!
//! - α per handoff from the ranks that it waits for, once for each segment of its longest message
//! - o per segment that it polls for, because the flags of several peers arrive at the same time
//! - β per byte that it publishes or stores
//! - γ per byte of each operand that it reduces, including its own
//!
//! A round takes as long as its busiest rank, and rounds run in sequence. Costs are counted from
//! the plans themselves, which are small because a host has few ranks.

use super::{ChunkBytes, MessageTimes, Schedule, few_pieces};
use crate::algorithms::{Entry, plan_of, required};
use crate::error::PlanError;
use crate::ir::{Plan, Request, Round, Source, Step};
use crate::limits::SHARED_SEGMENT_BYTES;
use crate::price::LinkCost;
use std::collections::HashMap;

/// Returns the predicted time, in seconds, for a buffer of `bytes` bytes if all ranks in the
/// request share a host.
///
/// # Errors
/// Returns an error if there is no plan for `request`.
///
/// ```
/// use ringtree::plan::internal::cost::shared::time_s;
/// use ringtree::plan::internal::tuning::TuningTable;
/// use ringtree::plan::{Algorithm, Collective, Hosts, Request};
///
/// let shm = TuningTable::default().shm;
/// let broadcast = Request {
///     collective: Collective::Broadcast,
///     algorithm: Algorithm::Flat,
///     world_size: 4,
///     rank: 0,
///     root: 0,
///     pieces: 1,
///     hosts: Hosts::each(4),
/// };
/// // One rank publishes, and three ranks store at the same time: the bytes count once.
/// let seconds = time_s(&broadcast, 1000, &shm)?;
/// let expected = shm.alpha_s + shm.overhead_s + 1000.0 * shm.beta_s_per_byte;
/// assert!((seconds - expected).abs() < 1e-12);
/// # Ok::<(), String>(())
/// ```
pub fn time_s(request: &Request, bytes: usize, link: &LinkCost) -> Result<f64, PlanError> {
    let entry = required(request.collective, request.algorithm)?;
    few_pieces(entry, request, bytes, |request, bytes| {
        counted_s(entry, request, bytes, link)
    })
}

/// Returns the smallest number of pieces with which each message of a pipelined plan fits into a
/// segment. Returns 1 if using more pieces does not shorten the plan's messages.
#[must_use]
pub fn pieces(entry: &Entry, request: &Request, bytes: usize, dtype_size: usize) -> usize {
    if !(entry.is_pipelined)(request.collective) {
        return 1;
    }
    // Every message is one chunk.
    let chunks = (entry.chunks)(&Request {
        pieces: 1,
        ..request.clone()
    });
    let element_bytes = dtype_size.max(1);
    let elements = (bytes / element_bytes).div_ceil(chunks);
    let elements_a_segment = (SHARED_SEGMENT_BYTES / element_bytes).max(1);
    elements.div_ceil(elements_a_segment).max(1)
}

/// Adds up the time of the busiest rank in each round. In a symmetric algorithm, one rank
/// represents all ranks.
fn counted_s(
    entry: &Entry,
    request: &Request,
    bytes: usize,
    link: &LinkCost,
) -> Result<f64, PlanError> {
    let ranks = if (entry.is_symmetric)(request.collective) {
        1
    } else {
        request.world_size
    };
    let mut busiest_s = Vec::new();
    for rank in 0..ranks {
        let plan = plan_of(request, rank)?;
        let lengths = ChunkBytes::of_plan(&plan, bytes);
        busiest_s.resize(plan.rounds.len(), 0.0_f64);
        for (round, busiest_s) in plan.rounds.iter().zip(&mut busiest_s) {
            *busiest_s = busiest_s.max(round_s(round, &lengths, link));
        }
    }
    Ok(busiest_s.iter().sum())
}

fn round_s(round: &Round, lengths: &ChunkBytes, link: &LinkCost) -> f64 {
    let steps = round.iter().map(|step| Work::of(step, lengths));
    steps.fold(Work::default(), Work::and).time_s(link)
}

/// The work of a rank in a round or in one step. Numbers of bytes are `f64`, because the sum over
/// all ranks can exceed a `usize` if the buffer is very long.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    hand_overs: usize,
    looks: f64,
    copied: f64,
    folded: f64,
}

impl Work {
    fn of(step: &Step, lengths: &ChunkBytes) -> Self {
        let nothing = Self::default();
        match step {
            Step::Send { ranges, .. } => {
                let bytes = lengths.of(ranges);
                Self {
                    hand_overs: segments(bytes),
                    copied: bytes as f64,
                    ..nothing
                }
            }
            Step::Receive {
                sources, ranges, ..
            } => {
                let bytes = lengths.of(ranges);
                let own = usize::from(sources.contains(&Source::Own));
                let (copied, folded) = match sources.as_slice() {
                    [_] => (bytes as f64, 0.0),
                    _ => (0.0, sources.len() as f64 * bytes as f64),
                };
                Self {
                    hand_overs: segments(bytes),
                    looks: (sources.len() - own) as f64 * segments(bytes) as f64,
                    copied,
                    folded,
                }
            }
            Step::Copy { to, .. } => Self {
                copied: lengths.of(&[*to]) as f64,
                ..nothing
            },
            Step::Reduce { from, to, .. } => Self {
                folded: from.len() as f64 * lengths.of(&[*to]) as f64,
                ..nothing
            },
        }
    }

    /// Adds the work of another step in the same round. The handoffs of both steps happen at the
    /// same time, so only the larger number counts.
    fn and(self, other: Self) -> Self {
        Self {
            hand_overs: self.hand_overs.max(other.hand_overs),
            looks: self.looks + other.looks,
            copied: self.copied + other.copied,
            folded: self.folded + other.folded,
        }
    }

    fn time_s(self, link: &LinkCost) -> f64 {
        link.alpha_s * self.hand_overs as f64
            + link.overhead_s * self.looks
            + link.beta_s_per_byte * self.copied
            + link.gamma_s_per_byte * self.folded
    }
}

/// Returns the times of each message, based on the same costs as [`time_s`]. In each round, a rank
/// publishes its messages in sequence, waits for the handoff, and takes the incoming messages in
/// sequence. All ranks end a round together, so a rank with less to do waits longer.
pub(super) fn schedule(
    plans: &[Plan],
    count: usize,
    element_bytes: usize,
    link: &LinkCost,
) -> Schedule {
    let mut schedule = Schedule::default();
    let rounds = plans.iter().map(|plan| plan.rounds.len()).max();
    for round in 0..rounds.unwrap_or(0) {
        let begin_s = schedule.end_s;
        let first = schedule.messages.len();
        let (mut taken_s, mut ends_s) = (HashMap::new(), Vec::with_capacity(plans.len()));
        for plan in plans {
            let lengths = ChunkBytes::of_elements(plan, count, element_bytes);
            let steps = plan.rounds.get(round).map_or(&[][..], Vec::as_slice);
            let rank = plan.request.rank;
            let end_s = pass(rank, steps, &lengths, link, begin_s, |message| {
                match message.from == rank {
                    true => schedule.messages.push(MessageTimes { round, ..message }),
                    false => {
                        taken_s.insert((message.from, rank), message.receives_s);
                    }
                }
            });
            schedule.end_s = schedule.end_s.max(end_s);
            ends_s.push(end_s);
        }
        for message in &mut schedule.messages[first..] {
            let times_s = taken_s.get(&(message.from, message.to)).copied();
            let times_s = times_s.expect("invariant: verified plans receive what they send");
            message.receives_s = times_s.map(|at_s| at_s + schedule.end_s - ends_s[message.to]);
        }
    }
    schedule
}

/// Passes each message that `rank` sends or receives in a round with these steps to `tell`,
/// including its times. The round begins at `now_s`. Returns the time at which the rank is done.
fn pass(
    rank: usize,
    steps: &[Step],
    lengths: &ChunkBytes,
    link: &LinkCost,
    mut now_s: f64,
    mut tell: impl FnMut(MessageTimes),
) -> f64 {
    let works = steps.iter().map(|step| Work::of(step, lengths));
    let hand_overs = works.map(|work| work.hand_overs).max().unwrap_or(0);
    let mut waits_s = link.alpha_s * hand_overs as f64;
    for step in steps {
        let work = Work {
            hand_overs: 0,
            ..Work::of(step, lengths)
        };
        if !matches!(step, Step::Send { .. }) {
            now_s += std::mem::take(&mut waits_s);
        }
        let times_s = [now_s, now_s + work.time_s(link)];
        now_s = times_s[1];
        let message = |from, to, ranges| MessageTimes {
            round: 0,
            from,
            to,
            bytes: lengths.of(ranges),
            sends_s: times_s,
            receives_s: times_s,
        };
        match step {
            Step::Send { peers, ranges } => {
                peers.iter().for_each(|to| tell(message(rank, *to, ranges)));
            }
            Step::Receive {
                sources, ranges, ..
            } => {
                for source in sources {
                    if let Source::Peer(from) = source {
                        tell(message(*from, rank, ranges));
                    }
                }
            }
            Step::Copy { .. } | Step::Reduce { .. } => {}
        }
    }
    now_s + waits_s
}

/// Returns the number of segments that a message takes. An empty message takes one, because it
/// still sets a flag.
fn segments(bytes: usize) -> usize {
    bytes.div_ceil(SHARED_SEGMENT_BYTES).max(1)
}

#[cfg(test)]
mod tests {
    use crate::Collective;
    use crate::select::choose;
    use crate::topology::together;
    use crate::tuning::TuningTable;

    #[test]
    fn largest_possible_buffer_has_a_finite_cost() {
        let (table, bytes) = (TuningTable::default(), isize::MAX as usize);
        for &collective in Collective::ALL {
            for ranks in 1..=9 {
                let topology = together(ranks);
                let choice = choose(collective, &topology, bytes, 1, &table, None).unwrap();
                assert!(choice.predicted_s.is_finite(), "{collective} of {ranks}");
            }
        }
    }
}
