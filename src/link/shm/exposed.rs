//! Memory of the caller that peers read where it lies: what lies in it need not be copied to be
//! sent.
//!
//! All ranks of a host allocate together and pass each other the files, so that each can read
//! every other's memory. A cell then says where in it the payload lies (a [`Locator`]) instead of
//! carrying it, and the sender leaves the bytes alone until the reader has acknowledged the cell.

use crate::sys::shared::{Bell, Division, Extent, OwnRegion, PeerRegion, ReadWords, WORD_BYTES};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a page: the words take one, so that the plain bytes start with a page.
const PAGE_BYTES: usize = 4096;
/// The word that is 1 once the owner has dropped the memory.
pub(crate) const GONE: usize = 0;
/// The word that is 1 once the owner has revoked what it exposed.
const REVOKED: usize = 1;

/// One allocation of all ranks of a host, as one of them sees it.
#[derive(Debug)]
pub struct Allocation {
    /// The same on all ranks, and no other allocation's.
    pub number: u64,
    /// This rank's memory.
    pub own: Own,
    /// The memory of the other ranks of the host, by rank.
    pub theirs: Vec<(usize, PeerRegion)>,
}

/// Own memory: where it lies, and the word that says that peers may not rely on it any more.
#[derive(Debug)]
pub struct Own {
    pub(super) extent: Extent,
    revoked: Bell,
}

impl Own {
    /// That of `region`, which [`memory`] has made.
    #[must_use]
    pub fn new(region: &OwnRegion) -> Self {
        Self {
            extent: region.extent(),
            revoked: region.bell(REVOKED),
        }
    }

    /// Tells the memory's readers that it may change, before it does.
    pub(super) fn revoke(&self) {
        self.revoked.set(1);
        fence(Ordering::Release);
    }
}

/// Whether what was read of `theirs` before is what its owner sent.
#[inline]
pub(super) fn is_valid(theirs: &PeerRegion) -> bool {
    theirs.acquire();
    theirs.load(REVOKED) == 0
}

fn division(bytes: usize) -> Division {
    Division {
        words: PAGE_BYTES / WORD_BYTES,
        bytes,
    }
}

/// New memory of `bytes` bytes, which forked children can read, and the file that the others map.
///
/// # Errors
/// The system's.
pub(crate) fn memory(bytes: usize) -> io::Result<(OwnRegion, OwnedFd)> {
    OwnRegion::inherited(division(bytes))
}

/// Bytes of such a file.
#[must_use]
pub(crate) fn memory_bytes(bytes: usize) -> usize {
    division(bytes).total_bytes()
}

/// The memory of another rank that has allocated `bytes` bytes.
///
/// # Errors
/// The file is no such memory; or the system's error.
pub(crate) fn peer_memory(bytes: usize, file: &OwnedFd) -> io::Result<PeerRegion> {
    PeerRegion::map(file, division(bytes))
}

/// What one peer exposes, by its allocations' numbers. The link to the peer reads it, the
/// communicator adds to it.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerMemories(Arc<Mutex<Vec<PeerMemory>>>);

/// An allocation's number, and the peer's part of it.
type PeerMemory = (u64, Arc<PeerRegion>);

impl PeerMemories {
    /// Adds one, and drops those that the peer has dropped.
    pub(super) fn add(&self, number: u64, theirs: PeerRegion) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, one)| one.load(GONE) == 0);
        all.push((number, Arc::new(theirs)));
    }

    /// The allocation called `number`.
    pub(super) fn get(&self, number: u64) -> Option<Arc<PeerRegion>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.iter().find(|(each, _)| *each == number);
        found.map(|(_, region)| Arc::clone(region))
    }
}

/// Bytes of an encoded [`Locator`], which lie beside a cell's flag.
pub(super) const LOCATOR_BYTES: usize = 16;

/// Where exposed bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Locator {
    /// The allocation's number.
    pub number: u64,
    /// The first byte.
    pub start: usize,
    /// How many bytes.
    pub bytes: usize,
}

impl Locator {
    /// The allocation and the first byte; the cell's head says how many.
    pub(super) fn encode(self) -> [u8; LOCATOR_BYTES] {
        let mut bytes = [0; LOCATOR_BYTES];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..].copy_from_slice(&(self.start as u64).to_le_bytes());
        bytes
    }

    /// What the first bytes of `beside` say, for a payload of `bytes` bytes.
    pub(super) fn decode(beside: &[u8], bytes: usize) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&beside[at..at + 8]);
            u64::from_le_bytes(word)
        };
        Self {
            number: word(0),
            start: usize::try_from(word(8)).unwrap_or(usize::MAX),
            bytes,
        }
    }
}
