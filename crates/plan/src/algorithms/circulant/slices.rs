//! Runs an exchange over every slice of the buffer. The slices overlap in time.
//!
//! Slice i holds piece i of every block. In each clock step, one more slice begins its rounds, and
//! the slices in progress advance by one round, oldest first:
//!
//! ```text
//! step 0   slice 0, round 0
//! step 1   slice 0, round 1     slice 1, round 0
//! step 2   slice 0, round 2     slice 1, round 1     slice 2, round 0
//! ```
//!
//! *Why.* In the model, slices bring no benefit. The model's closed form even counts a latency for
//! each slice, as if the ports were idle in the meantime. On real networks, however, a rank that
//! has run ahead sends to a port to which a third rank is still sending its message from the
//! previous round. The longer the messages, the more bytes meet at the port, and bytes that do not
//! fit into the port's queue are lost. In addition, the pause between two rounds that use the same
//! connection is so long that TCP starts slowly again. With short messages, a rank that has run
//! ahead soon has to wait for its peers, and every connection is used often.

use crate::ir::{ChunkRange, Round, Step};
use crate::limits::{SLICE_BLOCK_BYTES_MIN, SLICE_BYTES_MIN};
use crate::price::Question;

/// Minimum length of a slice, as a multiple of L/G, which is the number of bytes that a rank can
/// have in flight without waiting. Even the shortest messages, which contain only a small part of a
/// slice, must keep the ports busy.
const LATENCIES: f64 = 4.0;

/// Returns the number of slices, which is as large as the minimum length allows.
pub(super) fn count(question: &Question) -> usize {
    let on_the_way = question.link.alpha_s / question.link.beta_s_per_byte;
    let least = SLICE_BYTES_MIN
        .max(question.world_size * SLICE_BLOCK_BYTES_MIN)
        .max((LATENCIES * on_the_way) as usize);
    (question.bytes / least).max(1)
}

/// Returns the rounds for all slices. `rounds` are the rounds of an exchange in which each block is
/// one chunk.
pub(super) fn over_slices(rounds: &[Round], slices: usize) -> Vec<Round> {
    let mut all = Vec::with_capacity(rounds.len() * slices);
    for clock in 0..rounds.len() + slices - 1 {
        let begun = (clock + 1).min(slices);
        let first = (clock + 1).saturating_sub(rounds.len());
        all.extend((first..begun).map(|slice| of_slice(&rounds[clock - slice], slice, slices)));
    }
    all
}

/// Returns one slice's part of a round.
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
