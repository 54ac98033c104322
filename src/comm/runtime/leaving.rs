//! How a group ends.
//!
//! Memory of a device that other processes have mapped must outlive their mappings. So who leaves
//! closes what it has mapped, says so by a word that the ranks of its host share, and keeps its own
//! until the others have said the same. Nobody waits for that but the last group of a process, and
//! it not for long.

use super::Runtime;
use crate::comm::host::Shared;
use crate::device::{Event, Mapping, Memory};
use crate::engine::group::Group;
use crate::limits::{
    DEVICE_FAREWELL, DEVICE_FAREWELL_FAILED, DEVICE_NAP, FAREWELL_NAP, POLLER_NAP,
};
use crate::sys::shared::{OwnRegion, PeerRegion, ReadWords, WriteWords};
use crate::transport::shm::lent::GONE;
use std::sync::PoisonError;
use std::time::Duration;

/// Memory that is kept for others.
pub(super) struct Estate {
    _memories: Vec<Memory>,
    /// What this rank had mapped of the others and has not closed yet.
    mappings: Vec<Mapping>,
    /// Bears the word that tells them when it has.
    own: OwnRegion,
    /// Whose words have not been seen yet.
    readers: Vec<PeerRegion>,
    /// How long the end of the process waits for them.
    patience: Duration,
}

impl Estate {
    fn is_settled(&mut self) -> bool {
        self.mappings.retain(Mapping::is_open);
        if self.mappings.is_empty() {
            self.own.release(GONE, 1);
        }
        self.readers.retain(|words| {
            words.acquire();
            words.load(GONE) == 0
        });
        self.readers.is_empty() && self.mappings.is_empty()
    }
}

impl Runtime {
    /// Ends the group: what is under way is finished (or fails by its deadline), and rank 0 tells
    /// the others the agreed mark after a failure; then goodbye.
    ///
    /// The last one ends the host's part too, here and now: the control thread may be holding this
    /// runtime for a moment, so its drop could come after the caller has left the process.
    pub(crate) fn leave(&self, number: u32, at_most: Duration) {
        self.finish(number, at_most);
        let mut engine = self.lock_beside_poller();
        if let Some(group) = engine.group(number) {
            group.leave();
        }
        self.send_controls(&mut engine);
        let group = engine.remove_group(number);
        let was_last = engine.is_empty();
        drop(engine);
        if was_last {
            self.settle_estates();
            self.host.close();
        }
        // Its links close after the goodbye has gone.
        drop(group);
    }

    /// Finishes what is under way in a group: its calls by their deadlines, so that none is cut
    /// short; all else within `at_most`.
    fn finish(&self, number: u32, at_most: Duration) {
        let end = self.host.now().saturating_add(at_most);
        let is_busy =
            |group: &mut Group| group.is_calling() || (group.is_busy() && self.host.now() < end);
        while self.with_group(number, is_busy) == Some(true) {
            let Some(_token) = self.take_token() else {
                std::thread::sleep(POLLER_NAP);
                continue;
            };
            let mut engine = self.lock();
            self.hear(&mut engine);
            if !engine.poll() {
                engine.tick(self.host.now());
                self.send_controls(&mut engine);
                let awaits_device = engine.awaits_device();
                drop(engine);
                match awaits_device {
                    true => self.host.give_way_to_device(u32::MAX),
                    false => self.host.give_way(u32::MAX),
                };
            }
        }
    }

    /// Parts with the device of a group that makes no call on it any more: what it has mapped is
    /// closed, which the first of `words` says, and what others have mapped is kept until theirs
    /// say so. What is under way is finished first, within `at_most`.
    pub(crate) fn part(&self, number: u32, at_most: Duration, words: Option<Shared>) {
        let Some((own, theirs)) = words else { return };
        self.finish(number, at_most);
        let parted = self.with_group(number, |group: &mut Group| {
            group.part().map(|parting| (parting, group.is_troubled()))
        });
        let Some(Some((parting, has_failed))) = parted else {
            return;
        };
        let mappings = self.close(parting.through, parting.imports);
        let readers = theirs.into_iter();
        let readers = readers.filter(|(peer, _)| parting.readers.contains(peer));
        let estate = Estate {
            _memories: parting.exports,
            mappings,
            own,
            readers: readers.map(|(_, words)| words).collect(),
            patience: match has_failed {
                true => DEVICE_FAREWELL_FAILED,
                false => DEVICE_FAREWELL,
            },
        };
        let mut estates = self.estates.lock().unwrap_or_else(PoisonError::into_inner);
        estates.push(estate);
        drop(estates);
        self.free_estates(Duration::ZERO);
    }

    /// Closes what was mapped, when nothing uses it any more; waits a little for that.
    fn close(&self, through: Option<Event>, imports: Vec<Memory>) -> Vec<Mapping> {
        let end = self.host.now().saturating_add(DEVICE_FAREWELL);
        let wait = |is_so: &dyn Fn() -> bool| {
            while !is_so() && self.host.now() < end {
                std::thread::sleep(DEVICE_NAP);
            }
        };
        if let Some(through) = through {
            // A device that has failed does nothing more.
            wait(&|| through.is_done().unwrap_or(true));
        }
        let mappings: Vec<Mapping> = imports.iter().map(Memory::mapping).collect();
        drop(imports);
        wait(&|| !mappings.iter().any(Mapping::is_open));
        mappings
    }

    /// Frees what nobody has mapped any more, and what was kept in vain for as long as it is due,
    /// given how long that was; whether nothing is left.
    pub(crate) fn free_estates(&self, waited: Duration) -> bool {
        let mut estates = self.estates.lock().unwrap_or_else(PoisonError::into_inner);
        let is_kept = |one: &mut Estate| !one.is_settled() && waited < one.patience;
        let (kept, freed): (Vec<_>, Vec<_>) = std::mem::take(&mut *estates)
            .into_iter()
            .map(|mut one| (is_kept(&mut one), one))
            .partition(|(is_kept, _)| *is_kept);
        estates.extend(kept.into_iter().map(|(_, one)| one));
        let is_empty = estates.is_empty();
        drop(estates);
        // With nothing locked: freeing may wait for the device.
        drop(freed);
        is_empty
    }

    /// The process may end now: waits a little for those that have its memory mapped.
    fn settle_estates(&self) {
        let start = self.host.now();
        while !self.free_estates(self.host.now().saturating_sub(start)) {
            std::thread::sleep(FAREWELL_NAP);
        }
    }
}
