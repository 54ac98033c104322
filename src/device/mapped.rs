//! The mapped path: the ranks of a host read each other's GPU memory where it lies.
//!
//! Each rank exports a *window* of its GPU's memory, divided into frames, and a page of words in
//! host memory; all others map both. For an operation the caller's thread enqueues the entries of
//! the rank's [script](crate::engine::medium::enqueued), on the lane's streams in turns:
//!
//! ```text
//! wait until the readers of the frame's last operation are through: own READ words
//! for each entry:  copy into the own frame;  write a peer's READY word;  wait for an own READY
//!                  word;  copy or reduce out of peers' frames
//! write the READ words of all peers whose frames were read
//! ```
//!
//! *Every word that a stream awaits lies in its own rank's page*, so its host releases the stream
//! by storing words, whatever has become of the peers. A word is awaited for message `m` of a link,
//! and again for `m` + [`READY_WORDS`], of which at most one is enqueued at a time: so a
//! notification that comes after a release takes back nothing that is awaited.
//!
//! *A released stream runs on with nonsense and notifies its peers.* So a round counts as good only
//! once the hosts have met behind it: each rank posts a barrier of the engine, which begins where
//! its [gate](MappedGate) says that the streams are through, unreleased. A rank whose operation has
//! failed never takes part, so no barrier behind nonsense ends well.
//!
//! *Memory* is held by all processes that have mapped it, so no rank can take it away from under
//! another; a rank may leave at any time.

use super::lane::{ENTRIES_BESIDE, Lane, has_begun, has_ended};
use crate::engine::gate::Gate;
use crate::engine::medium::enqueued::{Entry, Place, Script, Where};
use crate::error::Result;
use crate::limits::{DEVICE_FRAME_BYTES, DEVICE_FRAMES};
use crate::sys::cuda::{Gpu, Memory, Pinned, Reduction, Stream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Words for the messages of a link, used in turns: more than can be under way, which are those of
/// [`DEVICE_FRAMES`] operations.
pub(crate) const READY_WORDS: usize = 256;
/// Words for the operations in which a peer reads frames of this rank, used in turns.
const READ_WORDS: usize = 16;
/// Words of a peer in a rank's page.
const PEER_BYTES: usize = (READY_WORDS + READ_WORDS) * size_of::<u32>();
/// What a released word is ahead of any number that a stream awaits.
const RELEASED: u32 = 1 << 30;

/// Messages that a link may carry in one operation.
pub(crate) const MESSAGES_MAX: usize = READY_WORDS / 2 / DEVICE_FRAMES;

/// Bytes of a window.
pub(crate) const WINDOW_BYTES: usize = DEVICE_FRAMES * DEVICE_FRAME_BYTES;

/// Bytes of a page of words among so many ranks.
pub(crate) fn words_bytes(world_size: usize) -> usize {
    (world_size * PEER_BYTES).next_multiple_of(PAGE_BYTES)
}

/// Whole pages are registered with the driver; none of the platforms has larger ones.
const PAGE_BYTES: usize = 64 << 10;

/// What a rank gives the others to map.
pub(crate) struct Offer {
    window: Memory,
    words: Arc<Pinned>,
    /// The window's descriptor, then that of the words.
    pub(crate) files: [OwnedFd; 2],
}

impl Offer {
    /// Memory of the GPU and words, for `world_size` ranks.
    ///
    /// # Errors
    /// The driver's or the system's: memory cannot be exported here.
    pub(crate) fn new(gpu: &Arc<Gpu>, world_size: usize) -> Result<Self> {
        let (window, window_file) = Memory::exported(gpu, WINDOW_BYTES)?;
        let (words, words_file) = Pinned::shared(gpu, words_bytes(world_size))?;
        Ok(Self {
            window,
            words,
            files: [window_file, words_file],
        })
    }
}

/// What a rank counts of one peer. Both ends of a link count alike.
#[derive(Clone, Copy, Default)]
struct Counts {
    /// Messages to it and from it.
    sent: u32,
    received: u32,
    /// Operations in which it reads this rank's frames, and in which this rank reads its.
    given: u32,
    read: u32,
}

/// The windows and words of all ranks of a communicator.
pub(crate) struct Windows {
    rank: usize,
    /// By rank.
    memory: Vec<Memory>,
    words: Vec<Arc<Pinned>>,
    counts: Vec<Counts>,
    operations: usize,
    /// By frame, its readers in the operation that used it last, and the number by which they say
    /// that they are through.
    readers: [Vec<(usize, u32)>; DEVICE_FRAMES],
    /// Whether the own words were released, once and for all.
    is_released: Arc<AtomicBool>,
}

impl Windows {
    /// Maps what the others offer: by rank, ascending, without this one.
    ///
    /// # Errors
    /// The driver's or the system's: this GPU does not reach the memory of a peer.
    pub(crate) fn map(
        gpu: &Arc<Gpu>,
        rank: usize,
        own: Offer,
        theirs: &[[OwnedFd; 2]],
    ) -> Result<Self> {
        let world_size = theirs.len() + 1;
        let (mut memory, mut words) = (Vec::new(), Vec::new());
        for [window_file, words_file] in theirs {
            memory.push(Memory::imported(gpu, window_file, WINDOW_BYTES)?);
            let bytes = words_bytes(world_size);
            words.push(Pinned::of_shared(gpu, words_file.as_fd(), bytes)?);
        }
        memory.insert(rank, own.window);
        words.insert(rank, own.words);
        Ok(Self {
            rank,
            memory,
            words,
            counts: vec![Counts::default(); world_size],
            operations: 0,
            readers: Default::default(),
            is_released: Arc::default(),
        })
    }

    /// The gate of the round that the lane is told next.
    pub(crate) fn next_gate(&self, lane: &Lane) -> MappedGate {
        MappedGate {
            lane: Arc::clone(&lane.words),
            round: lane.next_round(),
            own: Arc::clone(&self.words[self.rank]),
            bytes: words_bytes(self.words.len()),
            is_released: Arc::clone(&self.is_released),
        }
    }

    /// Enqueues a round of operations on `memory`, which all ranks enqueue; its number.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn enqueue(
        &mut self,
        lane: &mut Lane,
        memory: &Memory,
        scripts: &[Arc<Script>],
        how: Reduction,
    ) -> Result<u32> {
        let round = lane.begin_round()?;
        for script in scripts {
            let stream = match self.operations.is_multiple_of(2) {
                true => &lane.input,
                false => &lane.output,
            };
            self.operation(stream, memory, script, how)?;
        }
        lane.end_round()?;
        Ok(round)
    }

    fn operation(
        &mut self,
        stream: &Stream,
        memory: &Memory,
        script: &Script,
        how: Reduction,
    ) -> Result<()> {
        let frame = self.operations % DEVICE_FRAMES;
        self.operations += 1;
        let own = Arc::clone(&self.words[self.rank]);
        for (peer, number) in std::mem::take(&mut self.readers[frame]) {
            stream.wait_word(&own, read_at(peer, number), number)?;
        }
        for entry in &script.entries {
            self.entry(stream, memory, frame, entry, how)?;
        }
        for (peer, messages) in &script.sources {
            let counts = &mut self.counts[*peer];
            counts.received = counts.received.wrapping_add(*messages);
            counts.read = counts.read.wrapping_add(1);
            let at = read_at(self.rank, counts.read);
            stream.write_word(&self.words[*peer], at, counts.read)?;
        }
        for (peer, messages) in &script.readers {
            let counts = &mut self.counts[*peer];
            counts.sent = counts.sent.wrapping_add(*messages);
            counts.given = counts.given.wrapping_add(1);
            self.readers[frame].push((*peer, counts.given));
        }
        Ok(())
    }

    fn entry(
        &self,
        stream: &Stream,
        memory: &Memory,
        frame: usize,
        entry: &Entry,
        how: Reduction,
    ) -> Result<()> {
        let span = |place: &Place| match place.memory {
            Where::Buffer => (memory, place.at),
            Where::Frame => (
                &self.memory[self.rank],
                frame * DEVICE_FRAME_BYTES + place.at,
            ),
            Where::Peer(peer) => (&self.memory[peer], frame * DEVICE_FRAME_BYTES + place.at),
        };
        match entry {
            Entry::Await { peer, number } => {
                let number = message(self.counts[*peer].received, *number);
                stream.wait_word(&self.words[self.rank], ready_at(*peer, number), number)
            }
            Entry::Notify { peer, number } => {
                let number = message(self.counts[*peer].sent, *number);
                let at = ready_at(self.rank, number);
                stream.write_word(&self.words[*peer], at, number)
            }
            Entry::Copy { from, to, bytes } => stream.copy(span(from), span(to), *bytes),
            Entry::Reduce {
                from,
                to,
                bytes,
                completes,
            } => {
                let from: Vec<_> = from.iter().map(span).collect();
                let divisor = how.divisor.filter(|_| *completes);
                stream.reduce(Reduction { divisor, ..how }, &from, span(to), *bytes)
            }
        }
    }
}

