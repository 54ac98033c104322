//! The mapped path: the ranks of a host read each other's GPU memory where it lies.
//!
//! Each rank exports a *window* of its GPU's memory, divided into frames, and a page of words in
//! host memory; all others map both. For an operation the caller's thread enqueues the entries of
//! the rank's [script](crate::engine::medium::enqueued), on the lane's streams in turns:
//!
//! ```text
//! wait until the readers of the frame's last operation are through
//! for each entry:  copy into the own frame;  notify a peer;  wait for a peer's notification;
//!                  copy or reduce out of peers' frames
//! tell all peers whose frames were read
//! ```
//!
//! *Every word that a stream awaits lies in its own rank's page* ([numbering](super::numbering)),
//! so its host releases the stream by storing words, whatever has become of the peers.
//!
//! *A released stream runs on with nonsense and notifies its peers.* So a call counts as good only
//! once the hosts have met behind it: each rank posts a barrier of the engine, which begins where
//! its [gate](MappedGate) says that the streams are through, unreleased. A rank whose operation has
//! failed never takes part, so no barrier behind nonsense ends well.
//!
//! *Memory* is held by all processes that have mapped it, so no rank can take it away from under
//! another; a rank may leave at any time.

use super::lane::{ENTRIES_BESIDE, Lane, has_begun, has_ended};
use super::numbering::{Numbering, Order, page_bytes};
use crate::engine::gate::Gate;
use crate::engine::medium::enqueued::{Entry, Place, Script, Where};
use crate::error::Result;
use crate::limits::{DEVICE_FRAME_BYTES, DEVICE_FRAMES};
use crate::sys::cuda::{Gpu, Memory, Pinned, Reduction, Stream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a released word is ahead of any number that a stream awaits.
const RELEASED: u32 = 1 << 30;

/// Bytes of a window.
pub(crate) const WINDOW_BYTES: usize = DEVICE_FRAMES * DEVICE_FRAME_BYTES;

/// What a rank gives the others to map.
pub(crate) struct Offer {
    window: Memory,
    words: Arc<Pinned>,
    /// The window's descriptor, then that of the words.
    pub(crate) files: [OwnedFd; 2],
}

impl Offer {
    /// Memory of the GPU and words, for `world_size` ranks. The driver may wait for what the GPU
    /// was told to do.
    ///
    /// # Errors
    /// The driver's or the system's: memory cannot be exported here.
    pub(crate) fn new(gpu: &Arc<Gpu>, world_size: usize) -> Result<Self> {
        // Unmapped without the lock: meanwhile other threads drop communicators, which takes it.
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

/// Windows that no communicator has, to be unmapped: the driver may wait then for everything that
/// the GPU was told to do, a user's stream that stands still included.
static RETIRED: Mutex<Vec<Windows>> = Mutex::new(Vec::new());

/// The windows and words of all ranks of a communicator.
pub(crate) struct Windows {
    rank: usize,
    /// By rank.
    memory: Vec<Memory>,
    words: Vec<Arc<Pinned>>,
    numbering: Numbering,
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

    /// Has the windows unmapped when the process makes others. No stream uses them any more.
    pub(crate) fn retire(self) {
        lock(&RETIRED).push(self);
    }

    /// Whether the host has released the words that the streams await: then no word says any more
    /// what has happened, and nothing may be enqueued.
    pub(crate) fn is_released(&self) -> bool {
        self.is_released.load(Ordering::Relaxed)
    }

    /// The gate of a call whose rounds, so many, are what the lane is told next.
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

/// The memories of one operation.
struct Frames<'a> {
    rank: usize,
    windows: &'a [Memory],
    frame: usize,
    /// The user's.
    memory: &'a Memory,
}

impl Frames<'_> {
    /// Where `bytes` bytes from the place on lie.
    fn span(&self, place: &Place, bytes: usize) -> (&Memory, usize) {
        assert!(
            place.memory == Where::Buffer || place.at + bytes <= DEVICE_FRAME_BYTES,
            "invariant: pieces are cut so that their messages end within a frame"
        );
        let in_frame = self.frame * DEVICE_FRAME_BYTES + place.at;
        match place.memory {
            Where::Buffer => (self.memory, place.at),
            Where::Frame => (&self.windows[self.rank], in_frame),
            Where::Peer(peer) => (&self.windows[peer], in_frame),
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Entries of one stream for a round of these scripts, at most.
pub(crate) fn entries(scripts: &[Arc<Script>]) -> usize {
    let of =
        |script: &Arc<Script>| script.entries.len() + script.sources.len() + script.readers.len();
    ENTRIES_BESIDE + scripts.iter().map(of).sum::<usize>()
}

/// Ties a call's barrier to the streams: it begins when they are through with the call's rounds.
pub(crate) struct MappedGate {
    lane: Arc<Pinned>,
    first: u32,
    last: u32,
    /// The words that the streams of this rank await.
    own: Arc<Pinned>,
    bytes: usize,
    is_released: Arc<AtomicBool>,
}

impl Gate for MappedGate {
    fn is_ready(&self) -> bool {
        has_ended(&self.lane, self.last)
    }

    fn has_come(&self) -> bool {
        has_begun(&self.lane, self.first)
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
