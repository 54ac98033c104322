//! Implements the mapped path, on which the ranks on a host read each other's GPU memory in place.
//!
//! Each rank exports a *window* of its GPU's memory, divided into frames, and a page of words in
//! host memory. All other ranks map the window and the page. For an operation, the caller's thread
//! enqueues the entries of the rank's [script](crate::engine::medium::enqueued). Operations
//! alternate between the lane's two streams:
//!
//! ```text
//! wait until the frame's last operation has been read by all its readers
//! for each entry:  copy into own frame;  notify a peer;  wait for a peer's notification;
//!                  copy or reduce out of peers' frames
//! notify all peers whose frames were read
//! ```
//!
//! *Every word that a stream waits for is in its own rank's page* ([numbering](super::numbering)).
//! The CPU side of a rank can therefore release the rank's streams by storing words, no matter what
//! has happened to the peers.
//!
//! *A released stream computes garbage and still notifies its peers.* A call therefore succeeds
//! only once the CPU sides of all ranks have passed a barrier that follows it. Each rank posts this
//! barrier to the engine. The barrier begins when its [gate](MappedGate) sees that the streams have
//! ended. A rank whose operation has failed never takes part in the barrier, so no barrier succeeds
//! after a stream has computed garbage.
//!
//! *The driver frees memory only when no process has it mapped.* Therefore, no rank can take memory
//! away from a peer, and a rank may leave at any time.

use super::lane::{ENTRIES_BESIDE, Lane, has_begun, has_ended};
use super::numbering::{Numbering, Order, page_bytes};
use crate::engine::gate::Gate;
use crate::engine::medium::enqueued::{Entry, Place, PlaceMemory, Script};
use crate::error::Result;
use crate::limits::{DEVICE_FRAME_BYTES, DEVICE_FRAMES};
use crate::lock::lock;
use crate::sys::cuda::{Gpu, Memory, Pinned, Reduction, Stream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Value that is added to a word to release the streams that wait for it. The resulting word is
/// ahead of every number that a stream waits for.
const RELEASED: u32 = 1 << 30;

/// Size of a window in bytes.
pub(crate) const WINDOW_BYTES: usize = DEVICE_FRAMES * DEVICE_FRAME_BYTES;

/// Memory that a rank offers to the other ranks, which map it.
pub(crate) struct Offer {
    window: Memory,
    words: Arc<Pinned>,
    /// Descriptors of the window and of the words.
    pub(crate) files: [OwnedFd; 2],
}

impl Offer {
    /// Creates a window and words for `world_size` ranks. The driver may wait for all work on the
    /// GPU.
    ///
    /// # Errors
    /// Returns an error of the driver or the system if memory cannot be exported.
    pub(crate) fn new(gpu: &Arc<Gpu>, world_size: usize) -> Result<Self> {
        // Release the lock before unmapping, because other threads need the lock when they drop
        // communicators.
        let retired = std::mem::take(&mut *lock(&RETIRED));
        drop(retired);
        let (window, window_file) = Memory::exported(gpu, WINDOW_BYTES)?;
        let (words, words_file) = Pinned::shared(gpu, page_bytes(world_size))?;
        Ok(Self {
            window,
            words,
            files: [window_file, words_file],
        })
    }
}

/// Windows of dropped communicators. Unmapping them may wait for all work on the GPU, including a
/// user's stream that is stuck.
static RETIRED: Mutex<Vec<Windows>> = Mutex::new(Vec::new());

/// The windows and words of all ranks of a communicator.
pub(crate) struct Windows {
    rank: usize,
    /// Windows, indexed by rank.
    memory: Vec<Memory>,
    /// Pages of words, indexed by rank.
    words: Vec<Arc<Pinned>>,
    numbering: Numbering,
    /// `true` once this rank's words were released, which is permanent.
    is_released: Arc<AtomicBool>,
}

impl Windows {
    /// Maps `theirs`, the files that the other ranks offer, in ascending order of ranks.
    ///
    /// # Errors
    /// Returns an error of the driver or the system if this GPU cannot reach a peer's memory.
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
            let bytes = page_bytes(world_size);
            words.push(Pinned::of_shared(gpu, words_file.as_fd(), bytes)?);
        }
        memory.insert(rank, own.window);
        words.insert(rank, own.words);
        Ok(Self {
            rank,
            memory,
            words,
            numbering: Numbering::new(rank, world_size),
            is_released: Arc::default(),
        })
    }

    /// Retires the windows, which no stream uses any more. They are unmapped when the process next
    /// creates windows.
    pub(crate) fn retire(self) {
        lock(&RETIRED).push(self);
    }

    /// Returns `true` if the host has released the words that the streams wait for. The words are
    /// then meaningless, and nothing more may be enqueued.
    pub(crate) fn is_released(&self) -> bool {
        self.is_released.load(Ordering::Relaxed)
    }

    /// Returns the gate of a call that consists of the next `rounds` rounds of the lane.
    pub(crate) fn next_gate(&self, lane: &Lane, rounds: usize) -> MappedGate {
        let first = lane.next_round();
        MappedGate {
            lane: Arc::clone(&lane.words),
            first,
            last: first.wrapping_add(rounds.saturating_sub(1) as u32),
            own: Arc::clone(&self.words[self.rank]),
            bytes: page_bytes(self.words.len()),
            is_released: Arc::clone(&self.is_released),
        }
    }

    /// Enqueues a round of operations on `memory` and returns the round's number. All ranks must
    /// enqueue the same operations.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn enqueue(
        &mut self,
        lane: &mut Lane,
        memory: &Memory,
        scripts: &[Arc<Script>],
        how: Reduction,
    ) -> Result<u32> {
        let round = lane.begin_round()?;
        for script in scripts {
            let frame = self.numbering.frame();
            let stream = [&lane.input, &lane.output][frame];
            let Self {
                rank,
                memory: windows,
                words,
                numbering,
                ..
            } = self;
            let place = Frames {
                rank: *rank,
                windows,
                frame,
                memory,
            };
            numbering.operation(script, |order| match order {
                Order::Wait { at, number } => stream.wait_word(&words[*rank], at, number),
                Order::Write { peer, at, number } => stream.write_word(&words[peer], at, number),
                Order::Move(entry) => place.carry_out(entry, stream, how),
            })?;
        }
        lane.end_round()?;
        Ok(round)
    }
}

