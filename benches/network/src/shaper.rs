//! Moves packets between ports at the times that the switch determines, on a dedicated thread.

use crate::shape::Shape;
use crate::switch::{BOOKED_AHEAD_NS, Outcome, Packet, Switch};
use crate::sys::{HEADER_BYTES, run_first};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum length of a packet from the kernel, including the header in front of it.
const BUFFER_BYTES: usize = HEADER_BYTES + (64 << 10);
/// Maximum number of packets that are read from one port before the next port is read.
const BURST: usize = 4;
/// Bytes that Ethernet adds to a packet: preamble, addresses, checksum, and the gap after it.
const FRAMING_BYTES: u64 = 38;
/// Maximum number of times that the ports are polled during a packet's delay. Polling less often
/// lets each poll read several packets. [`PAUSE_MAX`] keeps the polls frequent enough that no port
/// becomes idle.
const DELAY_PARTS: u32 = 100;
const PAUSE_MAX: Duration = Duration::from_micros(BOOKED_AHEAD_NS / 2_000);
/// Maximum time between checks of whether the thread must end.
const LOOK: Duration = Duration::from_millis(100);

/// Statistics of a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Packets that reached their hosts; a long packet counts once.
    pub packets: u64,
    /// Packets that were dropped because a queue was full.
    pub dropped: u64,
    /// Maximum time by which a delivery was late, which shows how accurate the emulation was.
    pub late: Duration,
    /// `true` if the thread of the switch had real-time priority.
    pub is_real_time: bool,
}

/// Arrival of a packet at a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Time since the start of the network.
    pub at: Duration,
    /// The host.
    pub host: usize,
    /// Bytes of TCP streams, without headers. Retransmissions count again.
    pub bytes: u64,
}

/// State that the thread shares with the [`Network`](crate::Network).
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) is_over: AtomicBool,
    pub(crate) records: AtomicBool,
    pub(crate) busy_ns: AtomicU64,
    pub(crate) carried_bytes: AtomicU64,
    pub(crate) deliveries: Mutex<Vec<Delivery>>,
}

/// State of the thread.
pub(crate) struct Shaper {
    ports: Vec<File>,
    switch: Switch<Vec<u8>>,
    start: Instant,
    shared: Arc<Shared>,
    spare: Vec<Vec<u8>>,
    /// Buffer into which each packet is read before it is copied to a buffer that fits it.
    read: Vec<u8>,
    /// Minimum time between polls of the ports.
    pause: Duration,
    looked_at: Instant,
    statistics: Statistics,
}

impl Shaper {
    pub(crate) fn new(
        shape: &Shape,
        ports: Vec<File>,
        start: Instant,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            ports,
            switch: Switch::new(shape),
            start,
            shared,
            spare: Vec::new(),
            read: vec![0; BUFFER_BYTES],
            pause: (shape.delay / DELAY_PARTS).min(PAUSE_MAX),
            looked_at: start,
            statistics: Statistics::default(),
        }
    }

    /// Moves packets until the owner ends the network.
    ///
    /// # Errors
    /// Returns an error if polling the ports fails.
    pub(crate) fn run(mut self) -> io::Result<Statistics> {
        self.statistics.is_real_time = run_first().is_ok();
        while !self.shared.is_over.load(Ordering::Acquire) {
            let readable = self.wait()?;
            for host in readable {
                self.read_port(host);
            }
            self.deliver();
            let busy = clock_gettime(ClockId::ThreadCPUTime);
            let busy_ns = busy.tv_sec as u64 * 1_000_000_000 + busy.tv_nsec as u64;
            self.shared.busy_ns.store(busy_ns, Ordering::Relaxed);
        }
        Ok(self.statistics)
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Sleeps until a packet is due or a port has packets that may be read. Returns these ports.
    fn wait(&mut self) -> io::Result<Vec<usize>> {
        let early = self.pause.saturating_sub(self.looked_at.elapsed());
        if early > Duration::ZERO {
            std::thread::sleep(early);
        }
        self.looked_at = Instant::now();
        let now_ns = self.now_ns();
        let mut until_ns = now_ns + LOOK.as_nanos() as u64;
        until_ns = until_ns.min(self.switch.next_ns().unwrap_or(u64::MAX));
        let (mut heard, mut ports) = (Vec::new(), Vec::new());
        for (host, port) in self.ports.iter().enumerate() {
            let hears_ns = self.switch.readable_at_ns(host);
            if hears_ns > now_ns {
                until_ns = until_ns.min(hears_ns);
                continue;
            }
            heard.push(host);
            ports.push(PollFd::new(port, PollFlags::IN));
        }
        let rest_ns = until_ns.saturating_sub(now_ns);
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: rest_ns as _,
        };
        match poll(&mut ports, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = heard.iter().zip(&ports);
        let ready = ready.filter(|(_, port)| port.revents().contains(PollFlags::IN));
        Ok(ready.map(|(host, _)| *host).collect())
    }

    /// Reads packets that `host` sends.
    fn read_port(&mut self, host: usize) {
        for _ in 0..BURST {
            let now_ns = self.now_ns();
            if self.switch.readable_at_ns(host) > now_ns {
                return;
            }
            let Ok(length) = (&self.ports[host]).read(&mut self.read) else {
                return;
            };
            let mut buffer = self.spare.pop().unwrap_or_default();
            buffer.clear();
            buffer.extend_from_slice(&self.read[..length]);
            match PacketHeaders::of(&buffer)
                .filter(|sight| sight.to < self.ports.len() && sight.to != host)
            {
                Some(sight) => {
                    let packet = Packet {
                        from: host,
                        to: sight.to,
                        wire_bytes: sight.wire_bytes(),
                        load: buffer,
                    };
                    self.switch.send(now_ns, packet);
                }
                None => self.spare.push(buffer),
            }
        }
    }

    /// Delivers all packets that are due.
    fn deliver(&mut self) {
        while let Some(outcome) = self.switch.take(self.now_ns()) {
            let packet = match outcome {
                Outcome::Delivered(packet, at_ns) => {
                    let late = Duration::from_nanos(self.now_ns().saturating_sub(at_ns));
                    self.statistics.late = self.statistics.late.max(late);
                    // If the host's queue is full, the packet is lost, as on a real network.
                    match (&self.ports[packet.to]).write(&packet.load) {
                        Ok(_) => self.statistics.packets += 1,
                        Err(_) => self.statistics.dropped += 1,
                    }
                    let carried = &self.shared.carried_bytes;
                    carried.fetch_add(packet.wire_bytes, Ordering::Relaxed);
                    self.record(&packet, at_ns);
                    packet
                }
                Outcome::Dropped(packet) => {
                    self.statistics.dropped += 1;
                    packet
                }
            };
            self.spare.push(packet.load);
        }
    }

    fn record(&self, packet: &Packet<Vec<u8>>, at_ns: u64) {
        if !self.shared.records.load(Ordering::Relaxed) {
            return;
        }
        if let Some(sight) = PacketHeaders::of(&packet.load) {
            let deliveries = self.shared.deliveries.lock();
            deliveries
                .unwrap_or_else(PoisonError::into_inner)
                .push(Delivery {
                    at: Duration::from_nanos(at_ns),
                    host: packet.to,
                    bytes: sight.payload_bytes,
                });
        }
    }
}

