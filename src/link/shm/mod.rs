//! Carries messages through memory that the ranks on a host share.
//!
//! *Purpose.* [`SharedLink`] is the [`Link`] between ranks that have exchanged their regions
//! ([`crate::sys::shared`]). A message travels in one or more *cells* of a ring ([`ring`]). A cell
//! holds up to [`ring::INLINE_BYTES`] bytes of payload. A longer payload is stored in a *segment*
//! of the sender's region, and the receiver copies or reduces it directly from there. [`layout`]
//! defines the layout of a region. [`link_parts`] creates the links. [`local`] holds the state that
//! a rank's links share: the segments that are written once for several peers, and the memory that
//! peers may read in place ([`exposed`]).
//!
//! *Invariants.* A rank writes only to its own region. It does not overwrite published bytes before
//! every reader has acknowledged them. The contents of a peer's region cannot cause an access
//! outside the valid ranges, because a cell is compared with the expected values and rejected if it
//! differs.
//!
//! *May import* `sys` and the base files.

pub(crate) mod exposed;
mod form;
pub(crate) mod layout;
pub(crate) mod link_parts;
pub(crate) mod local;
pub(crate) mod ring;

use super::frame::Header;
use super::{Link, LinkError, Message, Payload};
use crate::limits::SHARED_SEGMENT_BYTES;
use crate::sys::barrier::{is_kernel_fencing, waker_fence};
use crate::sys::shared::{Bell, OwnBytes, OwnRegion, OwnWords, PeerRegion, ReadWords, WriteWords};
use exposed::{LOCATOR_BYTES, Locator, PeerMemories, is_valid};
use form::Form;
use layout::{BELL, KERNEL_FENCE, Layout};
use link_parts::LinkParts;
use local::Local;
use ring::{Head, INLINE_BYTES, Receiver, Sender};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Creates a region with this layout. Returns the region with the file that peers map.
///
/// # Errors
/// Returns the operating system's error.
pub(crate) fn region_of(layout: Layout) -> io::Result<(OwnRegion, OwnedFd)> {
    let (own, file) = OwnRegion::new(layout.division())?;
    own.store(KERNEL_FENCE, u64::from(is_kernel_fencing()));
    Ok((own, file))
}

/// Creates a region for one of `ranks` ranks. Returns the region with the file that peers map.
///
/// # Errors
/// Returns the operating system's error.
pub(crate) fn region(ranks: usize) -> io::Result<(OwnRegion, OwnedFd)> {
    region_of(Layout::new(ranks))
}

/// Returns the size in bytes of the region that [`region`] creates.
#[must_use]
pub(crate) fn region_bytes(ranks: usize) -> usize {
    Layout::new(ranks).division().total_bytes()
}

/// Returns the doorbell of the region's owner, whose value is odd while no thread of the owner is
/// polling.
#[must_use]
pub(crate) fn bell(own: &OwnRegion) -> Bell {
    own.bell(BELL)
}

/// Maps the region of a peer among `ranks` ranks.
///
/// # Errors
/// Returns an error if the file does not contain such a region, or the operating system's error.
pub(crate) fn peer_region(ranks: usize, file: &OwnedFd) -> io::Result<PeerRegion> {
    PeerRegion::map(file, Layout::new(ranks).division())
}

/// A function that wakes the process of a rank.
pub type Wake = Arc<dyn Fn(usize) + Send + Sync>;

/// The links from a rank to the other ranks on its host, each with the peer's rank.
pub type LocalLinks = Vec<(usize, Box<dyn Link>)>;

