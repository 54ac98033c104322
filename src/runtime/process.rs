//! A rank that is a process: real clock, real sockets, one control thread.

use super::Runtime;
use super::host::{Host, Waited};
use super::local::LocalRanks;
use crate::control::{ControlHandle, Handler};
use crate::engine::medium::host::Links;
use crate::error::Result;
use crate::limits::{CALL_SPINS, CALL_YIELDS, IDLE_SLEEP, SPIN_PASSES, YIELD_PASSES};
use crate::link::Link;
use crate::link::stream::StreamLink;
use crate::link::tcp::{DataStream, Inbox, Reactor};
use crate::protocol::session::To;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The wire's number of a group's channel: collectives first, pairs second.
fn channel_number(group: u32, channel: u32) -> u32 {
    group * 2 + channel
}

/// What the threads of the process share.
pub(crate) struct Shared {
    reactor: Arc<Reactor>,
    inboxes: Mutex<HashMap<u32, Arc<Inbox>>>,
    control: OnceLock<ControlHandle>,
    local: Option<LocalRanks>,
}

impl Shared {
    pub(crate) fn new(reactor: Arc<Reactor>, local: Option<LocalRanks>) -> Self {
        Self {
            local,
            reactor,
            inboxes: Mutex::default(),
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

    fn inbox(&self, channel: u32) -> Arc<Inbox> {
        let mut inboxes = self.inboxes.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(inboxes.entry(channel).or_default())
    }

    /// The links of a channel: to the local ranks through memory that all of them share now,
    /// within `at_most`; to the others over TCP, dialed when a program first needs them.
    fn links(&self, channel: u32, world_size: usize, at_most: Duration) -> Result<Links> {
        let control = self.control.get().cloned();
        let (reactor, inbox) = (Arc::clone(&self.reactor), self.inbox(channel));
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

    fn give_way(&self, idle_passes: u32) -> Waited {
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
            self.shared.reactor.sleep(IDLE_SLEEP);
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
        self.shared.inbox(channel).push(stream);
        self.shared.reactor.wake();
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
        if self.with(Runtime::wants_poller) {
            self.shared.reactor.find_cuts();
        }
        self.with(Runtime::poll_in_background);
    }

    fn wants_data_events(&self) -> bool {
        self.with(Runtime::wants_poller)
    }
}
