//! Messages through memory that the ranks of one host share.
//!
//! *Purpose.* [`SharedTransport`] is a [`Transport`] among ranks that have handed each other their
//! regions ([`crate::sys::shared`]). A message goes as one or more *lines* ([`lane`]): up to
//! [`lane::INLINE_BYTES`] of payload lie beside the flag, more lies in a *segment* of the sender's
//! region, which the receiver copies out of or folds from where it is. [`layout`] says what lies
//! where. A message to several peers is written once and read by all of them.
//!
//! *Invariants.* A rank writes its own region alone. What it has published it does not write again
//! before every reader has acknowledged it. What a reader finds decides no length and no address:
//! a line is compared with what is expected, and refused.
//!
//! *May import* `sys` and the base files.

pub mod lane;
pub mod layout;
pub mod lent;
mod link;

use super::{Addressee, LinkError, Message, Transport};
use crate::limits::SHARED_SEGMENT_BYTES;
use crate::sys::barrier::{fence_of_waker, is_kernel_fencing};
use crate::sys::shared::{Bell, OwnRegion, PeerRegion, ReadWords, WriteWords};
use crate::transport::frame::Header;
use lane::{Head, INLINE_BYTES};
use layout::{BELL, KERNEL_FENCE, Layout};
use lent::{Allocation, Locator, Own};
use link::{Form, Link, Place, head_of};
use std::io;
use std::os::fd::OwnedFd;

/// A new region for one of `places` ranks, and the file that the others map.
///
/// # Errors
/// The system's.
pub fn region(places: usize) -> io::Result<(OwnRegion, OwnedFd)> {
    let (own, file) = OwnRegion::new(Layout::new(places).division())?;
    own.store(KERNEL_FENCE, u64::from(is_kernel_fencing()));
    Ok((own, file))
}

/// Bytes of such a region.
#[must_use]
pub fn region_bytes(places: usize) -> usize {
    Layout::new(places).division().total_bytes()
}

/// The word by which the region's owner says that it sleeps: odd while nobody there polls.
#[must_use]
pub fn bell(own: &OwnRegion) -> Bell {
    own.bell(BELL)
}

/// The region of another of `places` ranks.
///
/// # Errors
/// The file is no such region; or the system's error.
pub fn peer_region(places: usize, file: &OwnedFd) -> io::Result<PeerRegion> {
    PeerRegion::map(file, Layout::new(places).division())
}

/// Ends the sleep of a rank.
pub type Wake = Box<dyn Fn(usize) + Send>;

/// Links through shared memory.
pub struct SharedTransport {
    group: u32,
    epoch: u16,
    own: OwnRegion,
    /// By rank; none to this one and to those that are elsewhere.
    links: Vec<Option<Box<Link>>>,
    /// The ranks that there are links to.
    near: Vec<usize>,
    shared: SharedRow,
    /// A peer was told something since the last look at who sleeps.
    is_unsettled: bool,
    /// What this rank may lend, with the allocations' numbers.
    allocations: Vec<(u64, Own)>,
    /// Before anybody here sleeps, the kernel fences everybody.
    is_kernel_fencing: bool,
    wake: Wake,
}

impl SharedTransport {
    /// Links between rank `ranks[place]`, which owns `own`, and the other `ranks` (ascending),
    /// whose regions are `theirs`, in a world of `world_size`.
    #[must_use]
    pub fn new(
        (group, epoch): (u32, u16),
        world_size: usize,
        ranks: &[usize],
        place: usize,
        own: OwnRegion,
        theirs: Vec<(usize, PeerRegion)>,
        wake: Wake,
    ) -> Self {
        let layout = Layout::new(ranks.len());
        let mut links: Vec<Option<Box<Link>>> = Vec::new();
        links.resize_with(world_size, || None);
        // What a peer's word says was written before its region was handed over.
        let by_kernel = |(_, region): &(usize, PeerRegion)| region.load(KERNEL_FENCE) == 1;
        let is_kernel_fencing = is_kernel_fencing() && theirs.iter().all(by_kernel);
        let mut near = Vec::with_capacity(theirs.len());
        for (rank, region) in theirs {
            near.push(rank);
            if let Some(their_place) = ranks.iter().position(|each| *each == rank) {
                links[rank] = Some(Box::new(Link::new(layout, place, their_place, region)));
            }
        }
        Self {
            group,
            epoch,
            own,
            links,
            near,
            shared: SharedRow {
                start: layout.slot(place, 0),
                next: 0,
                readers: vec![Vec::new(); layout.row_slots()],
            },
            is_unsettled: false,
            allocations: Vec::new(),
            is_kernel_fencing,
            wake,
        }
    }

    /// Whether `peer` is reached through shared memory.
    #[must_use]
    pub fn reaches(&self, peer: usize) -> bool {
        self.links.get(peer).is_some_and(Option::is_some)
    }

