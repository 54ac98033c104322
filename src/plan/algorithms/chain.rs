//! Chain: the ranks stand in a line, and every rank hands on a piece while it receives the next.
//!
//! ```text
//! broadcast of 3 pieces from 0 to 4 ranks
//! round 0   0→1 piece 0
//! round 1   0→1 piece 1   1→2 piece 0
//! round 2   0→1 piece 2   1→2 piece 1   2→3 piece 0
//! round 3                 1→2 piece 2   2→3 piece 1
//! round 4                               2→3 piece 2
//! ```
//!
//! A reduce is the same towards the root, folded on the way; an all-reduce a reduce to 0 and a
//! broadcast from 0, in which the first pieces come back while the last ones are still on their way
//! there. With d = n−1: broadcast (d+b−1)(α + mβ/b), reduce (d+b−1)(α + m(β + γ)/b), all-reduce
//! 2d+b−1 rounds, in b−1 of which (n, b ≥ 3) a rank sends both ways. The best b is √((n−2)·mβ/α).
//!
//! A rank receives from one rank all the time, and the rounds grow with n: for few ranks and large
//! buffers.
//!
//! Source: Pješivac-Grbović, Angskun, Bosilca, Fagg, Gabriel, Dongarra, "Performance Analysis of MPI
//! Collective Operations" (Cluster Computing 2007), §3, pipeline.

use super::Entry;
use super::blocks::{FREE, block, real_rank, virtual_rank};
use crate::limits::PIECES_MAX;
use crate::plan::ir::{Request, Round, Step};
use crate::plan::price::{Cost, Question};
use crate::plan::spec::Collective;

/// The registry's line.
pub(super) const ENTRY: Entry = Entry {
    name: "chain",
    collectives: &[
        Collective::Broadcast,
        Collective::Reduce,
        Collective::AllReduce,
    ],
    source: "Pješivac-Grbović et al. (Cluster Computing 2007), §3",
    has_one_sender: true,
    build,
    cost,
    pieces,
    is_pipelined: |_| true,
    // The pipeline of circulant has fewer rounds for every number of pieces.
    is_offered: |_| false,
    ..Entry::PLAIN
};

/// What a rank of the line does in the rounds, one after the other.
struct Line<'a> {
    request: &'a Request,
    /// How far from the root the rank stands.
    place: usize,
    rounds: Vec<Round>,
}

impl Line<'_> {
    fn rank(&self, place: usize) -> usize {
        real_rank(place, self.request.root, self.request.world_size)
    }

    /// Receives the pieces from the far end and hands them on; piece 0 leaves the far end in round
    /// `begin`.
    fn reduce(&mut self, begin: usize) {
        let far = self.request.world_size - 1;
        for piece in 0..self.request.pieces {
            let round = begin + far - self.place + piece;
            if self.place > 0 {
                let send = Step::send(self.rank(self.place - 1), block(piece, 1));
                self.rounds[round].insert(0, send);
            }
            if self.place < far {
                let (peer, completes) = (self.rank(self.place + 1), self.place == 0);
                self.rounds[round - 1].push(Step::reduce(peer, block(piece, 1), completes));
            }
        }
    }

    /// Receives the pieces from the root and hands them on; piece 0 leaves the root in round
    /// `begin`.
    fn broadcast(&mut self, begin: usize) {
        let far = self.request.world_size - 1;
        for piece in 0..self.request.pieces {
            let round = begin + self.place + piece;
            if self.place < far {
                let send = Step::send(self.rank(self.place + 1), block(piece, 1));
                self.rounds[round].insert(0, send);
            }
            if self.place > 0 {
                let peer = self.rank(self.place - 1);
                self.rounds[round - 1].push(Step::store(peer, block(piece, 1)));
            }
        }
    }
}

fn build(request: &Request) -> Vec<Round> {
    let n = request.world_size;
    if n == 1 {
        return Vec::new();
    }
    let mut line = Line {
        request,
        place: virtual_rank(request.rank, request.root, n),
        rounds: vec![Vec::new(); rounds(request)],
    };
    match request.collective {
        Collective::Broadcast => line.broadcast(0),
        Collective::Reduce => line.reduce(0),
        _ => {
            line.reduce(0);
            line.broadcast(n - 1);
        }
    }
    line.rounds
}

fn rounds(request: &Request) -> usize {
    let ways = match request.collective {
        Collective::Broadcast | Collective::Reduce => 1,
        _ => 2,
    };
    ways * (request.world_size - 1) + request.pieces - 1
}

fn cost(request: &Request) -> Cost {
    let (n, pieces) = (request.world_size, request.pieces);
    if n == 1 {
        return FREE;
    }
    let rounds = rounds(request);
    let one_way = n - 2 + pieces;
    let (messages, folding, sent) = match request.collective {
        Collective::Broadcast => (rounds, 0, 1.0),
        Collective::Reduce => (rounds, one_way, 1.0),
        _ if n == 2 => (rounds, one_way, 1.0),
        _ if pieces < 3 => (rounds, one_way, 2.0),
        _ => (rounds + pieces - 1, one_way, 2.0),
    };
    Cost {
        rounds,
        messages_on_path: messages as f64,
        volume_on_path: messages as f64 / pieces as f64,
        folded_on_path: folding as f64 / pieces as f64,
        max_sent_per_rank: sent,
    }
}

/// Where the derivative of the cost by b is zero.
fn pieces(question: &Question) -> usize {
    if question.world_size < 3 {
        return 1;
    }
    let link = question.link;
    let seconds_per_byte = match question.collective {
        Collective::Broadcast => link.beta_s_per_byte,
        _ => link.beta_s_per_byte + link.gamma_s_per_byte,
    };
    let whole_s = question.bytes as f64 * seconds_per_byte;
    let best = ((question.world_size - 2) as f64 * whole_s / link.alpha_s).sqrt();
    (best.round() as usize).clamp(1, PIECES_MAX)
}