/// The memory that an operation uses.
struct Frames<'a> {
    rank: usize,
    windows: &'a [Memory],
    frame: usize,
    /// The user's buffer.
    memory: &'a Memory,
}

impl Frames<'_> {
    /// Returns the memory and the offset at which the `bytes` bytes of `place` are stored.
    fn span(&self, place: &Place, bytes: usize) -> (&Memory, usize) {
        assert!(
            place.memory == PlaceMemory::Buffer || place.at + bytes <= DEVICE_FRAME_BYTES,
            "invariant: pieces are small enough for their messages to fit into a frame"
        );
        let in_frame = self.frame * DEVICE_FRAME_BYTES + place.at;
        match place.memory {
            PlaceMemory::Buffer => (self.memory, place.at),
            PlaceMemory::Frame => (&self.windows[self.rank], in_frame),
            PlaceMemory::Peer(peer) => (&self.windows[peer], in_frame),
        }
    }

    fn carry_out(&self, entry: &Entry, stream: &Stream, how: Reduction) -> Result<()> {
        match entry {
            Entry::Copy { from, to, bytes } => {
                stream.copy(self.span(from, *bytes), self.span(to, *bytes), *bytes)
            }
            Entry::Reduce {
                from,
                to,
                bytes,
                completes,
            } => {
                let from: Vec<_> = from.iter().map(|one| self.span(one, *bytes)).collect();
                let divisor = how.divisor.filter(|_| *completes);
                let how = Reduction { divisor, ..how };
                stream.reduce(how, &from, self.span(to, *bytes), *bytes)
            }
            Entry::Await { .. } | Entry::Notify { .. } => Ok(()),
        }
    }
}

/// Returns the maximum number of entries in one stream for a round of these scripts.
pub(crate) fn entries(scripts: &[Arc<Script>]) -> usize {
    let of =
        |script: &Arc<Script>| script.entries.len() + script.sources.len() + script.readers.len();
    ENTRIES_BESIDE + scripts.iter().map(of).sum::<usize>()
}

/// A gate between a call's barrier and the streams. The barrier begins when the streams have ended
/// the call's rounds. If the call fails, the gate releases the streams.
pub(crate) struct MappedGate {
    lane: Arc<Pinned>,
    first: u32,
    last: u32,
    /// The words that this rank's streams wait for.
    own: Arc<Pinned>,
    bytes: usize,
    is_released: Arc<AtomicBool>,
}

impl Gate for MappedGate {
    fn is_ready(&self) -> bool {
        has_ended(&self.lane, self.last)
    }

    fn is_reached(&self) -> bool {
        has_begun(&self.lane, self.first)
    }

    fn open(&self, succeeded: bool) {
        if succeeded || self.is_released.swap(true, Ordering::Relaxed) {
            return;
        }
        for at in (0..self.bytes).step_by(size_of::<u32>()) {
            let word = self.own.load(at);
            let released = word.and_then(|word| self.own.store(at, word.wrapping_add(RELEASED)));
            released.expect("invariant: the word is in the page");
        }
    }
}
