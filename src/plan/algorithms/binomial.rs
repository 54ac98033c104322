//! Binomial trees: divide and conquer, the number of ranks that are done doubles every round.
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
//! k(α + mβ), reduce k(α + mβ + mγ), all-reduce their sum.
//!
//! Source: Johnsson and Ho, "Optimum Broadcasting and Personalized Communication in Hypercubes"
//! (IEEE ToC 1989), §3; Thakur, Rabenseifner, Gropp (IJHPCA 2005), §4.

use super::Entry;
use super::blocks::{FREE, ceil_log2, real_rank, virtual_rank, whole};
use crate::plan::ir::{Request, Round, Step};
use crate::plan::price::Cost;
use crate::plan::spec::{Algorithm, Collective};

/// The registry's line.
pub(super) const ENTRY: Entry = Entry {
    algorithm: Algorithm::Binomial,
    collectives: &[
        Collective::Broadcast,
        Collective::Reduce,
        Collective::AllReduce,
    ],
    source: "Johnsson and Ho (IEEE ToC 1989), §3; Thakur, Rabenseifner, Gropp (IJHPCA 2005), §4",
    chunks: |_, _, pieces| pieces,
    build,
    cost,
    ..Entry::PLAIN
};

fn build(request: &Request) -> Vec<Round> {
    let (n, rank) = (request.world_size, request.rank);
    let tree = |root: usize| Tree {
        members: n,
        own: virtual_rank(rank, root, n),
        rank_of: move |member| real_rank(member, root, n),
    };
    match request.collective {
        Collective::Broadcast => tree(request.root).broadcast(request.pieces),
        Collective::Reduce => tree(request.root).reduce(request.pieces),
        _ => {
            let mut rounds = tree(0).reduce(request.pieces);
            rounds.extend(tree(0).broadcast(request.pieces));
            rounds
        }
    }
}

/// The part of a rank in the round in which the virtual ranks `stride` apart meet.
enum Role {
    /// The end of the edge that is nearer to the root, with the other end's rank.
    Lower(usize),
    /// The end of the edge that is farther from the root, with the other end's rank.
    Upper(usize),
    /// It exchanges nothing.
    Idle,
}

/// A binomial tree seen by one of its members; member 0 is the root.
pub(super) struct Tree<F> {
    /// How many members there are.
    pub(super) members: usize,
    /// Whose rounds are wanted.
    pub(super) own: usize,
    /// Which rank a member is.
    pub(super) rank_of: F,
}

impl<F: Fn(usize) -> usize> Tree<F> {
    /// The rounds of a broadcast of so many chunks.
    pub(super) fn broadcast(&self, chunks: usize) -> Vec<Round> {
        let strides = (0..ceil_log2(self.members)).rev();
        let round = |level| match self.role(1_usize << level) {
            Role::Lower(peer) => vec![Step::send(peer, whole(chunks))],
            Role::Upper(peer) => vec![Step::store(peer, whole(chunks))],
            Role::Idle => Vec::new(),
        };
        strides.map(round).collect()
    }

    /// The rounds of a reduce of so many chunks.
    pub(super) fn reduce(&self, chunks: usize) -> Vec<Round> {
        let levels = ceil_log2(self.members);
        let round = |level| match self.role(1_usize << level) {
            Role::Lower(peer) => {
                let completes = level + 1 == levels;
                vec![Step::reduce(peer, whole(chunks), completes)]
            }
            Role::Upper(peer) => vec![Step::send(peer, whole(chunks))],
            Role::Idle => Vec::new(),
        };
        (0..levels).map(round).collect()
    }

    /// Only multiples of the stride meet: even multiples the odd multiple above them.
    fn role(&self, stride: usize) -> Role {
        if !self.own.is_multiple_of(stride) {
            Role::Idle
        } else if self.own & stride != 0 {
            Role::Upper((self.rank_of)(self.own - stride))
        } else if self.own + stride < self.members {
            Role::Lower((self.rank_of)(self.own + stride))
        } else {
            Role::Idle
        }
    }
}

fn cost(request: &Request) -> Cost {
    let rounds = ceil_log2(request.world_size);
    if rounds == 0 {
        return FREE;
    }
    let k = rounds as f64;
    let one_way = |folded, sent| Cost {
        rounds,
        messages_on_path: k,
        volume_on_path: k,
        folded_on_path: folded,
        max_sent_per_rank: sent,
    };
    match request.collective {
        Collective::Broadcast => one_way(0.0, k),
        Collective::Reduce => one_way(k, 1.0),
        _ => Cost {
            rounds: 2 * rounds,
            messages_on_path: 2.0 * k,
            volume_on_path: 2.0 * k,
            folded_on_path: k,
            max_sent_per_rank: k,
        },
    }
}
