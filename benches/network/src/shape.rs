//! Describes emulated networks.

use std::time::Duration;

/// Maximum number of hosts in a network. The addresses of all hosts are in one `/24`.
pub const HOSTS_MAX: usize = 250;

/// Description of an emulated network: a switch with a link to every host.
///
/// ```
/// use ringtree_network::Shape;
/// use std::time::Duration;
///
/// let lan = Shape { delay: Duration::from_micros(250), ..Shape::new(8, 125e6) };
/// assert_eq!(lan.check(), Ok(()));
/// assert!(Shape::new(0, 125e6).check().is_err());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Number of hosts.
    pub hosts: usize,
    /// Rate of a host's link in each direction, in bytes per second, including framing.
    pub bytes_per_s: f64,
    /// Delay from one host to another, in addition to the time for a packet's bytes.
    pub delay: Duration,
    /// Maximum random extra delay of a packet. Packets from one host to another keep their order.
    pub jitter: Duration,
    /// Capacity of the queue of a link or an uplink, in bytes. Packets beyond it are dropped.
    pub queue_bytes: u64,
    /// Hosts that share an uplink; `None` if all hosts are at one switch.
    pub sites: Option<Sites>,
    /// Maximum bytes that the kernel buffers for a connection's sender; `None` for the machine's
    /// setting, which is often megabytes. On a slow link, such a buffer hides from a program how
    /// much of its messages has been sent.
    pub send_buffer_bytes: Option<u64>,
    /// TCP congestion control; `None` for the machine's.
    pub congestion_control: Option<String>,
    /// `true` to set TCP's constants for slow links: a connection keeps its congestion window
    /// during a pause and retransmits only after ten seconds. Otherwise, TCP retransmits messages
    /// that wait in a queue for longer than 200 ms. Use this only if queues never overflow.
    pub is_slow_motion: bool,
}

/// Sites, each a switch with some of the hosts, which share the site's slow uplink.
#[derive(Clone, Debug, PartialEq)]
pub struct Sites {
    /// Number of hosts of each site, in the order of hosts.
    pub hosts: Vec<usize>,
    /// Rate of an uplink in each direction, in bytes per second.
    pub bytes_per_s: f64,
    /// Delay between sites, in addition to [`Shape::delay`].
    pub delay: Duration,
}

impl Shape {
    /// Creates a network of `hosts` hosts at one switch, with links of `bytes_per_s` and no delay.
    /// A queue holds what its link carries in 50 ms, but at least 64 KiB and at most 1 MiB.
    #[must_use]
    pub fn new(hosts: usize, bytes_per_s: f64) -> Self {
        Self {
            hosts,
            bytes_per_s,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            queue_bytes: ((bytes_per_s * 0.05) as u64).clamp(64 << 10, 1 << 20),
            sites: None,
            send_buffer_bytes: None,
            congestion_control: None,
            is_slow_motion: false,
        }
    }

    /// Checks that the network can exist.
    ///
    /// # Errors
    /// Returns a message if the number of hosts, a rate or the sites are invalid.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=HOSTS_MAX).contains(&self.hosts) {
            return Err(format!(
                "a network must have 1 to {HOSTS_MAX} hosts, not {}",
                self.hosts
            ));
        }
        let uplink = self.sites.as_ref().map(|sites| sites.bytes_per_s);
        for rate in [Some(self.bytes_per_s), uplink].into_iter().flatten() {
            if !(rate.is_finite() && rate >= 1.0) {
                return Err(format!("a link must carry at least 1 byte/s, not {rate}"));
            }
        }
        let Some(sites) = &self.sites else {
            return Ok(());
        };
        let placed: usize = sites.hosts.iter().sum();
        if placed != self.hosts || sites.hosts.contains(&0) {
            return Err(format!(
                "sites {:?} do not divide {} hosts: no site may be empty, and every host needs one",
                sites.hosts, self.hosts
            ));
        }
        Ok(())
    }

    /// Returns the site of each host, indexed by host.
    pub(crate) fn site_of_hosts(&self) -> Vec<usize> {
        let one = [self.hosts];
        let sizes = self.sites.as_ref().map_or(&one[..], |sites| &sites.hosts);
        let sites = sizes.iter().enumerate();
        sites
            .flat_map(|(site, size)| std::iter::repeat_n(site, *size))
            .collect()
    }

    /// Returns the maximum length of the packets that the kernel passes to a port: what the link
    /// carries in a millisecond, within bounds. This length lets hosts alternate on a slow link,
    /// and keeps the number of packets on a fast link low.
    pub(crate) fn packet_bytes(&self) -> u64 {
        ((self.bytes_per_s * 1e-3) as u64).clamp(3_000, 16 << 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_that_do_not_match_hosts_are_rejected() {
        let with = |hosts: &[usize]| {
            let sites = Sites {
                hosts: hosts.to_vec(),
                bytes_per_s: 1e6,
                delay: Duration::ZERO,
            };
            Shape {
                sites: Some(sites),
                ..Shape::new(5, 1e7)
            }
        };
        assert_eq!(with(&[2, 3]).check(), Ok(()));
        assert_eq!(with(&[2, 3]).site_of_hosts(), [0, 0, 1, 1, 1]);
        for hosts in [&[2, 2][..], &[5, 0], &[]] {
            assert!(with(hosts).check().unwrap_err().contains("5 hosts"));
        }
        assert_eq!(Shape::new(3, 1e7).site_of_hosts(), [0, 0, 0]);
    }
}
