//! Models the uplinks between sites.
//!
//! A packet between sites passes through two more ports than a packet within a site: the outgoing
//! port of its sender's site and the incoming port of its receiver's site. All ranks at a site
//! share these ports. The ports serve packets in the order in which the packets reach them.
//!
//! The first byte reaches the outgoing port as soon as it has left the sender's port. It reaches
//! the incoming port one uplink latency after it has left the outgoing port. The last byte does not
//! leave the receiver's port before it has left the incoming port.

use super::{Happening, Network};
use crate::plan::Topology;
use crate::sim::faults::nanoseconds;
use std::time::Duration;

/// The links between the sites of a simulated network.
///
/// ```
/// use ringtree::plan::Algorithm;
/// use ringtree::plan::{Hosts, Topology};
/// use ringtree::internal::sim::Uplinks;
/// use ringtree::sim::World;
/// use std::time::Duration;
///
/// let mut world = World::new(8);
/// world.hosts = Hosts::APART.in_sites(&[0, 0, 0, 0, 1, 1, 1, 1]);
/// let topology = Topology { world_size: 8, hosts: world.hosts.clone() };
/// world.network.uplinks = Some(Uplinks::of(&topology, Duration::from_millis(1), 1e6));
/// let (ends, transfers) = world.run_recorded(|comm| {
///     comm.use_algorithm(Some(Algorithm::Hierarchical))?;
///     comm.all_reduce(&mut vec![1.0f32; 1 << 18], ringtree::ReduceOp::Sum)
/// });
/// assert_eq!(ends, vec![Ok(()); 8]);
/// // 1 MiB passes each uplink each way: about a second.
/// let seconds = transfers.last().unwrap().end.as_secs_f64();
/// assert!((1.04..1.1).contains(&seconds), "{seconds}");
/// ```
#[derive(Clone, Debug)]
pub struct Uplinks {
    /// Site of each rank.
    pub site_of: Vec<usize>,
    /// Latency between ranks at different sites. It replaces the network's latency.
    pub latency: Duration,
    /// Bandwidth of each uplink in each direction, in bytes per second.
    pub bandwidth_bytes_per_s: f64,
}

impl Uplinks {
    /// Creates the uplinks between the sites of `topology`.
    #[must_use]
    pub fn of(topology: &Topology, latency: Duration, bandwidth_bytes_per_s: f64) -> Self {
        let site_of = |rank| topology.site_of(topology.host_of(rank));
        Self {
            site_of: (0..topology.world_size).map(site_of).collect(),
            latency,
            bandwidth_bytes_per_s,
        }
    }

    /// Checks the uplinks of a network of `ranks` ranks.
    ///
    /// # Panics
    /// Panics if `site_of` does not have exactly `ranks` entries, or if the bandwidth is not
    /// positive.
    pub(super) fn check(&self, ranks: usize) {
        assert_eq!(self.site_of.len(), ranks, "each rank must have a site");
        assert!(
            self.bandwidth_bytes_per_s > 0.0,
            "an uplink's bandwidth must be positive"
        );
    }

    fn port_ns(&self, bytes: usize) -> u64 {
        (bytes as f64 / self.bandwidth_bytes_per_s * 1e9).round() as u64
    }
}

/// The times at which each direction of a site's uplink becomes free.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Busy {
    out_ns: u64,
    in_ns: u64,
}

impl Network {
    /// Returns `true` if packets in this pipe pass through uplinks.
    pub(super) fn passes_uplinks(&self, pipe: usize) -> bool {
        let pipe = &self.pipes[pipe];
        let uplinks = self.config.uplinks.as_ref();
        uplinks.is_some_and(|uplinks| {
            let site_of = |rank: u32| uplinks.site_of[rank as usize];
            site_of(pipe.from) != site_of(pipe.to)
        })
    }

    /// Moves a packet that has left its sender's port through the outgoing uplink.
    pub(super) fn leave_site(&mut self, pipe: usize, bytes: usize) {
        let Some(uplinks) = &self.config.uplinks else {
            return;
        };
        let site = uplinks.site_of[self.pipes[pipe].from as usize];
        let (port_ns, way_ns) = (uplinks.port_ns(bytes), nanoseconds(uplinks.latency));
        let busy = self.busy_uplink(site);
        let leaves_ns = busy.out_ns;
        busy.out_ns = leaves_ns.saturating_add(port_ns);
        let at_ns = leaves_ns.saturating_add(way_ns);
        self.schedule(at_ns, Happening::AtOtherSite { pipe, bytes });
    }

    /// Moves a packet that has reached the site of its receiver through the incoming uplink.
    pub(super) fn enter_site(&mut self, pipe: usize, bytes: usize) {
        let Some(uplinks) = &self.config.uplinks else {
            return;
        };
        let site = uplinks.site_of[self.pipes[pipe].to as usize];
        let (uplink_ns, port_ns) = (uplinks.port_ns(bytes), self.port_ns(bytes));
        let busy = self.busy_uplink(site);
        let enters_ns = busy.in_ns;
        busy.in_ns = enters_ns.saturating_add(uplink_ns);
        let at_ns = enters_ns.max(busy.in_ns.saturating_sub(port_ns));
        self.schedule(at_ns, Happening::AtPort(pipe));
    }

    /// Returns the state of a site's uplink, after raising both times to at least the current time.
    fn busy_uplink(&mut self, site: usize) -> &mut Busy {
        if self.uplinks.len() <= site {
            self.uplinks.resize(site + 1, Busy::default());
        }
        let now_ns = self.now_ns;
        let busy = &mut self.uplinks[site];
        busy.out_ns = busy.out_ns.max(now_ns);
        busy.in_ns = busy.in_ns.max(now_ns);
        busy
    }
}
