//! Both directions between this rank and another, and what a line's form says.

use super::lane::{Head, INLINE_BYTES, Receiver, Sender};
use super::layout::Layout;
use super::lent::{GONE, LOCATOR_BYTES, Loans, Locator, is_as_lent};
use crate::limits::SHARED_SEGMENT_BYTES;
use crate::sys::shared::{OwnRegion, PeerRegion, ReadWords};
use crate::transport::{LinkError, Message};

/// Where a line's payload lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Beside the flag.
    Inline,
    /// In a segment for this peer.
    Slot(usize),
    /// In a segment for several peers.
    Shared(usize),
    /// In memory that the sender lends; beside the flag is where.
    Lent,
}

/// Bits of a form that hold the length.
const LENGTH_BITS: u32 = 24;
const KIND_BITS: u32 = 28;

impl Form {
    #[inline]
    pub(super) fn encode(self, bytes: usize) -> u32 {
        let (kind, slot) = match self {
            Form::Inline => (0, 0),
            Form::Slot(slot) => (1, slot),
            Form::Shared(slot) => (2, slot),
            Form::Lent => (3, 0),
        };
        // Both are small: a segment's length, a slot of a row.
        bytes as u32 | (slot as u32) << LENGTH_BITS | kind << KIND_BITS
    }

    /// The length and the place, if they can be.
    #[inline]
    pub(super) fn decode(word: u32) -> Option<(usize, Self)> {
        let bytes = (word & ((1 << LENGTH_BITS) - 1)) as usize;
        let slot = (word >> LENGTH_BITS & 0xf) as usize;
        let (most, form) = match word >> KIND_BITS {
            0 => (INLINE_BYTES, Form::Inline),
            1 => (SHARED_SEGMENT_BYTES, Form::Slot(slot)),
            2 => (SHARED_SEGMENT_BYTES, Form::Shared(slot)),
            3 => (SHARED_SEGMENT_BYTES, Form::Lent),
            _ => return None,
        };
        (bytes > 0 && bytes <= most).then_some((bytes, form))
    }
}

/// Where the payload of the next line is taken from.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// It was beside the flag.
    Beside,
    /// From this byte on of the peer's region.
    Region(usize),
    /// In memory that the peer lends: which of its allocations, from which byte on.
    Allocation(usize, usize),
}

/// What is being taken from the next line.
pub(super) struct Present {
    /// Its payload; 0 when none is at hand.
    pub(super) bytes: usize,
    pub(super) taken: usize,
    pub(super) place: Place,
    inline: [u8; INLINE_BYTES],
}

/// Both directions with one peer.
pub(super) struct Link {
    pub(super) theirs: PeerRegion,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    /// Where the own segments for this peer start.
    pub(super) row: usize,
    pub(super) slot_next: usize,
    /// The line that last used each of them.
    pub(super) slots: Vec<u64>,
    /// Where, in the peer's region, the segments for this rank start, and those for several.
    their_row: usize,
    their_shared_row: usize,
    pub(super) present: Present,
    /// What the peer lends, with the allocations' numbers.
    pub(super) allocations: Vec<(u64, PeerRegion)>,
    /// What is lent to the peer.
    pub(super) loans: Loans,
    /// The peer was told something since the last look at its bell.
    pub(super) is_unsettled: bool,
    /// The sleep that this peer was last woken from.
    pub(super) woken: u64,
}

impl Link {
    pub(super) fn new(
        layout: Layout,
        place: usize,
        their_place: usize,
        theirs: PeerRegion,
    ) -> Self {
        let acknowledged_at = layout.acknowledgement(place);
        let acknowledging_at = layout.acknowledgement(their_place);
        Self {
            theirs,
            sender: Sender::new(layout.lane(their_place), acknowledged_at),
            receiver: Receiver::new(layout.lane(place), acknowledging_at),
            row: layout.slot(their_place, 0),
            slot_next: 0,
            slots: vec![0; layout.row_slots()],
            their_row: layout.slot(place, 0),
            their_shared_row: layout.slot(their_place, 0),
            present: Present {
                bytes: 0,
                taken: 0,
                place: Place::Beside,
                inline: [0; INLINE_BYTES],
            },
            allocations: Vec::new(),
            loans: Loans::default(),
            is_unsettled: false,
            woken: 0,
        }
    }

