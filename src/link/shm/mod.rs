//! Messages through memory that the ranks of one host share.
//!
//! *Purpose.* [`SharedLink`] is the [`Link`] between ranks that have passed each other their
//! regions ([`crate::sys::shared`]). A message goes as one or more *cells* of a ring ([`ring`]): up
//! to [`ring::INLINE_BYTES`] of payload lie beside the flag, more lies in a *segment* of the
//! sender's region, which the receiver copies out of or reduces from where it is. [`layout`] says
//! what lies where. [`lanes`] makes the links; [`local`] is what the links of a rank have in
//! common: segments that are written once for several peers, and [`exposed`] memory.
//!
//! *Invariants.* A rank writes its own region alone. What it has published it does not write again
//! before every reader has acknowledged it. What a reader finds decides no length and no address:
//! a cell is compared with what is expected, and refused.
//!
//! *May import* `sys` and the base files.

pub(crate) mod exposed;
mod form;
pub(crate) mod lanes;
pub(crate) mod layout;
pub(crate) mod local;
pub(crate) mod ring;

use super::frame::Header;
use super::{Link, LinkError, Message, Payload};
use crate::limits::SHARED_SEGMENT_BYTES;
use crate::sys::barrier::{fence_of_waker, is_kernel_fencing};
use crate::sys::shared::{Bell, OwnBytes, OwnRegion, OwnWords, PeerRegion, ReadWords, WriteWords};
use exposed::{LOCATOR_BYTES, Locator, PeerMemories, is_valid};
use form::Form;
use lanes::Lanes;
use layout::{BELL, KERNEL_FENCE, Layout};
use local::Local;
use ring::{Head, INLINE_BYTES, Receiver, Sender};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// A new region of this layout, and the file that the others map.
///
/// # Errors
/// The system's.
pub(crate) fn region_of(layout: Layout) -> io::Result<(OwnRegion, OwnedFd)> {
    let (own, file) = OwnRegion::new(layout.division())?;
    own.store(KERNEL_FENCE, u64::from(is_kernel_fencing()));
    Ok((own, file))
}

/// A new region for one of `places` ranks, and the file that the others map.
///
/// # Errors
/// The system's.
pub(crate) fn region(places: usize) -> io::Result<(OwnRegion, OwnedFd)> {
    region_of(Layout::new(places))
}

/// Bytes of such a region.
#[must_use]
pub(crate) fn region_bytes(places: usize) -> usize {
    Layout::new(places).division().total_bytes()
}

/// The region owner's doorbell: odd while no thread of the owner polls.
#[must_use]
pub(crate) fn bell(own: &OwnRegion) -> Bell {
    own.bell(BELL)
}

/// The region of another of `places` ranks.
///
/// # Errors
/// The file is no such region; or the system's error.
pub(crate) fn peer_region(places: usize, file: &OwnedFd) -> io::Result<PeerRegion> {
    PeerRegion::map(file, Layout::new(places).division())
}

/// Wakes the process of a rank.
pub type Wake = Arc<dyn Fn(usize) + Send + Sync>;

/// The links of one rank to the others of its host, by rank.
pub type LocalLinks = Vec<(usize, Box<dyn Link>)>;

/// Links between rank `ranks[place]`, which owns `own`, and the other `ranks` (ascending), whose
/// regions are `theirs`; and what these links have in common. `(group, epoch)` name the channel.
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
    let mut lanes = Lanes::new(layout, channel, (ranks, place), own, wake);
    let link = |(peer, region)| -> Option<(usize, Box<dyn Link>)> {
        Some((peer, Box::new(lanes.link(peer, region)?)))
    };
    let links = theirs.into_iter().filter_map(link).collect();
    let local = lanes.local();
    (links, local.expect("invariant: it was not made before"))
}

/// Where the payload of the present cell is taken from.
enum Place {
    /// It lies beside the flag.
    Beside,
    /// From this byte on of the peer's region.
    Region(usize),
    /// In memory that the peer exposes, from this byte on.
    Exposed(Arc<PeerRegion>, usize),
}

/// What is being taken from the next cell.
struct Present {
    /// Its payload; 0 when none is at hand.
    bytes: usize,
    taken: usize,
    place: Place,
    inline: [u8; INLINE_BYTES],
}

/// The link to one rank of this host.
pub(crate) struct SharedLink {
    peer: usize,
    /// The group and the epoch, for the header of what was not expected.
    channel: (u32, u16),
    own: OwnWords,
    /// The segments for this peer.
    row: OwnBytes,
    theirs: PeerRegion,
    sender: Sender,
    receiver: Receiver,
    segment_bytes: usize,
    slot_next: usize,
    /// The cell that last used each segment.
    slots: Vec<u64>,
    /// The last cell whose payload does not lie beside the flag.
    position: u64,
    /// Where, in the peer's region, the segments for this rank start, and those for several.
    their_row: usize,
    their_staging: usize,
    present: Present,
    /// What the peer exposes.
    memories: PeerMemories,
    /// Something was published since the last look at the peer's doorbell.
    is_unflushed: bool,
    /// The value of the peer's doorbell at which it was last woken.
    woken: u64,
    /// A peer about to sleep has the kernel fence all threads, so that this one need not.
    is_kernel_fencing: bool,
    wake: Wake,
}

