//! Memory of the caller's that peers can read: what lies in it need not be copied to be sent.
//!
//! All ranks allocate together and hand each other what they made, so that each can read every
//! other's. A line then says where in it the payload lies (a locator) instead of carrying it, and
//! whoever sent it leaves the bytes alone until the reader is through (a loan).

use crate::sys::shared::{Bell, Division, Extent, OwnRegion, PeerRegion, ReadWords, WORD_BYTES};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};

/// Bytes of a page: the words take one, so that what is allocated starts with one.
const PAGE_BYTES: usize = 4096;
/// The word that is 1 once the owner has dropped the memory.
pub const GONE: usize = 0;
/// The word that is 1 once the owner has taken back what it lent.
const WITHDRAWN: usize = 1;

/// One allocation of all ranks, as one of them sees it.
#[derive(Debug)]
pub struct Allocation {
    /// The same on all ranks, and no other's.
    pub number: u64,
    /// The own memory.
    pub own: Own,
    /// That of the others on this host, by rank.
    pub theirs: Vec<(usize, PeerRegion)>,
}

/// Own memory: where it lies, and the word that says that the peers may not rely on it any more.
#[derive(Debug)]
pub struct Own {
    pub(super) extent: Extent,
    withdrawn: Bell,
}

impl Own {
    /// That of `region`, which [`memory`] has made.
    #[must_use]
    pub fn new(region: &OwnRegion) -> Self {
        Self {
            extent: region.extent(),
            withdrawn: region.bell(WITHDRAWN),
        }
    }

    /// Tells whoever reads the memory that it may change, before it does.
    pub(super) fn withdraw(&self) {
        self.withdrawn.set(1);
        fence(Ordering::Release);
    }
}

/// Whether what was read of `theirs` before is as its owner lent it.
#[inline]
pub(super) fn is_as_lent(theirs: &PeerRegion) -> bool {
    theirs.acquire();
    theirs.load(WITHDRAWN) == 0
}

fn division(bytes: usize) -> Division {
    Division {
        words: PAGE_BYTES / WORD_BYTES,
        bytes,
    }
}

/// New memory of `bytes` bytes, and the file that the others map.
///
/// # Errors
/// The system's.
pub fn memory(bytes: usize) -> io::Result<(OwnRegion, OwnedFd)> {
    OwnRegion::new(division(bytes))
}

/// Bytes of such a file.
#[must_use]
pub fn memory_bytes(bytes: usize) -> usize {
    division(bytes).total_bytes()
}

/// The memory of another rank that has allocated `bytes` bytes.
///
/// # Errors
/// The file is no such memory; or the system's error.
pub fn peer_memory(bytes: usize, file: &OwnedFd) -> io::Result<PeerRegion> {
    PeerRegion::map(file, division(bytes))
}

/// Bytes of a [`Locator`], which lie beside a line's flag.
pub(super) const LOCATOR_BYTES: usize = 16;

/// Where lent bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Locator {
    /// The allocation's number.
    pub(super) number: u64,
    /// The first byte.
    pub(super) start: usize,
}

impl Locator {
    pub(super) fn encode(self) -> [u8; LOCATOR_BYTES] {
        let mut bytes = [0; LOCATOR_BYTES];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..].copy_from_slice(&(self.start as u64).to_le_bytes());
        bytes
    }

    /// What the first bytes of `beside` say.
    pub(super) fn decode(beside: &[u8]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&beside[at..at + 8]);
            u64::from_le_bytes(word)
        };
        Self {
            number: word(0),
            start: usize::try_from(word(8)).unwrap_or(usize::MAX),
        }
    }
}

/// What is lent to one peer, oldest first.
#[derive(Debug, Default)]
pub(super) struct Loans(VecDeque<Loan>);

#[derive(Debug)]
struct Loan {
    sequence: u64,
    number: u32,
    /// The last line about it.
    count: u64,
}

impl Loans {
    /// Line `count` lends a part of a message.
    pub(super) fn note(&mut self, sequence: u64, number: u32, count: u64) {
        match self.0.back_mut() {
            Some(last) if (last.sequence, last.number) == (sequence, number) => last.count = count,
            _ => self.0.push_back(Loan {
                sequence,
                number,
                count,
            }),
        }
    }

    /// Whether nothing of the message is lent any more, given what the reader is through with.
    pub(super) fn is_released(
        &mut self,
        sequence: u64,
        number: u32,
        mut is_through: impl FnMut(u64) -> bool,
    ) -> bool {
        while self.0.front().is_some_and(|loan| is_through(loan.count)) {
            self.0.pop_front();
        }
        let mut loans = self.0.iter();
        !loans.any(|loan| (loan.sequence, loan.number) == (sequence, number))
    }
}
