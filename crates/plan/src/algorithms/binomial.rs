//! Binomial trees: divide and conquer, the number of ranks that are done doubles every round; with
//! radix k it grows to k times as many, and a rank sends k − 1 messages a round.
//!
//! ```text
//! broadcast of 8 from 0            reduce of 8 to 0
//! round 0   0→4                    round 0   7→6  5→4  3→2  1→0
//! round 1   0→2  4→6               round 1   6→4  2→0
//! round 2   0→1  2→3  4→5  6→7     round 2   4→0
//! ```
//!
//! With another root r everything is shifted: rank v above is rank (v + r) mod n. All-reduce is the
//! reduce to 0 followed by the broadcast from 0. With k = ⌈log₂ n⌉, for every n: broadcast
//! k(α + mβ), reduce k(α + mβ + mγ), all-reduce their sum; with radix r there are ⌈log_r n⌉ rounds
//! of r − 1 times that each.
//!
//! A gather goes the way of the reduce, and a scatter that of the broadcast, with the blocks of the
//! ranks above the edge alone, that is in round r of a gather 2^r of n: kα + (n−1)/n·mβ each.
//!
//! Source: Johnsson and Ho, "Optimum Broadcasting and Personalized Communication in Hypercubes"
//! (IEEE ToC 1989), §3; Thakur, Rabenseifner, Gropp (IJHPCA 2005), §4.

use super::Entry;
use super::blocks::{
    FREE, all_but_one, circle, distances, messages, multiples, real_rank, virtual_rank, whole,
};
use crate::ir::{ChunkRange, Request, Round, Source, Step};
use crate::price::Cost;
use crate::spec::Collective;

/// The registry's line.
pub(super) const ENTRY: Entry = Entry {
    name: "binomial",
    meaning: "The ranks form a tree that grows by the same factor in each round, usually two. \
              Reductions and gathers follow it toward the root.",
    collectives: &[
        Collective::Broadcast,
        Collective::Reduce,
        Collective::AllReduce,
        Collective::Gather,
        Collective::Scatter,
    ],
    source: "Johnsson and Ho (IEEE ToC 1989), §3; Thakur, Rabenseifner, Gropp (IJHPCA 2005), §4",
    has_radix: |_| true,
    chunks: |request| match request.collective.is_blocked() {
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

/// The blocks of `count` members of the tree from one on, as chunks.
fn blocks_of(request: &Request) -> impl Fn(usize, usize) -> Vec<ChunkRange> {
    let Request {
        world_size,
        root,
        pieces,
        ..
    } = *request;
    move |first, count| {
        circle(
            real_rank(first, root, world_size),
            count,
            world_size,
            pieces,
        )
    }
}

/// How many ranks member `member` of so many sends to in a broadcast, with radix 2.
pub(super) fn children(member: usize, members: usize) -> usize {
    let meets = |stride: &usize| member.is_multiple_of(2 * stride) && member + stride < members;
    std::iter::successors(Some(1), |stride| Some(2 * stride))
        .take_while(meets)
        .count()
}

/// The part of a member in the round in which those `stride` apart meet.
enum Role {
    /// The end of the edges that is nearer to the root, with the members at the other ends.
    Lower(Vec<usize>),
    /// The end of an edge that is farther from the root, with the other end's member.
    Upper(usize),
    /// It exchanges nothing.
    Idle,
}

/// A binomial tree seen by one of its members; member 0 is the root.
pub(super) struct Tree<F> {
    /// How many members there are.
    pub(super) members: usize,
    /// How many members a round makes of one that is done.
    pub(super) radix: usize,
    /// Whose rounds are wanted.
    pub(super) own: usize,
    /// Which rank a member is.
    pub(super) rank_of: F,
}

impl<F: Fn(usize) -> usize> Tree<F> {
    /// The rounds of a broadcast of so many chunks.
    pub(super) fn broadcast(&self, chunks: usize) -> Vec<Round> {
        let strides = distances(self.members, self.radix).into_iter().rev();
        strides
            .map(|stride| self.downwards(stride, |_| whole(chunks)))
            .collect()
    }

    /// The rounds of a reduce of so many chunks.
    pub(super) fn reduce(&self, chunks: usize) -> Vec<Round> {
        let round = |stride: usize| match self.role(stride) {
            Role::Lower(above) => {
                let peers = above
                    .into_iter()
                    .map(|one| Source::Peer((self.rank_of)(one)));
                vec![Step::Receive {
                    sources: [Source::Own].into_iter().chain(peers).collect(),
                    ranges: whole(chunks),
                    completes: stride.saturating_mul(self.radix) >= self.members,
                }]
            }
            Role::Upper(below) => vec![Step::send((self.rank_of)(below), whole(chunks))],
            Role::Idle => Vec::new(),
        };
        let strides = distances(self.members, self.radix).into_iter();
        strides.map(round).collect()
    }

    /// The rounds of a gather; `blocks(v, c)` are those of the c members from v on.
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

    /// The rounds of a scatter; `blocks(v, c)` are those of the c members from v on.
    pub(super) fn scatter(&self, blocks: impl Fn(usize, usize) -> Vec<ChunkRange>) -> Vec<Round> {
        let round = |stride: usize| {
            let above = |first: usize| blocks(first, stride.min(self.members - first));
            self.downwards(stride, above)
        };
        let strides = distances(self.members, self.radix).into_iter().rev();
        strides.map(round).collect()
    }

    /// A round away from the root, in which each member above an edge gets these chunks.
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

    /// Only multiples of the stride meet: every k-th with those before the next.
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
            rounds: 2 * rounds,
            hops: 2.0 * hops as f64,
            messages_on_path: 2.0 * of_root,
            volume_on_path: 2.0 * of_root,
            folded_on_path: of_root,
            max_sent_per_rank: of_root,
        },
    }
}

/// How many edges lie between the root and a member at most. The members that the root sends to
/// last in its first round may have fewer below them than the others.
pub(super) fn depth(n: usize, radix: usize) -> usize {
    let Some(stride) = distances(n, radix).pop() else {
        return 0;
    };
    let below = (n - 1) / stride;
    let full = depth(stride, radix);
    let last = 1 + depth(n - below * stride, radix);
    full.max(last).max(if below > 1 { 1 + full } else { 0 })
}

/// How many blocks the rank sends that sends most: the root of a scatter all but its own; of a
/// gather, the last member that sends those of all above it, or one with a full subtree below that.
fn most_blocks_sent(request: &Request) -> usize {
    let (n, radix) = (request.world_size, request.algorithm.radix());
    let stride = distances(n, radix).last().copied().unwrap_or(0);
    match request.collective {
        Collective::Scatter => n - 1,
        _ => stride.min(n - stride).max(stride / radix),
    }
}
