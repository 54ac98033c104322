//! The ranks that share this one's memory.

use super::host::Shared;
use crate::control::LocalPeers;
use crate::error::{Error, Result};
use crate::sys::barrier::fence_of_sleeper;
use crate::sys::shared::Bell;
use crate::transport::shm::lent::{memory, memory_bytes, peer_memory};
use crate::transport::shm::{SharedTransport, bell, peer_region, region, region_bytes};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A group's files, such as its allocations, are handed over under its number and this bit, which
/// no channel's number has without the bit below. A barrier stands between one file and the next.
const ALLOCATIONS: u32 = 1 << 31;

/// The ranks that share this one's memory, and whether any thread here polls.
pub(super) struct Neighbourhood {
    near: Arc<LocalPeers>,
    /// Ascending, this one included.
    ranks: Vec<usize>,
    /// This rank's place among them.
    place: usize,
    bells: Mutex<Vec<Bell>>,
    /// Odd while nobody polls, as on the bells.
    sleeps: AtomicU64,
}

impl Neighbourhood {
    /// `rank` among `ranks`, which meet at `near`.
    pub(super) fn new(near: Arc<LocalPeers>, rank: usize, ranks: Vec<usize>) -> Option<Self> {
        let place = ranks.iter().position(|each| *each == rank)?;
        Some(Self {
            near,
            ranks,
            place,
            bells: Mutex::default(),
            sleeps: AtomicU64::new(0),
        })
    }

    /// The ranks, ascending.
    pub(super) fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    pub(super) fn size(&self) -> usize {
        self.ranks.len()
    }

    /// Hands out a region for `channel`, takes the neighbours', and links them.
    pub(super) fn transport(
        &self,
        channel: u32,
        world_size: usize,
        at_most: Duration,
    ) -> Result<SharedTransport> {
        let places = self.ranks.len();
        let making = |error: std::io::Error| Error::system("making memory to share", &error);
        let (own, file) = region(places).map_err(making)?;
        let bytes = region_bytes(places);
        let files = self.near.exchange(channel, &file, bytes, at_most)?;
        let map = |(rank, file)| {
            let mapping =
                |error| Error::system(format!("mapping the memory of rank {rank}"), &error);
            Ok((rank, peer_region(places, &file).map_err(mapping)?))
        };
        let theirs = files.into_iter().map(map).collect::<Result<_>>()?;
        self.hang(bell(&own));
        let near = Arc::clone(&self.near);
        Ok(SharedTransport::new(
            (channel, 0),
            world_size,
            &self.ranks,
            self.place,
            own,
            theirs,
            Box::new(move |rank| near.wake(rank)),
        ))
    }

    /// Makes memory for the group, hands it out and takes the neighbours'.
    pub(super) fn allocate(&self, group: u32, bytes: usize, at_most: Duration) -> Result<Shared> {
        let making = |error: std::io::Error| Error::system("making memory to share", &error);
        let (own, file) = memory(bytes).map_err(making)?;
        let files = self.hand_out(group, file.as_fd(), memory_bytes(bytes), at_most)?;
        let map = |(rank, file)| {
            let mapping =
                |error| Error::system(format!("mapping the memory of rank {rank}"), &error);
            Ok((rank, peer_memory(bytes, &file).map_err(mapping)?))
        };
        let theirs = files.into_iter().map(map).collect::<Result<_>>()?;
        Ok((own, theirs))
    }

    /// Hands out a file of the group and takes the neighbours'.
    pub(super) fn hand_out(
        &self,
        group: u32,
        file: BorrowedFd<'_>,
        bytes: usize,
        at_most: Duration,
    ) -> Result<Vec<(usize, OwnedFd)>> {
        self.near
            .exchange(ALLOCATIONS | group, &file, bytes, at_most)
    }

    fn hang(&self, bell: Bell) {
        let mut bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        bells.retain(Bell::is_heard);
        bell.set(self.sleeps.load(Ordering::Relaxed));
        bells.push(bell);
    }

    /// Tells the neighbours that nobody here polls: who sends something from now on wakes this
    /// process. What they sent before may have gone unnoticed, so look once more. False if they
    /// know already; then what has come to wake this process stays and does so.
    ///
    /// This and [`Neighbourhood::rise`] are for the one thread that may poll.
    pub(super) fn lie_down(&self) -> bool {
        if self.sleeps.load(Ordering::Relaxed) % 2 == 1 {
            return false;
        }
        self.near.drain();
        self.turn(1);
        fence_of_sleeper();
        true
    }

    /// Somebody polls.
    pub(super) fn rise(&self) {
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
