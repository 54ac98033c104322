//! Moving the bytes of messages between this rank and one peer.
//!
//! *Purpose.* [`Link`] is the one small non-blocking trait that the engine runs host buffers over.
//! A link leads to one peer. [`stream`] implements it over any ordered byte stream ([`tcp`]'s, the
//! simulator's), [`shm`] through memory that the ranks of a host share.
//!
//! *Invariants.* A link is first in, first out. A receiver reads no further than what its
//! operations expect, plus one fixed buffer. The wire never says how much to allocate. No method
//! blocks.
//!
//! *May import* `sys` and the base files.

#![forbid(unsafe_code)]

pub(crate) mod frame;
pub(crate) mod shm;
pub(crate) mod stream;
pub(crate) mod tcp;
mod window;

use crate::dtype::Dtype;
use crate::limits::{SEGMENT_BYTES, SHARED_SEGMENT_BYTES};
use frame::Header;
use shm::exposed::Locator;
use shm::layout::SMALL_SEGMENT_BYTES_MIN;
use std::time::Duration;

/// Bytes of the longest element. A receiver folds whole elements of what is visible, so no link
/// cuts a message within one: the receiver would wait for the rest of it for ever. Segments of
/// shared memory have lengths from the small one to the large one, all powers of two.
const ELEMENT_BYTES_MAX: usize = {
    let (mut longest, mut at) = (0, 0);
    while at < Dtype::ALL.len() {
        let bytes = Dtype::ALL[at].size();
        assert!(SEGMENT_BYTES.is_multiple_of(bytes));
        assert!(SHARED_SEGMENT_BYTES.is_multiple_of(bytes));
        assert!(SMALL_SEGMENT_BYTES_MIN.is_multiple_of(bytes));
        longest = if bytes > longest { bytes } else { longest };
        at += 1;
    }
    longest
};

/// A message as both ends know it from their plans, before a byte has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The operation's number in its group.
    pub sequence: u64,
    /// Digest of the call: equal on both ends unless the ranks issued different calls.
    pub digest: u32,
    /// The message's number among those of this operation on this link and direction.
    pub number: u32,
    /// Payload bytes; at least 1.
    pub bytes: usize,
}

/// Parts of a message that lie apart and are offered at once, at most.
pub(crate) const PARTS_AT_ONCE: usize = 32;

/// What a link is given to send.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Bytes that the link copies: of these parts, one after another. A link may take no more than
    /// the first.
    Bytes(&'a [&'a [u8]]),
    /// A segment that was written once for several peers.
    Staged(shm::local::Staged),
    /// Memory that the peer reads where it lies. It must not change before
    /// [`Link::is_through`].
    Exposed(Locator),
}

/// Why a link cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// The peer closed the link or it broke; the text is the system's.
    Closed(String),
    /// The peer's host has not answered for long: it is down, or the network between is cut. The
    /// text says for how long.
    Cut(String),
    /// A frame came that is not the one expected: the ranks issued different calls.
    Unexpected(Header),
    /// The bytes are no frame at all.
    Garbage(String),
    /// This process lacks what it needs to make the link, or the link cannot carry what it was
    /// given; the text says what.
    Refused(String),
}

/// The non-blocking link to one peer. Every method returns at once.
///
/// ```
/// use ringtree::internal::link::{Link, LinkError, Message};
///
/// /// Takes the next bytes of a message; says whether it is whole.
/// fn go_on(
///     link: &mut dyn Link,
///     message: &Message,
///     so_far: &mut usize,
///     into: &mut [u8],
/// ) -> Result<bool, LinkError> {
///     *so_far += link.receive(message, *so_far, &mut into[*so_far..])?;
///     Ok(*so_far == message.bytes)
/// }
/// ```
pub trait Link: Send {
    /// Offers the next bytes of `message`, from its byte `offset` on. Returns how many the link
    /// took: 0 when it is full or not open yet.
    ///
    /// # Errors
    /// The link is broken.
    fn send(
        &mut self,
        message: &Message,
        offset: usize,
        payload: Payload<'_>,
    ) -> Result<usize, LinkError>;

    /// Reads the next bytes of `message`, from its byte `offset` on, straight into `into` (at most
    /// what is left of the message). Returns how many came; 0 when none have arrived.
    ///
    /// # Errors
    /// The link is broken, or what came belongs to another call; then nothing was stored.
    fn receive(
        &mut self,
        message: &Message,
        offset: usize,
        into: &mut [u8],
    ) -> Result<usize, LinkError>;

    /// Makes the next bytes of `message` visible to [`Link::view`] without consuming them; returns
    /// how many are: a few, or as many as fit the link's buffer.
    ///
    /// # Errors
    /// Those of [`Link::receive`].
    fn fetch(&mut self, message: &Message, offset: usize) -> Result<usize, LinkError>;

    /// The first `bytes` bytes that [`Link::fetch`] made visible.
    fn view(&self, bytes: usize) -> &[u8];

    /// Consumes `bytes` bytes of what was visible, after they were read.
    ///
    /// # Errors
    /// The peer has revoked memory that it exposed, so anything may have been read.
    fn consume(&mut self, bytes: usize) -> Result<(), LinkError>;

    /// Whether it is worth a [`Link::fetch`] or [`Link::receive`]: asked again and again by a
    /// caller that has nothing else to do.
    fn is_ready(&self) -> bool {
        true
    }

    /// Whether the next message has begun to arrive; asked between two messages.
    ///
    /// # Errors
    /// The link is broken.
    fn has_arrived(&mut self) -> Result<bool, LinkError> {
        Ok(self.is_ready())
    }

    /// How long after the peer has left in peace it is certain that nothing of it comes any more,
    /// and that it takes nothing more. `None` where the link says so itself, as a broken one.
    fn is_silent_after(&self) -> Option<Duration> {
        None
    }

    /// Up to how many bytes a message is taken whole, given that the messages before it have been
    /// received; 0 where no length is promised.
    fn capacity(&self) -> usize {
        0
    }

    /// Whether the link takes one more segment now; asked before a payload that several links
    /// must all take, or none.
    fn has_room(&mut self) -> bool {
        false
    }

    /// The place of the last payload that the peer reads out of memory, in the order of what was
    /// sent: see [`Link::is_through`].
    fn position(&self) -> usize {
        0
    }

    /// Whether the peer has read every payload up to `position`.
    fn is_through(&mut self, _position: usize) -> bool {
        true
    }

    /// Makes sure that the peer notices what was sent: wakes it where it sleeps.
    fn flush(&mut self) {}
}
