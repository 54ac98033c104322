//! Predicts the time of a plan whose ranks are at several sites.
//!
//! The number of bytes on the uplinks depends on which ranks exchange messages and when, so it is
//! counted from the plans of all ranks. With many ranks, counting would take too long, so a bound
//! is used that treats the plan as if it ignored sites. (If a plan takes sites into account and
//! either has many ranks or has ranks that share hosts, its time is predicted from its stages.)
//!
//! *May import* what `cost` imports.

use super::{few_pieces, longest_path_between_sites_s, payload_bytes};
use crate::algorithms::{Entry, plans, required};
use crate::error::PlanError;
use crate::ir::Request;
use crate::limits::SITES_COUNTED_RANKS_MAX;
use crate::topology::Topology;
use crate::tuning::{TuningTable, between_sites};

/// Returns the predicted time, in seconds, for a buffer of `bytes` bytes.
///
/// # Errors
/// Returns an error if there is no plan for `request`.
///
/// ```
/// use ringtree::tuning::TuningTable;
/// use ringtree::plan::internal::cost::sites::time_s;
/// use ringtree::plan::{Algorithm, Collective, Hosts, Request};
///
/// let by = |algorithm| Request {
///     collective: Collective::AllReduce,
///     algorithm,
///     world_size: 8,
///     rank: 0,
///     root: 0,
///     pieces: 1,
///     hosts: Hosts::APART.in_sites(&[0, 0, 0, 0, 1, 1, 1, 1]),
/// };
/// let table = TuningTable::default();
/// // A ring crosses between the sites at two places, and a circulant graph at more.
/// let ring_s = time_s(&by(Algorithm::Ring), 25 << 20, &table)?;
/// let circulant_s = time_s(&by(Algorithm::Circulant), 25 << 20, &table)?;
/// assert!(circulant_s > 2.0 * ring_s);
/// # Ok::<(), String>(())
/// ```
pub fn time_s(request: &Request, bytes: usize, table: &TuningTable) -> Result<f64, PlanError> {
    let entry = required(request.collective, request.algorithm)?;
    if request.world_size > SITES_COUNTED_RANKS_MAX {
        return Ok(bound_s(entry, request, bytes, table));
    }
    few_pieces(entry, request, bytes, |request, bytes| {
        let plans = plans(request)?;
        Ok(longest_path_between_sites_s(&plans, bytes, table))
    })
}

/// Returns a bound on the time that assumes that a rank's peers are at arbitrary sites. Under this
/// assumption, the number of bytes that leave a site is proportional to the fraction of ranks at
/// other sites. If every rank always sends to the same peer, the peers are neighbors, so only one
/// rank at a site sends to a different site.
fn bound_s(entry: &Entry, request: &Request, bytes: usize, table: &TuningTable) -> f64 {
    let topology = request.topology();
    let (cost, uplink) = ((entry.cost)(request), between_sites(table));
    let payload = payload_bytes(request.collective, bytes);
    let leaves_site = |ranks: usize| {
        let elsewhere = (request.world_size - ranks) as f64 / request.world_size as f64;
        ranks as f64 * elsewhere
    };
    let (senders, crossings) = match entry.has_one_sender {
        true => (1.0, cost.hops.min(2.0 * topology.site_count() as f64)),
        false => {
            let most = ranks_at_sites(&topology).into_iter().map(leaves_site);
            (most.fold(0.0, f64::max), cost.hops)
        }
    };
    let uplink_s = senders * cost.max_sent_per_rank * payload as f64 * uplink.beta_s_per_byte;
    let way_s = crossings * (uplink.alpha_s - table.tcp.alpha_s).max(0.0);
    cost.time_s(payload, &table.tcp).max(uplink_s) + way_s
}

fn ranks_at_sites(topology: &Topology) -> Vec<usize> {
    let mut ranks = vec![0; topology.site_count()];
    for host in 0..topology.host_count() {
        ranks[topology.site_of(host)] += topology.size_of(host);
    }
    ranks
}
