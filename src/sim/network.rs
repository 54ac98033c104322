//! Simulates a network in virtual time. Byte streams connect the ranks through ports with limited
//! bandwidth.
//!
//! # Cost of a packet
//!
//! Every rank has an up-port and a down-port, which are shared by all of its connections. A port
//! serves packets in the order in which they reach it.
//!
//! 1. A packet of `k` bytes waits until the sender's up-port is free. It then occupies that port
//!    for the overhead plus `k / bandwidth`.
//! 2. The first byte of the packet reaches the receiver's down-port one latency after it has left
//!    the up-port.
//! 3. The packet waits until the down-port is free and then occupies it for `k / bandwidth` plus
//!    the overhead. After that, the packet can be read.
//!
//! This is the LogGP model that is also used to estimate the cost of plans, but here it is applied
//! to packets instead of messages. Packets between sites also pass through uplinks (see
//! [`Uplinks`]).
//!
//! # How to drive the network
//!
//! [`Network::advance`] jumps to the next event. [`Network::take_touched`] then returns the
//! affected ranks in a fixed order. Only these ranks need to be polled.

use super::faults::{Faults, SplitMix64, nanoseconds};
use super::pipe::{Packet, Pipe, Pool, gather};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::time::Duration;

mod closing;
mod events;
#[cfg(test)]
mod tests;
mod uplinks;

use events::{Event, Happening};
pub use uplinks::Uplinks;

/// The properties of a simulated network.
#[derive(Clone, Debug)]
pub struct NetworkConfig {
    /// One-way latency from one port to another.
    pub latency: Duration,
    /// Time for which a packet occupies its sender's port, and then its receiver's port, in
    /// addition to the time that its bytes take.
    pub overhead: Duration,
    /// Bandwidth of each port, in bytes per second. Infinity means that there is no limit.
    pub bandwidth_bytes_per_s: f64,
    /// Links between sites, or `None` if there is only one site.
    pub uplinks: Option<Uplinks>,
    /// Maximum number of bytes, including both in-flight and unread bytes, that a connection can
    /// hold in each direction before writes block.
    pub window_bytes: usize,
    /// Maximum length, in bytes, of the packets into which a write is split.
    pub quantum_bytes: usize,
    /// Seed that determines all random choices.
    pub seed: u64,
    /// Faults to inject.
    pub faults: Faults,
}

impl Default for NetworkConfig {
    /// Returns a configuration with a latency of 10 µs, no overhead, unlimited bandwidth and no
    /// faults.
    fn default() -> Self {
        NetworkConfig {
            latency: Duration::from_micros(10),
            overhead: Duration::ZERO,
            bandwidth_bytes_per_s: f64::INFINITY,
            uplinks: None,
            window_bytes: 256 << 10,
            quantum_bytes: 16 << 10,
            seed: 0,
            faults: Faults::default(),
        }
    }
}

/// The transfer of one packet, as recorded by [`World::run_recorded`](super::World::run_recorded).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Time at which the first byte entered the sender's port.
    pub start: Duration,
    /// Time at which the last byte left the receiver's port.
    pub end: Duration,
    /// The sending rank.
    pub from: usize,
    /// The receiving rank.
    pub to: usize,
    /// Length of the packet, in bytes.
    pub bytes: usize,
}

/// A small message that is sent outside the streams. The tuple contains the sender, the group and
/// the payload.
pub type ControlMessage = (usize, u32, Vec<u8>);

