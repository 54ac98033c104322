//! Assigns numbers and words to the waits and writes of a mapped call's streams.
//!
//! A rank's operations alternate between the lane's two streams, and each stream has a separate
//! frame. All counts for a link are kept separately for each frame, so that one stream never
//! depends on the progress of the other. Both ends of a link count its messages and operations
//! identically.
//!
//! Each rank has a page of words that its peers' streams write and its own streams wait for. Some
//! words report messages that are ready in a peer's frame. The others report operations in which a
//! peer has read this rank's frame.
//!
//! The same word is used for the numbers `m` and `m` + [`WORDS`]. At any time, fewer than [`WORDS`]
//! numbers of a link are enqueued, because every wait comes with at least one other entry.
//! Therefore, a late write, such as one after the host has released the words, cannot undo the
//! number that a wait needs. After a release, nothing more is enqueued.

use crate::engine::medium::enqueued::{Entry, Script};
use crate::limits::{DEVICE_ENTRIES_MAX, DEVICE_FRAMES};

/// Number of words for each count of a link. The words are used cyclically.
const WORDS: usize = DEVICE_ENTRIES_MAX / 2;
/// Size in bytes of the words for one peer. They consist, for each frame, of the words for the
/// peer's messages, followed by the words for the peer's reads.
const PEER_BYTES: usize = DEVICE_FRAMES * 2 * WORDS * size_of::<u32>();
/// Granularity of the size of a page of words. The driver registers only complete pages of memory,
/// and no supported platform has larger pages.
const PAGE_BYTES: usize = 64 << 10;

/// Maximum number of messages on a link in one operation.
pub(crate) const MESSAGES_MAX: usize = WORDS / 2;

/// Returns the length in bytes of a rank's page of words in a group of `world_size` ranks.
pub(crate) fn page_bytes(world_size: usize) -> usize {
    (world_size * PEER_BYTES).next_multiple_of(PAGE_BYTES)
}

/// An entry for a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order<'a> {
    /// Wait until the word at byte `at` of this rank's page is at least `number`.
    Wait { at: usize, number: u32 },
    /// Write `number` to the word at byte `at` of `peer`'s page.
    Write { peer: usize, at: usize, number: u32 },
    /// Move bytes: a copy or a reduction.
    Move(&'a Entry),
}

/// Counts for one peer and one frame.
#[derive(Clone, Copy, Default)]
struct Counts {
    /// Number of messages to the peer.
    sent: u32,
    /// Number of messages from the peer.
    received: u32,
    /// Number of operations in which the peer reads this rank's frame.
    given: u32,
    /// Number of operations in which this rank reads the peer's frame.
    read: u32,
}

/// Counts the messages and operations of one rank.
pub(crate) struct Numbering {
    rank: usize,
    /// Counts, indexed by frame and peer.
    counts: [Vec<Counts>; DEVICE_FRAMES],
    operations: usize,
    /// The ranks that read each frame in the last operation that used it.
    readers: [Vec<usize>; DEVICE_FRAMES],
}

impl Numbering {
    pub(crate) fn new(rank: usize, world_size: usize) -> Self {
        Self {
            rank,
            counts: std::array::from_fn(|_| vec![Counts::default(); world_size]),
            operations: 0,
            readers: Default::default(),
        }
    }

    /// Returns the index of the next operation's frame, which is also the index of its stream.
    pub(crate) fn frame(&self) -> usize {
        self.operations % DEVICE_FRAMES
    }

    /// Passes the entries of the next operation to `tell`, in order.
    ///
    /// # Errors
    /// Returns the first error of `tell`.
    pub(crate) fn operation<'a, E>(
        &mut self,
        script: &'a Script,
        mut tell: impl FnMut(Order<'a>) -> Result<(), E>,
    ) -> Result<(), E> {
        let frame = self.frame();
        self.operations += 1;
        let counts = &mut self.counts[frame];
        for peer in std::mem::take(&mut self.readers[frame]) {
            let number = counts[peer].given;
            tell(Order::Wait {
                at: read_at(peer, frame, number),
                number,
            })?;
        }
        for entry in &script.entries {
            tell(match entry {
                Entry::Await { peer, number } => {
                    let number = message(counts[*peer].received, *number);
                    let at = ready_at(*peer, frame, number);
                    Order::Wait { at, number }
                }
                Entry::Notify { peer, number } => {
                    let number = message(counts[*peer].sent, *number);
                    Order::Write {
                        peer: *peer,
                        at: ready_at(self.rank, frame, number),
                        number,
                    }
                }
                Entry::Copy { .. } | Entry::Reduce { .. } => Order::Move(entry),
            })?;
        }
        for (peer, messages) in &script.sources {
            let counts = &mut counts[*peer];
            counts.received = counts.received.wrapping_add(*messages);
            counts.read = counts.read.wrapping_add(1);
            tell(Order::Write {
                peer: *peer,
                at: read_at(self.rank, frame, counts.read),
                number: counts.read,
            })?;
        }
        for (peer, messages) in &script.readers {
            let counts = &mut counts[*peer];
            counts.sent = counts.sent.wrapping_add(*messages);
            counts.given = counts.given.wrapping_add(1);
            self.readers[frame].push(*peer);
        }
        Ok(())
    }
}

/// Converts the index of a message within an operation to its number on the link. `before` is the
/// number of messages on the link that precede the operation.
fn message(before: u32, number: u32) -> u32 {
    before.wrapping_add(number).wrapping_add(1)
}

/// Returns the offset, in a rank's page, of the word that shows whether message `number` is in
/// `peer`'s frame.
fn ready_at(peer: usize, frame: usize, number: u32) -> usize {
    word_at(peer, frame * 2, number)
}

/// Returns the offset, in a rank's page, of the word that shows that `peer` has read the rank's
/// frame `number` times.
fn read_at(peer: usize, frame: usize, number: u32) -> usize {
    word_at(peer, frame * 2 + 1, number)
}

fn word_at(peer: usize, row: usize, number: u32) -> usize {
    peer * PEER_BYTES + (row * WORDS + number as usize % WORDS) * size_of::<u32>()
}
