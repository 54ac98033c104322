//! Where segments lie between one rank's buffer and the other's.

use super::DeviceLinks;
use crate::device::{Device, Memory, Pinned, Span};
use crate::error::{Error, Result};

/// Slots of a link in one direction: one is filled, one travels, one is read, one is on its way
/// back.
pub const SLOTS: usize = 4;

/// What kernels read at once, from buffers that lie alike in it.
pub(in crate::engine::device) const ALIGNMENT_BYTES: usize = 16;

/// Memory for the slots of a link in one direction.
#[must_use]
pub fn slots_bytes(segment_bytes: usize) -> usize {
    SLOTS * slot_bytes(segment_bytes)
}

fn slot_bytes(segment_bytes: usize) -> usize {
    segment_bytes + ALIGNMENT_BYTES
}

/// Where in the slots of a link something begins.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine::device) struct Place {
    pub(in crate::engine::device) slot: usize,
    /// Where the segment begins in the slot, if that is in the GPU's memory: as the sender's bytes,
    /// and the reader's, lie in their 16.
    pub(in crate::engine::device) lead: usize,
    /// Where it begins in the segment.
    pub(in crate::engine::device) at: usize,
}

impl Place {
    fn in_memory(self, segment_bytes: usize) -> usize {
        self.slot * slot_bytes(segment_bytes) + self.lead + self.at
    }
}

pub(super) enum Slots {
    Mapped {
        own: Span,
        theirs: Span,
    },
    /// Made when they are first needed.
    Unmade,
    Staged(Staging),
}

/// What it takes to reach a peer through the hosts.
pub struct Staging {
    out: Vec<Pinned>,
    back: Vec<Pinned>,
    landing: Memory,
}

impl Staging {
    /// Allocates it; with nothing locked that opens gates, for this may wait for a stream that
    /// waits for one.
    ///
    /// # Errors
    /// The device's.
    pub fn new(device: &dyn Device, segment_bytes: usize) -> Result<Self> {
        let pinned = || -> Result<Vec<Pinned>> {
            let one = |_| device.pin(segment_bytes);
            (0..SLOTS).map(one).collect()
        };
        Ok(Self {
            out: pinned()?,
            back: pinned()?,
            landing: device.allocate(slots_bytes(segment_bytes))?,
        })
    }
}

impl DeviceLinks {
    fn slots(&self, peer: usize) -> Option<&Slots> {
        let link = self.links.get(peer)?.as_ref()?;
        Some(&link.memory)
    }

    /// Enqueues the copy of `from` to its place in the slots to `peer`.
    pub(in crate::engine::device) fn copy_out(
        &self,
        peer: usize,
        place: Place,
        from: &Span,
    ) -> Result<()> {
        match self.slots(peer) {
            Some(Slots::Mapped { own, .. }) => {
                let to = own.part(place.in_memory(self.segment_bytes), from.bytes())?;
                self.stream.copy(from, &to)
            }
            Some(Slots::Staged(Staging { out, .. })) => {
                let to = out[place.slot].span(place.at, from.bytes())?;
                self.stream.copy_to_host(from, &to)
            }
            _ => Err(unreached(peer)),
        }
    }

    /// The bytes of a staged slot, which the stream has filled.
    pub(in crate::engine::device) fn outgoing(
        &mut self,
        peer: usize,
        slot: usize,
    ) -> Result<&mut [u8]> {
        match self.link(peer).map(|link| &mut link.memory) {
            Some(Slots::Staged(Staging { out, .. })) => out[slot].bytes_mut(),
            _ => Ok(&mut []),
        }
    }

    /// The bytes of a staged slot that a segment comes into.
    pub(in crate::engine::device) fn incoming(
        &mut self,
        peer: usize,
        slot: usize,
    ) -> Result<&mut [u8]> {
        match self.link(peer).map(|link| &mut link.memory) {
            Some(Slots::Staged(Staging { back, .. })) => back[slot].bytes_mut(),
            _ => Ok(&mut []),
        }
    }

    /// Enqueues what puts the bytes at a place in the slots from `peer` into `to`.
    pub(in crate::engine::device) fn copy_in(
        &self,
        peer: usize,
        place: Place,
        to: &Span,
    ) -> Result<()> {
        match self.slots(peer) {
            Some(Slots::Staged(Staging { back, .. })) => {
                let from = back[place.slot].span(place.at, to.bytes())?;
                self.stream.copy_from_host(&from, to)
            }
            _ => {
                let from = self.source(peer, place, to.bytes())?;
                self.stream.copy(&from, to)
            }
        }
    }

    /// Where the device finds a segment of `peer`; what came through the hosts is copied there.
    pub(in crate::engine::device) fn landed(
        &self,
        peer: usize,
        place: Place,
        bytes: usize,
    ) -> Result<Span> {
        let span = self.source(peer, place, bytes)?;
        if !self.is_mapped(peer) {
            self.copy_in(peer, place, &span)?;
        }
        Ok(span)
    }

    fn source(&self, peer: usize, place: Place, bytes: usize) -> Result<Span> {
        let start = place.in_memory(self.segment_bytes);
        match self.slots(peer) {
            Some(Slots::Mapped { theirs, .. }) => theirs.part(start, bytes),
            Some(Slots::Staged(Staging { landing, .. })) => landing.span(start, bytes),
            _ => Err(unreached(peer)),
        }
    }
}

fn unreached(peer: usize) -> Error {
    Error::Usage(format!("rank {peer} is not reached over devices"))
}
