//! Double binary tree: each half of the pieces goes down a tree of its own, and a rank that hands
//! pieces on in the one tree is a leaf of the other, so all ports are busy in both directions.
//!
//! ```text
//! 6 ranks from 0   first tree    0→4   4→2 4→5   2→1 2→3
//!                  second tree   0→5   5→3 5→1   3→2 3→4
//! ```
//!
//! The ranks but the root, 1 to p, stand in the order of a binary search tree; in the second tree
//! that order is turned round (p even) or shifted by one (p odd). In a round every edge of a level
//! passes one piece, so a rank sends two messages and receives two. The source colours the edges,
//! so that each of the two has a round of its own, which saves one message at most. A reduce is a
//! broadcast backwards, an all-reduce a reduce to 0 and a broadcast from 0. With b pieces a tree,
//! R = ⌊log₂ p⌋ + b rounds: broadcast 2R(α + mβ/2b), reduce 2R(α + m(β + γ)/2b); a message less
//! among three ranks, and with one piece if p is a power of two.
//!
//! Source: Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and
//! scan" (Parallel Computing 2009), §2 and §3.

use super::Entry;
use super::blocks::{FREE, block, real_rank, to_and_from_the_root, virtual_rank};
use crate::ir::{Request, Round, Source, Step};
use crate::limits::PIECES_MAX;
use crate::price::{Cost, Question};
use crate::spec::Collective;

/// The registry's line.
pub(super) const ENTRY: Entry = Entry {
    name: "double-tree",
    meaning: "Each half of the pieces follows its own binary tree. A rank that passes pieces on \
              in one tree is a leaf of the other.",
    collectives: &[
        Collective::Broadcast,
        Collective::Reduce,
        Collective::AllReduce,
    ],
    source: "Sanders, Speck, Träff (Parallel Computing 2009), §2 and §3",
    chunks: |request| 2 * request.pieces,
    build,
    cost,
    pieces,
    is_pipelined: |_| true,
    // Circulant's rounds are as many, and half as long.
    is_offered: |_| false,
    ..Entry::PLAIN
};

/// One of the two trees. Node 0 is the root of the collective and has one child; the nodes 1 to
/// `others` stand in places 1 to `others`, a node as many levels above the lowest as the number of
/// its place is divisible by two.
struct Tree {
    others: usize,
    is_second: bool,
}

impl Tree {
    /// Both trees of so many ranks.
    fn both(world_size: usize) -> [Self; 2] {
        [false, true].map(|is_second| Self {
            others: world_size - 1,
            is_second,
        })
    }

    fn place(&self, node: usize) -> usize {
        match self.is_second {
            false => node,
            true if self.others.is_multiple_of(2) => self.others + 1 - node,
            true => (node + self.others - 2) % self.others + 1,
        }
    }

    fn node(&self, place: usize) -> usize {
        match self.is_second {
            false => place,
            true if self.others.is_multiple_of(2) => self.others + 1 - place,
            true => place % self.others + 1,
        }
    }

    /// The place below the root of the collective.
    fn top(&self) -> usize {
        1 << self.others.ilog2()
    }

    fn parent(&self, node: usize) -> usize {
        let place = self.place(node);
        if place == self.top() {
            return 0;
        }
        let half = 1 << place.trailing_zeros();
        let is_right = place & (2 * half) != 0 || place + half > self.others;
        self.node(if is_right { place - half } else { place + half })
    }

    fn children(&self, node: usize) -> Vec<usize> {
        if node == 0 {
            return vec![self.node(self.top())];
        }
        let place = self.place(node);
        let halves = || (0..place.trailing_zeros()).rev().map(|level| 1 << level);
        let left = halves().take(1).map(|half: usize| place - half);
        let right = halves().map(|half: usize| place + half);
        let right = right.filter(|place| *place <= self.others).take(1);
        left.chain(right).map(|place| self.node(place)).collect()
    }

    /// How many edges lie between a node and the root of the collective.
    fn depth(&self, node: usize) -> usize {
        let above = |node: &usize| (*node != 0).then(|| self.parent(*node));
        std::iter::successors(Some(node), above).count() - 1
    }

    /// The round of the broadcast in which a piece reaches the children of a node of this depth.
    /// Between two ranks both trees are one edge, and take turns.
    fn round(&self, depth: usize, piece: usize) -> usize {
        match self.others {
            1 => 2 * piece + usize::from(self.is_second),
            _ => depth + piece,
        }
    }
}

