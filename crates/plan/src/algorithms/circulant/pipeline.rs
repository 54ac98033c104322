//! Implements broadcast in b pieces, and reduce as its mirror image.
//!
//! Every rank receives every piece once, so the edges along which a piece travels form a tree. If
//! the tree is used in reverse order and with the directions of its edges reversed, it gathers
//! every contribution once.

use super::schedule::Schedule;
use crate::algorithms::blocks::{block, real_rank, virtual_rank};
use crate::ir::{Request, Round, Step};

/// A message of the broadcast, from the perspective of its sender or its receiver.
struct Edge {
    peer: usize,
    piece: usize,
}

/// The messages of one rank in one round of the broadcast.
struct Turn {
    sent: Option<Edge>,
    received: Option<Edge>,
}

/// Returns the rounds of one rank in a broadcast, in which pieces travel away from the root.
pub(super) fn broadcast(request: &Request) -> Vec<Round> {
    let steps = |turn: Turn| {
        let send = turn
            .sent
            .map(|edge| Step::send(edge.peer, block(edge.piece, 1)));
        let store = turn
            .received
            .map(|edge| Step::store(edge.peer, block(edge.piece, 1)));
        send.into_iter().chain(store).collect()
    };
    turns(request).into_iter().map(steps).collect()
}

/// Returns the rounds of one rank in a reduce, in which pieces travel toward the root.
pub(super) fn reduce(request: &Request) -> Vec<Round> {
    let is_root = request.rank == request.root;
    let mut has_left_root = vec![false; request.pieces];
    let steps = |turn: Turn| {
        let send = turn
            .received
            .map(|edge| Step::send(edge.peer, block(edge.piece, 1)));
        let fold = turn.sent.map(|edge| {
            // For each piece, the root's first send in the broadcast is its last receive in the
            // reduce.
            let completes = is_root && !std::mem::replace(&mut has_left_root[edge.piece], true);
            Step::reduce(edge.peer, block(edge.piece, 1), completes)
        });
        send.into_iter().chain(fold).collect()
    };
    let mut rounds: Vec<Round> = turns(request).into_iter().map(steps).collect();
    rounds.reverse();
    rounds
}

fn turns(request: &Request) -> Vec<Turn> {
    let n = request.world_size;
    let schedule = Schedule::new(n, request.pieces);
    let own = virtual_rank(request.rank, request.root, n);
    let real = |place: usize| real_rank(place, request.root, n);
    let received = schedule.received(own);
    let sent_at: Vec<_> = (0..schedule.levels())
        .map(|level| schedule.received((own + schedule.skip(level)) % n))
        .collect();
    let turn = |round: usize| {
        let level = schedule.level(round);
        let skip = schedule.skip(level);
        let edge = |place: usize, piece: Option<usize>| {
            piece.map(|piece| Edge {
                peer: real(place % n),
                piece,
            })
        };
        Turn {
            sent: edge(own + skip, sent_at[level][round]),
            received: edge(own + n - skip, received[round]),
        }
    };
    (0..schedule.rounds()).map(turn).collect()
}
