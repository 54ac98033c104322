//! Bruck: after round r, every rank has the blocks of 2^(r+1) ranks, namely its own block and those
//! of the ranks after it.
//!
//! ```text
//! 5 ranks   round 0   r → r−1, 1 block      round 1   r → r−2, 2 blocks
//!           round 2   r → r−4, 1 block      4 = n−1 blocks in 3 rounds
//! ```
//!
//! Blocks are addressed in place, and a run of blocks that extends past the end of the buffer
//! becomes two ranges in the same message. An all-gather therefore needs neither scratch nor a
//! rotation at the end. It costs ⌈log₂ n⌉α + (n−1)/n·mβ for every n. With radix k, there are ⌈log_k
//! n⌉ rounds of k−1 messages.
//!
//! In an all-to-all, a block for the rank at distance i travels this distance digit by digit, one
//! digit of i per round. Every rank that receives the block keeps it in scratch. At the end, all
//! received blocks are copied to their final positions. The number of rounds is the same as for an
//! all-gather, but about half of the blocks travel in each round, which amounts to about
//! (n/2)·⌈log₂ n⌉ blocks in total.
//!
//! Source: Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient Algorithms for All-to-All
//! Communications in Multiport Message-Passing Systems" (IEEE TPDS 1997), §4, the concatenation,
//! and §3, the index operation.

use super::Entry;
use super::blocks::{all_but_one, circle, distances, hops, messages, multiples};
use crate::ir::{ChunkRange, Request, Round, Step};
use crate::price::Cost;
use crate::spec::Collective;
use crate::topology::{Sharing, sharing};

/// The entry in the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "bruck",
    meaning: "Each message carries many blocks. The distance between sender and receiver grows \
              from round to round, for example from 1 to 2 to 4.",
    collectives: &[Collective::AllGather, Collective::AllToAll],
    source: "Bruck, Ho, Kipnis, Upfal, Weathersby (IEEE TPDS 1997), §3 and §4",
    is_symmetric: |_| true,
    has_radix: |_| true,
    chunks: |request| request.world_size * request.pieces,
    scratch: |request| match request.collective {
        Collective::AllToAll if request.world_size > 1 => request.world_size * request.pieces,
        _ => 0,
    },
    build,
    cost,
    // With radix 2, circulant gathers the same bytes in as many rounds. In shared memory, ranks can
    // read the blocks directly from each other.
    is_offered: |offer| {
        let is_shared = sharing(&offer.topology) == Sharing::All;
        offer.collective == Collective::AllToAll && !is_shared
    },
    ..Entry::PLAIN
};

fn build(request: &Request) -> Vec<Round> {
    match request.collective {
        Collective::AllToAll => all_to_all(request),
        _ => all_gather(request),
    }
}

fn all_gather(request: &Request) -> Vec<Round> {
    let (rank, n) = (request.rank, request.world_size);
    let radix = request.algorithm.radix();
    let blocks = |first, count| circle(first, count, n, |block| block * request.pieces);
    let round = |distance: usize| {
        let skips = || multiples(distance, n, radix).map(|skip| (skip, distance.min(n - skip)));
        let send = |(skip, count)| Step::send((rank + n - skip) % n, blocks(rank, count));
        let store = |(skip, count)| Step::store((rank + skip) % n, blocks(rank + skip, count));
        skips().map(send).chain(skips().map(store)).collect()
    };
    distances(n, radix).into_iter().map(round).collect()
}

/// Returns the rounds of an all-to-all. The index i of a block is the distance that it travels. A
/// block is in the buffer until it is first sent, in the round of its lowest nonzero digit, and
/// after that at position i of scratch. Both ends of a message list the blocks in scratch first, so
/// that a receive overwrites only blocks that have already been sent.
fn all_to_all(request: &Request) -> Vec<Round> {
    let (rank, n, pieces) = (request.rank, request.world_size, request.pieces);
    let radix = request.algorithm.radix();
    if n == 1 {
        return Vec::new();
    }
    let buffer = |block: usize| ChunkRange::new(block % n * pieces, pieces);
    let scratch = |index: usize| ChunkRange::new((n + index) * pieces, pieces);
    let round = |distance: usize| {
        let (mut sends, mut stores) = (Vec::new(), Vec::new());
        for skip in multiples(distance, n, radix) {
            let moved = (1..n).filter(|index| index / distance % radix == skip / distance);
            let (first, again): (Vec<_>, Vec<_>) =
                moved.partition(|index| index.is_multiple_of(distance));
            let of_scratch = again.iter().map(|index| scratch(*index));
            let of_buffer = first.iter().map(|index| buffer(rank + index));
            let into = again.iter().chain(&first).map(|index| scratch(*index));
            let sent = of_scratch.chain(of_buffer).collect();
            sends.push(Step::send((rank + skip) % n, sent));
            stores.push(Step::store((rank + n - skip) % n, into.collect()));
        }
        sends.append(&mut stores);
        sends
    };
    let mut rounds: Vec<Round> = distances(n, radix).into_iter().map(round).collect();
    let copy = |index: usize| Step::Copy {
        from: scratch(index),
        to: buffer(rank + n - index),
    };
    rounds.push((1..n).map(copy).collect());
    rounds
}

fn cost(request: &Request) -> Cost {
    let n = request.world_size;
    let radix = request.algorithm.radix();
    let passed = match request.collective {
        Collective::AllToAll => blocks_moved(n, radix) as f64 / n as f64,
        _ => all_but_one(n),
    };
    Cost {
        rounds: distances(n, radix).len(),
        hops: hops(n, radix),
        messages_on_path: messages(n, radix) as f64,
        volume_on_path: passed,
        folded_on_path: 0.0,
        max_sent_per_rank: passed,
    }
}

/// Returns the number of blocks that a rank sends in an all-to-all: for each digit, the number of
/// distances below n in which that digit is not 0.
fn blocks_moved(n: usize, radix: usize) -> usize {
    let of_digit = |distance: usize| {
        let period = distance.saturating_mul(radix);
        n - (n / period * distance + (n % period).min(distance))
    };
    distances(n, radix).into_iter().map(of_digit).sum()
}
