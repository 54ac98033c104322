//! Exposes memory of the caller, so that peers can read it in place and sending it requires no
//! copy.
//!
//! All ranks on a host allocate memory together and exchange file descriptors, so that each rank
//! can read the memory of every other rank. A cell can then carry a [`Locator`] instead of its
//! payload. The sender leaves the bytes unchanged until the reader has acknowledged the cell.

use crate::lock::lock;
use crate::sys::shared::{Bell, Division, Extent, OwnRegion, PeerRegion, ReadWords, WORD_BYTES};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex};

/// Size of a page in bytes. The words take up one page, so that the plain bytes start at a page
/// boundary.
const PAGE_BYTES: usize = 4096;
/// Index of the word that is 1 after the owner has dropped the memory.
pub(crate) const GONE: usize = 0;
/// Index of the word that is 1 after the owner has revoked the memory.
const REVOKED: usize = 1;

/// An allocation that all ranks on a host make together, as one of these ranks sees it.
#[derive(Debug)]
pub struct Allocation {
    /// ID of the allocation, which is unique and is the same on all ranks.
    pub number: u64,
    /// This rank's memory.
    pub own: Own,
    /// The other ranks on the host, each with its memory.
    pub theirs: Vec<(usize, PeerRegion)>,
}

/// The addresses of this rank's memory, and the word that revokes the memory.
#[derive(Debug)]
pub struct Own {
    pub(super) extent: Extent,
    revoked: Bell,
}

impl Own {
    /// Describes `region`, which [`memory`] must have created.
    #[must_use]
    pub fn new(region: &OwnRegion) -> Self {
        Self {
            extent: region.extent(),
            revoked: region.bell(REVOKED),
        }
    }

    /// Notifies the readers that the memory may change. Call this method before the first change.
    pub(super) fn revoke(&self) {
        self.revoked.set(1);
        fence(Ordering::Release);
    }
}

/// Returns `true` if all bytes that have been read from `theirs` so far are the bytes that its
/// owner sent.
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

/// Creates memory of `bytes` bytes that forked children can read. Returns the memory with the file
/// that peers map.
///
/// # Errors
/// Returns the operating system's error.
pub(crate) fn memory(bytes: usize) -> io::Result<(OwnRegion, OwnedFd)> {
    OwnRegion::inherited(division(bytes))
}

/// Returns the size in bytes of the file that [`memory`] creates.
#[must_use]
pub(crate) fn memory_bytes(bytes: usize) -> usize {
    division(bytes).total_bytes()
}

/// Maps the memory of a different rank, which has allocated `bytes` bytes.
///
/// # Errors
/// Returns an error if the file does not contain such memory, or the operating system's error.
pub(crate) fn peer_memory(bytes: usize, file: &OwnedFd) -> io::Result<PeerRegion> {
    PeerRegion::map(file, division(bytes))
}

/// The memory that a peer exposes, identified by allocation IDs. The link to the peer reads this
/// memory, and the communicator adds allocations.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerMemories(Arc<Mutex<Vec<PeerMemory>>>);

/// The ID of an allocation, and the peer's part of that allocation.
type PeerMemory = (u64, Arc<PeerRegion>);

impl PeerMemories {
    /// Adds an allocation, and removes the allocations that the peer has dropped.
    pub(super) fn add(&self, number: u64, theirs: PeerRegion) {
        let mut all = lock(&self.0);
        all.retain(|(_, one)| one.load(GONE) == 0);
        all.push((number, Arc::new(theirs)));
    }

    /// Returns the allocation with this ID.
    pub(super) fn get(&self, number: u64) -> Option<Arc<PeerRegion>> {
        let all = lock(&self.0);
        let found = all.iter().find(|(each, _)| *each == number);
        found.map(|(_, region)| Arc::clone(region))
    }
}

/// Size in bytes of an encoded [`Locator`], which is stored as a cell's inline payload.
pub(super) const LOCATOR_BYTES: usize = 16;

/// The location of exposed bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Locator {
    /// ID of the allocation.
    pub number: u64,
    /// Offset of the first byte in the allocation.
    pub start: usize,
    /// Number of bytes.
    pub bytes: usize,
}

impl Locator {
    /// Encodes the allocation and the offset of the first byte. The number of bytes is not encoded,
    /// because the cell's head contains it.
    pub(super) fn encode(self) -> [u8; LOCATOR_BYTES] {
        let mut bytes = [0; LOCATOR_BYTES];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..].copy_from_slice(&(self.start as u64).to_le_bytes());
        bytes
    }

    /// Decodes a locator for `bytes` bytes from the beginning of a cell's inline payload.
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
