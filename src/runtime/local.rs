//! Connects this rank to the ranks that share memory with it.

use super::channels::{Known, channel_number, group_of};
use crate::control::LocalPeers;
use crate::error::{Error, ErrorKind, Result};
use crate::link::shm::layout::Layout;
use crate::link::shm::link_parts::{LaterLink, LinkParts};
use crate::link::shm::local::Local;
use crate::link::shm::{
    LocalLinks, SharedLink, Wake, bell, links, peer_region, region, region_bytes, region_of,
};
use crate::link::{Link, LinkError};
use crate::lock::lock;
use crate::protocol::members::Members;
use crate::sys::barrier::sleeper_fence;
use crate::sys::shared::{Bell, PeerRegion};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Channel kind of a group's first exchange. The lower kinds are the group's two channels.
const EXCHANGES: u32 = 2;

/// The ranks that share memory, including this rank, and this process's doorbells.
pub(crate) struct LocalRanks {
    peers: Arc<LocalPeers>,
    /// The ranks in ascending order, including this rank.
    ranks: Vec<usize>,
    /// Index of this rank in `ranks`.
    place: usize,
    bells: Mutex<Vec<Bell>>,
    /// Odd while no thread of this process is polling. The doorbells hold the same value.
    sleeps: AtomicU64,
    later: Mutex<Later>,
}

/// Channels whose links are created when a program first needs them.
#[derive(Default)]
struct Later {
    known: Known,
    channels: BTreeMap<u32, Channel>,
    /// Pairs of channel and peer for which this rank has received the peer's descriptor but has not
    /// passed its own descriptor to the peer yet.
    unanswered: BTreeSet<(u32, usize)>,
}

/// A channel whose links are created when a program first needs them.
struct Channel {
    members: Members,
    /// Group ranks of the members that share memory, in ascending order.
    ranks: Vec<usize>,
    place: usize,
    /// The parts from which this rank's links are created, once this rank's region exists.
    parts: Option<LinkParts>,
    /// Descriptor of the region, until it has been passed to all peers.
    file: Option<OwnedFd>,
    /// Peers to which the descriptor has been passed, and lost peers.
    handed: BTreeSet<usize>,
    /// Descriptors that were received from peers. `None` represents a descriptor that was dropped
    /// because this process had too many open descriptors.
    arrived: BTreeMap<usize, Option<OwnedFd>>,
}

impl LocalRanks {
    /// Creates `rank`'s view of the local ranks. Returns `None` if `ranks` does not contain `rank`.
    pub(crate) fn new(peers: Arc<LocalPeers>, rank: usize, ranks: Vec<usize>) -> Option<Self> {
        let place = ranks.iter().position(|each| *each == rank)?;
        Some(Self {
            peers,
            ranks,
            place,
            bells: Mutex::default(),
            sleeps: AtomicU64::new(0),
            later: Mutex::default(),
        })
    }

    /// Returns the ranks in ascending order, including this rank.
    pub(super) fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// Creates a region for `channel`, exchanges it with the local ranks, maps their regions, and
    /// creates links from these regions.
    pub(super) fn links(&self, channel: u32, at_most: Duration) -> Result<(LocalLinks, Local)> {
        lock(&self.later).known.add(group_of(channel));
        let ranks = self.ranks.len();
        let making = |error: std::io::Error| Error::io("cannot create shared memory", &error);
        let (own, file) = region(ranks).map_err(making)?;
        let bytes = region_bytes(ranks);
        let files = self.peers.exchange(channel, &file, Some(bytes), at_most)?;
        let map = |(rank, file)| {
            let mapping = |error| Error::io(format!("cannot map memory of rank {rank}"), &error);
            Ok((rank, peer_region(ranks, &file).map_err(mapping)?))
        };
        let theirs = files.into_iter().map(map).collect::<Result<_>>()?;
        self.hang(bell(&own));
        let peers = Arc::clone(&self.peers);
        let wake: Wake = Arc::new(move |rank| peers.wake(rank));
        let (ranks, place) = (&self.ranks, self.place);
        Ok(links((channel, 0), ranks, place, own, theirs, &wake))
    }

