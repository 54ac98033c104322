//! Implements [`Host`] for ranks that run as real processes, with a real clock, real sockets and a
//! control thread.

use super::Runtime;
use super::background::{Background, Reach};
use super::channels::{Known, channel_number, group_of};
use super::crowding::Crowding;
use super::host::{Host, Waited};
use super::local::LocalRanks;
use super::user_code::Foreign;
use crate::control::report::Report;
use crate::control::{ControlHandle, Handler};
use crate::engine::log::Clock;
use crate::engine::medium::host::Links;
use crate::error::{Error, Result};
use crate::event::{Event, EventQueue};
use crate::limits::{
    CALL_SPINS, CALL_YIELDS, CHANNELS_AHEAD_MAX, EVENTS_SETTLE_MAX, REACTOR_SLEEP_MIN, SPIN_PASSES,
    YIELD_PASSES,
};
use crate::link::Link;
use crate::link::stream::StreamLink;
use crate::link::tcp::{DataStream, Inbox, Reactor};
use crate::lock::lock;
use crate::protocol::group_creation::FIRST_MADE;
use crate::protocol::members::Members;
use crate::protocol::session::To;
use std::collections::{HashMap, HashSet};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// Data connections that no link has taken yet.
#[derive(Default)]
struct Arrivals {
    known: Known,
    inboxes: HashMap<u32, Arc<Inbox>>,
    /// Connections for channels that this rank does not have yet because the peer has run ahead.
    unclaimed: Vec<(u32, DataStream)>,
}

impl Arrivals {
    fn inbox(&mut self, channel: u32) -> Arc<Inbox> {
        self.known.add(group_of(channel));
        let inbox = Arc::clone(self.inboxes.entry(channel).or_default());
        let is_its = |one: &mut (u32, DataStream)| one.0 == channel;
        for (_, stream) in self.unclaimed.extract_if(.., is_its) {
            inbox.push(stream);
        }
        inbox
    }

    fn take(&mut self, channel: u32, stream: DataStream) {
        if let Some(inbox) = self.inboxes.get(&channel) {
            inbox.push(stream);
            return;
        }
        // A peer that dials again has dropped its previous connection.
        let peer = stream.peer;
        self.unclaimed
            .retain(|(of, one)| (*of, one.peer) != (channel, peer));
        let ahead: HashSet<u32> = self.unclaimed.iter().map(|(of, _)| *of).collect();
        let fits = ahead.len() < CHANNELS_AHEAD_MAX || ahead.contains(&channel);
        if fits && self.known.wants(channel) {
            self.unclaimed.push((channel, stream));
        }
    }

    fn forget(&mut self, group: u32) {
        self.inboxes
            .retain(|channel, _| group_of(*channel) != group);
        self.known.forget(group);
    }

    /// Closes unclaimed connections that are no longer needed.
    fn tidy(&mut self) {
        let known = &self.known;
        self.unclaimed.retain(|(channel, _)| known.wants(*channel));
    }
}

/// State that the threads of the process share.
pub(crate) struct Shared {
    pub(super) reach: Arc<Reach>,
    arrivals: Mutex<Arrivals>,
    background: Arc<Background>,
    local: Option<Arc<LocalRanks>>,
}

impl Shared {
    pub(crate) fn new(reactor: Arc<Reactor>, local: Option<LocalRanks>) -> Self {
        let reach = Arc::new(Reach::new(reactor));
        Self {
            local: local.map(Arc::new),
            arrivals: Mutex::default(),
            background: Arc::new(Background::new(Arc::clone(&reach))),
            reach,
        }
    }

    /// Sets the control handle and the runtime. This method is called once, before any thread
    /// starts.
    pub(crate) fn connect(&self, control: ControlHandle, runtime: Weak<Runtime>) {
        self.reach.connect(control, runtime);
    }

    fn arm(&self) -> bool {
        self.local.as_ref().is_some_and(|local| local.arm())
    }

    fn disarm(&self) {
        if let Some(local) = &self.local {
            local.disarm();
        }
    }

