//! Helpers for the algorithms: logarithms, runs of blocks on a circle, and virtual ranks.

use crate::ir::{ChunkRange, Request, Round};
use crate::limits::PIECES_MAX;
use crate::price::{Cost, Question};
use crate::spec::Collective;

/// The cost of a plan without messages.
pub(super) const FREE: Cost = Cost {
    rounds: 0,
    hops: 0.0,
    messages_on_path: 0.0,
    volume_on_path: 0.0,
    folded_on_path: 0.0,
    max_sent_per_rank: 0.0,
};

/// Returns ⌈log₂ n⌉ for n ≥ 1.
pub(super) fn ceil_log2(n: usize) -> usize {
    n.next_power_of_two().trailing_zeros() as usize
}

/// Returns the ⌈log_k n⌉ distances 1, k, k², … below n.
pub(super) fn distances(n: usize, radix: usize) -> Vec<usize> {
    let next = |distance: &usize| distance.checked_mul(radix);
    std::iter::successors(Some(1), next)
        .take_while(|distance| *distance < n)
        .collect()
}

/// Returns those of the first k − 1 multiples of `distance` that are less than n. With radix k, a
/// round covers these distances.
pub(super) fn multiples(distance: usize, n: usize, radix: usize) -> impl Iterator<Item = usize> {
    (1..radix)
        .map(move |factor| factor * distance)
        .take_while(move |multiple| *multiple < n)
}

/// Returns the number of messages that a rank sends in all rounds of [`distances`] and
/// [`multiples`].
pub(super) fn messages(n: usize, radix: usize) -> usize {
    let of_round = |distance: usize| (radix - 1).min((n - 1) / distance);
    distances(n, radix).into_iter().map(of_round).sum()
}

/// Returns the length of the longest chain of messages that wait for one another in the rounds of
/// [`distances`]. A rank sends all blocks that it has, except in the last round, when it sends only
/// those that the receiver lacks. If n is less than twice the last distance d, the receiver lacks n
/// − d blocks, which the sender may have had long before.
pub(super) fn hops(n: usize, radix: usize) -> f64 {
    let distances = distances(n, radix);
    let (rounds, last) = (distances.len(), distances.last().copied().unwrap_or(0));
    let hops = match n < 2 * last {
        true => (rounds - 1).max(1 + self::distances(n - last, radix).len()),
        false => rounds,
    };
    hops as f64
}

/// Returns (n − 1)/n, the fraction of a buffer that remains without one of its n blocks.
pub(super) fn all_but_one(n: usize) -> f64 {
    (n - 1) as f64 / n as f64
}

/// Returns all chunks of the buffer.
pub(super) fn whole(chunks: usize) -> Vec<ChunkRange> {
    vec![ChunkRange::new(0, chunks)]
}

/// Returns the chunks of block `index` if each block has `pieces` chunks.
pub(super) fn block(index: usize, pieces: usize) -> Vec<ChunkRange> {
    vec![ChunkRange::new(index * pieces, pieces)]
}

/// Returns the chunks of `count` blocks on a circle of `n` blocks, beginning with block `first`:
/// one range, or two if the run passes the end. `count` is 1 to `n`, and `begin` returns the first
/// chunk of a block.
///
/// ```text
/// n = 6, first = 4, count = 3:   [0] 1 2 3 [4 5]   →   4..6, 0..1
/// ```
pub(super) fn circle(
    first: usize,
    count: usize,
    n: usize,
    begin: impl Fn(usize) -> usize,
) -> Vec<ChunkRange> {
    let first = first % n;
    let before_the_end = count.min(n - first);
    let range = |first, count| ChunkRange::new(begin(first), begin(first + count) - begin(first));
    let mut ranges = vec![range(first, before_the_end)];
    if count > before_the_end {
        ranges.push(range(0, count - before_the_end));
    }
    ranges
}

/// Returns the number of pieces b at which the derivative of the cost of a pipeline is zero, if the
/// pipeline has `rounds` + b rounds.
pub(super) fn pipeline_pieces(question: &Question, rounds: f64) -> usize {
    let link = question.link;
    let seconds_per_byte = match question.collective {
        Collective::Broadcast => link.beta_s_per_byte,
        _ => link.beta_s_per_byte + link.gamma_s_per_byte,
    };
    let whole_s = question.bytes as f64 * seconds_per_byte;
    let best = (rounds * whole_s / link.overhead_s).sqrt();
    (best.round() as usize).clamp(1, PIECES_MAX)
}

/// Returns the virtual rank of `rank`, which is counted from the root.
pub(super) fn virtual_rank(rank: usize, root: usize, n: usize) -> usize {
    (rank + n - root) % n
}

/// Returns the rank whose virtual rank is `virtual_rank`.
pub(super) fn real_rank(virtual_rank: usize, root: usize, n: usize) -> usize {
    (virtual_rank + root) % n
}

/// Returns the rounds of a broadcast, a reduce, or an all-reduce, which is a reduce followed by a
/// broadcast. `reduce` and `broadcast` are called only if there is more than one rank.
pub(super) fn to_and_from_the_root(
    request: &Request,
    reduce: fn(&Request) -> Vec<Round>,
    broadcast: fn(&Request) -> Vec<Round>,
) -> Vec<Round> {
    match request.collective {
        _ if request.world_size == 1 => Vec::new(),
        Collective::Broadcast => broadcast(request),
        Collective::Reduce => reduce(request),
        _ => [reduce(request), broadcast(request)].concat(),
    }
}
