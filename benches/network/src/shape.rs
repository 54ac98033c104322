//! What an emulated network is like.

use std::time::Duration;

/// Hosts that a network has at most: each has an address of one `/24`.
pub const HOSTS_MAX: usize = 250;

/// What an emulated network is like: one switch, and a link from it to every host.
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
    /// How many hosts there are.
    pub hosts: usize,
    /// What a host's link carries in each direction, framing included, in bytes per second.
    pub bytes_per_s: f64,
    /// From one host to another, beside the time that a packet's bytes take.
    pub delay: Duration,
    /// A packet is late by up to this, at random. Those from one host to another keep their order.
    pub jitter: Duration,
    /// What waits for a host's link or a site's uplink at most, in bytes; more is dropped.
    pub queue_bytes: u64,
    /// Which hosts share an uplink; none for all at one switch.
    pub sites: Option<Sites>,
    /// What the kernel keeps of what a connection sends at most, in bytes; none for the machine's
    /// setting, which is often megabytes. On a slow link they hide from a program how far its
    /// messages are.
    pub send_buffer_bytes: Option<u64>,
    /// TCP's congestion control; none for the machine's.
    pub congestion_control: Option<String>,
    /// Whether TCP's constants are set for slow links: a connection keeps its congestion window
    /// over a pause, and retransmits only after ten seconds. Otherwise messages that wait in a
    /// queue for longer than 200 ms are sent twice. Use it only if queues never overflow.
    pub is_slow_motion: bool,
}

/// Switches with hosts, joined by slow uplinks: one a site, which its hosts share.
#[derive(Clone, Debug, PartialEq)]
pub struct Sites {
    /// How many hosts each has, in the hosts' order.
    pub hosts: Vec<usize>,
    /// What an uplink carries in each direction, in bytes per second.
    pub bytes_per_s: f64,
    /// What a packet between sites takes beside [`Shape::delay`].
    pub delay: Duration,
}

impl Shape {
    /// `hosts` at one switch, on links of `bytes_per_s`, without delay. What waits for a link at
    /// most is what it carries in 50 ms, but 64 KiB to 1 MiB.
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

    /// Whether there can be such a network.
    ///
    /// # Errors
    /// What is wrong, in one line.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=HOSTS_MAX).contains(&self.hosts) {
            return Err(format!(
                "a network has 1 to {HOSTS_MAX} hosts, not {}",
                self.hosts
            ));
        }
        let uplink = self.sites.as_ref().map(|sites| sites.bytes_per_s);
        for rate in [Some(self.bytes_per_s), uplink].into_iter().flatten() {
            if !(rate.is_finite() && rate >= 1.0) {
                return Err(format!("a link carries at least 1 byte/s, not {rate}"));
            }
        }
        let Some(sites) = &self.sites else {
            return Ok(());
        };
        let placed: usize = sites.hosts.iter().sum();
        if placed != self.hosts || sites.hosts.contains(&0) {
            return Err(format!(
                "the sites {:?} do not divide {} hosts: each has at least one, and all have a site",
                sites.hosts, self.hosts
            ));
        }
        Ok(())
    }

    /// The site of every host.
    pub(crate) fn site_of_hosts(&self) -> Vec<usize> {
        let one = [self.hosts];
        let sizes = self.sites.as_ref().map_or(&one[..], |sites| &sites.hosts);
        let sites = sizes.iter().enumerate();
        sites
            .flat_map(|(site, size)| std::iter::repeat_n(site, *size))
            .collect()
    }

    /// How long a packet may be when the kernel hands it to a port: what the link carries in a
    /// millisecond, so that hosts take turns at a slow link, and enough for few packets at a fast
    /// one.
    pub(crate) fn packet_bytes(&self) -> u64 {
        ((self.bytes_per_s * 1e-3) as u64).clamp(3_000, 16 << 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_that_do_not_divide_the_hosts_are_refused() {
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