    /// Returns the links of a channel. Links to local ranks use shared memory. Links to other ranks
    /// use TCP and connect when a program first needs them. In a group that the join creates, the
    /// local ranks exchange their memory now, within `at_most`. In other groups, they exchange it
    /// when a program first needs a link.
    fn links(
        &self,
        channel: u32,
        rank: usize,
        members: &Members,
        at_most: Duration,
    ) -> Result<Links> {
        let control = self.reach.control().cloned();
        let (reactor, inbox) = (
            Arc::clone(&self.reach.reactor),
            lock(&self.arrivals).inbox(channel),
        );
        let world = members.clone();
        let over_tcp = move |peer| -> Box<dyn Link> {
            let peer = world.world_rank(peer);
            if let Some(control) = &control {
                control.dial(channel, peer);
            }
            let (reactor, inbox) = (Arc::clone(&reactor), Arc::clone(&inbox));
            let source = Box::new(move || inbox.take(peer, &reactor));
            Box::new(StreamLink::new((channel, 0), source))
        };
        let Some(local) = &self.local else {
            return Ok(Links::new(members.count(), Box::new(over_tcp)));
        };
        if group_of(channel) < FIRST_MADE {
            let (links_to_local, shared) = local.links(channel, at_most)?;
            let links = Links::new(members.count(), Box::new(over_tcp));
            return Ok(links.with_local(links_to_local, shared));
        }
        if !local.opens(channel, rank, members) {
            return Ok(Links::new(members.count(), Box::new(over_tcp)));
        }
        let later = Arc::clone(local);
        let connect = move |peer| match later.later_link(channel, peer) {
            Some(link) => link,
            None => over_tcp(peer),
        };
        let links = Links::new(members.count(), Box::new(connect));
        let local = Arc::clone(local);
        Ok(links.with_local_later(Box::new(move || local.common(channel))))
    }
}

/// The [`Host`] for the runtime of a process.
pub(crate) struct ProcessHost {
    pub(crate) shared: Arc<Shared>,
    pub(crate) start: Instant,
    /// `true` if every rank on this machine has its own core.
    pub(crate) has_own_core: bool,
    pub(crate) crowding: Crowding,
    pub(crate) rank: usize,
    /// Callback that returns `true` if the user has interrupted the calling thread.
    pub(crate) interrupt: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
    pub(crate) events: EventQueue,
    /// Descriptor of the file for reports to the launcher.
    pub(crate) report_fd: Option<RawFd>,
}

impl ProcessHost {
    /// Yields the core and returns `true`. Returns `false` without yielding if this rank should
    /// sleep instead, because an earlier yield took long.
    fn yields(&self) -> bool {
        let before = self.now();
        if !self.crowding.may_yield(before) {
            return false;
        }
        std::thread::yield_now();
        self.crowding.yielded(before, self.now());
        true
    }
}

impl Host for ProcessHost {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn clock(&self) -> Clock {
        let start = self.start;
        Box::new(move || start.elapsed())
    }

    fn pause_polling(&self, idle_passes: u32, at_most: Duration) -> Waited {
        let spins = if self.has_own_core { SPIN_PASSES } else { 0 };
        if idle_passes <= spins {
            std::hint::spin_loop();
            Waited::Briefly
        } else if idle_passes <= spins + YIELD_PASSES && self.yields() {
            Waited::Briefly
        } else if at_most < REACTOR_SLEEP_MIN {
            std::thread::sleep(at_most);
            Waited::Asleep
        } else if self.shared.arm() {
            // Poll once more, now that the doorbell is armed.
            Waited::Briefly
        } else {
            self.shared.reach.reactor.sleep(at_most);
            self.shared.disarm();
            self.close_unreachable();
            Waited::Asleep
        }
    }

    fn events(&self) -> Option<&EventQueue> {
        Some(&self.events)
    }

    fn has_interrupt(&self) -> bool {
        self.interrupt.is_some()
    }

    fn interrupted(&self) -> Option<Error> {
        let is_interrupted = self.interrupt.as_ref().is_some_and(|asks| asks());
        is_interrupted.then(|| {
            let rank = self.rank;
            let line =
                format!("the user interrupted rank {rank} while it was waiting for other ranks");
            Error::peer_lost(rank, line).with_rank(rank)
        })
    }

    fn wake(&self) {
        self.shared.reach.reactor.wake();
    }

    fn background_work(&self, at_once: bool) {
        let is_armed = self.shared.local.as_ref().is_none_or(|one| one.is_armed());
        let at_once = at_once || !is_armed;
        if !self.shared.background.take_over(at_once)
            && let Some(control) = self.shared.reach.control()
            && (at_once || !control.is_watching())
        {
            control.poke();
        }
    }

    fn close_unreachable(&self) {
        self.shared.reach.reactor.close_unreachable();
    }

    fn run_in_background(&self, code: Foreign) {
        self.shared.background.run(code);
    }

