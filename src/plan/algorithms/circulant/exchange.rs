//! Reduce-scatter and all-gather over the skips, in place.
//!
//! Seen from rank r, R[i] is block (r + i) mod n. Reduce-scatter keeps ever shorter beginnings of
//! R: with s' blocks left it sends R[s..s'), s = ⌈s'/2⌉, to rank r+s, for whom they are R[0..s'−s),
//! until R[0], its own block, is left. All-gather is the same backwards. Both ends of a message see
//! the same blocks of the buffer in the same order.

use super::skips;
use crate::plan::algorithms::blocks::circle;
use crate::plan::ir::{Round, Step};

/// The rounds of `rank` after which it holds its own block of the reduction.
pub(super) fn reduce_scatter(rank: usize, n: usize, pieces: usize) -> Vec<Round> {
    let round = |skip: usize, left: usize| {
        let (to, from) = ((rank + skip) % n, (rank + n - skip) % n);
        let moved = left - skip;
        vec![
            Step::send(to, circle(rank + skip, moved, n, pieces)),
            Step::reduce(from, circle(rank, moved, n, pieces), skip == 1),
        ]
    };
    let skips = skips(n);
    let pairs = skips.windows(2).rev();
    pairs.map(|pair| round(pair[0], pair[1])).collect()
}

/// The rounds of the rank in `place` on the circle after which it holds all blocks; `rank_in` tells
/// which rank is in which place. Block i begins in place i.
pub(in crate::plan::algorithms) fn all_gather(
    place: usize,
    n: usize,
    pieces: usize,
    rank_in: impl Fn(usize) -> usize,
) -> Vec<Round> {
    let round = |skip: usize, left: usize| {
        let (to, from) = ((place + n - skip) % n, (place + skip) % n);
        let moved = left - skip;
        vec![
            Step::send(rank_in(to), circle(place, moved, n, pieces)),
            Step::store(rank_in(from), circle(place + skip, moved, n, pieces)),
        ]
    };
    let skips = skips(n);
    let pairs = skips.windows(2);
    pairs.map(|pair| round(pair[0], pair[1])).collect()
}