/// Creates the links between rank `ranks[place]`, which owns `own`, and the other `ranks`, whose
/// regions are `theirs`. `ranks` must be in ascending order. `channel` is the pair `(group,
/// epoch)`. Also returns the state that the links share.
#[must_use]
pub fn links(
    channel: (u32, u16),
    ranks: &[usize],
    place: usize,
    own: OwnRegion,
    theirs: Vec<(usize, PeerRegion)>,
    wake: &Wake,
) -> (LocalLinks, Local) {
    let layout = Layout::new(ranks.len());
    let mut parts = LinkParts::new(layout, channel, (ranks, place), own, wake);
    // Skips a peer that is not one of `ranks`, or that occurs twice.
    let link = |(peer, region)| -> Option<(usize, Box<dyn Link>)> {
        Some((peer, Box::new(parts.link(peer, region)?)))
    };
    let links = theirs.into_iter().filter_map(link).collect();
    let local = parts.local();
    (
        links,
        local.expect("invariant: these new parts have not created it yet"),
    )
}

/// The memory from which the payload of the current cell is read.
enum PayloadSource {
    /// The cell itself.
    Inline,
    /// The peer's region, beginning at this byte.
    Region(usize),
    /// Memory that the peer exposes, beginning at this byte.
    Exposed(Arc<PeerRegion>, usize),
}

/// The cell that is currently being read, and the number of bytes that have been taken from it.
struct CurrentCell {
    /// Number of payload bytes, or 0 if no cell is being read.
    bytes: usize,
    taken: usize,
    source: PayloadSource,
    inline: [u8; INLINE_BYTES],
}

/// The link to another rank on this host.
pub(crate) struct SharedLink {
    peer: usize,
    /// The group and the epoch, for the header that is reported for an unexpected cell.
    channel: (u32, u16),
    own: OwnWords,
    /// The segments for this peer.
    row: OwnBytes,
    theirs: PeerRegion,
    sender: Sender,
    receiver: Receiver,
    segment_bytes: usize,
    slot_next: usize,
    /// Sequence number of the cell that last used each segment.
    slots: Vec<u64>,
    /// Sequence number of the last cell whose payload is not in the cell itself.
    position: u64,
    /// Offsets, in the peer's region, of the segments for this rank and of the segments for several
    /// ranks.
    their_row: usize,
    their_staging: usize,
    current: CurrentCell,
    /// The memory that the peer exposes.
    memories: PeerMemories,
    /// `true` if anything was published, or a payload outside a cell was acknowledged, since the
    /// last check of the peer's doorbell.
    is_unflushed: bool,
    /// The value of the peer's doorbell at the last wake-up.
    woken: u64,
    /// `true` if the peer makes the kernel execute a fence in all threads before it sleeps, so that
    /// this rank needs no fence.
    is_kernel_fencing: bool,
    wake: Wake,
}

impl SharedLink {
    /// Publishes a cell for a payload of `bytes` bytes. The cell contains `inline`, which is the
    /// payload itself or the location of exposed memory.
    #[inline]
    fn publish(&mut self, message: &Message, (form, bytes): (Form, usize), inline: &[u8]) {
        let head = head_of(message, form.encode(bytes));
        let finished = self.receiver.finished();
        self.sender.publish(&self.own, head, inline, finished);
        self.is_unflushed = true;
        if form != Form::Inline {
            self.position = self.sender.count();
        }
    }

    /// Sends up to one segment of `data` to the peer. Returns the number of bytes sent, which is 0
    /// if the next segment is still in use.
    #[inline]
    fn send_segment(&mut self, message: &Message, data: &[u8]) -> usize {
        let piece = &data[..data.len().min(self.segment_bytes)];
        if piece.len() <= INLINE_BYTES {
            self.publish(message, (Form::Inline, piece.len()), piece);
            return piece.len();
        }
        let slot = self.slot_next;
        if !self.sender.is_acknowledged(&self.theirs, self.slots[slot]) {
            return 0;
        }
        self.row
            .bytes_mut(slot * self.segment_bytes, piece.len())
            .copy_from_slice(piece);
        self.slots[slot] = self.sender.count() + 1;
        self.slot_next = (slot + 1) % self.slots.len();
        self.publish(message, (Form::Slot(slot), piece.len()), &[]);
        piece.len()
    }

