//! Moves the bytes of messages between this rank and its peers.
//!
//! *Purpose.* [`Link`] is a small trait of non-blocking methods, which the engine calls to move the
//! contents of host buffers. Each link leads to one peer. [`stream`] implements the trait over any
//! ordered byte stream, such as the streams of [`tcp`] or of the simulator. [`shm`] implements it
//! with memory that the ranks on a host share.
//!
//! *Invariants.* A link is first in, first out. A receiver reads only the bytes that its operations
//! expect, plus one buffer of fixed size. No value that is received decides how much memory is
//! allocated. No method blocks.
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

/// Size of the longest element in bytes. A receiver reduces only elements that are visible
/// completely. If a link split a message within an element, the receiver would wait forever for the
/// rest of the element. So all segments consist of complete elements. The lengths of shared-memory
/// segments are powers of two from [`SMALL_SEGMENT_BYTES_MIN`] to [`SHARED_SEGMENT_BYTES`].
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

/// The description of a message, which both ends know from their plans before any byte has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Sequence number of the operation in its group.
    pub sequence: u64,
    /// Digest of the call. The digests at both ends are equal unless the ranks issued different
    /// calls.
    pub digest: u32,
    /// Index of the message among those of the same operation, link and direction.
    pub number: u32,
    /// Number of payload bytes; at least 1.
    pub bytes: usize,
}

/// Maximum number of separate parts of a message that are offered to a link in one call.
pub(crate) const PARTS_AT_ONCE: usize = 32;

/// The data that [`Link::send`] sends.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Bytes that the link copies, in consecutive parts. A link may accept bytes of only the first
    /// part.
    Bytes(&'a [&'a [u8]]),
    /// A segment that was written only once, for several peers.
    Staged(shm::local::Staged),
    /// Memory that the peer reads in place. The memory must not change until
    /// [`Link::is_acknowledged`] returns `true`.
    Exposed(Locator),
}

/// The reason why a link has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// The peer closed the link, or the link broke. The text comes from the operating system.
    Closed(String),
    /// The peer's host has not answered for the time that the text states. The host is down, or the
    /// network is interrupted.
    Cut(String),
    /// A frame arrived that this rank did not expect, because the ranks issued different calls.
    Unexpected(Header),
    /// The received bytes are not a frame.
    Garbage(String),
    /// This process lacks a resource that the link needs, or the link does not support the payload.
    /// The text states the cause.
    Refused(String),
}

/// A link to one peer. No method blocks.
///
/// ```
/// use ringtree::internal::link::{Link, LinkError, Message};
///
/// /// Receives the next bytes of a message. Returns `true` once it is complete.
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
    /// Offers the next bytes of `message`, which begin at byte `offset`. Returns the number of
    /// bytes that the link has accepted, which is 0 if the link is full or not open yet.
    ///
    /// # Errors
    /// Returns a [`LinkError`] if the link is broken or does not support the payload.
    fn send(
        &mut self,
        message: &Message,
        offset: usize,
        payload: Payload<'_>,
    ) -> Result<usize, LinkError>;

    /// Reads the next bytes of `message`, which begin at byte `offset`, directly into `into`, which
    /// must not be longer than the rest of the message. Returns the number of bytes stored, which
    /// is 0 if no bytes have arrived.
    ///
    /// # Errors
    /// Returns a [`LinkError`] if the link is broken, or if the next frame belongs to a different
    /// call. In the latter case, nothing is stored.
    fn receive(
        &mut self,
        message: &Message,
        offset: usize,
        into: &mut [u8],
    ) -> Result<usize, LinkError>;

    /// Makes the next bytes of `message` visible to [`Link::view`] without consuming them. Returns
    /// the number of visible bytes, which may be smaller than the number of bytes that have
    /// arrived.
    ///
    /// # Errors
    /// Returns the same errors as [`Link::receive`].
    fn fetch(&mut self, message: &Message, offset: usize) -> Result<usize, LinkError>;

    /// Returns the first `bytes` bytes that [`Link::fetch`] has made visible.
    fn view(&self, bytes: usize) -> &[u8];

    /// Consumes the first `bytes` visible bytes. Call this method after you have read these bytes.
    ///
    /// # Errors
    /// Returns a [`LinkError`] if the peer has revoked memory that it had exposed. In that case,
    /// the bytes that were read are undefined.
    fn consume(&mut self, bytes: usize) -> Result<(), LinkError>;

    /// Returns `false` if [`Link::fetch`] and [`Link::receive`] would return 0. This method is
    /// cheap, so a caller that has nothing else to do can call it in a loop.
    fn is_ready(&self) -> bool {
        true
    }

    /// Returns `true` if the next message has begun to arrive. Call this method only between two
    /// messages.
    ///
    /// # Errors
    /// Returns a [`LinkError`] if the link is broken.
    fn has_arrived(&mut self) -> Result<bool, LinkError> {
        Ok(self.is_ready())
    }

    /// Returns how long after the peer's goodbye the link may still move bytes. Returns `None` if
    /// the link itself reports an error once the peer has left.
    fn drain_time_after_goodbye(&self) -> Option<Duration> {
        None
    }

    /// Returns the maximum length of a message that the link is guaranteed to accept completely
    /// once all earlier messages have been received. Returns 0 if no length is guaranteed.
    fn capacity(&self) -> usize {
        0
    }

    /// Returns `true` if the link can accept one more segment now. The caller checks all links
    /// before it sends a payload that must be accepted either by all of them or by none.
    fn has_room(&mut self) -> bool {
        false
    }

    /// Returns the position, in the order of sending, of the last payload that the peer reads from
    /// this rank's memory. See [`Link::is_acknowledged`].
    fn position(&self) -> usize {
        0
    }

    /// Returns `true` if the peer has read every payload up to `position`.
    fn is_acknowledged(&mut self, _position: usize) -> bool {
        true
    }

    /// Makes sure that the peer notices the data that was sent, and wakes the peer if it is asleep.
    fn flush(&mut self) {}
}
