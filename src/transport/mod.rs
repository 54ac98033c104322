//! Moving the bytes of messages between ranks.
//!
//! *Purpose.* [`Transport`] is the one small non-blocking trait the engine runs over. [`stream`]
//! implements it over any ordered byte stream (TCP, the simulator's); a [`Connector`] makes the
//! streams.
//!
//! *Invariants.* One link per peer and group, first in, first out. A receiver reads no further
//! than what posted operations expect, plus one fixed buffer. The wire never says how much to
//! allocate. Nothing here blocks.
//!
//! *May import* `sys` and the base files.

#![forbid(unsafe_code)]

pub mod frame;
pub mod routed;
pub mod shm;
pub mod stream;
pub mod tcp;

use frame::Header;
use shm::lent::Allocation;
use std::io::{Read, Write};

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

/// One of several peers that a message goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addressee {
    /// The peer.
    pub peer: usize,
    /// The message's number on the link to it.
    pub number: u32,
}

/// Why a link cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// The peer closed the link or it broke; the text is the system's.
    Closed(String),
    /// A frame came that is not the one expected: the ranks issued different calls.
    Unexpected(Header),
    /// The bytes are no frame at all.
    Garbage(String),
}

/// Non-blocking links from this rank to the others. Every method returns at once.
///
/// ```
/// use ringtree::transport::{LinkError, Message, Transport};
///
/// /// Takes the next bytes of a message from `peer`; says whether it is whole.
/// fn go_on(
///     links: &mut dyn Transport,
///     peer: usize,
///     message: &Message,
///     so_far: &mut usize,
///     into: &mut [u8],
/// ) -> Result<bool, LinkError> {
///     *so_far += links.receive(peer, message, *so_far, &mut into[*so_far..])?;
///     Ok(*so_far == message.bytes)
/// }
/// ```
pub trait Transport: Send {
    /// What `bench` calls it.
    fn name(&self) -> &'static str;

    /// Asks that a link to `peer` be made; harmless when there is one.
    fn open(&mut self, peer: usize);

    /// Offers `data`, the next bytes of `message` from its byte `offset` on. Returns how many were
    /// taken: 0 when the link is full or not open yet.
    ///
    /// # Errors
    /// The link is broken.
    fn send(
        &mut self,
        peer: usize,
        message: &Message,
        offset: usize,
        data: &[u8],
    ) -> Result<usize, LinkError>;

    /// Reads the next bytes of `message`, from its byte `offset` on, straight into `into` (at most
    /// what is left of the message). Returns how many came; 0 when none are there.
    ///
    /// # Errors
    /// The link is broken, or what came belongs to another call; then nothing was stored.
    fn receive(
        &mut self,
        peer: usize,
        message: &Message,
        offset: usize,
        into: &mut [u8],
    ) -> Result<usize, LinkError>;

    /// Makes the next bytes of `message` visible to [`Transport::view`] without consuming them;
    /// returns how many are: a few, or as many as fit the link's buffer.
    ///
    /// # Errors
    /// As for [`Transport::receive`].
    fn fetch(&mut self, peer: usize, message: &Message, offset: usize) -> Result<usize, LinkError>;

    /// The first `bytes` bytes that [`Transport::fetch`] made visible.
    fn view(&self, peer: usize, bytes: usize) -> &[u8];

    /// Whether what has been read of what is visible was as `peer` sent it: asked before it is
    /// consumed.
    ///
    /// # Errors
    /// The peer has taken back what it lent, so anything may have been read.
    fn confirm(&self, _peer: usize) -> Result<(), LinkError> {
        Ok(())
    }

    /// Consumes `bytes` bytes of what was visible.
    fn consume(&mut self, peer: usize, bytes: usize);

    /// Whether it is worth a [`Transport::fetch`] or [`Transport::receive`] from `peer`: asked
    /// again and again while nothing else is to be done.
    fn may_have_arrived(&self, _peer: usize) -> bool {
        true
    }

    /// Up to how many bytes a message to `peer` is taken whole, given that the messages before it
    /// have been received; 0 where no length is promised. Plans of such messages can be run
    /// strictly in the order of their steps.
    fn holds_bytes(&self, _peer: usize) -> usize {
        0
    }

    /// Whether a message to all of `to` can be written once, by [`Transport::publish`].
    fn publishes(&self, _to: &[Addressee]) -> bool {
        false
    }

    /// As [`Transport::send`], to several peers at once; returns how many bytes all of them got,
    /// and nobody got more. `message.number` means nothing here.
    ///
    /// # Errors
    /// A link is broken.
    fn publish(
        &mut self,
        _to: &[Addressee],
        _message: &Message,
        _offset: usize,
        _data: &[u8],
    ) -> Result<usize, LinkError> {
        Ok(0)
    }

    /// Memory that the ranks of this host have handed each other has been allocated: see
    /// [`Transport::lend`].
    fn admit(&mut self, _allocation: Allocation) {}

    /// Whether `data` lies where all of `to` can read it, so that it can be lent to them.
    fn lends(&self, _to: &[Addressee], _data: &[u8]) -> bool {
        false
    }

    /// As [`Transport::publish`], but nothing is copied: the peers read `data` where it lies, so
    /// it must stay as it is until [`Transport::is_released`]. For what [`Transport::lends`].
    ///
    /// # Errors
    /// A link is broken.
    fn lend(
        &mut self,
        _to: &[Addressee],
        _message: &Message,
        _offset: usize,
        _data: &[u8],
    ) -> Result<usize, LinkError> {
        Ok(0)
    }

    /// Whether `to` is through with all that was lent to it of operation `sequence`'s message.
    fn is_released(&mut self, _to: Addressee, _sequence: u64) -> bool {
        true
    }

    /// Takes back what is lent, since the calls have failed: who reads it from now on is told by
    /// [`Transport::confirm`]. Nothing is lent any more.
    fn withdraw(&mut self) {}

    /// Whether `peer` has taken back what it lent: what was read of it after that is nothing.
    fn is_withdrawn(&self, _peer: usize) -> bool {
        false
    }

    /// What was sent is to be noticed: wakes the peers it is for, where they sleep.
    fn settle(&mut self) {}
}

/// Makes the byte streams under a [`stream::StreamTransport`].
///
/// ```
/// use ringtree::transport::Connector;
/// use std::os::unix::net::UnixStream;
///
/// /// Streams that were made before, each with its peer, non-blocking.
/// struct Given(Vec<(usize, UnixStream)>);
///
/// impl Connector for Given {
///     type Stream = UnixStream;
///     fn name(&self) -> &'static str { "given" }
///     fn request(&mut self, _peer: usize) {}
///     fn ready(&mut self) -> Option<(usize, UnixStream)> { self.0.pop() }
/// }
/// ```
pub trait Connector: Send {
    /// An ordered, reliable, non-blocking byte stream: `WouldBlock` when nothing can move now,
    /// a read of 0 bytes when the peer has closed it.
    type Stream: Read + Write + Send;

    /// What `bench` calls a transport over these streams.
    fn name(&self) -> &'static str;

    /// Asks for a stream to `peer`. Both ends ask; which of them dials is the connector's affair.
    /// Asking again is harmless.
    fn request(&mut self, peer: usize);

    /// A stream that has become ready, with its peer; called often, must be cheap.
    fn ready(&mut self) -> Option<(usize, Self::Stream)>;
}
