//! One direction of a pair of ranks: cells that the sender writes and the receiver counts.
//!
#![doc = include_str!("rings.md")]

use crate::sys::shared::{ReadWords, WriteWords};

/// Words of a cell: two cache lines, as caches fetch neighbours together. What is used is in the
/// first.
pub const CELL_WORDS: usize = 16;
/// Lines of a ring. A power of two, so that the count may wrap.
pub const CELLS: usize = 16;
/// Payload bytes that fit beside the flag.
pub const INLINE_BYTES: usize = 40;
/// Words of a cell before its payload: flag, what it is, which message it belongs to.
const HEAD_WORDS: usize = 3;

/// What a cell says of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Digest of the call.
    pub digest: u32,
    /// Where the payload is, and how long.
    pub form: u32,
    /// The low bits of the operation's number.
    pub sequence: u32,
    /// The message's number.
    pub number: u32,
}

/// The first word of the cell that bears `count`, in a ring of `cells` that starts at `ring`.
fn cell(ring: usize, cells: usize, count: u32) -> usize {
    ring + (count as usize % cells) * CELL_WORDS
}

/// The sending end of a ring; a model of it may have fewer cells.
#[derive(Debug)]
pub struct Sender<const RING_CELLS: usize = CELLS> {
    /// First word of the ring in the sender's region.
    ring: usize,
    /// Where, in the receiver's region, it says how many cells it is through with.
    acknowledgement: usize,
    /// Lines published.
    count: u64,
    /// Lines the receiver is known to be through with.
    through: u64,
}

impl<const RING_CELLS: usize> Sender<RING_CELLS> {
    /// The sending end of the ring at word `ring`, acknowledged at word `acknowledgement` of the
    /// receiver's region.
    #[must_use]
    pub const fn new(ring: usize, acknowledgement: usize) -> Self {
        Self {
            ring,
            acknowledgement,
            count: 0,
            through: 0,
        }
    }

    /// How many cells have been published.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Whether the receiver is through with the first `count` cells.
    #[inline]
    pub fn is_through(&mut self, theirs: &impl ReadWords, count: u64) -> bool {
        if count <= self.through {
            return true;
        }
        let through = theirs.load(self.acknowledgement) as u32;
        theirs.acquire();
        self.hear(through);
        count <= self.through
    }

    /// The receiver says that it is through with `through` cells; nonsense is not believed.
    #[inline]
    pub fn hear(&mut self, through: u32) {
        let more = u64::from(through.wrapping_sub(self.through as u32));
        if more <= self.count - self.through {
            self.through += more;
        }
    }

    /// Whether there is room for one more cell.
    #[inline]
    pub fn has_room(&mut self, theirs: &impl ReadWords) -> bool {
        // The next cell takes the place of the one this many before it.
        self.is_through(theirs, (self.count + 1).saturating_sub(RING_CELLS as u64))
    }

    /// Prefetches the next cell for writing. The reader's core still owns it; starting the transfer
    /// now hides one transfer between the caches.
    #[inline]
    pub fn prepare(&self, own: &impl WriteWords) {
        let next = (self.count + 1) as u32;
        own.prepare(cell(self.ring, RING_CELLS, next));
    }