    fn links(
        &self,
        group: u32,
        rank: usize,
        members: &Members,
        at_most: Duration,
    ) -> Result<[Links; 2]> {
        let links = |channel| {
            let channel = channel_number(group, channel);
            self.shared.links(channel, rank, members, at_most)
        };
        Ok([links(0)?, links(1)?])
    }

    fn awaits_group(&self, awaits: bool) {
        let mut arrivals = lock(&self.shared.arrivals);
        arrivals.known.await_group(awaits);
        arrivals.tidy();
        drop(arrivals);
        if let Some(local) = &self.shared.local {
            local.await_group(awaits);
        }
    }

    fn forget(&self, group: u32) {
        lock(&self.shared.arrivals).forget(group);
        if let Some(local) = &self.shared.local {
            local.forget(group);
        }
        if let Some(control) = self.shared.reach.control() {
            for kind in 0..2 {
                control.forget(channel_number(group, kind));
            }
        }
    }

    fn local_ranks(&self) -> Vec<usize> {
        let local = self.shared.local.as_ref();
        local.map_or_else(Vec::new, |one| one.ranks().to_vec())
    }

    fn exchange(
        &self,
        group_and_number: (u32, u32),
        others: &[usize],
        file: (&OwnedFd, Option<usize>),
        at_most: Duration,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Vec<(usize, OwnedFd)>> {
        match &self.shared.local {
            Some(local) => local.exchange(group_and_number, others, file, at_most, goes_on),
            None => Ok(Vec::new()),
        }
    }

    fn spin(&self, fruitless: u32) -> bool {
        let spins = if self.has_own_core { CALL_SPINS } else { 0 };
        if fruitless <= spins {
            std::hint::spin_loop();
            return true;
        }
        fruitless <= spins + CALL_YIELDS && self.yields()
    }

    fn disarm(&self) {
        self.shared.disarm();
    }

    fn arm(&self) -> bool {
        self.shared.arm()
    }

    fn report(&self, error: &Error, members: &Members) {
        self.events.push(Event::Failure {
            rank: self.rank,
            error: error.clone(),
        });
        if let Some(descriptor) = self.report_fd {
            // If this fails, the launcher relies on the rank's exit status.
            let _ = Report::failed(error, members, self.rank).append(descriptor);
        }
    }

    fn send_control(&self, to: To, group: u32, payload: &[u8]) {
        let Some(control) = self.shared.reach.control() else {
            return;
        };
        match to {
            To::Rank(rank) => control.send(rank, group, payload),
            To::All => control.send_all(group, payload),
        }
    }

    fn close(&self) {
        if let Some(control) = self.shared.reach.control() {
            control.shutdown();
        }
        self.shared.background.stop();
        self.events.settle(EVENTS_SETTLE_MAX);
    }
}

impl Drop for ProcessHost {
    fn drop(&mut self) {
        // This is necessary if no communicator was created, because the [`Host`] is otherwise
        // closed only when this rank leaves its last group.
        self.close();
    }
}

/// The callbacks that the control thread calls.
pub(crate) struct Callbacks(pub(crate) Arc<Shared>);

impl Handler for Callbacks {
    fn control(&self, from: usize, group: u32, payload: &[u8]) {
        self.0
            .reach
            .with_runtime(|one| one.control(group, from, payload));
    }

    fn control_lost(&self, rank: usize, why: String) {
        self.0
            .reach
            .with_runtime(|one| one.control_lost(rank, &why));
    }

    fn process_ended(&self, rank: usize) {
        self.0.reach.with_runtime(|one| one.process_ended(rank));
    }

    fn stream(&self, channel: u32, stream: DataStream) {
        lock(&self.0.arrivals).take(channel, stream);
        self.0.reach.reactor.wake();
    }

    fn stream_failed(&self, channel: u32, peer: usize, why: String) {
        let group = group_of(channel);
        self.0
            .reach
            .with_runtime(|one| one.link_failed(group, peer, &why));
    }

    fn fatal_error(&self, cause: Error) {
        self.0.reach.with_runtime(|one| one.give_up(&cause));
    }

    fn wake_after(&self) -> Option<Duration> {
        match self.0.background.is_here() {
            true => None,
            false => self.0.reach.with_runtime(Runtime::poll_due_in),
        }
    }

    fn awake(&self) {
        if !self.0.background.is_still_here() {
            self.0.reach.with_runtime(Runtime::poll_in_background);
        }
        // While this thread held the token, the background thread may have finished running user
        // code and found the token taken.
        self.0.reach.with_runtime(Runtime::leave_to_background);
    }
}

#[cfg(test)]
mod tests;
