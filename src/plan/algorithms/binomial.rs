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
use crate::plan::cost::Cost;
use crate::plan::ir::{Request, Round, Step};
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
    is_symmetric: |_| false,
    has_one_sender: false,
    chunks: |_, _, pieces| pieces,
    scratch: |_| 0,
    build,
    cost,
    pieces: |_| 1,
};

fn build(request: &Request) -> Vec<Round> {
    match request.collective {
        Collective::Broadcast => broadcast(request),
        Collective::Reduce => reduce(request),
        _ => {
            let from_zero = Request {
                root: 0,
                ..*request
            };
            let mut rounds = reduce(&from_zero);
            rounds.extend(broadcast(&from_zero));
            rounds
        }
    }
}

fn broadcast(request: &Request) -> Vec<Round> {
    let tree = Tree::new(request);
    let strides = (0..ceil_log2(request.world_size)).rev();
    let round = |level| match tree.role(1_usize << level) {
        Role::Lower(peer) => vec![Step::send(peer, whole(request.pieces))],
        Role::Upper(peer) => vec![Step::store(peer, whole(request.pieces))],
        Role::Idle => Vec::new(),
    };
    strides.map(round).collect()
}

fn reduce(request: &Request) -> Vec<Round> {
    let tree = Tree::new(request);
    let levels = ceil_log2(request.world_size);
    let round = |level| match tree.role(1_usize << level) {
        Role::Lower(peer) => {
            let completes = level + 1 == levels;
            vec![Step::reduce(peer, whole(request.pieces), completes)]
        }
        Role::Upper(peer) => vec![Step::send(peer, whole(request.pieces))],
        Role::Idle => Vec::new(),
    };
    (0..levels).map(round).collect()
}

/// What a rank is in the round in which the virtual ranks `stride` apart meet.
enum Role {
    /// The end of the edge that is nearer to the root, with the other end's rank.
    Lower(usize),
    /// The end of the edge that is farther from the root, with the other end's rank.
    Upper(usize),
    /// It meets nobody.
    Idle,
}

struct Tree {
    world_size: usize,
    root: usize,
    own: usize,
}

impl Tree {
    fn new(request: &Request) -> Self {
        Self {
            world_size: request.world_size,
            root: request.root,
            own: virtual_rank(request.rank, request.root, request.world_size),
        }
    }

    /// Only multiples of the stride meet: even multiples the odd multiple above them.
    fn role(&self, stride: usize) -> Role {
        let real = |own| real_rank(own, self.root, self.world_size);
        if !self.own.is_multiple_of(stride) {
            Role::Idle
        } else if self.own & stride != 0 {
            Role::Upper(real(self.own - stride))
        } else if self.own + stride < self.world_size {
            Role::Lower(real(self.own + stride))
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
