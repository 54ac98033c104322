//! A rank that is a process: real clock, real sockets, one control thread.

use super::Runtime;
use super::host::{Host, Waited};
use super::local::LocalRanks;
use crate::control::{ControlHandle, Handler};
use crate::engine::medium::host::Links;
use crate::error::{Error, Result};
use crate::limits::{
    CALL_SPINS, CALL_YIELDS, CHANNELS_AHEAD_MAX, IDLE_SLEEP, SPIN_PASSES, YIELD_PASSES,
};
use crate::link::Link;
use crate::link::stream::StreamLink;
use crate::link::tcp::{DataStream, Inbox, Reactor};
use crate::protocol::session::To;
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Connections of channels that this rank does not have are looked at this often.
const CLAIMED_AFTER: Duration = Duration::from_secs(10);

/// The wire's number of a group's channel: collectives first, pairs second.
fn channel_number(group: u32, channel: u32) -> u32 {
    group * 2 + channel
}

/// Data connections on their way to their links.
#[derive(Default)]
struct Arrivals {
    inboxes: HashMap<u32, Arc<Inbox>>,
    /// Of channels that this rank does not have, and when they came: the peer may be ahead.
    unclaimed: Vec<(Instant, u32, DataStream)>,
}

impl Arrivals {
    fn inbox(&mut self, channel: u32) -> Arc<Inbox> {
        let inbox = Arc::clone(self.inboxes.entry(channel).or_default());
        let is_its = |one: &mut (Instant, u32, DataStream)| one.1 == channel;
        for (_, _, stream) in self.unclaimed.extract_if(.., is_its) {
            inbox.push(stream);
        }
        inbox
    }

    fn take(&mut self, channel: u32, stream: DataStream, now: Instant) {
        if let Some(inbox) = self.inboxes.get(&channel) {
            inbox.push(stream);
            return;
        }
        // A peer that dialed again has given up the connection before.
        let peer = stream.peer;
        self.unclaimed
            .retain(|(_, of, one)| (*of, one.peer) != (channel, peer));
        let ahead: HashSet<u32> = self.unclaimed.iter().map(|(_, of, _)| *of).collect();
        if ahead.len() < CHANNELS_AHEAD_MAX || ahead.contains(&channel) {
            self.unclaimed.push((now, channel, stream));
        }
    }

    /// Closes what came longer ago than `at_most`; whether anything is left to claim.
    fn expire(&mut self, now: Instant, at_most: Duration) -> bool {
        self.unclaimed.retain(|(came, ..)| now - *came < at_most);
        !self.unclaimed.is_empty()
    }
}

/// What the threads of the process share.
pub(crate) struct Shared {
    reactor: Arc<Reactor>,
    arrivals: Mutex<Arrivals>,
    /// How long a peer may be ahead.
    timeout: Duration,
    control: OnceLock<ControlHandle>,
    local: Option<LocalRanks>,
}

impl Shared {
    pub(crate) fn new(reactor: Arc<Reactor>, local: Option<LocalRanks>, timeout: Duration) -> Self {
        Self {
            local,
            reactor,
            arrivals: Mutex::default(),
            timeout,
            control: OnceLock::new(),
        }
    }

    pub(crate) fn set_control(&self, control: ControlHandle) {
        // Called once, before the control thread starts.
        let _ = self.control.set(control);
    }

    fn arm(&self) -> bool {
        self.local.as_ref().is_some_and(LocalRanks::arm)
    }

    fn disarm(&self) {
        if let Some(local) = &self.local {
            local.disarm();
        }
    }

    fn arrivals(&self) -> MutexGuard<'_, Arrivals> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The links of a channel: to the local ranks through memory that all of them share now,
    /// within `at_most`; to the others over TCP, dialed when a program first needs them.
    fn links(&self, channel: u32, world_size: usize, at_most: Duration) -> Result<Links> {
        let control = self.control.get().cloned();
        let (reactor, inbox) = (Arc::clone(&self.reactor), self.arrivals().inbox(channel));
        let connect = Box::new(move |peer| -> Box<dyn Link> {
            if let Some(control) = &control {
                control.dial(channel, 0, peer);
            }
            let (reactor, inbox) = (Arc::clone(&reactor), Arc::clone(&inbox));
            let source = Box::new(move || inbox.take(peer, &reactor));
            Box::new(StreamLink::new((channel, 0), source))
        });
        let links = Links::new(world_size, connect);
        Ok(match &self.local {
            Some(local) => {
                let (links_to_local, shared) = local.links(channel, at_most)?;
                links.with_local(links_to_local, shared)
            }
            None => links,
        })
    }
}

/// The host of a process's runtime.
pub(crate) struct ProcessHost {
    pub(crate) shared: Arc<Shared>,
    pub(crate) start: Instant,
    /// Whether every rank of this host has a core to itself.
    pub(crate) has_own_core: bool,
}

impl Host for ProcessHost {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn give_way(&self, idle_passes: u32, at_most: Duration) -> Waited {
        let spins = if self.has_own_core { SPIN_PASSES } else { 0 };
        if idle_passes <= spins {
            std::hint::spin_loop();
            Waited::Briefly
        } else if idle_passes <= spins + YIELD_PASSES {
            std::thread::yield_now();
            Waited::Briefly
        } else if self.shared.arm() {
            // One more look, now that the doorbell is armed.
            Waited::Briefly
        } else {
            self.shared.reactor.sleep(at_most);
            self.shared.disarm();
            self.shared.reactor.find_cuts();
            Waited::Asleep
        }
    }

    fn wake(&self) {
        self.shared.reactor.wake();
    }

    fn background_work(&self) {
        if let Some(control) = self.shared.control.get() {
            control.poke();
        }
    }