    /// The header that a stream would have carried where a line was found that is not expected.
    fn header(&self, message: &Message, head: Head) -> Header {
        let low = message.sequence as u32;
        let difference = i64::from(head.sequence.wrapping_sub(low) as i32);
        Header {
            epoch: self.epoch,
            group: self.group,
            sequence: message.sequence.wrapping_add_signed(difference),
            message: head.number,
            bytes: Form::decode(head.form).map_or(0, |(bytes, _)| bytes as u32),
            digest: head.digest,
        }
    }

    /// Makes sure that the next line from `peer` is at hand and belongs to `message`.
    #[inline]
    fn begin(&mut self, peer: usize, message: &Message, offset: usize) -> Result<bool, LinkError> {
        let Some(link) = &mut self.links[peer] else {
            return Ok(false);
        };
        if link.present.bytes > 0 {
            return Ok(true);
        }
        let Some((head, through)) = link.receiver.peek(&link.theirs) else {
            return Ok(false);
        };
        let expected = Head {
            form: head.form,
            ..head_of(message, message.number, 0)
        };
        if head != expected {
            return Err(LinkError::Unexpected(self.header(message, head)));
        }
        link.sender.hear(through);
        link.open(head.form, message.bytes - offset)?;
        Ok(true)
    }
}

impl Transport for SharedTransport {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn open(&mut self, _peer: usize) {}

    fn send(
        &mut self,
        peer: usize,
        message: &Message,
        _offset: usize,
        data: &[u8],
    ) -> Result<usize, LinkError> {
        let Some(link) = &mut self.links[peer] else {
            return Ok(0);
        };
        let mut taken = 0;
        while taken < data.len() && link.sender.has_room(&link.theirs) {
            let piece = &data[taken..data.len().min(taken + SHARED_SEGMENT_BYTES)];
            let form = if piece.len() <= INLINE_BYTES {
                Form::Inline
            } else {
                let slot = link.slot_next;
                if !link.sender.is_through(&link.theirs, link.slots[slot]) {
                    break;
                }
                let start = link.row + slot * SHARED_SEGMENT_BYTES;
                self.own
                    .bytes_mut(start, piece.len())
                    .copy_from_slice(piece);
                link.slots[slot] = link.sender.count() + 1;
                link.slot_next = (slot + 1) % link.slots.len();
                Form::Slot(slot)
            };
            let beside = if form == Form::Inline { piece } else { &[] };
            let form = (form, piece.len());
            link.publish(&self.own, message, message.number, form, beside);
            taken += piece.len();
        }
        self.is_unsettled |= taken > 0;
        Ok(taken)
    }

    fn receive(
        &mut self,
        peer: usize,
        message: &Message,
        offset: usize,
        into: &mut [u8],
    ) -> Result<usize, LinkError> {
        let mut stored = 0;
        while stored < into.len() && self.begin(peer, message, offset + stored)? {
            let Some(link) = &self.links[peer] else { break };
            let bytes = link.visible().min(into.len() - stored);
            into[stored..stored + bytes].copy_from_slice(link.view(bytes));
            link.confirm()?;
            self.consume(peer, bytes);
            stored += bytes;
        }
        Ok(stored)
    }

    #[inline]
    fn fetch(&mut self, peer: usize, message: &Message, offset: usize) -> Result<usize, LinkError> {
        if !self.begin(peer, message, offset)? {
            return Ok(0);
        }
        Ok(self.links[peer].as_ref().map_or(0, |link| link.visible()))
    }

    #[inline]
    fn view(&self, peer: usize, bytes: usize) -> &[u8] {
        self.links[peer]
            .as_ref()
            .map_or(&[], |link| link.view(bytes))
    }

    #[inline]
    fn confirm(&self, peer: usize) -> Result<(), LinkError> {
        self.links[peer]
            .as_ref()
            .map_or(Ok(()), |link| link.confirm())
    }

    #[inline]
    fn consume(&mut self, peer: usize, bytes: usize) {
        if let Some(link) = &mut self.links[peer] {
            link.present.taken += bytes;
            if link.visible() == 0 {
                // Who waits for its memory waits now, perhaps asleep.
                let is_awaited = !matches!(link.present.place, Place::Beside);
                link.receiver.pass(&self.own, is_awaited);
                link.is_unsettled |= is_awaited;
                self.is_unsettled |= is_awaited;
                link.present.bytes = 0;
                link.sender.prepare(&self.own);
            }
        }
    }

    #[inline]
    fn may_have_arrived(&self, peer: usize) -> bool {
        let link = self.links[peer].as_ref();
        link.is_some_and(|link| link.present.bytes > 0 || link.receiver.is_ready(&link.theirs))
    }

    fn holds_bytes(&self, peer: usize) -> usize {
        if self.reaches(peer) {
            SHARED_SEGMENT_BYTES
        } else {
            0
        }
    }

    fn publishes(&self, to: &[Addressee]) -> bool {
        to.iter().all(|one| self.reaches(one.peer))
    }

