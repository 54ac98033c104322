//! Runs the broadcast over the simulated network, in virtual time.

use super::{FILE_BYTES, HOSTS, LATENCY, LINK_BYTES_PER_S, OVERHEAD, Run, lanes};
use ringtree::plan::Algorithm;
use ringtree::plan::LinkCost;
use ringtree::sim::World;
use ringtree::tuning::TuningTable;

/// Broadcasts the file in virtual time and checks the copies.
pub(crate) fn run(algorithm: Option<Algorithm>) -> Result<Run, String> {
    let mut world = World::new(HOSTS);
    world.algorithm = algorithm;
    world.network.bandwidth_bytes_per_s = LINK_BYTES_PER_S;
    world.network.latency = LATENCY;
    world.network.overhead = OVERHEAD;
    world.tuning = TuningTable {
        tcp: LinkCost {
            alpha_s: LATENCY.as_secs_f64(),
            overhead_s: OVERHEAD.as_secs_f64(),
            beta_s_per_byte: 1.0 / LINK_BYTES_PER_S,
            gamma_s_per_byte: 0.0,
        },
        ..TuningTable::default()
    };
    let file = super::file();
    let (ends, transfers) = world.run_recorded(|comm| {
        let mut copy = match comm.rank() {
            0 => file.clone(),
            _ => vec![0; FILE_BYTES],
        };
        comm.broadcast(&mut copy, 0).map(|()| copy == file)
    });
    for (rank, end) in ends.into_iter().enumerate() {
        if !end.map_err(|error| error.to_string())? {
            return Err(format!("rank {rank} received a damaged file"));
        }
    }
    let end_s = transfers
        .last()
        .map_or(0.0, |transfer| transfer.end.as_secs_f64());
    let arrivals = transfers
        .iter()
        .map(|transfer| (transfer.end.as_secs_f64(), transfer.to, transfer.bytes));
    Ok((end_s, lanes(arrivals)))
}
