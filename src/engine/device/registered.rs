//! Memory that the ranks have registered, and what they say of it.

use crate::device::Memory;

/// Bytes of a token.
pub(super) const TOKEN_BYTES: usize = 16;

/// What a token says: that a segment is in its slot, or where the whole message lies in registered
/// memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Token {
    /// The registration's number; 0 for a slot.
    pub(super) number: u64,
    /// Where it begins in that, or in the slot: fewer bytes than kernels read at once.
    pub(super) start: usize,
}

impl Token {
    pub(super) fn encode(self) -> [u8; TOKEN_BYTES] {
        let mut bytes = [0; TOKEN_BYTES];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..].copy_from_slice(&(self.start as u64).to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; TOKEN_BYTES]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        Self {
            number: word(0),
            start: usize::try_from(word(8)).unwrap_or(usize::MAX),
        }
    }
}

/// Memory that the ranks have registered, as one of them sees it.
pub struct Registration {
    /// The same on all ranks, and no other's; not 0.
    pub number: u64,
    /// The own memory.
    pub own: Memory,
    /// By rank, what peers that use the same GPU have registered, where each has mapped the
    /// other's.
    pub theirs: Vec<Option<Memory>>,
}

/// All that is registered.
#[derive(Default)]
pub struct Registered {
    registrations: Vec<Registration>,
}

impl Registered {
    /// What lies in this memory is read where it is from now on.
    pub fn add(&mut self, registration: Registration) {
        self.registrations.push(registration);
    }

    /// All of them, which are forgotten.
    pub(super) fn take(&mut self) -> Vec<Registration> {
        std::mem::take(&mut self.registrations)
    }

    /// The registration that `memory` is the own part of.
    #[must_use]
    pub fn number_of(&self, memory: &Memory) -> Option<u64> {
        let mut all = self.registrations.iter();
        all.find(|one| one.own.is_same(memory))
            .map(|one| one.number)
    }

    /// What `peer` has registered under this number, where each has mapped the other's.
    pub(super) fn theirs(&self, number: u64, peer: usize) -> Option<&Memory> {
        let mut all = self.registrations.iter();
        all.find(|one| one.number == number)?.theirs[peer].as_ref()
    }
}
