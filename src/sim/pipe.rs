//! Models one direction of a connection, in which packets are first in flight and then wait to be
//! read.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};

/// Bytes that travel together. An empty packet marks the end of the stream.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) data: Vec<u8>,
    /// Time when the first byte entered the sender's port.
    pub(super) start_ns: u64,
}

/// One direction of a connection, as a queue of packets.
#[derive(Debug)]
pub(super) struct Pipe {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) packets: VecDeque<Packet>,
    /// Number of packets at the front of the queue that can be read.
    pub(super) arrived: usize,
    /// Number of packets at the front of the queue that have reached the receiver's port.
    pub(super) at_port: usize,
    /// Number of bytes of the first packet that have already been read.
    read_bytes: usize,
    /// Total number of bytes of all packets that are in flight or have not been read completely.
    pub(super) held_bytes: usize,
    /// Earliest time at which the next packet can reach the receiver's port. This preserves the
    /// order of packets despite random delays.
    pub(super) not_before_ns: u64,
    /// `true` if the window has limited a write since space was last freed.
    pub(super) writer_waits: bool,
    /// `true` if the sender has closed its end, so that the last packet in the queue is an end of
    /// stream.
    pub(super) ended: bool,
    /// Time at which the receiver closed its end, or `None` if it is open.
    pub(super) reader_closed_ns: Option<u64>,
}

impl Pipe {
    pub(super) fn new(from: u32, to: u32) -> Self {
        Pipe {
            from,
            to,
            packets: VecDeque::new(),
            arrived: 0,
            at_port: 0,
            read_bytes: 0,
            held_bytes: 0,
            not_before_ns: 0,
            writer_waits: false,
            ended: false,
            reader_closed_ns: None,
        }
    }

    /// Returns `true` if the end of the stream is the next packet to read.
    pub(super) fn at_end(&self) -> bool {
        self.arrived > 0
            && self
                .packets
                .front()
                .is_some_and(|packet| packet.data.is_empty())
    }

    /// Moves at most `bytes_max` arrived bytes into `slices` and returns the number of bytes moved.
    /// Puts the buffers of emptied packets into the pool.
    pub(super) fn read(
        &mut self,
        slices: &mut [IoSliceMut<'_>],
        bytes_max: usize,
        pool: &mut Pool,
    ) -> usize {
        let mut total = 0;
        let mut slice = 0;
        let mut filled = 0;
        while self.arrived > 0 && slice < slices.len() && total < bytes_max {
            let packet = self
                .packets
                .front()
                .expect("invariant: arrived packets are in the queue");
            if packet.data.is_empty() {
                break;
            }
            let rest = &packet.data[self.read_bytes..];
            let room = &mut slices[slice][filled..];
            let bytes = rest.len().min(room.len()).min(bytes_max - total);
            room[..bytes].copy_from_slice(&rest[..bytes]);
            total += bytes;
            filled += bytes;
            self.read_bytes += bytes;
            if filled == slices[slice].len() {
                slice += 1;
                filled = 0;
            }
            if self.read_bytes == packet.data.len() {
                self.discard_first(pool);
            }
        }
        total
    }

    /// Discards all arrived packets up to the end of the stream.
    pub(super) fn discard_arrived(&mut self, pool: &mut Pool) {
        while self.arrived > 0 && !self.at_end() {
            self.discard_first(pool);
        }
    }

    fn discard_first(&mut self, pool: &mut Pool) {
        let packet = self
            .packets
            .pop_front()
            .expect("invariant: arrived packets are in the queue");
        self.arrived -= 1;
        self.at_port -= 1;
        self.held_bytes -= packet.data.len();
        self.read_bytes = 0;
        pool.put(packet.data);
    }
}

/// Appends bytes `offset..offset + bytes` of the concatenated `slices` to `into`.
pub(super) fn gather(slices: &[IoSlice<'_>], offset: usize, bytes: usize, into: &mut Vec<u8>) {
    let mut skip = offset;
    let mut left = bytes;
    for slice in slices {
        if left == 0 {
            break;
        }
        if skip >= slice.len() {
            skip -= slice.len();
            continue;
        }
        let part = &slice[skip..slice.len().min(skip.saturating_add(left))];
        into.extend_from_slice(part);
        left -= part.len();
        skip = 0;
    }
}

/// Maximum length of a small buffer. Small buffers have a separate pool, so that small packets do
/// not occupy large buffers.
const SMALL_BYTES: usize = 1 << 10;
/// Maximum number of buffers kept in each pool.
const POOLED_MAX: usize = 1 << 10;

/// Packet buffers for reuse.
#[derive(Debug, Default)]
pub(super) struct Pool {
    small: Vec<Vec<u8>>,
    large: Vec<Vec<u8>>,
}

impl Pool {
    /// Returns an empty buffer with room for `bytes` bytes.
    pub(super) fn take(&mut self, bytes: usize) -> Vec<u8> {
        let shelf = if bytes <= SMALL_BYTES {
            &mut self.small
        } else {
            &mut self.large
        };
        let mut buffer = shelf.pop().unwrap_or_default();
        buffer.reserve(bytes);
        buffer
    }

    fn put(&mut self, mut buffer: Vec<u8>) {
        let small = buffer.capacity() <= SMALL_BYTES;
        let shelf = if small {
            &mut self.small
        } else {
            &mut self.large
        };
        if shelf.len() < POOLED_MAX {
            buffer.clear();
            shelf.push(buffer);
        }
    }
}