    /// Returns `true` if the next cell has arrived and belongs to `message`. Returns an error if it
    /// belongs to a different message.
    #[inline]
    fn begin(&mut self, message: &Message, offset: usize) -> Result<bool, LinkError> {
        if self.current.bytes > 0 {
            return Ok(true);
        }
        let Some((head, acknowledged)) = self.receiver.peek(&self.theirs) else {
            return Ok(false);
        };
        // `open` checks the form.
        if head != head_of(message, head.form) {
            return Err(LinkError::Unexpected(self.header(message, head)));
        }
        self.sender.record_acknowledgment(acknowledged);
        self.open(head.form, message.bytes - offset)?;
        Ok(true)
    }

    /// Opens the payload of the next cell. `most` is the number of bytes of the message that are
    /// still missing.
    #[inline]
    fn open(&mut self, form: u32, most: usize) -> Result<(), LinkError> {
        let decoded = Form::decode(form).filter(|(bytes, _)| *bytes <= most);
        let found =
            decoded.and_then(|(bytes, form)| Some((bytes, self.find_payload(form, bytes)?)));
        let Some((bytes, source)) = found else {
            return Err(LinkError::Garbage(format!(
                "cell form {form:#x} is invalid: expected at most {most} bytes"
            )));
        };
        self.current.source = source;
        self.current.bytes = bytes;
        self.current.taken = 0;
        Ok(())
    }

    /// Returns the memory in which the payload of the next cell is stored, or `None` if the cell
    /// refers to invalid memory.
    #[inline]
    fn find_payload(&mut self, form: Form, bytes: usize) -> Option<PayloadSource> {
        let in_row = |slot: usize, row: usize| {
            let start = row + slot * self.segment_bytes;
            let is_there = slot < self.slots.len() && bytes <= self.segment_bytes;
            is_there.then_some(PayloadSource::Region(start))
        };
        match form {
            Form::Inline => {
                let into = &mut self.current.inline;
                self.receiver.inline(&self.theirs, into, bytes);
                Some(PayloadSource::Inline)
            }
            Form::Slot(slot) => in_row(slot, self.their_row),
            Form::Staged(slot) => in_row(slot, self.their_staging),
            Form::Exposed => {
                let inline = &mut self.current.inline;
                self.receiver.inline(&self.theirs, inline, LOCATOR_BYTES);
                let Locator { number, start, .. } = Locator::decode(inline, bytes);
                let region = self.memories.get(number)?;
                let after = region.length().checked_sub(start)?;
                (bytes <= after).then_some(PayloadSource::Exposed(region, start))
            }
        }
    }

    #[inline]
    fn visible(&self) -> usize {
        self.current.bytes - self.current.taken
    }

    /// Returns the header that this unexpected cell would have had in a stream.
    fn header(&self, message: &Message, head: Head) -> Header {
        let low = message.sequence as u32;
        let difference = i64::from(head.sequence.wrapping_sub(low) as i32);
        let (group, epoch) = self.channel;
        Header {
            epoch,
            group,
            sequence: message.sequence.wrapping_add_signed(difference),
            message: head.number,
            bytes: Form::decode(head.form).map_or(0, |(bytes, _)| bytes as u32),
            digest: head.digest,
        }
    }
}

impl Link for SharedLink {
    #[inline]
    fn send(
        &mut self,
        message: &Message,
        _offset: usize,
        payload: Payload<'_>,
    ) -> Result<usize, LinkError> {
        let mut taken = 0;
        match payload {
            Payload::Bytes(parts) => {
                // The caller offers the remaining parts again.
                let data = parts.first().copied().unwrap_or_default();
                while taken < data.len() && self.has_room() {
                    match self.send_segment(message, &data[taken..]) {
                        0 => break,
                        bytes => taken += bytes,
                    }
                }
            }
            Payload::Staged(staged) if self.has_room() => {
                self.publish(message, (Form::Staged(staged.slot), staged.bytes), &[]);
                taken = staged.bytes;
            }
            Payload::Staged(_) => {}
            Payload::Exposed(mut rest) => {
                while rest.bytes > 0 && self.has_room() {
                    let bytes = rest.bytes.min(SHARED_SEGMENT_BYTES);
                    self.publish(message, (Form::Exposed, bytes), &rest.encode());
                    rest.start += bytes;
                    rest.bytes -= bytes;
                    taken += bytes;
                }
            }
        }
        Ok(taken)
    }

