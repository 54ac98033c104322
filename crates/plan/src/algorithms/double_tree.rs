//! Double binary tree: each half of the pieces follows its own tree. A rank that passes pieces on
//! in one tree is a leaf in the other, so all ports are busy in both directions.
//!
//! ```text
//! 6 ranks from 0   first tree    0→4   4→2 4→5   2→1 2→3
//!                  second tree   0→5   5→3 5→1   3→2 3→4
//! ```
//!
//! The ranks other than the root, 1 to p, are arranged in the order of a binary search tree. In the
//! second tree, that order is reversed (if p is even) or shifted by one (if p is odd). In each
//! round, every edge of a level carries one piece, so a rank sends two messages and receives two
//! messages. The cited paper colors the edges so that each of the two messages has its own round,
//! which saves at most one message. A reduce is a broadcast in reverse, and an all-reduce is a
//! reduce to rank 0 followed by a broadcast from rank 0. With b pieces per tree, there are R =
//! ⌊log₂ p⌋ + b rounds. A broadcast costs 2R(α + mβ/2b), and a reduce costs 2R(α + m(β + γ)/2b).
//! With three ranks, or with one piece if p is a power of two, there is one message fewer.
//!
//! Source: Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and
//! scan" (Parallel Computing 2009), §2 and §3.

use super::Entry;
use super::blocks::{FREE, block, pipeline_pieces, real_rank, to_and_from_the_root, virtual_rank};
use crate::ir::{Request, Round, Step};
use crate::price::Cost;
use crate::spec::Collective;

/// The entry in the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "double-tree",
    meaning: "Each half of the pieces travels along its own binary tree. A rank that forwards \
              pieces in one tree is a leaf in the other.",
    collectives: &[
        Collective::Broadcast,
        Collective::Reduce,
        Collective::AllReduce,
    ],
    source: "Sanders, Speck, Träff (Parallel Computing 2009), §2 and §3",
    chunks: |request| 2 * request.pieces,
    build,
    cost,
    pieces: |question| {
        let levels = (question.world_size - 1).max(1).ilog2();
        pipeline_pieces(question, f64::from(levels) / 2.0)
    },
    is_pipelined: |_| true,
    // Circulant has the same number of rounds, and they are half as long.
    is_offered: |_| false,
    ..Entry::PLAIN
};

/// One of the two trees. Node 0 is the root of the collective and has one child. The nodes 1 to
/// `others` occupy the places 1 to `others` of a binary search tree. If a place is divisible by 2^k
/// but not by 2^(k+1), its node is k levels above the lowest level.
struct Tree {
    others: usize,
    is_second: bool,
}

impl Tree {
    /// Returns both trees for `world_size` ranks.
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

    /// Returns the place of the root's child.
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

    /// Returns the number of edges between a node and the root of the collective.
    fn depth(&self, node: usize) -> usize {
        let above = |node: &usize| (*node != 0).then(|| self.parent(*node));
        std::iter::successors(Some(node), above).count() - 1
    }

    /// Returns the round of the broadcast in which a piece reaches the children of a node at this
    /// depth. With two ranks, both trees consist of the same edge and use it alternately.
    fn round(&self, depth: usize, piece: usize) -> usize {
        match self.others {
            1 => 2 * piece + usize::from(self.is_second),
            _ => depth + piece,
        }
    }
}

/// Returns the number of rounds in a broadcast.
fn rounds(request: &Request) -> usize {
    match request.world_size {
        2 => 2 * request.pieces,
        n => (n - 1).ilog2() as usize + request.pieces,
    }
}

fn build(request: &Request) -> Vec<Round> {
    to_and_from_the_root(request, reduce, broadcast)
}

fn broadcast(request: &Request) -> Vec<Round> {
    away_from_the_root(request, false)
}

fn reduce(request: &Request) -> Vec<Round> {
    let mut rounds = away_from_the_root(request, true);
    rounds.reverse();
    rounds
}

/// Returns the rounds of a broadcast. If `reverses` is `true`, each message travels in the opposite
/// direction, and its receiver reduces it.
fn away_from_the_root(request: &Request, reverses: bool) -> Vec<Round> {
    let (n, root, pieces) = (request.world_size, request.root, request.pieces);
    let own = virtual_rank(request.rank, root, n);
    let real = |node| real_rank(node, root, n);
    let mut sends = vec![Vec::new(); rounds(request)];
    let mut receives = sends.clone();
    for (half, tree) in Tree::both(n).iter().enumerate() {
        let depth = tree.depth(own);
        let children: Vec<usize> = tree.children(own).into_iter().map(real).collect();
        for piece in 0..pieces {
            let chunk = || block(half * pieces + piece, 1);
            let round = tree.round(depth, piece);
            match reverses {
                _ if children.is_empty() => {}
                false => sends[round].extend(children.iter().map(|one| Step::send(*one, chunk()))),
                // The root has one child in each tree.
                true => receives[round].push(Step::reduce_all(
                    children.iter().copied(),
                    chunk(),
                    own == 0,
                )),
            }
            if own > 0 {
                let parent = real(tree.parent(own));
                let round = tree.round(depth - 1, piece);
                match reverses {
                    false => receives[round].push(Step::store(parent, chunk())),
                    true => sends[round].push(Step::send(parent, chunk())),
                }
            }
        }
    }
    let both = sends.into_iter().zip(receives);
    both.map(|(sends, receives)| [sends, receives].concat())
        .collect()
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
            // In the reduce, a rank sends to its parent in both trees. In the broadcast, it sends
            // to each of its children.
            max_sent_per_rank: match n {
                2 => 1.0,
                3 => 1.5,
                _ => 2.0,
            },
            ..one_way(passed).then(&one_way(0.0))
        },
    }
}