    /// Publishes a line about `bytes` bytes, with `beside` beside the flag.
    #[inline]
    pub(super) fn publish(
        &mut self,
        own: &OwnRegion,
        message: &Message,
        number: u32,
        (form, bytes): (Form, usize),
        beside: &[u8],
    ) {
        let head = head_of(message, number, form.encode(bytes));
        let received = self.receiver.through();
        self.sender.publish(own, head, beside, received);
        self.is_unsettled = true;
    }

    /// Makes the line's payload the present one; at most `most` bytes of its message are missing.
    #[inline]
    pub(super) fn open(&mut self, form: u32, most: usize) -> Result<(), LinkError> {
        let decoded = Form::decode(form).filter(|(bytes, _)| *bytes <= most);
        let found = decoded.and_then(|(bytes, form)| Some((bytes, self.place(form, bytes)?)));
        let Some((bytes, place)) = found else {
            return Err(LinkError::Garbage(format!(
                "a line of the form {form:#x} where {most} bytes were to come"
            )));
        };
        self.present.place = place;
        self.present.bytes = bytes;
        self.present.taken = 0;
        Ok(())
    }

    /// Where the payload of the next line is, if there is such a place.
    #[inline]
    fn place(&mut self, form: Form, bytes: usize) -> Option<Place> {
        let in_row = |slot: usize, row: usize| {
            let start = row + slot * SHARED_SEGMENT_BYTES;
            (slot < self.slots.len()).then_some(Place::Region(start))
        };
        match form {
            Form::Inline => {
                let into = &mut self.present.inline;
                self.receiver.inline(&self.theirs, into, bytes);
                Some(Place::Beside)
            }
            Form::Slot(slot) => in_row(slot, self.their_row),
            Form::Shared(slot) => in_row(slot, self.their_shared_row),
            Form::Lent => {
                let beside = &mut self.present.inline;
                self.receiver.inline(&self.theirs, beside, LOCATOR_BYTES);
                let Locator { number, start } = Locator::decode(beside);
                let mut allocations = self.allocations.iter();
                let at = allocations.position(|(each, _)| *each == number)?;
                let after = self.allocations[at].1.length().checked_sub(start)?;
                (bytes <= after).then_some(Place::Allocation(at, start))
            }
        }
    }

    #[inline]
    pub(super) fn visible(&self) -> usize {
        self.present.bytes - self.present.taken
    }

    /// The next `bytes` bytes of those visible.
    #[inline]
    pub(super) fn view(&self, bytes: usize) -> &[u8] {
        let Present {
            taken,
            place,
            inline,
            ..
        } = &self.present;
        match place {
            Place::Beside => &inline[*taken..taken + bytes],
            Place::Region(start) => self.theirs.bytes(start + taken, bytes),
            Place::Allocation(at, start) => self.allocations[*at].1.bytes(start + taken, bytes),
        }
    }

    /// Whether what has been read of the present line is what the peer sent.
    #[inline]
    pub(super) fn confirm(&self) -> Result<(), LinkError> {
        match self.present.place {
            Place::Allocation(at, _) if !is_as_lent(&self.allocations[at].1) => Err(
                LinkError::Closed("it has given up and taken back what it lent".into()),
            ),
            _ => Ok(()),
        }
    }

    /// Takes the peer's part of an allocation, and drops those that the peer has dropped.
    pub(super) fn admit(&mut self, number: u64, theirs: PeerRegion) {
        if self.present.bytes == 0 {
            self.allocations.retain(|(_, one)| one.load(GONE) == 0);
        }
        self.allocations.push((number, theirs));
    }
}

#[inline]
pub(super) fn head_of(message: &Message, number: u32, form: u32) -> Head {
    Head {
        digest: message.digest,
        form,
        // The low bits tell neighbours apart.
        sequence: message.sequence as u32,
        number,
    }
}
