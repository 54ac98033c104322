//! Implements a ring, which carries cells from one rank to another. The sender writes the cells,
//! and the receiver acknowledges them by counting them.
//!
#![doc = include_str!("rings.md")]

use crate::sys::shared::{ReadWords, WriteWords};

/// Number of words in a cell. Only the first of a cell's two cache lines is used. The second one
/// separates it from the next cell, because caches fetch neighboring lines together.
pub const CELL_WORDS: usize = 16;
/// Number of cells in a ring. It must be a power of two, because counts wrap around.
pub const CELLS: usize = 16;
/// Maximum number of payload bytes in a cell.
pub const INLINE_BYTES: usize = 40;
/// Number of words that precede a cell's payload: the flag, the word with the digest and the form,
/// and the word with the message.
const HEAD_WORDS: usize = 3;

/// The description of a cell's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Digest of the call.
    pub digest: u32,
    /// The encoded location and length of the payload (`form.rs`).
    pub form: u32,
    /// The low bits of the operation's sequence number.
    pub sequence: u32,
    /// Index of the message in the operation.
    pub number: u32,
}

/// Returns the index of the first word of the cell with the sequence number `count`, in a ring of
/// `cells` cells that starts at word `ring`.
fn cell(ring: usize, cells: usize, count: u32) -> usize {
    ring + (count as usize % cells) * CELL_WORDS
}

/// The sending end of a ring. In a model of the ring, `RING_CELLS` may be smaller.
#[derive(Debug)]
pub struct Sender<const RING_CELLS: usize = CELLS> {
    /// First word of the ring, in the sender's region.
    ring: usize,
    /// The word in the receiver's region that holds the number of cells that the receiver has
    /// finished.
    acknowledgement: usize,
    /// Number of published cells.
    count: u64,
    /// Number of cells that the receiver is known to have finished.
    acknowledged: u64,
}

impl<const RING_CELLS: usize> Sender<RING_CELLS> {
    /// Creates the sending end of the ring at word `ring`, whose cells are acknowledged at word
    /// `acknowledgement` of the receiver's region.
    #[must_use]
    pub const fn new(ring: usize, acknowledgement: usize) -> Self {
        Self {
            ring,
            acknowledgement,
            count: 0,
            acknowledged: 0,
        }
    }

    /// Returns the number of published cells.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns `true` if the receiver has finished the first `count` cells.
    #[inline]
    pub fn is_acknowledged(&mut self, theirs: &impl ReadWords, count: u64) -> bool {
        if count <= self.acknowledged {
            return true;
        }
        let acknowledged = theirs.load(self.acknowledgement) as u32;
        theirs.acquire();
        self.record_acknowledgment(acknowledged);
        count <= self.acknowledged
    }

    /// Records that the receiver has finished `acknowledged` cells. Ignores impossible counts.
    #[inline]
    pub fn record_acknowledgment(&mut self, acknowledged: u32) {
        let more = u64::from(acknowledged.wrapping_sub(self.acknowledged as u32));
        if more <= self.count - self.acknowledged {
            self.acknowledged += more;
        }
    }

    /// Returns `true` if the ring has space for another cell.
    #[inline]
    pub fn has_room(&mut self, theirs: &impl ReadWords) -> bool {
        // The next cell replaces the cell that was sent `RING_CELLS` cells before it.
        self.is_acknowledged(theirs, (self.count + 1).saturating_sub(RING_CELLS as u64))
    }

    /// Prefetches the next cell for writing. The reader's core still owns the cache line of that
    /// cell. Starting the transfer between the caches now hides its latency.
    #[inline]
    pub fn prepare(&self, own: &impl WriteWords) {
        let next = (self.count + 1) as u32;
        own.prepare(cell(self.ring, RING_CELLS, next));
    }