/// A simulated network. The module documentation describes the model that it implements.
///
/// ```
/// use ringtree::internal::sim::{Network, run_on};
/// use ringtree::sim::{NetworkConfig, World};
/// use std::sync::{Arc, Mutex};
///
/// let network = Arc::new(Mutex::new(Network::new(NetworkConfig::default(), 8)));
/// run_on(&World::new(8), &network, |comm| comm.barrier());
/// let network = network.lock().unwrap();
/// assert!(network.now() >= NetworkConfig::default().latency); // every rank learned of every other
/// assert!(network.bytes_sent(0) > 0);
/// ```
#[derive(Debug)]
pub struct Network {
    config: NetworkConfig,
    latency_ns: u64,
    overhead_ns: u64,
    now_ns: u64,
    chance: SplitMix64,
    ranks: Vec<Rank>,
    /// State of the uplinks, indexed by site. A site that has not used its uplink may be absent.
    uplinks: Vec<uplinks::Busy>,
    /// Pipes of all connections. Pipes `2i` and `2i + 1` are the two directions of a connection.
    pipes: Vec<Pipe>,
    pool: Pool,
    events: BinaryHeap<Reverse<Event>>,
    events_made: u64,
    timers: BTreeSet<(u64, usize)>,
    /// Arrival time of the last control message for each pair of sender and receiver.
    control_last_ns: BTreeMap<(usize, usize), u64>,
    /// Pairs of ranks that have connected directly for control messages since rank 0 was closed.
    direct: BTreeSet<(usize, usize)>,
    touched: Vec<usize>,
    transfers: Option<Vec<Transfer>>,
    event_times_ns: Option<BTreeSet<u64>>,
}

#[derive(Debug, Default)]
struct Rank {
    /// Outgoing pipes as ((group, peer), index of the pipe), sorted.
    pipes: Vec<((u32, u32), u32)>,
    up_free_ns: u64,
    down_free_ns: u64,
    stalled_until_ns: u64,
    timer_ns: Option<u64>,
    closed_ns: Option<u64>,
    touched: bool,
    bytes_sent: u64,
    control: VecDeque<ControlMessage>,
    /// Ranks whose control connection to this rank has broken and that `next_lost` has not returned
    /// yet.
    lost: VecDeque<usize>,
    /// Groups whose links this rank has closed permanently.
    left: BTreeSet<u32>,
}

/// Methods that advance the clock, process events and manage timers.
impl Network {
    /// Creates a network that connects `ranks` ranks. Connections are established when they are
    /// first used.
    ///
    /// # Panics
    /// Panics if a bandwidth is not positive, if the window or the quantum is 0, or if uplinks are
    /// configured and do not specify a site for each rank.
    #[must_use]
    pub fn new(config: NetworkConfig, ranks: usize) -> Self {
        assert!(
            config.bandwidth_bytes_per_s > 0.0,
            "the bandwidth must be positive"
        );
        config.uplinks.iter().for_each(|one| one.check(ranks));
        assert!(config.window_bytes > 0, "window_bytes must be positive");
        assert!(config.quantum_bytes > 0, "quantum_bytes must be positive");
        let mut network = Network {
            latency_ns: nanoseconds(config.latency),
            overhead_ns: nanoseconds(config.overhead),
            now_ns: 0,
            chance: SplitMix64::new(config.seed),
            ranks: (0..ranks).map(|_| Rank::default()).collect(),
            uplinks: Vec::new(),
            pipes: Vec::new(),
            pool: Pool::default(),
            events: BinaryHeap::new(),
            events_made: 0,
            timers: BTreeSet::new(),
            control_last_ns: BTreeMap::new(),
            direct: BTreeSet::new(),
            touched: Vec::new(),
            transfers: None,
            event_times_ns: None,
            config,
        };
        for (rank, at) in network.config.faults.deaths.clone() {
            network.schedule(nanoseconds(at), Happening::Death(rank));
        }
        network
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.ranks.len()
    }

