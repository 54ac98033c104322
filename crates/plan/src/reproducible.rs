//! Which algorithms give an element the same bits in every call.
//!
//! *The rule.* Every sum is one fold of all ranks' contributions in rank order, rounded once. So an
//! element depends on its operands alone: not on the algorithm, the collective, the root, the
//! transport, the length of the buffer or the element's place in it. No list says which algorithms
//! keep the rule: the verifier runs their plans ([`Proof::is_in_rank_order`]).
//!
//! *Why this order.* It is the one order in which every collective that sums can be carried out at
//! full bandwidth: the rank that owns a block can fold all contributions to it. Of two ranks there
//! is no other.
//!
//! [`Proof::is_in_rank_order`]: super::verify::Proof::is_in_rank_order

use super::algorithms::{REGISTRY, plans};
use super::ir::Request;
use super::spec::{Algorithm, Collective};
use super::topology::Hosts;
use super::verify::verify;
use crate::limits::{IN_RANK_ORDER_PROVEN_RANKS, PROGRAMS_CACHED_MAX};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// With which pieces plans are proven: without any, and with a first, a middle and a last one.
const PIECES: [usize; 2] = [1, 3];

/// What has been proven or refuted in this process.
static PROVEN: Mutex<Option<HashMap<Request, bool>>> = Mutex::new(None);

/// Whether the plans of `request` fold in rank order, whatever rank, root and pieces it has; so
/// does every plan of a collective that combines nothing.
///
/// The plans are run, with one piece and with three. Those of the library's algorithms for more
/// than 65 ranks are not: they take the answer for 65. Beyond its radix an algorithm does the same
/// thing with any number of ranks, which the tests prove up to 64.
///
/// ```
/// use ringtree::plan::reproducible::is_in_rank_order;
/// use ringtree::plan::{Algorithm, Collective, Hosts, Request};
///
/// let by = |algorithm| Request {
///     collective: Collective::AllReduce,
///     algorithm,
///     world_size: 6,
///     rank: 0,
///     root: 0,
///     pieces: 1,
///     hosts: Hosts::APART,
/// };
/// assert!(is_in_rank_order(&by(Algorithm::TwoShot)));
/// // A ring sums each block in another order.
/// assert!(!is_in_rank_order(&by(Algorithm::Ring)));
/// ```
#[must_use]
pub fn is_in_rank_order(request: &Request) -> bool {
    let combines = request.collective.reduces() && request.collective != Collective::Barrier;
    if !combines {
        return true;
    }
    let too_many = request.world_size > IN_RANK_ORDER_PROVEN_RANKS;
    let proven = match too_many && !request.algorithm.is_own() {
        true => Request {
            world_size: IN_RANK_ORDER_PROVEN_RANKS,
            hosts: Hosts::APART,
            ..request.clone()
        },
        false => request.clone(),
    };
    let proven = Request {
        rank: 0,
        root: 0,
        pieces: 1,
        ..proven
    };
    let mut all = PROVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let all = all.get_or_insert_default();
    if all.len() >= PROGRAMS_CACHED_MAX {
        all.clear();
    }
    if let Some(known) = all.get(&proven) {
        return *known;
    }
    let answer = is_proven(&proven);
    all.insert(proven, answer);
    answer
}

/// Whether the proof succeeds for every root.
fn is_proven(request: &Request) -> bool {
    let roots = match request.collective.is_rooted() {
        true => request.world_size,
        false => 1,
    };
    (0..roots).all(|root| {
        PIECES.iter().all(|&pieces| {
            let plans = plans(&Request {
                root,
                pieces,
                ..request.clone()
            });
            let proof = plans.map(|plans| verify(&plans));
            matches!(proof, Ok(Ok(proof)) if proof.is_in_rank_order)
        })
    })
}

/// What to say of an algorithm that was asked for by name.
///
/// # Errors
/// A sentence: it folds in another order, and which ones of the library do not.
pub(super) fn check(request: &Request) -> Result<(), String> {
    if is_in_rank_order(request) {
        return Ok(());
    }
    let Request {
        collective,
        algorithm,
        world_size,
        ..
    } = request;
    let with = |algorithm| Request {
        algorithm,
        ..request.clone()
    };
    let carries_out = |one: &Algorithm| {
        let entry = REGISTRY[one.number()];
        entry.collectives.contains(collective) && is_in_rank_order(&with(*one))
    };
    let all = Algorithm::ALL.iter().copied().filter(carries_out);
    let names: Vec<_> = all.map(Algorithm::name).collect();
    Err(format!(
        "{algorithm} does not fold {collective} over {world_size} ranks in rank order, as \
         reproducible sums must be: RINGTREE_REPRODUCIBLE=1 allows {}",
        names.join(", ")
    ))
}