    /// Writes a cell. The ring must have space for it. `received` acknowledges cells in the
    /// opposite direction.
    #[inline]
    pub fn publish(&mut self, own: &impl WriteWords, head: Head, inline: &[u8], received: u32) {
        self.count += 1;
        // Cells hold only the low bits of the count. The previous count in this cell is less by the
        // length of the ring.
        let count = self.count as u32;
        let at = cell(self.ring, RING_CELLS, count);
        own.store(at + 1, pack(head.digest, head.form));
        own.store(at + 2, pack(head.sequence, head.number));
        for (word, bytes) in inline.chunks(8).enumerate() {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            own.store(at + HEAD_WORDS + word, u64::from_le_bytes(padded));
        }
        own.release(at, pack(count, received));
    }
}

/// The receiving end of a ring.
#[derive(Debug)]
pub struct Receiver<const RING_CELLS: usize = CELLS> {
    /// First word of the ring, in the sender's region.
    ring: usize,
    /// The word in the receiver's own region that holds the number of cells that the receiver has
    /// finished.
    acknowledgement: usize,
    /// Number of finished cells, which wraps around.
    count: u32,
    /// The count that was last written to the acknowledgment word.
    said: u32,
}

impl<const RING_CELLS: usize> Receiver<RING_CELLS> {
    /// Creates the receiving end of the ring at word `ring` of the sender's region. The receiver
    /// acknowledges cells at word `acknowledgement` of its own region.
    #[must_use]
    pub const fn new(ring: usize, acknowledgement: usize) -> Self {
        Self {
            ring,
            acknowledgement,
            count: 0,
            said: 0,
        }
    }

    /// Returns `true` if the next cell has arrived.
    #[inline]
    pub fn is_ready(&self, theirs: &impl ReadWords) -> bool {
        let next = self.count.wrapping_add(1);
        theirs.load(cell(self.ring, RING_CELLS, next)) as u32 == next
    }

    /// Returns the head of the next cell and the count that the sender acknowledges with that cell.
    /// Returns `None` if the cell has not arrived.
    #[inline]
    pub fn peek(&self, theirs: &impl ReadWords) -> Option<(Head, u32)> {
        let next = self.count.wrapping_add(1);
        let at = cell(self.ring, RING_CELLS, next);
        let flag = theirs.load(at);
        if flag as u32 != next {
            return None;
        }
        theirs.acquire();
        let (digest, form) = unpack(theirs.load(at + 1));
        let (sequence, number) = unpack(theirs.load(at + 2));
        let head = Head {
            digest,
            form,
            sequence,
            number,
        };
        Some((head, (flag >> 32) as u32))
    }

    /// Copies the inline payload of the cell that `peek` returned.
    #[inline]
    pub fn inline(&self, theirs: &impl ReadWords, into: &mut [u8; INLINE_BYTES], bytes: usize) {
        let at = cell(self.ring, RING_CELLS, self.count.wrapping_add(1)) + HEAD_WORDS;
        let words = into.chunks_exact_mut(8).take(bytes.div_ceil(8));
        for (word, into) in words.enumerate() {
            into.copy_from_slice(&theirs.load(at + word).to_le_bytes());
        }
    }

    /// Finishes the cell that `peek` returned, and the memory that the cell refers to. If `at_once`
    /// is `true`, writes the acknowledgment immediately, otherwise after half a ring at the latest.
    /// The counts in cells of the opposite direction are not sufficient, because the sender may be
    /// unable to read those cells before it has space.
    #[inline]
    pub fn finish(&mut self, own: &impl WriteWords, at_once: bool) {
        self.count = self.count.wrapping_add(1);
        if at_once || self.count.wrapping_sub(self.said) >= RING_CELLS as u32 / 2 {
            own.release(self.acknowledgement, u64::from(self.count));
            self.said = self.count;
        }
    }

    /// Returns the number of finished cells, which a cell in the opposite direction acknowledges.
    #[inline]
    #[must_use]
    pub fn finished(&self) -> u32 {
        self.count
    }
}

fn pack(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn unpack(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

#[cfg(test)]
mod tests;
