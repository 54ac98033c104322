//! Which words the streams of a mapped call await and write.
//!
//! A rank's operations take the lane's two streams in turns, and with each stream a frame of its
//! own: what is said here of a link holds for each of its frames apart, so that one stream never
//! depends on how far the other is. Both ends of a link count its messages and its operations
//! alike.
//!
//! Each rank has a page of words, which its peers' streams write and its own await: words for
//! messages that have come to lie in a peer's frame, and words for operations in which a peer has
//! read this rank's frame. A word is awaited for number `m`, and again for `m` + [`WORDS`]. Fewer
//! numbers than [`WORDS`] of a link are enqueued at a time, because every wait comes with another
//! entry; so no write that comes late, such as after the host has released the words, takes back
//! what a wait needs. After a release nothing is enqueued any more.

use crate::engine::medium::enqueued::{Entry, Script};
use crate::limits::{DEVICE_ENTRIES_MAX, DEVICE_FRAMES};

/// Words for the numbers of a link, used in turns.
const WORDS: usize = DEVICE_ENTRIES_MAX / 2;
/// Words for one peer: of its messages, then of its reading.
const PEER_BYTES: usize = DEVICE_FRAMES * 2 * WORDS * size_of::<u32>();
/// Whole pages are registered with the driver; no platform of this crate has larger ones.
const PAGE_BYTES: usize = 64 << 10;

/// Messages that a link may carry in one operation.
pub(crate) const MESSAGES_MAX: usize = WORDS / 2;

/// Bytes of a rank's page of words among so many ranks.
pub(crate) fn page_bytes(world_size: usize) -> usize {
    (world_size * PEER_BYTES).next_multiple_of(PAGE_BYTES)
}

/// What a stream is told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order<'a> {
    /// Wait until the own word at byte `at` is at least `number`.
    Wait { at: usize, number: u32 },
    /// Write `number` to the word at byte `at` of `peer`'s page.
    Write { peer: usize, at: usize, number: u32 },
    /// Move bytes: a copy or a reduction.
    Move(&'a Entry),
}

/// What is counted of one peer and frame.
#[derive(Clone, Copy, Default)]
struct Counts {
    /// Messages to it and from it.
    sent: u32,
    received: u32,
    /// Operations in which it reads this rank's frame, and in which this rank reads its.
    given: u32,
    read: u32,
}

/// Numbers the messages and operations of one rank.
pub(crate) struct Numbering {
    rank: usize,
    /// By frame and peer.
    counts: [Vec<Counts>; DEVICE_FRAMES],
    operations: usize,
    /// By frame, its readers in the operation that used it last.
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

    /// The frame, and with it the stream, of the operation that comes next.
    pub(crate) fn frame(&self) -> usize {
        self.operations % DEVICE_FRAMES
    }

    /// Says what the next operation tells its stream.
    ///
    /// # Errors
    /// The first of `tell`.
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

/// The number of an operation's message, if the link has carried so many before it.
fn message(before: u32, number: u32) -> u32 {
    before.wrapping_add(number).wrapping_add(1)
}

/// Where in a rank's page `peer` says that message `number` lies in its frame.
fn ready_at(peer: usize, frame: usize, number: u32) -> usize {
    word_at(peer, frame * 2, number)
}

/// Where in a rank's page `peer` says that it has read this rank's frame `number` times.
fn read_at(peer: usize, frame: usize, number: u32) -> usize {
    word_at(peer, frame * 2 + 1, number)
}

fn word_at(peer: usize, row: usize, number: u32) -> usize {
    peer * PEER_BYTES + (row * WORDS + number as usize % WORDS) * size_of::<u32>()
}
