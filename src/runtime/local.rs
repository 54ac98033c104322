//! The ranks that share this one's memory.

use super::channels::{Known, channel_number, group_of};
use crate::control::LocalPeers;
use crate::error::{Error, Result};
use crate::link::shm::lanes::{Lanes, LaterLink};
use crate::link::shm::layout::Layout;
use crate::link::shm::local::Local;
use crate::link::shm::{
    LocalLinks, SharedLink, Wake, bell, links, peer_region, region, region_bytes, region_of,
};
use crate::link::{Link, LinkError};
use crate::protocol::members::Members;
use crate::sys::barrier::fence_of_sleeper;
use crate::sys::shared::{Bell, PeerRegion};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What a group hands around has the numbers from here on, after its channels.
const EXCHANGES: u32 = 2;

/// The ranks that share this one's memory, and this process's doorbells.
pub(crate) struct LocalRanks {
    peers: Arc<LocalPeers>,
    /// Ascending, this one included.
    ranks: Vec<usize>,
    /// This rank's place among them.
    place: usize,
    bells: Mutex<Vec<Bell>>,
    /// Odd while no thread of this process polls, as on the doorbells.
    sleeps: AtomicU64,
    later: Mutex<Later>,
}

/// The channels whose links are made when a program first needs them.
#[derive(Default)]
struct Later {
    known: Known,
    channels: BTreeMap<u32, Channel>,
    /// Peers, by channel, that have handed over their memory and have yet to get this rank's.
    unanswered: BTreeSet<(u32, usize)>,
}

/// One of them.
struct Channel {
    members: Members,
    /// The members that share memory, by their ranks in the group, ascending.
    ranks: Vec<usize>,
    place: usize,
    /// This rank's region, once it has been made, and the file as long as a peer has yet to get it.
    lanes: Option<Lanes>,
    file: Option<OwnedFd>,
    /// The peers that have got it.
    handed: BTreeSet<usize>,
    /// What has come of the others; `None` stands for what this process had no number for.
    arrived: BTreeMap<usize, Option<OwnedFd>>,
}

impl LocalRanks {
    /// `rank` among `ranks`, which meet at `peers`.
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

    /// The ranks, this one included, ascending.
    pub(super) fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// Passes a region for `channel` to the local ranks, maps theirs, and links them.
    pub(super) fn links(&self, channel: u32, at_most: Duration) -> Result<(LocalLinks, Local)> {
        self.later().known.add(group_of(channel));
        let places = self.ranks.len();
        let making = |error: std::io::Error| Error::io("making memory to share", &error);
        let (own, file) = region(places).map_err(making)?;
        let bytes = region_bytes(places);
        let files = self.peers.exchange(channel, &file, Some(bytes), at_most)?;
        let map = |(rank, file)| {
            let mapping = |error| Error::io(format!("mapping the memory of rank {rank}"), &error);
            Ok((rank, peer_region(places, &file).map_err(mapping)?))
        };
        let theirs = files.into_iter().map(map).collect::<Result<_>>()?;
        self.hang(bell(&own));
        let peers = Arc::clone(&self.peers);
        let wake: Wake = Arc::new(move |rank| peers.wake(rank));
        let (ranks, place) = (&self.ranks, self.place);
        Ok(links((channel, 0), ranks, place, own, theirs, &wake))
    }

