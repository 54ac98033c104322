//! Carries messages over ordered byte streams.
//!
//! A message is sent in frames. Each frame consists of a header and at most [`SEGMENT_BYTES`] of
//! payload. Both ends know every length from their plans, so a header only confirms the expected
//! values. A different header is an error, and no byte that follows it is stored.
//!
//! Reading takes one system call per segment. The payload of a short message is read into the
//! link's buffer together with the header. The payload of a long message is read directly into its
//! destination, together with the next header.

use super::frame::{HEADER_BYTES, Header};
use super::{ELEMENT_BYTES_MAX, Link, LinkError, Message, PARTS_AT_ONCE, Payload};
use crate::limits::{BOUNCE_BYTES, INLINE_BYTES_MAX, LINK_GRACE, SEGMENT_BYTES};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::time::Duration;

/// Initial size of a link's buffer in bytes. This size is enough for a few small messages, so a
/// process can have thousands of links at little cost. The buffer grows with the size of the
/// messages that pass through the link.
const READ_AHEAD_BYTES: usize = 512;

/// A function that returns a link's stream, or `None` until the stream exists. The stream must be
/// ordered, reliable and non-blocking: operations fail with `WouldBlock` if nothing can move now,
/// and reads return 0 bytes after the peer has closed the stream.
pub(crate) type Source<S> = Box<dyn FnMut() -> Option<S> + Send>;

/// A [`Link`] over a byte stream.
pub struct StreamLink<S> {
    /// The group and the epoch, which every header contains.
    channel: (u32, u16),
    source: Source<S>,
    open: Option<Open<S>>,
}

impl<S: Read + Write> StreamLink<S> {
    /// Creates a link for the channel `(group, epoch)` over the stream that `source` provides. The
    /// link calls `source` until it returns a stream.
    #[must_use]
    pub fn new(channel: (u32, u16), source: Source<S>) -> Self {
        Self {
            channel,
            source,
            open: None,
        }
    }

    /// Returns the expected header for the frame that starts at `offset` of `message`. If no frame
    /// starts at `offset`, the result is meaningless, and callers ignore it.
    fn header(&self, message: &Message, offset: usize) -> Header {
        let (group, epoch) = self.channel;
        Header {
            epoch,
            group,
            sequence: message.sequence,
            message: message.number,
            // The length of a segment fits in 32 bits.
            bytes: segment_bytes(message, offset) as u32,
            digest: message.digest,
        }
    }

    fn open(&mut self) -> Option<&mut Open<S>> {
        if self.open.is_none() {
            self.open = (self.source)().map(Open::new);
        }
        self.open.as_mut()
    }
}

/// Returns the number of payload bytes in the frame that starts at `offset` of `message`.
fn segment_bytes(message: &Message, offset: usize) -> usize {
    (message.bytes - offset).min(SEGMENT_BYTES)
}