/// The values in a packet's headers that the switch needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PacketHeaders {
    to: usize,
    header_bytes: u64,
    payload_bytes: u64,
    /// Payload of each segment into which a network card would split the packet; `None` if it would
    /// not split it.
    segment_bytes: Option<u64>,
}

impl PacketHeaders {
    /// Parses a packet. Returns `None` if it is not a complete IPv4 packet.
    fn of(packet: &[u8]) -> Option<Self> {
        let (before, ip) = packet.split_at_checked(HEADER_BYTES)?;
        let segment = u16::from_ne_bytes([before[4], before[5]]);
        if ip.len() < 20 || ip[0] >> 4 != 4 {
            return None;
        }
        const TCP: u8 = 6;
        let mut header_bytes = usize::from(ip[0] & 15) * 4;
        header_bytes += match ip[9] {
            TCP => usize::from(ip.get(header_bytes + 12)? >> 4) * 4,
            _ => 8,
        };
        Some(Self {
            to: usize::from(ip[19]).checked_sub(1)?,
            header_bytes: header_bytes as u64,
            payload_bytes: ip.len().saturating_sub(header_bytes) as u64,
            segment_bytes: (segment > 0).then(|| u64::from(segment)),
        })
    }

    /// Returns the number of bytes that the packet takes up on a wire, with headers and framing for
    /// every segment.
    fn wire_bytes(&self) -> u64 {
        let segments = match self.segment_bytes {
            Some(bytes) => self.payload_bytes.div_ceil(bytes).max(1),
            None => 1,
        };
        self.payload_bytes + segments * (self.header_bytes + FRAMING_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a TCP packet to 10.79.0.3 with 20 + 32 bytes of headers.
    fn packet(payload_bytes: usize, segment: u16) -> Vec<u8> {
        let mut packet = vec![0; HEADER_BYTES + 52 + payload_bytes];
        packet[4..6].copy_from_slice(&segment.to_ne_bytes());
        let ip = &mut packet[HEADER_BYTES..];
        (ip[0], ip[9], ip[19], ip[32]) = (0x45, 6, 3, 8 << 4);
        packet
    }

    #[test]
    fn every_segment_adds_headers_and_framing() {
        let one = PacketHeaders::of(&packet(1_448, 0)).unwrap();
        assert_eq!(
            (one.to, one.payload_bytes, one.wire_bytes()),
            (2, 1_448, 1_538)
        );
        let long = PacketHeaders::of(&packet(14_481, 1_448)).unwrap();
        assert_eq!(long.wire_bytes(), 14_481 + 11 * 90);
        assert_eq!(PacketHeaders::of(&packet(0, 0)).unwrap().wire_bytes(), 90);
    }

    #[test]
    fn invalid_packets_are_not_parsed() {
        assert_eq!(PacketHeaders::of(&[0; 9]), None);
        let mut version_6 = packet(10, 0);
        version_6[HEADER_BYTES] = 0x60;
        assert_eq!(PacketHeaders::of(&version_6), None);
        assert_eq!(PacketHeaders::of(&packet(0, 0)[..HEADER_BYTES + 25]), None);
    }
}