    /// Hands `file` to `others`, and returns what they hand, by rank, ascending. `number` tells
    /// apart what a group hands around between two barriers. With `bytes`, all are sealed memory of
    /// this length. It is given up once it is not so that it `goes_on`.
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
        let mut bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        bells.retain(Bell::is_heard);
        bell.set(self.sleeps.load(Ordering::Relaxed));
        bells.push(bell);
    }

    /// Arms the doorbell: peers that send something from now on wake this process. What they sent
    /// before may have gone unnoticed, so the caller polls once more. False if it is armed already;
    /// then a wake-up that has arrived is kept, and ends the sleep.
    ///
    /// Only the polling thread calls this and [`LocalRanks::disarm`].
    pub(super) fn arm(&self) -> bool {
        if self.is_armed() {
            return false;
        }
        self.peers.drain();
        self.answer();
        self.turn(1);
        fence_of_sleeper();
        true
    }

    /// Whether peers wake this process.
    pub(super) fn is_armed(&self) -> bool {
        self.sleeps.load(Ordering::Relaxed) % 2 == 1
    }

    /// Disarms the doorbell: a thread of this process polls.
    pub(super) fn disarm(&self) {
        self.turn(0);
    }

    /// Makes the number of sleeps odd (1) or even (0), if it is not.
    fn turn(&self, parity: u64) {
        if self.sleeps.load(Ordering::Relaxed) % 2 == parity {
            return;
        }
        let bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        let sleeps = self.sleeps.load(Ordering::Relaxed) + 1;
        self.sleeps.store(sleeps, Ordering::Relaxed);
        bells.iter().for_each(|bell| bell.set(sleeps));
    }

    fn later(&self) -> MutexGuard<'_, Later> {
        self.later.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This rank waits for a group of which it does not know the number, or no longer does.
    pub(super) fn await_group(&self, awaits: bool) {
        self.later().known.await_group(awaits);
        self.attend();
    }

    /// Whether there are local ranks among the members of a channel's group, of which this is
    /// `rank`; from now on their links can be made.
    pub(super) fn opens(&self, channel: u32, rank: usize, members: &Members) -> bool {
        let ranks = self
            .ranks
            .iter()
            .filter_map(|local| members.rank_of(*local));
        let mut ranks: Vec<usize> = ranks.collect();
        ranks.sort_unstable();
        let mut later = self.later();
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
            lanes: None,
            file: None,
            handed: BTreeSet::new(),
            arrived: BTreeMap::new(),
        };
        later.channels.insert(channel, channel_of);
        drop(later);
        // A peer may be ahead.
        self.attend();
        true
    }

    /// A link to `peer`, if that is a local rank.
    pub(super) fn later_link(self: &Arc<Self>, channel: u32, peer: usize) -> Option<Box<dyn Link>> {
        let is_local = self.later().channels.get(&channel)?.ranks.contains(&peer);
        let local = Arc::clone(self);
        let source = move || {
            let made = local.link(channel, peer);
            made.map_err(|error| LinkError::Refused(error.to_string()))
        };
        is_local.then(|| Box::new(LaterLink::new(Box::new(source))) as _)
    }

    /// What the links of a channel have in common.
    pub(super) fn common(&self, channel: u32) -> Option<Local> {
        let mut later = self.later();
        let one = later.channels.get_mut(&channel)?;
        // A failure is told by the links.
        self.own(channel, one).ok()?.local()
    }

    /// This rank's region of a channel, made if need be.
    fn own<'a>(&self, channel: u32, one: &'a mut Channel) -> Result<&'a mut Lanes> {
        if one.lanes.is_none() {
            let layout = Layout::small(one.ranks.len());
            let making = |error: std::io::Error| Error::io("making memory to share", &error);
            let (own, file) = region_of(layout).map_err(making)?;
            self.hang(bell(&own));
            let (peers, members) = (Arc::clone(&self.peers), one.members.clone());
            let wake: Wake = Arc::new(move |peer| peers.wake(members.world_rank(peer)));
            let ranks = (one.ranks.as_slice(), one.place);
            one.lanes = Some(Lanes::new(layout, (channel, 0), ranks, own, &wake));
            one.file = Some(file);
        }
        Ok(one.lanes.as_mut().expect("invariant: it was just made"))
    }

    /// Hands this rank's region of a channel to `peer`, unless that has got it; whether it has now.
    fn hand_over(&self, channel: u32, one: &mut Channel, peer: usize) -> Result<bool> {
        self.own(channel, one)?;
        let Some(file) = one.file.as_ref().filter(|_| !one.handed.contains(&peer)) else {
            return Ok(true);
        };
        let world_rank = one.members.world_rank(peer);
        match self.peers.hand_over(channel, file, world_rank) {
            Ok(false) => return Ok(false),
            // A peer that is gone needs nothing more; what it has sent is there to be read.
            Ok(true) => {}
            Err(error) if error.is_peer_lost() => {}
            Err(error) => return Err(error),
        }
        one.handed.insert(peer);
        if one.handed.len() + 1 == one.ranks.len() {
            one.file = None;
        }
        Ok(true)
    }

    /// The link to `peer`, once its region has come.
    fn link(&self, channel: u32, peer: usize) -> Result<Option<SharedLink>> {
        self.attend();
        let mut later = self.later();
        let Some(one) = later.channels.get_mut(&channel) else {
            return Ok(None);
        };
        if !self.hand_over(channel, one, peer)? {
            return Ok(None);
        }
        let Some(file) = one.arrived.remove(&peer) else {
            return Ok(None);
        };
        let division = Layout::small(one.ranks.len()).division();
        let file = self.peers.checked(file, division.total_bytes())?;
        let mapping = |error: std::io::Error| Error::io("mapping its memory", &error);
        let region = PeerRegion::map(&file, division).map_err(mapping)?;
        Ok(self.own(channel, one)?.link(peer, region))
    }

    /// Takes in what other ranks have handed over.
    fn attend(&self) {
        self.peers.drain_beside_sleeper();
        self.answer();
    }

    /// Hands this rank's memory to the ranks that have handed over theirs, so that no link waits
    /// for this rank's program.
    fn answer(&self) {
        let mut later = self.later();
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
            // A failure is told when this rank's program needs the link.
            one.is_some_and(|one| matches!(self.hand_over(*channel, one, *peer), Ok(false)))
        });
        self.peers.keep_only(|channel| later.known.wants(channel));
    }

    /// There is no such group any more.
    pub(super) fn forget(&self, group: u32) {
        let mut later = self.later();
        later.known.forget(group);
        later
            .channels
            .retain(|channel, _| group_of(*channel) != group);
        later
            .unanswered
            .retain(|(channel, _)| group_of(*channel) != group);
        drop(later);
        self.attend();
        let mut bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        bells.retain(Bell::is_heard);
    }
}
