//! Computes whether and when packets reach their hosts. Has no side effects; times are arguments,
//! in nanoseconds.
//!
//! A packet passes several *stations*: the sending host's link, between sites the uplinks of both
//! sites, and the receiving host's link. A station serves packets in order of arrival, one at a
//! time, at its rate. A packet enters the next station when its first byte has left the previous
//! one. If the next station is faster, the packet enters it late enough to pass without a gap. On
//! an idle path, the time for the packet's bytes therefore counts only once.

use crate::shape::Shape;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Maximum time for which a host's outgoing link is booked in advance, in nanoseconds. Further
/// packets wait in the host's queue.
pub(crate) const BOOKED_AHEAD_NS: u64 = 1_000_000;

/// A packet in flight. The switch does not interpret the payload of type `T`.
#[derive(Debug)]
pub(crate) struct Packet<T> {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Number of bytes that the packet takes up on a link, including framing.
    pub(crate) wire_bytes: u64,
    pub(crate) load: T,
}

/// Outcome of sending a packet.
#[derive(Debug)]
pub(crate) enum Outcome<T> {
    /// The packet was due at its host at this time.
    Delivered(Packet<T>, u64),
    /// The packet was dropped because a queue was full.
    Dropped(Packet<T>),
}

/// Time from the first byte of a packet to its last, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    begin_ns: u64,
    end_ns: u64,
}

/// A link in one direction.
#[derive(Clone, Debug)]
struct Station {
    ns_per_byte: f64,
    queue_bytes: f64,
    /// Time until which the station is booked.
    free_ns: u64,
}

impl Station {
    /// Returns the time that `bytes` bytes take to pass.
    fn passing_ns(&self, bytes: u64) -> u64 {
        (bytes as f64 * self.ns_per_byte) as u64
    }

    /// Books the station for a packet that arrives at `at_ns`. Returns the time span in which the
    /// packet passes.
    fn pass(&mut self, at_ns: u64, bytes: u64) -> Span {
        let begin_ns = self.free_ns.max(at_ns);
        self.free_ns = begin_ns + self.passing_ns(bytes);
        Span {
            begin_ns,
            end_ns: self.free_ns,
        }
    }

    fn is_full(&self, at_ns: u64) -> bool {
        let waiting_ns = self.free_ns.saturating_sub(at_ns);
        waiting_ns as f64 > self.queue_bytes * self.ns_per_byte
    }
}

/// A packet that waits for its next station or its host.
#[derive(Debug)]
struct Waiting<T> {
    packet: Packet<T>,
    /// Number of stations that the packet has passed.
    passed: usize,
}

/// The emulated switch, described in the [module](self).
#[derive(Debug)]
pub(crate) struct Switch<T> {
    /// Outgoing links of all hosts, incoming links of all hosts, then those of all sites.
    stations: Vec<Station>,
    site_of_hosts: Vec<usize>,
    sites: usize,
    delay_ns: u64,
    uplink_delay_ns: u64,
    jitter_ns: u64,
    chance: u64,
    /// Times of events with the indices of their packets. A sequence number orders events with the
    /// same time.
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    numbered: u64,
    packets: Vec<Option<Waiting<T>>>,
    vacant: Vec<usize>,
    /// Arrival time of the last packet, indexed by sender and receiver.
    last_ns: Vec<u64>,
}

impl<T> Switch<T> {
    pub(crate) fn new(shape: &Shape) -> Self {
        let station = |bytes_per_s: f64| Station {
            ns_per_byte: 1e9 / bytes_per_s,
            queue_bytes: shape.queue_bytes as f64,
            free_ns: 0,
        };
        let mut stations = vec![station(shape.bytes_per_s); 2 * shape.hosts];
        let (mut sites, mut uplink_delay) = (0, Duration::ZERO);
        if let Some(uplinks) = &shape.sites {
            (sites, uplink_delay) = (uplinks.hosts.len(), uplinks.delay);
            stations.extend(vec![station(uplinks.bytes_per_s); 2 * sites]);
        }
        Self {
            stations,
            site_of_hosts: shape.site_of_hosts(),
            sites,
            delay_ns: nanoseconds(shape.delay),
            uplink_delay_ns: nanoseconds(uplink_delay),
            jitter_ns: nanoseconds(shape.jitter),
            chance: 1,
            events: BinaryHeap::new(),
            numbered: 0,
            packets: Vec::new(),
            vacant: Vec::new(),
            last_ns: vec![0; shape.hosts * shape.hosts],
        }
    }