impl SharedLink {
    /// Publishes a cell about `bytes` bytes, with `beside` beside the flag.
    #[inline]
    fn publish(&mut self, message: &Message, (form, bytes): (Form, usize), beside: &[u8]) {
        let head = head_of(message, form.encode(bytes));
        let received = self.receiver.through();
        self.sender.publish(&self.own, head, beside, received);
        self.is_unflushed = true;
        if form != Form::Inline {
            self.position = self.sender.count();
        }
    }

    /// Copies up to a segment of `data` for the peer; returns how many bytes.
    #[inline]
    fn send_segment(&mut self, message: &Message, data: &[u8]) -> usize {
        let piece = &data[..data.len().min(self.segment_bytes)];
        if piece.len() <= INLINE_BYTES {
            self.publish(message, (Form::Inline, piece.len()), piece);
            return piece.len();
        }
        let slot = self.slot_next;
        if !self.sender.is_through(&self.theirs, self.slots[slot]) {
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

    /// Makes sure that the next cell is at hand and belongs to `message`.
    #[inline]
    fn begin(&mut self, message: &Message, offset: usize) -> Result<bool, LinkError> {
        if self.present.bytes > 0 {
            return Ok(true);
        }
        let Some((head, through)) = self.receiver.peek(&self.theirs) else {
            return Ok(false);
        };
        if head != head_of(message, head.form) {
            return Err(LinkError::Unexpected(self.header(message, head)));
        }
        self.sender.hear(through);
        self.open(head.form, message.bytes - offset)?;
        Ok(true)
    }

    /// Makes the next cell's payload the present one; at most `most` bytes of its message are
    /// missing.
    #[inline]
    fn open(&mut self, form: u32, most: usize) -> Result<(), LinkError> {
        let decoded = Form::decode(form).filter(|(bytes, _)| *bytes <= most);
        let found = decoded.and_then(|(bytes, form)| Some((bytes, self.place(form, bytes)?)));
        let Some((bytes, place)) = found else {
            return Err(LinkError::Garbage(format!(
                "a cell of the form {form:#x} where {most} bytes were to come"
            )));
        };
        self.present.place = place;
        self.present.bytes = bytes;
        self.present.taken = 0;
        Ok(())
    }

    /// Where the payload of the next cell is, if there is such a place.
    #[inline]
    fn place(&mut self, form: Form, bytes: usize) -> Option<Place> {
        let in_row = |slot: usize, row: usize| {
            let start = row + slot * self.segment_bytes;
            let is_there = slot < self.slots.len() && bytes <= self.segment_bytes;
            is_there.then_some(Place::Region(start))
        };
        match form {
            Form::Inline => {
                let into = &mut self.present.inline;
                self.receiver.inline(&self.theirs, into, bytes);
                Some(Place::Beside)
            }
            Form::Slot(slot) => in_row(slot, self.their_row),
            Form::Staged(slot) => in_row(slot, self.their_staging),
            Form::Exposed => {
                let beside = &mut self.present.inline;
                self.receiver.inline(&self.theirs, beside, LOCATOR_BYTES);
                let Locator { number, start, .. } = Locator::decode(beside, bytes);
                let region = self.memories.get(number)?;
                let after = region.length().checked_sub(start)?;
                (bytes <= after).then_some(Place::Exposed(region, start))
            }
        }
    }

    #[inline]
    fn visible(&self) -> usize {
        self.present.bytes - self.present.taken
    }

    /// The header that a stream would have carried where a cell was found that is not expected.
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
            "invariant: bytes that were fetched"
        );
        let Present {
            taken,
            place,
            inline,
            ..
        } = &self.present;
        match place {
            Place::Beside => &inline[*taken..taken + bytes],
            Place::Region(start) => self.theirs.bytes(start + taken, bytes),
            Place::Exposed(region, start) => region.bytes(start + taken, bytes),
        }
    }

    #[inline]
    fn consume(&mut self, bytes: usize) -> Result<(), LinkError> {
        if let Place::Exposed(region, _) = &self.present.place
            && !is_valid(region)
        {
            let why = "it has given up and revoked the memory that it exposed";
            return Err(LinkError::Closed(why.into()));
        }
        self.present.taken += bytes;
        if self.visible() == 0 {
            // The sender needs its memory back: it may be waiting for it, perhaps asleep.
            let is_awaited = !matches!(self.present.place, Place::Beside);
            self.receiver.pass(&self.own, is_awaited);
            if is_awaited {
                self.is_unflushed = true;
                self.present.place = Place::Beside;
            }
            (self.present.bytes, self.present.taken) = (0, 0);
            self.sender.prepare(&self.own);
        }
        Ok(())
    }

    #[inline]
    fn is_ready(&self) -> bool {
        self.present.bytes > 0 || self.receiver.is_ready(&self.theirs)
    }

    fn is_silent_after(&self) -> Option<Duration> {
        // What a rank publishes is there before its goodbye is.
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
    fn is_through(&mut self, position: usize) -> bool {
        self.sender.is_through(&self.theirs, position as u64)
    }

    #[inline]
    fn flush(&mut self) {
        if !std::mem::take(&mut self.is_unflushed) {
            return;
        }
        fence_of_waker(self.is_kernel_fencing);
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
        // The low bits tell neighbouring operations apart.
        sequence: message.sequence as u32,
        number: message.number,
    }
}