    fn publish(
        &mut self,
        to: &[Addressee],
        message: &Message,
        _offset: usize,
        data: &[u8],
    ) -> Result<usize, LinkError> {
        let mut taken = 0;
        while taken < data.len() && self.have_room(to) {
            let piece = &data[taken..data.len().min(taken + SHARED_SEGMENT_BYTES)];
            let form = if piece.len() <= INLINE_BYTES {
                Form::Inline
            } else {
                let slot = self.shared.next;
                if !self.shared.is_free(slot, &mut self.links) {
                    break;
                }
                let start = self.shared.start + slot * SHARED_SEGMENT_BYTES;
                self.own
                    .bytes_mut(start, piece.len())
                    .copy_from_slice(piece);
                self.shared.next = (slot + 1) % self.shared.readers.len();
                Form::Shared(slot)
            };
            let beside = if form == Form::Inline { piece } else { &[] };
            for Addressee { peer, number } in to {
                let Some(link) = &mut self.links[*peer] else {
                    continue;
                };
                link.publish(&self.own, message, *number, (form, piece.len()), beside);
                if let Form::Shared(slot) = form {
                    self.shared.readers[slot].push((*peer, link.sender.count()));
                }
            }
            taken += piece.len();
        }
        self.is_unsettled |= taken > 0;
        Ok(taken)
    }

    fn admit(&mut self, allocation: Allocation) {
        let Allocation {
            number,
            own,
            theirs,
        } = allocation;
        self.allocations.retain(|(_, own)| own.extent.is_there());
        self.allocations.push((number, own));
        for (rank, region) in theirs {
            if let Some(link) = &mut self.links[rank] {
                link.admit(number, region);
            }
        }
    }

    #[inline]
    fn lends(&self, to: &[Addressee], data: &[u8]) -> bool {
        self.locate(data).is_some() && self.publishes(to)
    }

    fn lend(
        &mut self,
        to: &[Addressee],
        message: &Message,
        _offset: usize,
        data: &[u8],
    ) -> Result<usize, LinkError> {
        let Some(Locator { number, start }) = self.locate(data) else {
            return Ok(0);
        };
        let mut taken = 0;
        while taken < data.len() && self.have_room(to) {
            let piece = &data[taken..data.len().min(taken + SHARED_SEGMENT_BYTES)];
            let place = Locator {
                number,
                start: start + taken,
            };
            let place = place.encode();
            // However short: what is read where it lies is acknowledged at once.
            let form = (Form::Lent, piece.len());
            for one in to {
                let Some(link) = &mut self.links[one.peer] else {
                    continue;
                };
                link.publish(&self.own, message, one.number, form, &place);
                link.loans
                    .note(message.sequence, one.number, link.sender.count());
            }
            taken += piece.len();
        }
        self.is_unsettled |= taken > 0;
        Ok(taken)
    }

    #[inline]
    fn is_released(&mut self, to: Addressee, sequence: u64) -> bool {
        let Some(link) = &mut self.links[to.peer] else {
            return true;
        };
        let (sender, theirs) = (&mut link.sender, &link.theirs);
        let is_through = |count| sender.is_through(theirs, count);
        link.loans.is_released(sequence, to.number, is_through)
    }

    fn withdraw(&mut self) {
        for (_, own) in self.allocations.drain(..) {
            own.withdraw();
        }
    }

    fn is_withdrawn(&self, peer: usize) -> bool {
        let link = self.links.get(peer).and_then(Option::as_ref);
        link.is_some_and(|link| link.is_withdrawn())
    }

    #[inline]
    fn settle(&mut self) {
        if !self.is_unsettled {
            return;
        }
        self.is_unsettled = false;
        fence_of_waker(self.is_kernel_fencing);
        for rank in &self.near {
            let Some(link) = &mut self.links[*rank] else {
                continue;
            };
            if std::mem::take(&mut link.is_unsettled) {
                let bell = link.theirs.load(BELL);
                if bell % 2 == 1 && bell != link.woken {
                    link.woken = bell;
                    (self.wake)(*rank);
                }
            }
        }
    }
}

impl SharedTransport {
    /// Where `data` lies, if that is in memory that this rank may lend.
    #[inline]
    fn locate(&self, data: &[u8]) -> Option<Locator> {
        let mut allocations = self.allocations.iter();
        allocations.find_map(|(number, own)| {
            let start = own.extent.offset_of(data)?;
            let number = *number;
            Some(Locator { number, start })
        })
    }

    fn have_room(&mut self, to: &[Addressee]) -> bool {
        to.iter().all(|one| {
            let link = self.links[one.peer].as_mut();
            link.is_some_and(|link| link.sender.has_room(&link.theirs))
        })
    }
}

/// The own segments that several peers read.
struct SharedRow {
    /// Where the row starts.
    start: usize,
    next: usize,
    /// Who reads a segment, and by which line.
    readers: Vec<Vec<(usize, u64)>>,
}

impl SharedRow {
    /// Whether everybody is through with the segment; then nobody reads it any more.
    fn is_free(&mut self, slot: usize, links: &mut [Option<Box<Link>>]) -> bool {
        self.readers[slot].retain(|(peer, count)| {
            let link = links[*peer].as_mut();
            link.is_some_and(|link| !link.sender.is_through(&link.theirs, *count))
        });
        self.readers[slot].is_empty()
    }
}