    /// Writes a cell, for which there is room; `received` acknowledges the other direction.
    #[inline]
    pub fn publish(&mut self, own: &impl WriteWords, head: Head, inline: &[u8], received: u32) {
        self.count += 1;
        // Lines carry the low bits: a cell's last content bears a count that is a ring less.
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

/// The receiving end.
#[derive(Debug)]
pub struct Receiver<const RING_CELLS: usize = CELLS> {
    /// First word of the ring in the sender's region.
    ring: usize,
    /// Where, in its own region, the receiver says how many cells it is through with.
    acknowledgement: usize,
    /// Lines it is through with; wraps.
    count: u32,
    /// The same, as its word says.
    said: u32,
}

impl<const RING_CELLS: usize> Receiver<RING_CELLS> {
    /// The receiving end of the ring at word `ring` of the sender's region, which acknowledges at
    /// word `acknowledgement` of its own.
    #[must_use]
    pub const fn new(ring: usize, acknowledgement: usize) -> Self {
        Self {
            ring,
            acknowledgement,
            count: 0,
            said: 0,
        }
    }

    /// Whether the next cell is there.
    #[inline]
    pub fn is_ready(&self, theirs: &impl ReadWords) -> bool {
        let next = self.count.wrapping_add(1);
        theirs.load(cell(self.ring, RING_CELLS, next)) as u32 == next
    }

    /// The next cell, if it is there, and what its sender acknowledges with it.
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

    /// The payload beside the flag of the cell that `peek` has found.
    #[inline]
    pub fn inline(&self, theirs: &impl ReadWords, into: &mut [u8; INLINE_BYTES], bytes: usize) {
        let at = cell(self.ring, RING_CELLS, self.count.wrapping_add(1)) + HEAD_WORDS;
        let words = into.chunks_exact_mut(8).take(bytes.div_ceil(8));
        for (word, into) in words.enumerate() {
            into.copy_from_slice(&theirs.load(at + word).to_le_bytes());
        }
    }

    /// This side is through with the cell that `peek` has found, and with what it named. The
    /// sender can learn it now if `at_once`, else after half a ring at the latest: whatever cells
    /// of the other direction say, for it may be unable to look at those before it has room.
    #[inline]
    pub fn pass(&mut self, own: &impl WriteWords, at_once: bool) {
        self.count = self.count.wrapping_add(1);
        if at_once || self.count.wrapping_sub(self.said) >= RING_CELLS as u32 / 2 {
            own.release(self.acknowledgement, u64::from(self.count));
            self.said = self.count;
        }
    }

    /// The acknowledgement that goes with a cell of the other direction.
    #[inline]
    #[must_use]
    pub fn through(&self) -> u32 {
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
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// The memory of one thread.
    struct Words(RefCell<Vec<u64>>);

    impl ReadWords for Words {
        fn load(&self, at: usize) -> u64 {
            self.0.borrow()[at]
        }

        fn acquire(&self) {}
    }

    impl WriteWords for Words {
        fn store(&self, at: usize, value: u64) {
            self.0.borrow_mut()[at] = value;
        }

        fn release(&self, at: usize, value: u64) {
            self.store(at, value);
        }
    }

    #[test]
    fn counts_wrap_and_every_line_comes_once() {
        let near = Words(RefCell::new(vec![0; CELLS * CELL_WORDS]));
        let far = Words(RefCell::new(vec![0; CELL_WORDS]));
        let mut sender: Sender = Sender::new(0, 0);
        let mut receiver: Receiver = Receiver::new(0, 0);
        // As if that many cells had gone already; the ring still bears the last of them.
        let begin = u64::from(u32::MAX) - 40;
        (sender.count, sender.through) = (begin, begin);
        (receiver.count, receiver.said) = (begin as u32, begin as u32);
        for count in begin - CELLS as u64 + 1..=begin {
            near.store(cell(0, CELLS, count as u32), count);
        }
        let (mut sent, mut received) = (0u32, 0);
        while received < 1000 {
            assert_eq!(receiver.peek(&near), None, "before {received}");
            // Fuller and fuller, then empty.
            for _ in 0..=sent % 19 {
                if sender.has_room(&far) {
                    let head = Head {
                        digest: sent,
                        form: 0,
                        sequence: 0,
                        number: 0,
                    };
                    sender.publish(&near, head, &sent.to_le_bytes(), 0);
                    sent += 1;
                }
            }
            assert!(sent > received, "there was room");
            while let Some((head, _)) = receiver.peek(&near) {
                let mut bytes = [0; INLINE_BYTES];
                receiver.inline(&near, &mut bytes, 4);
                assert_eq!(
                    (head.digest, &bytes[..4]),
                    (received, &received.to_le_bytes()[..])
                );
                receiver.pass(&far, false);
                received += 1;
            }
            assert_eq!(sent, received);
        }
    }
}