/// Entries of one stream for a round of these scripts, at most.
pub(crate) fn entries(scripts: &[Arc<Script>]) -> usize {
    let of =
        |script: &Arc<Script>| script.entries.len() + script.sources.len() + script.readers.len();
    ENTRIES_BESIDE + scripts.iter().map(of).sum::<usize>()
}

/// The number of an operation's message, if the link has carried so many before it.
fn message(before: u32, number: u32) -> u32 {
    before.wrapping_add(number).wrapping_add(1)
}

/// Where in a rank's page `peer` notifies it of message `number`.
fn ready_at(peer: usize, number: u32) -> usize {
    peer * PEER_BYTES + number as usize % READY_WORDS * size_of::<u32>()
}

/// Where in a rank's page `peer` says that it has read frames in `number` operations.
fn read_at(peer: usize, number: u32) -> usize {
    let turn = READY_WORDS + number as usize % READ_WORDS;
    peer * PEER_BYTES + turn * size_of::<u32>()
}

/// Ties a round's barrier to the streams: it begins when they are through with the round.
pub(crate) struct MappedGate {
    lane: Arc<Pinned>,
    round: u32,
    /// The words that the streams of this rank await.
    own: Arc<Pinned>,
    bytes: usize,
    is_released: Arc<AtomicBool>,
}

impl Gate for MappedGate {
    fn is_ready(&self) -> bool {
        has_ended(&self.lane, self.round)
    }

    fn has_come(&self) -> bool {
        has_begun(&self.lane, self.round)
    }

    fn open(&self, succeeded: bool) {
        if succeeded || self.is_released.swap(true, Ordering::Relaxed) {
            return;
        }
        for at in (0..self.bytes).step_by(size_of::<u32>()) {
            let word = self.own.load(at);
            let released = word.and_then(|word| self.own.store(at, word.wrapping_add(RELEASED)));
            released.expect("invariant: a word of the page");
        }
    }
}
