//! The same exchange over every slice of the buffer, one after another and overlapped.
//!
//! Slice i holds piece i of every block. In each step of the clock one slice more begins its
//! rounds, and those under way go on by one, the oldest first:
//!
//! ```text
//! step 0   slice 0, round 0
//! step 1   slice 0, round 1     slice 1, round 0
//! step 2   slice 0, round 2     slice 1, round 1     slice 2, round 0
//! ```
//!
//! *Why.* In the model slices gain nothing; its closed form even counts a latency for each, as if
//! the ports were idle meanwhile. On real networks a rank that is ahead of another one sends to a
//! port to which a third rank still sends its message of the round before. The longer the messages,
//! the more bytes meet there, and what the port's queue does not hold is lost. And between its two
//! rounds a connection is idle for so long that TCP begins slowly again. With short messages a rank
//! that is ahead soon waits for its peers, and every connection is used often.

use crate::ir::{ChunkRange, Round, Step};
use crate::limits::{SLICE_BLOCK_BYTES_MIN, SLICE_BYTES_MIN};
use crate::price::Question;

/// How many times what a rank can have on its way without waiting, L/G, a slice is at least. A
/// slice's shortest messages are small parts of it, and have to keep the ports busy, too.
const LATENCIES: f64 = 4.0;

/// Into how many slices a buffer is divided: as many as there are of the least length.
pub(super) fn count(question: &Question) -> usize {
    let on_the_way = question.link.alpha_s / question.link.beta_s_per_byte;
    let least = SLICE_BYTES_MIN
        .max(question.world_size * SLICE_BLOCK_BYTES_MIN)
        .max((LATENCIES * on_the_way) as usize);
    (question.bytes / least).max(1)
}

/// The rounds over all slices. `rounds` are those of one, whose chunks are the blocks.
pub(super) fn over_slices(rounds: &[Round], slices: usize) -> Vec<Round> {
    let mut all = Vec::with_capacity(rounds.len() * slices);
    for clock in 0..rounds.len() + slices - 1 {
        let begun = (clock + 1).min(slices);
        let first = (clock + 1).saturating_sub(rounds.len());
        all.extend((first..begun).map(|slice| of_slice(&rounds[clock - slice], slice, slices)));
    }
    all
}

/// One slice's part of a round.
fn of_slice(round: &Round, slice: usize, slices: usize) -> Round {
    let pieces = |ranges: &mut Vec<ChunkRange>| {
        let blocks = ranges.iter().flat_map(|range| range.first..range.end());
        *ranges = blocks
            .map(|block| ChunkRange::new(block * slices + slice, 1))
            .collect();
    };
    let mut round = round.clone();
    for step in &mut round {
        // Exchanges have no local steps.
        if let Step::Send { ranges, .. } | Step::Receive { ranges, .. } = step {
            pieces(ranges);
        }
    }
    round
}
