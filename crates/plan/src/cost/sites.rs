//! The price of a plan whose ranks are at several sites.
//!
//! What it sends over the uplinks depends on which ranks meet when, so it is counted from the plans
//! of all ranks. Of many ranks that takes too long; a bound stands for it there, as if the plan
//! knew nothing of sites. (One that does, and whose ranks are many or share hosts, is priced by its
//! stages.)
//!
//! *May import* what `cost` imports.

use super::{few_pieces, longest_path_between_sites_s, payload_bytes};
use crate::algorithms::{Entry, plans, required};
use crate::ir::Request;
use crate::limits::SITES_COUNTED_RANKS_MAX;
use crate::topology::Topology;
use crate::tuning::TuningTable;

/// Seconds for a buffer of `bytes`.
///
/// # Errors
/// A sentence, when there is no such plan.
///
/// ```
/// use ringtree::TuningTable;
/// use ringtree::plan::cost::sites::time_s;
/// use ringtree::plan::{Algorithm, Collective, Hosts, Request};
///
/// let by = |algorithm| Request {
///     collective: Collective::AllReduce,
///     algorithm,
///     world_size: 8,
///     rank: 0,
///     root: 0,
///     pieces: 1,
///     hosts: Hosts::APART.in_sites_of(&[4, 4]),
/// };
/// let table = TuningTable::default();
/// // Two neighbours in a ring are at different sites; of a circulant graph, more ranks meet there.
/// let ring_s = time_s(&by(Algorithm::Ring), 25 << 20, &table)?;
/// let circulant_s = time_s(&by(Algorithm::Circulant), 25 << 20, &table)?;
/// assert!(circulant_s > 2.0 * ring_s);
/// # Ok::<(), String>(())
/// ```
pub fn time_s(request: &Request, bytes: usize, table: &TuningTable) -> Result<f64, String> {
    let entry = required(request.collective, request.algorithm)?;
    if request.world_size > SITES_COUNTED_RANKS_MAX {
        return Ok(bound_s(entry, request, bytes, table));
    }
    few_pieces(entry, request, bytes, |request, bytes| {
        let plans = plans(request)?;
        Ok(longest_path_between_sites_s(&plans, bytes, table))
    })
}

/// As if the peers of a rank were anywhere, so that of what the ranks of a site send as large a
/// share leaves it as there are ranks elsewhere. Ranks that send to one and the same peer
/// throughout are neighbours: one of a site sends to another site.
fn bound_s(entry: &Entry, request: &Request, bytes: usize, table: &TuningTable) -> f64 {
    let topology = request.topology();
    let (cost, uplink) = ((entry.cost)(request), table.between_sites());
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
