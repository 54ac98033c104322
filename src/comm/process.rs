//! A rank that is a process: real clock, real sockets, one control thread.

use super::host::{Host, Shared, Waited};
use super::neighbourhood::Neighbourhood;
use super::runtime::Runtime;
use crate::control::{ControlHandle, Handler};
use crate::error::Result;
use crate::limits::{IDLE_SLEEP, LINGER_SPINS, LINGER_YIELDS, SPIN_PASSES, YIELD_PASSES};
use crate::protocol::session::To;
use crate::transport::Transport;
use crate::transport::routed::RoutedTransport;
use crate::transport::stream::StreamTransport;
use crate::transport::tcp::{Inbox, Reactor, TcpConnector};
use mio::net::TcpStream;
use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The wire's number of a group's channel: collectives first, pairs second.
fn channel_number(group: u32, channel: u32) -> u32 {
    group * 2 + channel
}

/// Beside a group's number, the wire's number of its channel for acknowledgements: no other
/// channel's has both bits, nor what else ranks of a host hand over.
const ACKNOWLEDGEMENTS: u32 = 3 << 30;

/// What the threads of the process share.
pub(super) struct Links {
    reactor: Arc<Reactor>,
    inboxes: Mutex<HashMap<u32, Arc<Inbox>>>,
    control: OnceLock<ControlHandle>,
    neighbourhood: Option<Neighbourhood>,
}

impl Links {
    pub(super) fn new(reactor: Arc<Reactor>, neighbourhood: Option<Neighbourhood>) -> Self {
        Self {
            neighbourhood,
            reactor,
            inboxes: Mutex::default(),
            control: OnceLock::new(),
        }
    }

    pub(super) fn set_control(&self, control: ControlHandle) {
        // Called once, before the control thread starts.
        let _ = self.control.set(control);
    }

    /// Tells the neighbours that nobody here polls; false if they know already, or there are none.
    fn lie_down(&self) -> bool {
        self.neighbourhood
            .as_ref()
            .is_some_and(Neighbourhood::lie_down)
    }

    /// Somebody polls again.
    fn rise(&self) {
        if let Some(neighbourhood) = &self.neighbourhood {
            neighbourhood.rise();
        }
    }

    fn inbox(&self, channel: u32) -> Arc<Inbox> {
        let mut inboxes = self.inboxes.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(inboxes.entry(channel).or_default())
    }

    /// A transport for a channel, to the neighbours through memory that is shared now, by all of
    /// them within `at_most`; to the others links are dialed by `control` when a plan first needs
    /// them.
    fn transport(
        &self,
        channel: u32,
        world_size: usize,
        at_most: Duration,
    ) -> Result<Box<dyn Transport>> {
        let control = self.control.get().cloned();
        let dial = Box::new(move |peer| {
            if let Some(control) = &control {
                control.dial(channel, 0, peer);
            }
        });
        let connector = TcpConnector::new(Arc::clone(&self.reactor), self.inbox(channel), dial);
        let far = StreamTransport::new(connector, channel, 0, world_size);
        let Some(neighbourhood) = &self.neighbourhood else {
            return Ok(Box::new(far));
        };
        let near = neighbourhood.transport(channel, world_size, at_most)?;
        if neighbourhood.size() == world_size {
            return Ok(Box::new(near));
        }
        Ok(Box::new(RoutedTransport::new(near, far)))
    }
}

/// The host of a process's runtime.
pub(super) struct ProcessHost {
    pub(super) links: Arc<Links>,
    pub(super) start: Instant,
    /// Whether every rank of this host has a core to itself.
    pub(super) has_own_core: bool,
}

impl Host for ProcessHost {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn give_way(&self, idle_passes: u32) -> Waited {
        let spins = if self.has_own_core { SPIN_PASSES } else { 0 };
        if idle_passes <= spins {
            std::hint::spin_loop();
            Waited::Briefly
        } else if idle_passes <= spins + YIELD_PASSES {
            std::thread::yield_now();
            Waited::Briefly
        } else if self.links.lie_down() {
            // One more look, now that peers know.
            Waited::Briefly
        } else {
            self.links.reactor.sleep(IDLE_SLEEP);
            self.links.rise();
            Waited::Asleep
        }
    }

    fn wake(&self) {
        self.links.reactor.wake();
    }

    fn background_work(&self) {
        if let Some(control) = self.links.control.get() {
            control.poke();
        }
    }

    fn transports(
        &self,
        group: u32,
        world_size: usize,
        at_most: Duration,
    ) -> Result<[Box<dyn Transport>; 2]> {
        let transport = |channel| {
            let channel = channel_number(group, channel);
            self.links.transport(channel, world_size, at_most)
        };
        Ok([transport(0)?, transport(1)?])
    }

    fn acknowledgements(
        &self,
        group: u32,
        world_size: usize,
        at_most: Duration,
    ) -> Result<Box<dyn Transport>> {
        let channel = ACKNOWLEDGEMENTS | group;
        self.links.transport(channel, world_size, at_most)
    }

    fn neighbours(&self) -> Vec<usize> {
        let neighbourhood = self.links.neighbourhood.as_ref();
        neighbourhood.map_or_else(Vec::new, |one| one.ranks().to_vec())
    }

    fn allocate(&self, group: u32, bytes: usize, at_most: Duration) -> Result<Option<Shared>> {
        let neighbourhood = self.links.neighbourhood.as_ref();
        let shared = neighbourhood.map(|one| one.allocate(group, bytes, at_most));
        shared.transpose()
    }

    fn hand_out(
        &self,
        group: u32,
        file: BorrowedFd<'_>,
        bytes: usize,
        at_most: Duration,
    ) -> Result<Vec<(usize, OwnedFd)>> {
        let neighbourhood = self.links.neighbourhood.as_ref();
        let theirs = neighbourhood.map(|one| one.hand_out(group, file, bytes, at_most));
        theirs.unwrap_or_else(|| Ok(Vec::new()))
    }

    fn linger(&self, fruitless: u32) -> bool {
        let spins = if self.has_own_core { LINGER_SPINS } else { 0 };
        if fruitless <= spins {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
        fruitless <= spins + LINGER_YIELDS
    }

    fn awake(&self) {
        self.links.rise();
    }

    fn lie_down(&self) -> bool {
        self.links.lie_down()
    }

    fn send_control(&self, to: To, group: u32, payload: &[u8]) {
        let Some(control) = self.links.control.get() else {
            return;
        };
        match to {
            To::Rank(rank) => control.send(rank, group, payload),
            To::All => control.send_all(group, payload),
        }
    }

    fn close(&self) {
        if let Some(control) = self.links.control.get() {
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
pub(super) struct Callbacks {
    pub(super) runtime: Weak<Runtime>,
    pub(super) links: Arc<Links>,
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

    fn stream(&self, channel: u32, peer: usize, stream: TcpStream) {
        self.links.inbox(channel).push(peer, stream);
        self.links.reactor.wake();
    }

    fn stream_failed(&self, _channel: u32, peer: usize, why: String) {
        self.with(|runtime| runtime.link_failed(peer, &why));
    }

    fn wake_after(&self) -> Option<Duration> {
        self.with(|runtime| {
            let sleep = if runtime.is_unfinished() {
                Duration::ZERO
            } else {
                IDLE_SLEEP
            };
            runtime.wants_poller().then_some(sleep)
        })
    }

    fn awake(&self) {
        self.with(Runtime::poll_in_background);
    }

    fn wants_data_events(&self) -> bool {
        self.with(Runtime::wants_poller)
    }
}
