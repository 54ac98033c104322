//! The ranks that share this one's memory.

use crate::control::LocalPeers;
use crate::error::{Error, Result};
use crate::link::shm::local::Local;
use crate::link::shm::{LocalLinks, Wake, bell, links, peer_region, region, region_bytes};
use crate::sys::barrier::fence_of_sleeper;
use crate::sys::shared::Bell;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What a group hands around is passed under its number, this bit, which no channel's number has,
/// and a small number of its own.
const EXCHANGES: u32 = 1 << 31;
const NUMBER_SHIFT: u32 = 29;

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
        })
    }

    /// The ranks, this one included, ascending.
    pub(super) fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// Passes a region for `channel` to the local ranks, maps theirs, and links them.
    pub(super) fn links(&self, channel: u32, at_most: Duration) -> Result<(LocalLinks, Local)> {
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

    /// Hands `file` to the other local ranks, and returns what they hand, by rank, ascending.
    /// `number` tells apart what a group hands around between two barriers. With `bytes`, all are
    /// sealed memory of this length.
    pub(super) fn exchange(
        &self,
        (group, number): (u32, u32),
        file: &OwnedFd,
        bytes: Option<usize>,
        at_most: Duration,
    ) -> Result<Vec<(usize, OwnedFd)>> {
        let channel = EXCHANGES | number << NUMBER_SHIFT | group;
        self.peers.exchange(channel, file, bytes, at_most)
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
        if self.sleeps.load(Ordering::Relaxed) % 2 == 1 {
            return false;
        }
        self.peers.drain();
        self.turn(1);
        fence_of_sleeper();
        true
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
}
