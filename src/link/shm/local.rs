//! Holds the state that a rank's links to the other ranks on its host share: segments that are
//! written once for several peers, and memory that peers read in place.

use super::exposed::{Allocation, Locator, Own, PeerMemories};
use crate::link::Link;
use crate::sys::shared::OwnBytes;

/// A segment that was written once for several peers. See [`crate::link::Payload::Staged`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staged {
    pub(super) slot: usize,
    pub(super) bytes: usize,
}

/// The state that a rank's links to the other ranks on its host share.
pub struct Local {
    /// The segments that several peers read.
    row: OwnBytes,
    segment_bytes: usize,
    next: usize,
    /// Readers of each segment. A reader is identified by the peer and the position on the link to
    /// that peer.
    readers: Vec<Vec<(usize, usize)>>,
    /// The memory that this rank may expose, with the ID of each allocation.
    allocations: Vec<(u64, Own)>,
    /// The memory that each local peer exposes.
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

    /// Returns the maximum number of bytes that a single call of [`Local::stage`] writes.
    #[must_use]
    pub fn segment_bytes(&self) -> usize {
        self.segment_bytes
    }

    /// Returns the peers on this host, in ascending order.
    pub fn peers(&self) -> impl Iterator<Item = usize> + '_ {
        self.peers.iter().map(|(peer, _)| *peer)
    }

    /// Writes up to one segment of `data` for several peers. Returns `None` while the next segment
    /// still has readers.
    pub fn stage(&mut self, data: &[u8], links: &mut [Option<Box<dyn Link>>]) -> Option<Staged> {
        let slot = self.next;
        let readers = &mut self.readers[slot];
        readers.retain(|(peer, position)| {
            let link = links[*peer].as_mut();
            link.is_some_and(|link| !link.is_acknowledged(*position))
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

    /// Records that `peer` reads the segment, which was sent to it at `position` on its link.
    pub fn note_reader(&mut self, staged: Staged, peer: usize, position: usize) {
        self.readers[staged.slot].push((peer, position));
    }

    /// Adds an allocation, which contains memory of each rank on this host that the others can
    /// read.
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

    /// Returns the position of `data` if it is in memory that this rank may expose.
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

    /// Revokes all exposed memory because calls have failed. If a rank reads this memory
    /// afterwards, its call of [`Link::consume`] returns an error. This rank exposes no memory from
    /// then on.
    pub fn revoke(&mut self) {
        for (_, own) in self.allocations.drain(..) {
            own.revoke();
        }
    }
}