    fn hosts(&self) -> usize {
        self.site_of_hosts.len()
    }

    /// Returns the time from which packets of `host` may be read again.
    pub(crate) fn readable_at_ns(&self, host: usize) -> u64 {
        self.stations[host].free_ns.saturating_sub(BOOKED_AHEAD_NS)
    }

    /// Sends `packet` from its host at `now_ns`.
    pub(crate) fn send(&mut self, now_ns: u64, packet: Packet<T>) {
        let span = self.stations[packet.from].pass(now_ns, packet.wire_bytes);
        self.go_on(packet, 1, span);
    }

    /// Returns the time of the next event.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.events.peek().map(|Reverse((at_ns, _, _))| *at_ns)
    }

    /// Returns the next packet that was delivered or dropped by `now_ns`.
    pub(crate) fn take(&mut self, now_ns: u64) -> Option<Outcome<T>> {
        while self.next_ns().is_some_and(|at_ns| at_ns <= now_ns) {
            let Reverse((at_ns, _, place)) = self.events.pop()?;
            let Waiting { packet, passed } = self.packets[place].take()?;
            self.vacant.push(place);
            let Some(station) = self.station(packet.from, packet.to, passed) else {
                return Some(Outcome::Delivered(packet, at_ns));
            };
            if self.stations[station].is_full(at_ns) {
                return Some(Outcome::Dropped(packet));
            }
            let span = self.stations[station].pass(at_ns, packet.wire_bytes);
            self.go_on(packet, passed + 1, span);
        }
        None
    }

    /// Schedules the next event of `packet`, which has passed `passed` stations, the last of them
    /// in `span`.
    fn go_on(&mut self, packet: Packet<T>, passed: usize, span: Span) {
        let at_ns = match self.station(packet.from, packet.to, passed) {
            None => self.arrival_ns(&packet, span),
            Some(next) => {
                let passing_ns = self.stations[next].passing_ns(packet.wire_bytes);
                span.begin_ns.max(span.end_ns.saturating_sub(passing_ns))
            }
        };
        let waiting = Some(Waiting { packet, passed });
        let place = match self.vacant.pop() {
            Some(place) => place,
            None => {
                self.packets.push(None);
                self.packets.len() - 1
            }
        };
        self.packets[place] = waiting;
        self.numbered += 1;
        self.events.push(Reverse((at_ns, self.numbered, place)));
    }

    /// Returns the station that a packet enters after `passed` others, or `None` after the last.
    fn station(&self, from: usize, to: usize, passed: usize) -> Option<usize> {
        let (out, into) = (self.site_of_hosts[from], self.site_of_hosts[to]);
        let sites = 2 * self.hosts();
        match (out != into, passed) {
            (true, 1) => Some(sites + out),
            (true, 2) => Some(sites + self.sites + into),
            (false, 1) | (true, 3) => Some(self.hosts() + to),
            _ => None,
        }
    }

    fn arrival_ns(&mut self, packet: &Packet<T>, span: Span) -> u64 {
        let (from, to) = (packet.from, packet.to);
        let mut arrival_ns = span.end_ns + self.delay_ns + self.late_ns();
        if self.site_of_hosts[from] != self.site_of_hosts[to] {
            arrival_ns += self.uplink_delay_ns;
        }
        let pair = from * self.hosts() + to;
        self.last_ns[pair] = self.last_ns[pair].max(arrival_ns);
        self.last_ns[pair]
    }

    /// Returns a random delay below the jitter, generated by xorshift.
    fn late_ns(&mut self) -> u64 {
        if self.jitter_ns == 0 {
            return 0;
        }
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        self.chance % self.jitter_ns
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Sites;

    const MS: u64 = 1_000_000;

    /// Returns a network whose links take a millisecond for 1 kB.
    fn shape(hosts: usize) -> Shape {
        Shape {
            delay: Duration::from_millis(5),
            queue_bytes: 2_500,
            ..Shape::new(hosts, 1e6)
        }
    }

    fn packet(from: usize, to: usize) -> Packet<()> {
        Packet {
            from,
            to,
            wire_bytes: 1_000,
            load: (),
        }
    }

    /// Returns the sender, the receiver and the arrival time in milliseconds of each packet. The
    /// time is 0 if the packet was dropped.
    fn ends(switch: &mut Switch<()>) -> Vec<(usize, usize, u64)> {
        let mut ends = Vec::new();
        while let Some(outcome) = switch.take(u64::MAX) {
            ends.push(match outcome {
                Outcome::Delivered(packet, at_ns) => (packet.from, packet.to, at_ns / MS),
                Outcome::Dropped(packet) => (packet.from, packet.to, 0),
            });
        }
        ends
    }

    #[test]
    fn packet_takes_its_transfer_time_once_plus_delay() {
        let mut switch = Switch::new(&shape(2));
        switch.send(0, packet(0, 1));
        switch.send(0, packet(0, 1));
        switch.send(10 * MS, packet(1, 0));
        assert_eq!(ends(&mut switch), [(0, 1, 6), (0, 1, 7), (1, 0, 16)]);
    }

    #[test]
    fn senders_share_receivers_port_and_full_queue_drops() {
        let mut switch = Switch::new(&shape(5));
        for from in 1..5 {
            switch.send(0, packet(from, 0));
        }
        // Two packets wait after the first. The fourth is dropped, because 3 kB are booked and the
        // queue holds less.
        assert_eq!(
            ends(&mut switch),
            [(4, 0, 0), (1, 0, 6), (2, 0, 7), (3, 0, 8)]
        );
    }

    #[test]
    fn host_is_not_read_while_its_link_is_booked() {
        let mut switch = Switch::new(&shape(2));
        assert_eq!(switch.readable_at_ns(0), 0);
        for _ in 0..3 {
            switch.send(0, packet(0, 1));
        }
        assert_eq!(switch.readable_at_ns(0), 2 * MS);
        assert_eq!(switch.readable_at_ns(1), 0);
    }

    #[test]
    fn hosts_of_one_site_share_its_uplink() {
        let sites = Sites {
            hosts: vec![2, 2],
            bytes_per_s: 5e5,
            delay: Duration::from_millis(10),
        };
        let mut switch = Switch::new(&Shape {
            sites: Some(sites),
            ..shape(4)
        });
        switch.send(0, packet(0, 2));
        switch.send(0, packet(1, 3));
        switch.send(0, packet(3, 2));
        // Within a site, a packet takes 1 ms on the link, plus the delay. Over the uplink, each
        // packet takes 2 ms, and the two pass one after the other.
        assert_eq!(ends(&mut switch), [(3, 2, 6), (0, 2, 17), (1, 3, 19)]);
    }

    #[test]
    fn jitter_keeps_order_of_each_pair() {
        let mut switch = Switch::new(&Shape {
            jitter: Duration::from_millis(20),
            ..shape(2)
        });
        let mut sent_ns = Vec::new();
        for index in 0..100 {
            let load = index;
            switch.send(
                index * 2 * MS,
                Packet {
                    from: 0,
                    to: 1,
                    wire_bytes: 100,
                    load,
                },
            );
            sent_ns.push(index * 2 * MS);
        }
        let (mut expected, mut latest_ns) = (0, 0);
        while let Some(Outcome::Delivered(packet, at_ns)) = switch.take(u64::MAX) {
            assert_eq!(packet.load, expected);
            expected += 1;
            latest_ns = latest_ns.max(at_ns - sent_ns[packet.load as usize]);
        }
        assert_eq!(expected, 100);
        assert!(latest_ns > 15 * MS && latest_ns < 26 * MS, "{latest_ns}");
    }
}