    fn links(&self, group: u32, world_size: usize, at_most: Duration) -> Result<[Links; 2]> {
        let links = |channel| {
            let channel = channel_number(group, channel);
            self.shared.links(channel, world_size, at_most)
        };
        Ok([links(0)?, links(1)?])
    }

    fn local_ranks(&self) -> Vec<usize> {
        let local = self.shared.local.as_ref();
        local.map_or_else(Vec::new, |one| one.ranks().to_vec())
    }

    fn exchange(
        &self,
        group_and_number: (u32, u32),
        file: &OwnedFd,
        bytes: Option<usize>,
        at_most: Duration,
    ) -> Result<Vec<(usize, OwnedFd)>> {
        match &self.shared.local {
            Some(local) => local.exchange(group_and_number, file, bytes, at_most),
            None => Ok(Vec::new()),
        }
    }

    fn spin(&self, fruitless: u32) -> bool {
        let spins = if self.has_own_core { CALL_SPINS } else { 0 };
        if fruitless <= spins {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
        fruitless <= spins + CALL_YIELDS
    }

    fn disarm(&self) {
        self.shared.disarm();
    }

    fn arm(&self) -> bool {
        self.shared.arm()
    }

    fn send_control(&self, to: To, group: u32, payload: &[u8]) {
        let Some(control) = self.shared.control.get() else {
            return;
        };
        match to {
            To::Rank(rank) => control.send(rank, group, payload),
            To::All => control.send_all(group, payload),
        }
    }

    fn close(&self) {
        if let Some(control) = self.shared.control.get() {
            control.shutdown();
        }
    }
}

impl Drop for ProcessHost {
    fn drop(&mut self) {
        // Where no communicator came about, so that no group could leave.
        self.close();
    }
}

/// What the control thread calls.
pub(crate) struct Callbacks {
    pub(crate) runtime: Weak<Runtime>,
    pub(crate) shared: Arc<Shared>,
}

impl Callbacks {
    fn with<R: Default>(&self, act: impl FnOnce(&Runtime) -> R) -> R {
        self.runtime
            .upgrade()
            .map(|runtime| act(&runtime))
            .unwrap_or_default()
    }
}

impl Handler for Callbacks {
    fn control(&self, from: usize, group: u32, payload: &[u8]) {
        self.with(|runtime| runtime.control(group, from, payload));
    }

    fn control_lost(&self, rank: usize, why: String) {
        self.with(|runtime| runtime.control_lost(rank, &why));
    }

    fn process_ended(&self, rank: usize) {
        self.with(|runtime| runtime.process_ended(rank));
    }

    fn stream(&self, channel: u32, stream: DataStream) {
        self.shared.arrivals().take(channel, stream, Instant::now());
        self.shared.reactor.wake();
    }

    fn stream_failed(&self, _channel: u32, peer: usize, why: String) {
        self.with(|runtime| runtime.link_failed(peer, &why));
    }

    fn cannot_go_on(&self, cause: Error) {
        self.with(|runtime| runtime.give_up(&cause));
    }

    fn wake_after(&self) -> Option<Duration> {
        let Shared { timeout, .. } = *self.shared;
        let is_unclaimed = self.shared.arrivals().expire(Instant::now(), timeout);
        let poll_after = self.with(|runtime| {
            let sleep = if runtime.is_unfinished() {
                Duration::ZERO
            } else {
                IDLE_SLEEP
            };
            runtime.wants_poller().then_some(sleep)
        });
        poll_after.or(is_unclaimed.then_some(CLAIMED_AFTER))
    }

    fn awake(&self) {
        if self.with(Runtime::wants_poller) {
            self.shared.reactor.find_cuts();
        }
        self.with(Runtime::poll_in_background);
    }

    fn wants_data_events(&self) -> bool {
        self.with(Runtime::wants_poller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mio::net::TcpStream;
    use std::io::Read;

    /// A connection from `peer`, and its other end.
    fn connection(peer: usize) -> (DataStream, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let far = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = TcpStream::from_std(listener.accept().unwrap().0);
        let hosts = (String::new(), String::new());
        (
            DataStream {
                peer,
                stream,
                hosts,
            },
            far,
        )
    }

    fn is_closed(far: &mut std::net::TcpStream) -> bool {
        far.set_nonblocking(true).unwrap();
        !far.read(&mut [0])
            .is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }

    #[test]
    fn connections_of_channels_that_there_are_not_end_in_time_and_are_bounded() {
        let (start, timeout) = (Instant::now(), Duration::from_secs(300));
        let mut arrivals = Arrivals::default();
        let mut far = Vec::new();
        let mut arrive = |arrivals: &mut Arrivals, channel, peer| {
            let (stream, other) = connection(peer);
            arrivals.take(channel, stream, start);
            far.push(other);
        };
        // The same peer twice, then more channels than any rank is ahead.
        arrive(&mut arrivals, 0, 1);
        arrive(&mut arrivals, 0, 1);
        for channel in 0..=CHANNELS_AHEAD_MAX as u32 {
            arrive(&mut arrivals, channel, 2);
        }
        let closed: Vec<bool> = far.iter_mut().map(is_closed).collect();
        assert!(closed[0] && closed[CHANNELS_AHEAD_MAX + 2]);
        assert_eq!(closed.iter().filter(|one| **one).count(), 2);
        // One channel comes into being; the others' time passes.
        let reactor = Arc::new(Reactor::new().unwrap());
        let inbox = arrivals.inbox(0);
        assert!(inbox.take(1, &reactor).is_some() && inbox.take(2, &reactor).is_some());
        assert!(arrivals.expire(start + timeout / 2, timeout));
        assert!(!is_closed(&mut far[4]));
        assert!(!arrivals.expire(start + timeout, timeout));
        assert!(is_closed(&mut far[4]));
    }
}