    fn receive(
        &mut self,
        message: &Message,
        offset: usize,
        into: &mut [u8],
    ) -> Result<usize, LinkError> {
        let mut stored = 0;
        while stored < into.len() && self.begin(message, offset + stored)? {
            let bytes = self.visible().min(into.len() - stored);
            into[stored..stored + bytes].copy_from_slice(self.view(bytes));
            self.consume(bytes)?;
            stored += bytes;
        }
        Ok(stored)
    }

    #[inline]
    fn fetch(&mut self, message: &Message, offset: usize) -> Result<usize, LinkError> {
        Ok(if self.begin(message, offset)? {
            self.visible()
        } else {
            0
        })
    }

    #[inline]
    fn view(&self, bytes: usize) -> &[u8] {
        assert!(
            bytes <= self.visible(),
            "invariant: only fetched bytes are viewed"
        );
        let CurrentCell {
            taken,
            source,
            inline,
            ..
        } = &self.current;
        match source {
            PayloadSource::Inline => &inline[*taken..taken + bytes],
            PayloadSource::Region(start) => self.theirs.bytes(start + taken, bytes),
            PayloadSource::Exposed(region, start) => region.bytes(start + taken, bytes),
        }
    }

    #[inline]
    fn consume(&mut self, bytes: usize) -> Result<(), LinkError> {
        if let PayloadSource::Exposed(region, _) = &self.current.source
            && !is_valid(region)
        {
            let why = "a call failed there, and the rank revoked the memory that it had exposed";
            return Err(LinkError::Closed(why.into()));
        }
        self.current.taken += bytes;
        if self.visible() == 0 {
            // If the payload was outside the cell, the sender needs that memory back and may be
            // asleep while it is waiting.
            let is_awaited = !matches!(self.current.source, PayloadSource::Inline);
            self.receiver.finish(&self.own, is_awaited);
            if is_awaited {
                self.is_unflushed = true;
                self.current.source = PayloadSource::Inline;
            }
            (self.current.bytes, self.current.taken) = (0, 0);
            // A reply is likely to follow.
            self.sender.prepare(&self.own);
        }
        Ok(())
    }

    #[inline]
    fn is_ready(&self) -> bool {
        self.current.bytes > 0 || self.receiver.is_ready(&self.theirs)
    }

    fn drain_time_after_goodbye(&self) -> Option<Duration> {
        // A rank publishes all its cells before it sends its goodbye.
        Some(Duration::ZERO)
    }

    fn capacity(&self) -> usize {
        self.segment_bytes
    }

    #[inline]
    fn has_room(&mut self) -> bool {
        self.sender.has_room(&self.theirs)
    }

    fn position(&self) -> usize {
        self.position as usize
    }

    #[inline]
    fn is_acknowledged(&mut self, position: usize) -> bool {
        self.sender.is_acknowledged(&self.theirs, position as u64)
    }

    #[inline]
    fn flush(&mut self) {
        if !std::mem::take(&mut self.is_unflushed) {
            return;
        }
        waker_fence(self.is_kernel_fencing);
        let bell = self.theirs.load(BELL);
        if bell % 2 == 1 && bell != self.woken {
            self.woken = bell;
            (self.wake)(self.peer);
        }
    }
}

#[inline]
fn head_of(message: &Message, form: u32) -> Head {
    Head {
        digest: message.digest,
        form,
        // The low bits are sufficient to distinguish neighboring operations.
        sequence: message.sequence as u32,
        number: message.number,
    }
}