impl<S: Read + Write + Send> Link for StreamLink<S> {
    fn send(
        &mut self,
        message: &Message,
        offset: usize,
        payload: Payload<'_>,
    ) -> Result<usize, LinkError> {
        let Payload::Bytes(parts) = payload else {
            let why = "the link to the peer is a byte stream, which cannot carry memory";
            return Err(LinkError::Refused(why.into()));
        };
        let offered: usize = parts.iter().map(|part| part.len()).sum();
        let mut taken = 0;
        while taken < offered {
            let header = self.header(message, offset + taken);
            let Some(open) = self.open() else {
                break;
            };
            if open.outgoing.is_between_frames() {
                open.outgoing.begin(header);
            }
            match open.write(parts, taken)? {
                0 => break,
                written => taken += written,
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
        while stored < into.len() {
            let expected = self.header(message, offset + stored);
            let Some(open) = self.open() else {
                return Ok(stored);
            };
            if !open.begin_frame(&expected, message.bytes <= INLINE_BYTES_MAX)? {
                break;
            }
            match open.read_into(&mut into[stored..])? {
                0 => break,
                bytes => stored += bytes,
            }
        }
        Ok(stored)
    }

    fn fetch(&mut self, message: &Message, offset: usize) -> Result<usize, LinkError> {
        let expected = self.header(message, offset);
        let Some(open) = self.open() else {
            return Ok(0);
        };
        if message.bytes > INLINE_BYTES_MAX {
            open.incoming.grow(BOUNCE_BYTES);
        }
        if !open.begin_frame(&expected, true)? {
            return Ok(0);
        }
        open.top_up()?;
        Ok(open.incoming.visible())
    }

    fn has_arrived(&mut self) -> Result<bool, LinkError> {
        match self.open() {
            Some(open) => open.has_header(true),
            None => Ok(false),
        }
    }

    fn drain_time_after_goodbye(&self) -> Option<Duration> {
        // The end of an open stream arrives after all bytes that were sent.
        self.open.is_none().then_some(LINK_GRACE)
    }

    fn view(&self, bytes: usize) -> &[u8] {
        match &self.open {
            Some(open) => &open.incoming.buffered()[..bytes],
            None => &[],
        }
    }

    fn consume(&mut self, bytes: usize) -> Result<(), LinkError> {
        if let Some(open) = &mut self.open {
            open.incoming.consume(bytes);
        }
        Ok(())
    }
}

/// An open stream, and the progress in both directions.
struct Open<S> {
    stream: S,
    outgoing: Outgoing,
    incoming: Incoming,
}

/// The frame that is being written: its header, and the numbers of header bytes and payload bytes
/// that have not been written yet.
struct Outgoing {
    header: [u8; HEADER_BYTES],
    header_left: usize,
    payload_left: usize,
}

impl Outgoing {
    fn is_between_frames(&self) -> bool {
        self.header_left == 0 && self.payload_left == 0
    }

    fn begin(&mut self, header: Header) {
        self.header = header.encode();
        self.header_left = HEADER_BYTES;
        self.payload_left = header.bytes as usize;
    }

    /// Records that `written` bytes were written. Returns how many of these bytes were payload.
    fn advance(&mut self, written: usize) -> usize {
        let header = written.min(self.header_left);
        self.header_left -= header;
        self.payload_left -= written - header;
        written - header
    }
}

/// Bytes that were read ahead, and the progress within the current frame.
struct Incoming {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Number of payload bytes of the current frame that have not been consumed yet, including
    /// buffered bytes.
    frame_left: usize,
    closed: bool,
}

impl Incoming {
    fn buffered(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    fn visible(&self) -> usize {
        (self.end - self.start).min(self.frame_left)
    }

    fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        self.frame_left -= bytes;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Makes the buffer at least `bytes` bytes long. Unused parts of a new buffer cost nothing,
    /// because the system provides a page only when it is first written.
    fn grow(&mut self, bytes: usize) {
        if self.buffer.len() < bytes {
            let mut buffer = vec![0; bytes];
            buffer[..self.end].copy_from_slice(&self.buffer[..self.end]);
            self.buffer = buffer;
        }
    }

    /// Moves the buffered bytes to the front of the buffer if fewer than `wanted` bytes fit
    /// after them.
    fn make_room(&mut self, wanted: usize) {
        if self.buffer.len() - self.end < wanted && self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }
}

impl<S: Read + Write> Open<S> {
    fn new(stream: S) -> Self {
        Self {
            stream,
            outgoing: Outgoing {
                header: [0; HEADER_BYTES],
                header_left: 0,
                payload_left: 0,
            },
            incoming: Incoming {
                buffer: vec![0; READ_AHEAD_BYTES],
                start: 0,
                end: 0,
                frame_left: 0,
                closed: false,
            },
        }
    }

    /// Writes the rest of the header and as much of the frame's payload as possible. The payload is
    /// in `parts` and begins at byte `skip`. Returns the number of payload bytes written, which is
    /// 0 only if the stream accepts nothing now.
    fn write(&mut self, parts: &[&[u8]], skip: usize) -> Result<usize, LinkError> {
        loop {
            let Outgoing {
                header,
                header_left,
                payload_left,
            } = &self.outgoing;
            let mut slices = [IoSlice::new(&[]); 1 + PARTS_AT_ONCE];
            slices[0] = IoSlice::new(&header[HEADER_BYTES - header_left..]);
            let first = usize::from(*header_left == 0);
            let end = 1 + gather(parts, skip, *payload_left, &mut slices[1..]);
            match self.stream.write_vectored(&slices[first..end]) {
                Ok(bytes) => match self.outgoing.advance(bytes) {
                    0 if bytes > 0 => {}
                    taken => return Ok(taken),
                },
                Err(error) if is_not_now(&error) => return Ok(0),
                Err(error) => return Err(broken(&error)),
            }
        }
    }

    /// Returns `true` if the header of the current frame has arrived and equals `expected`. Returns
    /// an error if it differs. If `with_payload` is `true`, also reads as many of the following
    /// bytes as fit.
    fn begin_frame(&mut self, expected: &Header, with_payload: bool) -> Result<bool, LinkError> {
        if self.incoming.frame_left > 0 {
            return Ok(true);
        }
        if with_payload {
            let payload = (expected.bytes as usize).min(INLINE_BYTES_MAX);
            self.incoming.grow(payload + 2 * HEADER_BYTES);
        }
        if !self.has_header(with_payload)? {
            return Ok(false);
        }
        let mut bytes = [0; HEADER_BYTES];
        bytes.copy_from_slice(&self.incoming.buffered()[..HEADER_BYTES]);
        let Some(header) = Header::decode(&bytes) else {
            return Err(LinkError::Garbage(format!(
                "{:02x?} is not a frame header",
                &bytes[..8]
            )));
        };
        if header != *expected {
            return Err(LinkError::Unexpected(header));
        }
        self.incoming.start += HEADER_BYTES;
        self.incoming.frame_left = header.bytes as usize;
        if self.incoming.start == self.incoming.end {
            (self.incoming.start, self.incoming.end) = (0, 0);
        }
        Ok(true)
    }

    /// Returns `true` if the next header has arrived. If `with_payload` is `true`, also reads as
    /// many of the following bytes as fit.
    fn has_header(&mut self, with_payload: bool) -> Result<bool, LinkError> {
        while self.incoming.end - self.incoming.start < HEADER_BYTES {
            let missing = HEADER_BYTES - (self.incoming.end - self.incoming.start);
            let most = if with_payload { usize::MAX } else { missing };
            if self.fill(HEADER_BYTES, most)? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Consumes payload of the current frame: first buffered bytes, then bytes directly from the
    /// stream.
    fn read_into(&mut self, into: &mut [u8]) -> Result<usize, LinkError> {
        let buffered = self.incoming.visible().min(into.len());
        if buffered > 0 {
            into[..buffered].copy_from_slice(&self.incoming.buffered()[..buffered]);
            self.incoming.consume(buffered);
            return Ok(buffered);
        }
        let wanted = into.len().min(self.incoming.frame_left);
        let ends_frame = wanted == self.incoming.frame_left;
        let spare = if ends_frame { HEADER_BYTES } else { 0 };
        let mut slices = [
            IoSliceMut::new(&mut into[..wanted]),
            IoSliceMut::new(&mut self.incoming.buffer[..spare]),
        ];
        let bytes = match self.stream.read_vectored(&mut slices) {
            Ok(0) => return self.closed(),
            Ok(bytes) => bytes,
            Err(error) if is_not_now(&error) => return Ok(0),
            Err(error) => return Err(broken(&error)),
        };
        let direct = bytes.min(wanted);
        self.incoming.frame_left -= direct;
        (self.incoming.start, self.incoming.end) = (0, bytes - direct);
        Ok(direct)
    }

    /// Reads until at least one complete element is in the buffer, or until nothing more has
    /// arrived. Does not read more than necessary, because the buffered bytes are still in the
    /// cache and should be reduced first.
    fn top_up(&mut self) -> Result<(), LinkError> {
        let wanted = self.incoming.frame_left.min(ELEMENT_BYTES_MAX);
        while self.incoming.visible() < wanted {
            if self.fill(wanted, usize::MAX)? == 0 {
                // If the stream has ended, the rest of the element will never arrive.
                return if self.incoming.closed {
                    Err(ended())
                } else {
                    Ok(())
                };
            }
        }
        Ok(())
    }

    /// Reads at most `most` bytes into the buffer, after making space for `wanted` bytes if
    /// necessary.
    fn fill(&mut self, wanted: usize, most: usize) -> Result<usize, LinkError> {
        if self.incoming.closed {
            return self.closed();
        }
        self.incoming.make_room(wanted);
        let Incoming { buffer, end, .. } = &mut self.incoming;
        let until = end.saturating_add(most).min(buffer.len());
        if *end == until {
            return Ok(0);
        }
        match self.stream.read(&mut buffer[*end..until]) {
            Ok(0) => self.closed(),
            Ok(bytes) => {
                *end += bytes;
                Ok(bytes)
            }
            Err(error) if is_not_now(&error) => Ok(0),
            Err(error) => Err(broken(&error)),
        }
    }

    /// Records the end of the stream. Buffered payload of the current frame stays valid. If there
    /// is none, returns an error.
    fn closed(&mut self) -> Result<usize, LinkError> {
        self.incoming.closed = true;
        if self.incoming.visible() > 0 {
            return Ok(0);
        }
        Err(ended())
    }
}

/// Makes `slices` refer to at most `most` bytes of `parts`, beginning at byte `skip`. Returns the
/// number of slices used.
fn gather<'a>(
    parts: &[&'a [u8]],
    mut skip: usize,
    mut most: usize,
    slices: &mut [IoSlice<'a>],
) -> usize {
    let mut used = 0;
    for part in parts {
        let begin = skip.min(part.len());
        skip -= begin;
        let bytes = (part.len() - begin).min(most);
        if bytes > 0 && used < slices.len() {
            slices[used] = IoSlice::new(&part[begin..begin + bytes]);
            used += 1;
            most -= bytes;
        }
    }
    used
}

/// Converts an I/O error. The text of a timeout already states how long the host has not answered.
fn broken(error: &io::Error) -> LinkError {
    match error.kind() {
        ErrorKind::TimedOut => LinkError::Cut(error.to_string()),
        _ => LinkError::Closed(error.to_string()),
    }
}

fn ended() -> LinkError {
    LinkError::Closed("the peer closed the connection".into())
}

fn is_not_now(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests;