    /// Returns the virtual time since the start of the simulation.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.now_ns)
    }

    /// Returns the time of the next event, or `None` if nothing is in progress. An event occurs
    /// when a packet moves, a control message arrives, a rank dies, or a stall or a timer ends.
    #[must_use]
    pub fn next_event_at(&self) -> Option<Duration> {
        self.next_event_ns().map(Duration::from_nanos)
    }

    fn next_event_ns(&self) -> Option<u64> {
        let event = self.events.peek().map(|Reverse(event)| event.at_ns);
        let timer = self.timers.first().map(|&(at_ns, _)| at_ns);
        event
            .into_iter()
            .chain(timer)
            .min()
            .map(|at_ns| at_ns.max(self.now_ns))
    }

    /// Jumps to the next event and processes everything that is due at that time. Returns the new
    /// time, or `None` if nothing is in progress.
    pub fn advance(&mut self) -> Option<Duration> {
        let at_ns = self.next_event_ns()?;
        self.run_until(at_ns);
        Some(self.now())
    }

    /// Moves the clock to `time` and processes everything that is due by then. If `time` is in the
    /// past, the clock does not move, and only events that are due now are processed.
    pub fn advance_to(&mut self, time: Duration) {
        self.run_until(nanoseconds(time).max(self.now_ns));
    }

    fn run_until(&mut self, end_ns: u64) {
        while let Some(at_ns) = self.next_event_ns().filter(|&at_ns| at_ns <= end_ns) {
            self.now_ns = at_ns;
            if let Some(times_ns) = &mut self.event_times_ns {
                times_ns.insert(at_ns);
            }
            match self.timers.first() {
                Some(&(timer_ns, rank)) if timer_ns <= at_ns => {
                    self.cancel_timer(rank);
                    self.touch(rank);
                }
                _ => {
                    let Reverse(event) = self
                        .events
                        .pop()
                        .expect("invariant: everything that is due is a timer or an event");
                    self.happen(event.what);
                }
            }
        }
        self.now_ns = end_ns;
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::AtUplink { pipe, bytes } => self.leave_site(pipe, bytes),
            Happening::AtOtherSite { pipe, bytes } => self.enter_site(pipe, bytes),
            Happening::AtPort(pipe) => self.enter_down_port(pipe),
            Happening::Arrived(pipe) => self.arrive(pipe),
            Happening::StallEnd(rank) => self.ranks[rank].stalled_until_ns = 0,
            Happening::Death(rank) => {
                self.close_rank(rank);
                self.touch(rank);
            }
            Happening::ControlLost { at, dead } => {
                self.ranks[at].lost.push_back(dead);
                self.touch(at);
            }
            Happening::Control { to, message } => {
                if self.ranks[to].closed_ns.is_none() {
                    self.ranks[to].control.push_back(message);
                    self.touch(to);
                }
            }
        }
    }

    fn schedule(&mut self, at_ns: u64, what: Happening) {
        self.events.push(Reverse(Event {
            at_ns,
            number: self.events_made,
            what,
        }));
        self.events_made += 1;
    }

    /// Returns the ranks that have been reached by an event since the last call. Each rank is
    /// returned only once, and the ranks are in the order of the events. An event reaches a rank
    /// when bytes, an end of stream or a control message arrive, when a full window has space
    /// again, when more bytes can be transferred after a short read or write, when a timer ends,
    /// when a control connection breaks, or when the rank dies. Stalled ranks are returned once
    /// their stall is over.
    pub fn take_touched(&mut self) -> Vec<usize> {
        let ranks = &mut self.ranks;
        let now_ns = self.now_ns;
        let (stalled, free): (Vec<_>, Vec<_>) = self
            .touched
            .drain(..)
            .partition(|&rank| ranks[rank].stalled_until_ns > now_ns);
        self.touched = stalled;
        for &rank in &free {
            ranks[rank].touched = false;
        }
        free
    }

    fn touch(&mut self, rank: usize) {
        if self.ranks[rank].touched {
            return;
        }
        self.ranks[rank].touched = true;
        self.touched.push(rank);
        if self.is_stalled(rank) {
            return;
        }
        if let Some(stall_ns) = self.config.faults.stall_ns(&mut self.chance) {
            let end_ns = self.now_ns.saturating_add(stall_ns);
            self.ranks[rank].stalled_until_ns = end_ns;
            self.schedule(end_ns, Happening::StallEnd(rank));
        }
    }

    /// Returns `true` if `rank` is currently stalled, that is, behaves as if its thread were not
    /// scheduled.
    #[must_use]
    pub fn is_stalled(&self, rank: usize) -> bool {
        self.ranks[rank].stalled_until_ns > self.now_ns
    }

    /// Sets the timer of `rank` to expire at time `at`. This replaces any earlier timer of this
    /// rank.
    pub fn set_timer(&mut self, rank: usize, at: Duration) {
        self.cancel_timer(rank);
        let at_ns = nanoseconds(at);
        self.ranks[rank].timer_ns = Some(at_ns);
        self.timers.insert((at_ns, rank));
    }

    /// Cancels the timer of `rank`.
    pub fn cancel_timer(&mut self, rank: usize) {
        if let Some(at_ns) = self.ranks[rank].timer_ns.take() {
            self.timers.remove(&(at_ns, rank));
        }
    }
}

