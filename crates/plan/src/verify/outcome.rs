//! Compares what the ranks hold at the end with what the collective demands.

use super::run::Finished;
use super::values::{Value, mix};
use super::{At, Fault, Proof};
use crate::ir::Plan;
use crate::spec::Demand;
use crate::spec::demands;

/// Checks every demanded chunk, and compares the association trees of the chunks that must combine
/// all contributions.
pub(super) fn check(plans: &[Plan], mut finished: Finished) -> Result<Proof, Fault> {
    let request = &plans[0].request;
    let chunks = plans[0].chunks;
    let pieces = chunks / request.world_size;
    let mut tree_of_chunk: Vec<Option<Value>> = vec![None; chunks];
    let mut bits_agree = true;
    for (rank, plan) in plans.iter().enumerate() {
        for (chunk, tree) in tree_of_chunk.iter_mut().enumerate() {
            let block = chunk.checked_div(pieces).unwrap_or(0);
            let demand = demands(request.collective, rank, request.root, block);
            let wanted = match demand {
                Demand::Of(owner) => Some(finished.values.leaf(owner, rank)),
                _ => None,
            };
            let value = finished.chunks[rank][chunk];
            let at = At::rank(rank).chunk(chunk);
            let Some(value) = satisfied(&finished, plan, (demand, wanted), value, at)? else {
                continue;
            };
            bits_agree &= *tree.get_or_insert(value) == value;
        }
    }
    let trees: Vec<Value> = tree_of_chunk.into_iter().flatten().collect();
    let position_independent = trees.windows(2).all(|pair| pair[0] == pair[1]);
    let prints = trees.iter().map(|&tree| finished.values.fingerprint(tree));
    let fingerprint = if position_independent {
        prints.take(1).sum()
    } else {
        prints.fold(0, mix)
    };
    let in_rank_order = finished.values.in_rank_order();
    let is_in_rank_order = |tree: &Value| *tree == in_rank_order;
    let traffic = finished.traffic;
    Ok(Proof {
        rounds: traffic.round_has_message.iter().filter(|&&has| has).count(),
        messages: traffic.messages,
        max_chunks_sent: traffic.chunks_sent.iter().copied().max().unwrap_or(0),
        chunks_sent: traffic.chunks_sent.iter().sum(),
        bits_agree,
        position_independent,
        is_in_rank_order: bits_agree && trees.iter().all(is_in_rank_order),
        fingerprint,
    })
}

/// Checks that `value` satisfies `demand`. Returns the value if it must combine all contributions.
/// `wanted` is the contribution, if any, that must be passed on unchanged.
fn satisfied(
    finished: &Finished,
    plan: &Plan,
    (demand, wanted): (Demand, Option<Value>),
    value: Option<Value>,
    at: At,
) -> Result<Option<Value>, Fault> {
    let values = &finished.values;
    let is_right = match (demand, value) {
        (Demand::Anything, _) => true,
        (Demand::Of(_), value) => value == wanted,
        (Demand::Everyone, value) => value.is_some_and(|value| values.is_complete(value)),
    };
    if is_right {
        return Ok(value.filter(|_| demand == Demand::Everyone));
    }
    let has = value.map_or("nothing".to_owned(), |value| {
        format!("the contribution of rank {}", values.describe(value))
    });
    let demanded = match demand {
        Demand::Of(rank) => format!("the contribution of rank {rank}"),
        _ => "the contributions of all ranks".to_owned(),
    };
    let problem = format!("ends up with {has} instead of {demanded}");
    Err(match (value, finished.writer(at)) {
        (Some(value), _) if demand == Demand::Everyone => {
            finished.lacking(plan, at, value, problem)
        }
        (_, Some(writer)) => Fault::new(at, problem).or(writer),
        _ => Fault::new(at, problem),
    })
}
