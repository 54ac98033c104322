//! Binomial trees, in which the number of finished ranks doubles in every round. With radix k, the
//! number grows by a factor of k, and a rank sends k − 1 messages per round.
//!
//! ```text
//! broadcast of 8 from 0            reduce of 8 to 0
//! round 0   0→4                    round 0   7→6  5→4  3→2  1→0
//! round 1   0→2  4→6               round 1   6→4  2→0
//! round 2   0→1  2→3  4→5  6→7     round 2   4→0
//! ```
//!
//! If the root is a rank r other than 0, all ranks are shifted: rank v in the diagram becomes rank
//! (v + r) mod n. An all-reduce is a reduce to rank 0 followed by a broadcast from rank 0. With k =
//! ⌈log₂ n⌉, for every n, a broadcast costs k(α + mβ), a reduce costs k(α + mβ + mγ), and an
//! all-reduce costs the sum of the two. With radix r, there are ⌈log_r n⌉ rounds, and each round
//! costs r − 1 times as much.
//!
//! A gather uses the same edges as a reduce, and a scatter uses the same edges as a broadcast, but
//! each message carries only the blocks of the ranks above its edge. In round r of a gather, a
//! message carries 2^r of the n blocks. Both collectives cost kα + (n−1)/n·mβ.
//!
//! Source: Johnsson and Ho, "Optimum Broadcasting and Personalized Communication in Hypercubes"
//! (IEEE ToC 1989), §3; Thakur, Rabenseifner, Gropp (IJHPCA 2005), §4.

use super::Entry;
use super::blocks::{
    FREE, all_but_one, circle, distances, messages, multiples, real_rank, virtual_rank, whole,
};
use crate::ir::{ChunkRange, Request, Round, Step};
use crate::price::Cost;
use crate::spec::{Collective, is_blocked};

/// The entry in the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "binomial",
    meaning: "The ranks form a tree that grows by the same factor in each round, usually two. \
              To reduce or gather, data moves toward the root.",
    collectives: &[
        Collective::Broadcast,
        Collective::Reduce,
        Collective::AllReduce,
        Collective::Gather,
        Collective::Scatter,
    ],
    source: "Johnsson and Ho (IEEE ToC 1989), §3; Thakur, Rabenseifner, Gropp (IJHPCA 2005), §4",
    has_radix: |_| true,
    chunks: |request| match is_blocked(request.collective) {
        true => request.world_size * request.pieces,
        false => request.pieces,
    },
    build,
    cost,
    ..Entry::PLAIN
};

fn build(request: &Request) -> Vec<Round> {
    let (n, rank) = (request.world_size, request.rank);
    let tree = |root: usize| Tree {
        members: n,
        radix: request.algorithm.radix(),
        own: virtual_rank(rank, root, n),
        rank_of: move |member| real_rank(member, root, n),
    };
    match request.collective {
        Collective::Broadcast => tree(request.root).broadcast(request.pieces),
        Collective::Reduce => tree(request.root).reduce(request.pieces),
        Collective::Gather => tree(request.root).gather(blocks_of(request)),
        Collective::Scatter => tree(request.root).scatter(blocks_of(request)),
        _ => {
            let mut rounds = tree(0).reduce(request.pieces);
            rounds.extend(tree(0).broadcast(request.pieces));
            rounds
        }
    }
}

/// Returns a function that maps a first member and a number of members to the chunks of their
/// blocks.
fn blocks_of(request: &Request) -> impl Fn(usize, usize) -> Vec<ChunkRange> {
    let (n, root, pieces) = (request.world_size, request.root, request.pieces);
    let begin = move |block| block * pieces;
    move |first, count| circle(real_rank(first, root, n), count, n, begin)
}

/// Returns the number of ranks to which `member` sends in a radix-2 broadcast among `members`
/// members.
pub(super) fn children(member: usize, members: usize) -> usize {
    let meets = |stride: &usize| member.is_multiple_of(2 * stride) && member + stride < members;
    std::iter::successors(Some(1), |stride| Some(2 * stride))
        .take_while(meets)
        .count()
}

/// The role of a member in a round in which members that are `stride` apart exchange data.
enum Role {
    /// The member is at the end nearer to the root. Contains the members at the other ends of its
    /// edges.
    Lower(Vec<usize>),
    /// The member is at the end farther from the root. Contains the member at the other end of its
    /// edge.
    Upper(usize),
    /// The member does not exchange data.
    Idle,
}

/// A binomial tree from the perspective of one of its members. Member 0 is the root.
pub(super) struct Tree<F> {
    /// Number of members.
    pub(super) members: usize,
    /// Factor by which the number of members that are done grows in each round.
    pub(super) radix: usize,
    /// The member whose rounds are built.
    pub(super) own: usize,
    /// Returns the rank of a member.
    pub(super) rank_of: F,
}

impl<F: Fn(usize) -> usize> Tree<F> {
    /// Returns the rounds of a broadcast of `chunks` chunks.
    pub(super) fn broadcast(&self, chunks: usize) -> Vec<Round> {
        let strides = distances(self.members, self.radix).into_iter().rev();
        strides
            .map(|stride| self.downwards(stride, |_| whole(chunks)))
            .collect()
    }