/// The rounds of a broadcast.
fn rounds(request: &Request) -> usize {
    match request.world_size {
        2 => 2 * request.pieces,
        n => (n - 1).ilog2() as usize + request.pieces,
    }
}

fn build(request: &Request) -> Vec<Round> {
    to_and_from_the_root(request, reduce, broadcast)
}

/// Away from the root.
fn broadcast(request: &Request) -> Vec<Round> {
    let (n, root, pieces) = (request.world_size, request.root, request.pieces);
    let own = virtual_rank(request.rank, root, n);
    let mut sends = vec![Vec::new(); rounds(request)];
    let mut stores = sends.clone();
    for (half, tree) in Tree::both(n).iter().enumerate() {
        let depth = tree.depth(own);
        let children = tree.children(own);
        for piece in 0..pieces {
            let chunk = || block(half * pieces + piece, 1);
            let of = |child: &usize| Step::send(real_rank(*child, root, n), chunk());
            if !children.is_empty() {
                sends[tree.round(depth, piece)].extend(children.iter().map(of));
            }
            if own > 0 {
                let parent = real_rank(tree.parent(own), root, n);
                stores[tree.round(depth - 1, piece)].push(Step::store(parent, chunk()));
            }
        }
    }
    joined(sends, stores)
}

/// The broadcast backwards.
fn reduce(request: &Request) -> Vec<Round> {
    let (n, root, pieces) = (request.world_size, request.root, request.pieces);
    let own = virtual_rank(request.rank, root, n);
    let mut sends = vec![Vec::new(); rounds(request)];
    let mut folds = sends.clone();
    let last = sends.len() - 1;
    for (half, tree) in Tree::both(n).iter().enumerate() {
        let depth = tree.depth(own);
        let children = tree.children(own);
        for piece in 0..pieces {
            let chunk = || block(half * pieces + piece, 1);
            let peers = children.iter();
            let peers = peers.map(|child| Source::Peer(real_rank(*child, root, n)));
            if !children.is_empty() {
                folds[last - tree.round(depth, piece)].push(Step::Receive {
                    sources: [Source::Own].into_iter().chain(peers).collect(),
                    ranges: chunk(),
                    // The root has one child in each tree.
                    completes: own == 0,
                });
            }
            if own > 0 {
                let parent = real_rank(tree.parent(own), root, n);
                sends[last - tree.round(depth - 1, piece)].push(Step::send(parent, chunk()));
            }
        }
    }
    joined(sends, folds)
}

/// Of every round the sends, then the receives.
fn joined(mut sends: Vec<Round>, receives: Vec<Round>) -> Vec<Round> {
    for (round, receives) in sends.iter_mut().zip(receives) {
        round.extend(receives);
    }
    sends
}

fn cost(request: &Request) -> Cost {
    let (n, pieces) = (request.world_size, request.pieces);
    if n == 1 {
        return FREE;
    }
    let rounds = rounds(request);
    let hops = (n - 1).ilog2() + 1;
    let is_one_less = n == 3 || (pieces == 1 && (n - 1).is_power_of_two());
    let messages = match n {
        2 => rounds,
        _ => 2 * rounds - usize::from(is_one_less),
    };
    let passed = messages as f64 / (2 * pieces) as f64;
    let one_way = |folded| Cost {
        rounds,
        hops: hops as f64,
        messages_on_path: messages as f64,
        volume_on_path: passed,
        folded_on_path: folded,
        max_sent_per_rank: 1.0,
    };
    match request.collective {
        Collective::Broadcast => one_way(0.0),
        Collective::Reduce => one_way(passed),
        _ => Cost {
            rounds: 2 * rounds,
            hops: 2.0 * hops as f64,
            messages_on_path: 2.0 * messages as f64,
            volume_on_path: 2.0 * passed,
            folded_on_path: passed,
            // Upwards in both trees, and downwards to as many children as a rank has.
            max_sent_per_rank: match n {
                2 => 1.0,
                3 => 1.5,
                _ => 2.0,
            },
        },
    }
}

/// Where the derivative of the cost by b is zero.
fn pieces(question: &Question) -> usize {
    let n = question.world_size;
    if n < 3 {
        return 1;
    }
    let link = question.link;
    let seconds_per_byte = match question.collective {
        Collective::Broadcast => link.beta_s_per_byte,
        _ => link.beta_s_per_byte + link.gamma_s_per_byte,
    };
    let half_s = question.bytes as f64 * seconds_per_byte / 2.0;
    let best = (f64::from((n - 1).ilog2()) * half_s / link.overhead_s).sqrt();
    (best.round() as usize).clamp(1, PIECES_MAX)
}
