//! What a rank's links to the ranks of its host have in common: segments that are written once for
//! several peers, and memory that peers read where it lies.

use super::exposed::{Allocation, Locator, Own, PeerMemories};
use crate::link::Link;
use crate::sys::shared::OwnBytes;

/// A segment that was written once, for [`crate::link::Payload::Staged`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staged {
    pub(super) slot: usize,
    pub(super) bytes: usize,
}

/// What a rank shares with all ranks of its host.
pub struct Local {
    /// The segments that several peers read.
    row: OwnBytes,
    segment_bytes: usize,
    next: usize,
    /// The readers of each segment: the peer, and the position on the link to it.
    readers: Vec<Vec<(usize, usize)>>,
    /// What this rank may expose, with the allocations' numbers.
    allocations: Vec<(u64, Own)>,
    /// What each local peer exposes.
    peers: Vec<(usize, PeerMemories)>,
}

impl Local {
    pub(super) fn new(
        row: OwnBytes,
        (slots, segment_bytes): (usize, usize),
        peers: Vec<(usize, PeerMemories)>,
    ) -> Self {
        Self {
            row,
            segment_bytes,
            next: 0,
            readers: vec![Vec::new(); slots],
            allocations: Vec::new(),
            peers,
        }
    }

    /// The most that [`Local::stage`] writes at once.
    #[must_use]
    pub fn segment_bytes(&self) -> usize {
        self.segment_bytes
    }

    /// The ranks of this host that there are links to, ascending.
    pub fn peers(&self) -> impl Iterator<Item = usize> + '_ {
        self.peers.iter().map(|(peer, _)| *peer)
    }

    /// Writes up to a segment of `data` for several peers. `None` while the next segment still has
    /// readers.
    pub fn stage(&mut self, data: &[u8], links: &mut [Option<Box<dyn Link>>]) -> Option<Staged> {
        let slot = self.next;
        let readers = &mut self.readers[slot];
        readers.retain(|(peer, position)| {
            let link = links[*peer].as_mut();
            link.is_some_and(|link| !link.is_through(*position))
        });
        if !readers.is_empty() {
            return None;
        }
        let bytes = data.len().min(self.segment_bytes);
        self.row
            .bytes_mut(slot * self.segment_bytes, bytes)
            .copy_from_slice(&data[..bytes]);
        self.next = (slot + 1) % self.readers.len();
        Some(Staged { slot, bytes })
    }

    /// `peer` reads the segment, which was sent at `position` of the link to it.
    pub fn note_reader(&mut self, staged: Staged, peer: usize, position: usize) {
        self.readers[staged.slot].push((peer, position));
    }

    /// The ranks of this host have allocated memory that they can read of each other.
    pub fn admit(&mut self, allocation: Allocation) {
        let Allocation {
            number,
            own,
            theirs,
        } = allocation;
        self.allocations.retain(|(_, own)| own.extent.is_there());
        self.allocations.push((number, own));
        for (rank, region) in theirs {
            if let Some((_, memories)) = self.peers.iter().find(|(peer, _)| *peer == rank) {
                memories.add(number, region);
            }
        }
    }

    /// Where `data` lies, if that is in memory that this rank may expose.
    #[inline]
    #[must_use]
    pub fn locate(&self, data: &[u8]) -> Option<Locator> {
        let mut allocations = self.allocations.iter();
        allocations.find_map(|(number, own)| {
            Some(Locator {
                number: *number,
                start: own.extent.offset_of(data)?,
                bytes: data.len(),
            })
        })
    }

    /// Revokes what is exposed, since the calls have failed: a reader that has read of it since is
    /// told so by [`Link::consume`]. Nothing is exposed any more.
    pub fn revoke(&mut self) {
        for (_, own) in self.allocations.drain(..) {
            own.revoke();
        }
    }
}