    /// Returns the rounds of a reduce of `chunks` chunks.
    pub(super) fn reduce(&self, chunks: usize) -> Vec<Round> {
        let round = |stride: usize| match self.role(stride) {
            Role::Lower(above) => {
                let peers = above.into_iter().map(&self.rank_of);
                let completes = stride.saturating_mul(self.radix) >= self.members;
                vec![Step::reduce_all(peers, whole(chunks), completes)]
            }
            Role::Upper(below) => vec![Step::send((self.rank_of)(below), whole(chunks))],
            Role::Idle => Vec::new(),
        };
        let strides = distances(self.members, self.radix).into_iter();
        strides.map(round).collect()
    }

    /// Returns the rounds of a gather. `blocks(v, c)` returns the chunks in the blocks of c
    /// members, beginning with member v.
    fn gather(&self, blocks: impl Fn(usize, usize) -> Vec<ChunkRange>) -> Vec<Round> {
        let round = |stride: usize| {
            let above = |first: usize| blocks(first, stride.min(self.members - first));
            match self.role(stride) {
                Role::Lower(peers) => {
                    let stores = peers.into_iter();
                    let store = |one| Step::store((self.rank_of)(one), above(one));
                    stores.map(store).collect()
                }
                Role::Upper(peer) => vec![Step::send((self.rank_of)(peer), above(self.own))],
                Role::Idle => Vec::new(),
            }
        };
        let strides = distances(self.members, self.radix).into_iter();
        strides.map(round).collect()
    }

    /// Returns the rounds of a scatter. `blocks(v, c)` returns the chunks in the blocks of c
    /// members, beginning with member v.
    pub(super) fn scatter(&self, blocks: impl Fn(usize, usize) -> Vec<ChunkRange>) -> Vec<Round> {
        let round = |stride: usize| {
            let above = |first: usize| blocks(first, stride.min(self.members - first));
            self.downwards(stride, above)
        };
        let strides = distances(self.members, self.radix).into_iter().rev();
        strides.map(round).collect()
    }

    /// Returns a round in which data travels away from the root: each member at the upper end of an
    /// edge receives its `chunks`.
    fn downwards(&self, stride: usize, chunks: impl Fn(usize) -> Vec<ChunkRange>) -> Round {
        match self.role(stride) {
            Role::Lower(above) => {
                let send = |one| Step::send((self.rank_of)(one), chunks(one));
                above.into_iter().map(send).collect()
            }
            Role::Upper(below) => vec![Step::store((self.rank_of)(below), chunks(self.own))],
            Role::Idle => Vec::new(),
        }
    }

    /// Returns the role of this member. Only members at multiples of the stride exchange data:
    /// every k-th multiple exchanges data with the multiples between itself and the next k-th
    /// multiple.
    fn role(&self, stride: usize) -> Role {
        let group = stride.saturating_mul(self.radix);
        if !self.own.is_multiple_of(stride) {
            return Role::Idle;
        }
        if !self.own.is_multiple_of(group) {
            return Role::Upper(self.own - self.own % group);
        }
        let beyond = multiples(stride, self.members - self.own, self.radix);
        let above: Vec<_> = beyond.map(|far| self.own + far).collect();
        match above.is_empty() {
            true => Role::Idle,
            false => Role::Lower(above),
        }
    }
}

fn cost(request: &Request) -> Cost {
    let (n, radix) = (request.world_size, request.algorithm.radix());
    if n == 1 {
        return FREE;
    }
    let rounds = distances(n, radix).len();
    let hops = depth(n, radix);
    let of_root = messages(n, radix) as f64;
    let one_way = |folded, sent| Cost {
        rounds,
        hops: hops as f64,
        messages_on_path: of_root,
        volume_on_path: of_root,
        folded_on_path: folded,
        max_sent_per_rank: sent,
    };
    match request.collective {
        Collective::Broadcast => one_way(0.0, of_root),
        Collective::Reduce => one_way(of_root, 1.0),
        Collective::Gather | Collective::Scatter => Cost {
            volume_on_path: all_but_one(n),
            ..one_way(0.0, most_blocks_sent(request) as f64 / n as f64)
        },
        _ => Cost {
            max_sent_per_rank: of_root,
            ..one_way(of_root, 1.0).then(&one_way(0.0, of_root))
        },
    }
}

/// Returns the largest number of edges between the root and a member. The last member to which the
/// root sends in its first round may have fewer members below it than the others.
pub(super) fn depth(n: usize, radix: usize) -> usize {
    let Some(stride) = distances(n, radix).pop() else {
        return 0;
    };
    let below = (n - 1) / stride;
    let full = depth(stride, radix);
    let last = 1 + depth(n - below * stride, radix);
    full.max(last).max(if below > 1 { 1 + full } else { 0 })
}

/// Returns the number of blocks that the busiest rank sends. In a scatter, the root sends all
/// blocks except its own. In a gather, the busiest rank is the last member that sends the blocks of
/// all members above it, or a member below that one with a full subtree.
fn most_blocks_sent(request: &Request) -> usize {
    let (n, radix) = (request.world_size, request.algorithm.radix());
    let stride = distances(n, radix).last().copied().unwrap_or(0);
    match request.collective {
        Collective::Scatter => n - 1,
        _ => stride.min(n - stride).max(stride / radix),
    }
}