    /// Passes `file` to `others` and returns the files that they pass, in ascending order of ranks.
    /// `number` distinguishes the exchanges that a group makes between two barriers. If `file`
    /// includes a length, all files must be sealed memory of this length. Stops as soon as
    /// `goes_on` returns `false`.
    pub(super) fn exchange(
        &self,
        (group, number): (u32, u32),
        others: &[usize],
        file: (&OwnedFd, Option<usize>),
        at_most: Duration,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Vec<(usize, OwnedFd)>> {
        let channel = channel_number(group, EXCHANGES + number);
        self.peers
            .exchange_among(others, channel, file, at_most, goes_on)
    }

    fn hang(&self, bell: Bell) {
        let mut bells = lock(&self.bells);
        bells.retain(Bell::is_heard);
        bell.set(self.sleeps.load(Ordering::Relaxed));
        bells.push(bell);
    }

    /// Arms the doorbell, so that peers that send anything afterwards wake this process. Earlier
    /// messages may have gone unnoticed, so the caller must poll once more. Returns `false` if the
    /// doorbell was already armed. In that case, a wake-up that has arrived is kept and ends the
    /// sleep.
    ///
    /// Only the polling thread calls this method and [`LocalRanks::disarm`].
    pub(super) fn arm(&self) -> bool {
        if self.is_armed() {
            return false;
        }
        self.peers.drain();
        self.answer();
        self.turn(1);
        sleeper_fence();
        true
    }

    /// Returns `true` if peers wake this process.
    pub(super) fn is_armed(&self) -> bool {
        self.sleeps.load(Ordering::Relaxed) % 2 == 1
    }

    /// Disarms the doorbell, because a thread of this process is polling.
    pub(super) fn disarm(&self) {
        self.turn(0);
    }

    /// Increments `sleeps` unless it is already odd (if `parity` is 1) or even (if `parity` is 0).
    fn turn(&self, parity: u64) {
        if self.sleeps.load(Ordering::Relaxed) % 2 == parity {
            return;
        }
        let bells = lock(&self.bells);
        let sleeps = self.sleeps.load(Ordering::Relaxed) + 1;
        self.sleeps.store(sleeps, Ordering::Relaxed);
        bells.iter().for_each(|bell| bell.set(sleeps));
    }

    /// Records whether this rank is waiting for a group whose ID it does not know yet.
    pub(super) fn await_group(&self, awaits: bool) {
        lock(&self.later).known.await_group(awaits);
        self.attend();
    }

    /// Registers a channel of a group in which this rank is `rank`, so that links to the group's
    /// local members can be created. Returns `false` if the group has no other local members.
    pub(super) fn opens(&self, channel: u32, rank: usize, members: &Members) -> bool {
        let ranks = self
            .ranks
            .iter()
            .filter_map(|local| members.rank_of(*local));
        let mut ranks: Vec<usize> = ranks.collect();
        ranks.sort_unstable();
        let mut later = lock(&self.later);
        later.known.add(group_of(channel));
        let Some(place) = ranks.iter().position(|each| *each == rank) else {
            return false;
        };
        if ranks.len() < 2 {
            return false;
        }
        let channel_of = Channel {
            members: members.clone(),
            ranks,
            place,
            parts: None,
            file: None,
            handed: BTreeSet::new(),
            arrived: BTreeMap::new(),
        };
        later.channels.insert(channel, channel_of);
        drop(later);
        // A peer may already have passed its descriptor.
        self.attend();
        true
    }

    /// Returns a link to `peer` if `peer` is a local rank.
    pub(super) fn later_link(self: &Arc<Self>, channel: u32, peer: usize) -> Option<Box<dyn Link>> {
        let is_local = lock(&self.later)
            .channels
            .get(&channel)?
            .ranks
            .contains(&peer);
        let local = Arc::clone(self);
        let source = move || {
            let made = local.link(channel, peer);
            made.map_err(|error| LinkError::Refused(error.to_string()))
        };
        is_local.then(|| Box::new(LaterLink::new(Box::new(source))) as _)
    }

    /// Returns the resources that a channel's links share.
    pub(super) fn common(&self, channel: u32) -> Option<Local> {
        let mut later = lock(&self.later);
        let one = later.channels.get_mut(&channel)?;
        // If this fails, the links report the error.
        self.own(channel, one).ok()?.local()
    }

    /// Returns the parts from which this rank's links in a channel are created. Creates this rank's
    /// region if it does not exist yet.
    fn own<'a>(&self, channel: u32, one: &'a mut Channel) -> Result<&'a mut LinkParts> {
        if one.parts.is_none() {
            let layout = Layout::small(one.ranks.len());
            let making = |error: std::io::Error| Error::io("cannot create shared memory", &error);
            let (own, file) = region_of(layout).map_err(making)?;
            self.hang(bell(&own));
            let (peers, members) = (Arc::clone(&self.peers), one.members.clone());
            let wake: Wake = Arc::new(move |peer| peers.wake(members.world_rank(peer)));
            let ranks = (one.ranks.as_slice(), one.place);
            one.parts = Some(LinkParts::new(layout, (channel, 0), ranks, own, &wake));
            one.file = Some(file);
        }
        Ok(one.parts.as_mut().expect("invariant: it was just created"))
    }

    /// Passes the descriptor of this rank's region in a channel to `peer`, unless it was passed
    /// before. Returns `false` if the caller must try again.
    fn pass_descriptor(&self, channel: u32, one: &mut Channel, peer: usize) -> Result<bool> {
        self.own(channel, one)?;
        let Some(file) = one.file.as_ref().filter(|_| !one.handed.contains(&peer)) else {
            return Ok(true);
        };
        let world_rank = one.members.world_rank(peer);
        match self.peers.pass_descriptor(channel, file, world_rank) {
            Ok(false) => return Ok(false),
            // A lost peer does not need the descriptor, but bytes that it has sent can still be
            // read.
            Ok(true) => {}
            Err(error) if error.kind() == ErrorKind::PeerLost => {}
            Err(error) => return Err(error),
        }
        one.handed.insert(peer);
        if one.handed.len() + 1 == one.ranks.len() {
            one.file = None;
        }
        Ok(true)
    }

    /// Returns the link to `peer` if that rank's region has arrived.
    fn link(&self, channel: u32, peer: usize) -> Result<Option<SharedLink>> {
        self.attend();
        let mut later = lock(&self.later);
        let Some(one) = later.channels.get_mut(&channel) else {
            return Ok(None);
        };
        if !self.pass_descriptor(channel, one, peer)? {
            return Ok(None);
        }
        let Some(file) = one.arrived.remove(&peer) else {
            return Ok(None);
        };
        let division = Layout::small(one.ranks.len()).division();
        let file = self.peers.checked(file, division.total_bytes())?;
        let mapping = |error: std::io::Error| Error::io("cannot map its memory", &error);
        let region = PeerRegion::map(&file, division).map_err(mapping)?;
        Ok(self.own(channel, one)?.link(peer, region))
    }

    /// Processes the descriptors that other ranks have passed.
    fn attend(&self) {
        self.peers.drain_and_wake_sleeper();
        self.answer();
    }

    /// Passes this rank's descriptors to the peers that have passed theirs, so that no link has to
    /// wait until this rank's program makes a call.
    fn answer(&self) {
        let mut later = lock(&self.later);
        let later = &mut *later;
        for (channel, from, file) in self
            .peers
            .take(|channel| later.channels.contains_key(&channel))
        {
            let one = later.channels.get_mut(&channel);
            let Some((one, peer)) = one.and_then(|one| {
                let peer = one.members.rank_of(from)?;
                Some((one, peer))
            }) else {
                continue;
            };
            one.arrived.insert(peer, file);
            later.unanswered.insert((channel, peer));
        }
        let channels = &mut later.channels;
        later.unanswered.retain(|(channel, peer)| {
            let one = channels.get_mut(channel);
            // A failure is reported later, when this rank's program needs the link.
            one.is_some_and(|one| matches!(self.pass_descriptor(*channel, one, *peer), Ok(false)))
        });
        self.peers.keep_only(|channel| later.known.wants(channel));
    }

    /// Drops everything that belongs to a group that no longer exists.
    pub(super) fn forget(&self, group: u32) {
        let mut later = lock(&self.later);
        later.known.forget(group);
        later
            .channels
            .retain(|channel, _| group_of(*channel) != group);
        later
            .unanswered
            .retain(|(channel, _)| group_of(*channel) != group);
        drop(later);
        self.attend();
        lock(&self.bells).retain(Bell::is_heard);
    }
}
