//! Determines which algorithms always produce the same bits for an element.
//!
//! *The rule.* Every sum is a single reduction of all contributions in rank order and is rounded
//! only once. The bits of an element therefore depend only on its operands, not on the algorithm,
//! the collective, the root, the transport, the length of the buffer or the element's position in
//! the buffer. There is no hand-written list of algorithms that follow the rule. Instead, the
//! verifier runs the plans of each algorithm to determine whether it follows the rule (see
//! [`Proof::is_in_rank_order`]).
//!
//! *Why rank order.* Rank order is the only order in which every summing collective can run at full
//! bandwidth, because the rank that owns a block can reduce all contributions to it. With two
//! ranks, every order gives the same bits.
//!
//! [`Proof::is_in_rank_order`]: super::verify::Proof::is_in_rank_order

use super::algorithms::{REGISTRY, plans};
use super::ir::Request;
use super::spec::{Algorithm, Collective};
use super::topology::Topology;
use super::verify::verify;
use crate::algorithms::is_own;
use crate::error::PlanError;
use crate::limits::{IN_RANK_ORDER_PROVEN_RANKS, PROGRAMS_CACHED_MAX};
use crate::spec::reduces;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Numbers of pieces for which plans are verified. Three pieces cover the cases of a first, a
/// middle and a last piece.
const PIECES: [usize; 2] = [1, 3];

/// A cache of verification results, indexed by request: `true` if the plans reduce in rank order.
static PROVEN: Mutex<Option<HashMap<Request, bool>>> = Mutex::new(None);

/// Returns whether the plans for `request` reduce in rank order for every rank, root and number of
/// pieces. This is always the case for collectives that do not combine contributions.
///
/// The verifier runs the plans with one piece and with three pieces. For built-in algorithms on
/// more than 65 ranks, the result for 65 ranks is used because an algorithm behaves the same way
/// for every number of ranks greater than its radix. The tests verify this for up to 64 ranks.
///
/// ```
/// use ringtree::plan::internal::reproducible::is_in_rank_order;
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
/// // A ring sums each block in a different order.
/// assert!(!is_in_rank_order(&by(Algorithm::Ring)));
/// ```
#[must_use]
pub fn is_in_rank_order(request: &Request) -> bool {
    let combines = reduces(request.collective) && request.collective != Collective::Barrier;
    if !combines {
        return true;
    }
    let too_many = request.world_size > IN_RANK_ORDER_PROVEN_RANKS;
    let topology = match too_many && !is_own(request.algorithm) {
        true => Topology::apart(IN_RANK_ORDER_PROVEN_RANKS),
        false => request.topology(),
    };
    let proven = Request::new(request.collective, request.algorithm, &topology);
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

/// Returns whether the plans for every root and number of pieces reduce in rank order.
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

/// Checks that an algorithm requested by name reduces in rank order.
///
/// # Errors
/// Returns an error if the algorithm reduces in a different order. The message lists the algorithms
/// that reduce in rank order.
pub(super) fn check(request: &Request) -> Result<(), PlanError> {
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
    Err(refused!(
        NotReproducible,
        "{collective} by {algorithm} over {world_size} ranks does not reduce in rank order, which \
         reproducible sums require; RINGTREE_REPRODUCIBLE=1 allows {}",
        names.join(", ")
    ))
}