/// Methods for reading, writing and recording transfers.
impl Network {
    /// Writes bytes to the connection from `from` to `to` in `group`. Returns the number of bytes
    /// accepted.
    ///
    /// # Errors
    /// Returns `WouldBlock` if the window is full, `BrokenPipe` if this end has closed or if the
    /// other end closed at least one latency ago, and `InvalidInput` if `from` and `to` are the
    /// same rank.
    pub fn write(
        &mut self,
        group: u32,
        from: usize,
        to: usize,
        slices: &[IoSlice<'_>],
    ) -> io::Result<usize> {
        let index = self.connection(group, from, to)?;
        let pipe = &mut self.pipes[index];
        let known_ns = |closed_ns: u64| closed_ns.saturating_add(self.latency_ns);
        if pipe.ended
            || pipe
                .reader_closed_ns
                .is_some_and(|at_ns| known_ns(at_ns) <= self.now_ns)
        {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let offered: usize = slices.iter().map(|slice| slice.len()).sum();
        let room = self.config.window_bytes.saturating_sub(pipe.held_bytes);
        pipe.writer_waits |= offered > room;
        let possible = offered.min(room);
        if possible == 0 && offered > 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let taken = self
            .config
            .faults
            .accepted_bytes(possible, &mut self.chance);
        if taken < possible {
            self.touch(from);
        }
        let mut done = 0;
        while done < taken {
            let bytes = (taken - done).min(self.config.quantum_bytes);
            let mut data = self.pool.take(bytes);
            gather(slices, done, bytes, &mut data);
            self.send_packet(index, data);
            done += bytes;
        }
        self.ranks[from].bytes_sent += taken as u64;
        Ok(taken)
    }

    /// Reads, on rank `at`, bytes that rank `from` has sent in `group`. Returns the number of bytes
    /// read, which is 0 at the end of the stream.
    ///
    /// # Errors
    /// Returns `WouldBlock` if no unread bytes have arrived, and `InvalidInput` if `at` and `from`
    /// are the same rank.
    pub fn read(
        &mut self,
        group: u32,
        at: usize,
        from: usize,
        slices: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize> {
        let index = self.connection(group, at, from)? ^ 1;
        let wanted: usize = slices.iter().map(|slice| slice.len()).sum();
        let pipe = &mut self.pipes[index];
        if wanted == 0 || pipe.at_end() {
            return Ok(0);
        }
        if pipe.arrived == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let bytes_max = self.config.faults.accepted_bytes(wanted, &mut self.chance);
        let held_before = pipe.held_bytes;
        let bytes = pipe.read(slices, bytes_max, &mut self.pool);
        let unread = pipe.arrived > 0;
        if pipe.held_bytes < held_before && std::mem::take(&mut pipe.writer_waits) {
            self.touch(from);
        }
        if bytes_max < wanted && unread {
            self.touch(at);
        }
        Ok(bytes)
    }

    /// Returns the pipe from `own` to `peer`. Creates both directions when they are first needed.
    fn connection(&mut self, group: u32, own: usize, peer: usize) -> io::Result<usize> {
        let key = (group, peer as u32);
        let own_pipes = &self.ranks[own].pipes;
        let place = match own_pipes.binary_search_by_key(&key, |&(key, _)| key) {
            Ok(place) => return Ok(own_pipes[place].1 as usize),
            Err(place) => place,
        };
        if own == peer {
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                "a rank has no link to itself",
            ));
        }
        let index = self.pipes.len();
        self.pipes.push(Pipe::new(own as u32, peer as u32));
        self.pipes.push(Pipe::new(peer as u32, own as u32));
        self.ranks[own].pipes.insert(place, (key, index as u32));
        let peer_pipes = &mut self.ranks[peer].pipes;
        let key = (group, own as u32);
        let place = peer_pipes.partition_point(|&(other, _)| other < key);
        peer_pipes.insert(place, (key, index as u32 + 1));
        for (rank, pipe) in [(own, index), (peer, index + 1)] {
            let ends = &self.ranks[rank];
            if ends.closed_ns.is_some() || ends.left.contains(&group) {
                self.close_pipe(pipe);
            }
        }
        Ok(index)
    }

    fn port_ns(&self, bytes: usize) -> u64 {
        (bytes as f64 / self.config.bandwidth_bytes_per_s * 1e9).round() as u64
    }

    fn send_packet(&mut self, index: usize, data: Vec<u8>) {
        let (bytes, port_ns) = (data.len(), self.port_ns(data.len()));
        let late_ns = self.config.faults.delay_ns(&mut self.chance);
        let crosses = self.passes_uplinks(index);
        let way_ns = if crosses { 0 } else { self.latency_ns };
        let pipe = &mut self.pipes[index];
        let sender = &mut self.ranks[pipe.from as usize];
        let start_ns = sender.up_free_ns.max(self.now_ns);
        let leaves_ns = start_ns.saturating_add(self.overhead_ns);
        sender.up_free_ns = leaves_ns.saturating_add(port_ns);
        let on_time_ns = leaves_ns.saturating_add(way_ns);
        let at_ns = on_time_ns.saturating_add(late_ns).max(pipe.not_before_ns);
        pipe.not_before_ns = at_ns;
        pipe.held_bytes += data.len();
        pipe.packets.push_back(Packet { data, start_ns });
        let next = match crosses {
            true => Happening::AtUplink { pipe: index, bytes },
            false => Happening::AtPort(index),
        };
        self.schedule(at_ns, next);
    }

    fn enter_down_port(&mut self, index: usize) {
        let pipe = &mut self.pipes[index];
        let bytes = pipe.packets[pipe.at_port].data.len();
        pipe.at_port += 1;
        let to = pipe.to as usize;
        let port_ns = self.port_ns(bytes);
        let receiver = &mut self.ranks[to];
        receiver.down_free_ns = receiver
            .down_free_ns
            .max(self.now_ns)
            .saturating_add(port_ns)
            .saturating_add(self.overhead_ns);
        let through_ns = receiver.down_free_ns;
        if through_ns == self.now_ns {
            self.arrive(index);
        } else {
            self.schedule(through_ns, Happening::Arrived(index));
        }
    }

    fn arrive(&mut self, index: usize) {
        let pipe = &mut self.pipes[index];
        let packet = &pipe.packets[pipe.arrived];
        let (from, to) = (pipe.from as usize, pipe.to as usize);
        if let Some(transfers) = self.transfers.as_mut().filter(|_| !packet.data.is_empty()) {
            transfers.push(Transfer {
                start: Duration::from_nanos(packet.start_ns),
                end: Duration::from_nanos(self.now_ns),
                from,
                to,
                bytes: packet.data.len(),
            });
        }
        pipe.arrived += 1;
        if pipe.reader_closed_ns.is_some() {
            pipe.discard_arrived(&mut self.pool);
        } else {
            self.touch(to);
        }
    }

    /// Returns the number of bytes that `rank` has written to its connections.
    #[must_use]
    pub fn bytes_sent(&self, rank: usize) -> u64 {
        self.ranks[rank].bytes_sent
    }

    /// Starts recording the transfers of packets.
    pub fn record_transfers(&mut self) {
        self.transfers.get_or_insert_default();
    }

    /// Returns the recorded transfers in the order in which the packets arrived. The result is
    /// empty if recording was not started.
    #[must_use]
    pub fn transfers(&self) -> &[Transfer] {
        self.transfers.as_deref().unwrap_or_default()
    }

    /// Starts recording the times of events.
    pub fn record_event_times(&mut self) {
        self.event_times_ns.get_or_insert_default();
    }

    /// Returns the recorded event times in ascending order, without duplicates. The result is empty
    /// if recording was not started.
    pub fn event_times(&self) -> impl Iterator<Item = Duration> {
        let times_ns = self.event_times_ns.iter().flatten();
        times_ns.copied().map(Duration::from_nanos)
    }
}
