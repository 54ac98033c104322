//! The price of a plan in memory that all its ranks share.
//!
//! There are no ports. A rank publishes what it sends, one copy however many peers read it, and
//! the receiver copies it out or folds it where it lies. So a round costs a rank
//!
//! - α for the hand-over from those it waits for to itself, once for every segment of its longest
//!   message,
//! - o for each segment it looks for: the flags of several peers arrive beside one another,
//! - β for each byte it publishes or stores,
//! - γ for each byte of each operand it folds, its own among them;
//!
//! a round lasts as long as its busiest rank, and rounds follow one another. The numbers are
//! counted from the plans themselves: one host has few ranks, so its plans are small.

use super::{ChunkBytes, few_pieces};
use crate::limits::SHARED_SEGMENT_BYTES;
use crate::plan::algorithms::{Entry, plan, required};
use crate::plan::ir::{Request, Round, Source, Step};
use crate::plan::price::LinkCost;

/// Seconds for a buffer of `bytes`, where all ranks of the request share a host.
///
/// # Errors
/// A sentence, when there is no such plan.
///
/// ```
/// use ringtree::plan::cost::shared::time_s;
/// use ringtree::plan::tuning::TuningTable;
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
/// // Published once, stored by three ranks at the same time: the bytes count once.
/// let seconds = time_s(&broadcast, 1000, &shm)?;
/// let expected = shm.alpha_s + shm.overhead_s + 1000.0 * shm.beta_s_per_byte;
/// assert!((seconds - expected).abs() < 1e-12);
/// # Ok::<(), String>(())
/// ```
pub fn time_s(request: &Request, bytes: usize, link: &LinkCost) -> Result<f64, String> {
    let entry = required(request.collective, request.algorithm)?;
    few_pieces(entry, request, bytes, |request, bytes| {
        counted_s(entry, request, bytes, link)
    })
}

/// The fewest pieces with which each message of a pipelined plan fits a segment; 1 if the plan's
/// messages do not become shorter by pieces.
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

/// Round by round the busiest rank; in a symmetric algorithm one rank stands for all.
fn counted_s(
    entry: &Entry,
    request: &Request,
    bytes: usize,
    link: &LinkCost,
) -> Result<f64, String> {
    let ranks = if (entry.is_symmetric)(request.collective) {
        1
    } else {
        request.world_size
    };
    let mut busiest_s = Vec::new();
    for rank in 0..ranks {
        let plan = plan(&Request {
            rank,
            ..request.clone()
        })?;
        let lengths = ChunkBytes::of_plan(&plan, bytes);
        busiest_s.resize(plan.rounds.len(), 0.0_f64);
        for (round, busiest_s) in plan.rounds.iter().zip(&mut busiest_s) {
            *busiest_s = busiest_s.max(round_s(round, &lengths, link));
        }
    }
    Ok(busiest_s.iter().sum())
}

fn round_s(round: &Round, lengths: &ChunkBytes, link: &LinkCost) -> f64 {
    let (mut hand_overs, mut looks, mut copied, mut folded) = (0, 0, 0, 0);
    for step in round {
        match step {
            Step::Send { ranges, .. } => {
                let bytes = lengths.of(ranges);
                hand_overs = hand_overs.max(segments(bytes));
                copied += bytes;
            }
            Step::Receive {
                sources, ranges, ..
            } => {
                let bytes = lengths.of(ranges);
                let own = usize::from(sources.contains(&Source::Own));
                hand_overs = hand_overs.max(segments(bytes));
                looks += (sources.len() - own) * segments(bytes);
                match sources.as_slice() {
                    [_] => copied += bytes,
                    _ => folded += sources.len() * bytes,
                }
            }
            Step::Copy { to, .. } => copied += lengths.of(&[*to]),
            Step::Reduce { from, to, .. } => folded += from.len() * lengths.of(&[*to]),
        }
    }
    link.alpha_s * hand_overs as f64
        + link.overhead_s * looks as f64
        + link.beta_s_per_byte * copied as f64
        + link.gamma_s_per_byte * folded as f64
}

/// How many segments a message takes; one without bytes takes a flag all the same.
fn segments(bytes: usize) -> usize {
    bytes.div_ceil(SHARED_SEGMENT_BYTES).max(1)
}
