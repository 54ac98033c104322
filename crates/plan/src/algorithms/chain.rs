//! Chain: the ranks form a line, and each rank passes on a piece while it receives the next one.
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
//! A reduce works in the same way, but toward the root, and each rank reduces the pieces that pass
//! through it. An all-reduce is a reduce to rank 0 followed by a broadcast from rank 0. A broadcast
//! costs (n+b−2)(α + mβ/b), and a reduce costs (n+b−2)(α + m(β + γ)/b). The best b is √((n−2)·mβ/α)
//! for a broadcast. For a reduce, β is replaced by β + γ.
//!
//! Each rank always receives from the same rank, and the number of rounds grows with n, so the
//! chain is suitable for small numbers of ranks and large buffers.
//!
//! Source: Pješivac-Grbović, Angskun, Bosilca, Fagg, Gabriel, Dongarra, "Performance Analysis of
//! MPI Collective Operations" (Cluster Computing 2007), §3, pipeline.

use super::Entry;
use super::blocks::{FREE, block, pipeline_pieces, real_rank, to_and_from_the_root, virtual_rank};
use crate::ir::{Request, Round, Step};
use crate::price::Cost;
use crate::spec::Collective;

/// The entry in the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "chain",
    meaning: "The ranks form a pipeline: each rank forwards one piece while it receives the next.",
    collectives: &[
        Collective::Broadcast,
        Collective::Reduce,
        Collective::AllReduce,
    ],
    source: "Pješivac-Grbović et al. (Cluster Computing 2007), §3",
    has_one_sender: true,
    build,
    cost,
    pieces: |question| pipeline_pieces(question, question.world_size as f64 - 2.0),
    is_pipelined: |_| true,
    // At one site, the pipeline of circulant has fewer rounds for every number of pieces. Between
    // sites, a chain crosses each uplink once, and the reduce and the broadcast use the uplink in
    // opposite directions.
    is_offered: |offer| offer.topology.site_count() > 1,
    ..Entry::PLAIN
};

fn build(request: &Request) -> Vec<Round> {
    to_and_from_the_root(request, reduce, broadcast)
}

/// Returns the number of rounds in one direction.
fn rounds(request: &Request) -> usize {
    request.world_size + request.pieces - 2
}

/// Returns the neighbors of this rank, if any, toward the root and away from it, and its distance
/// from the root.
fn neighbors(request: &Request) -> (Option<usize>, Option<usize>, usize) {
    let (n, root) = (request.world_size, request.root);
    let place = virtual_rank(request.rank, root, n);
    let before = (place > 0).then(|| real_rank(place - 1, root, n));
    let after = (place + 1 < n).then(|| real_rank(place + 1, root, n));
    (before, after, place)
}

fn broadcast(request: &Request) -> Vec<Round> {
    let (before, after, place) = neighbors(request);
    let mut plan = vec![Vec::new(); rounds(request)];
    for piece in 0..request.pieces {
        let sent_in = place + piece;
        if let Some(peer) = before {
            plan[sent_in - 1].push(Step::store(peer, block(piece, 1)));
        }
        if let Some(peer) = after {
            plan[sent_in].insert(0, Step::send(peer, block(piece, 1)));
        }
    }
    plan
}

/// Returns the rounds of a reduce, which is the broadcast in reverse.
fn reduce(request: &Request) -> Vec<Round> {
    let (before, after, place) = neighbors(request);
    let mut plan = vec![Vec::new(); rounds(request)];
    for piece in 0..request.pieces {
        let sent_in = request.world_size - 1 - place + piece;
        if let Some(peer) = after {
            let completes = before.is_none();
            plan[sent_in - 1].push(Step::reduce(peer, block(piece, 1), completes));
        }
        if let Some(peer) = before {
            plan[sent_in].insert(0, Step::send(peer, block(piece, 1)));
        }
    }
    plan
}

fn cost(request: &Request) -> Cost {
    let n = request.world_size;
    if n == 1 {
        return FREE;
    }
    let rounds = rounds(request);
    let passed = rounds as f64 / request.pieces as f64;
    let one_way = |folded| Cost {
        rounds,
        hops: (n - 1) as f64,
        messages_on_path: rounds as f64,
        volume_on_path: passed,
        folded_on_path: folded,
        max_sent_per_rank: 1.0,
    };
    match request.collective {
        Collective::Broadcast => one_way(0.0),
        Collective::Reduce => one_way(passed),
        _ => Cost {
            max_sent_per_rank: if n == 2 { 1.0 } else { 2.0 },
            ..one_way(passed).then(&one_way(0.0))
        },
    }
}
