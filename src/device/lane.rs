//! The streams of a communicator on its GPU, and the words between them and the host.
//!
//! A [`Lane`] has two streams, so that copies go both ways at once and pieces of a call overlap.
//! The caller's thread enqueues a call in *rounds*: bounded parts of it that end together.
//!
//! ```text
//! both streams:  wait for the user's stream;
//! each round:    "in" writes BEGUN = the round's number;  what the round does, on both streams;
//!                "out" waits for "in", writes END = the round's number
//! at the end:    "out" records an event, which the user's stream awaits
//! ```
//!
//! Every entry waits only for entries before it and for words that this rank's host can store
//! without the driver: so it does not matter how many streams share one queue of the GPU.
//!
//! Numbers grow by one and wrap around; words are compared as on a circle.

use crate::error::Result;
use crate::limits::DEVICE_ENTRIES_MAX;
use crate::sys::cuda::{Event, Gpu, Pinned, Stream};
use std::sync::{Arc, Mutex, PoisonError};

/// Entries of one stream for a round beside what the round does, with the joints to the user's.
pub(crate) const ENTRIES_BESIDE: usize = 5;

/// Where the words are, in bytes: cache lines of their own, and from `DONE` on as many words as
/// pieces can be under way, used in turns.
pub(super) const READY: usize = 0;
const END: usize = 64;
const BEGUN: usize = 128;
const DONE: usize = 192;
const DONE_WORDS: usize = DEVICE_ENTRIES_MAX;
const WORDS_BYTES: usize = DONE + DONE_WORDS * size_of::<u32>();

/// The streams, events and words of one communicator on one GPU.
#[derive(Debug)]
pub(crate) struct Lane {
    gpu: Arc<Gpu>,
    pub(super) input: Stream,
    pub(super) output: Stream,
    /// The user's stream has come to the call; the stream "in", and "out", have come to their ends.
    begun: Event,
    is_in: Event,
    ended: Event,
    pub(super) words: Arc<Pinned>,
    /// The numbers given last.
    pub(super) piece: u32,
    round: u32,
}

/// Lanes that no communicator has, through with everything.
static IDLE: Mutex<Vec<Lane>> = Mutex::new(Vec::new());

impl Lane {
    /// A lane on the GPU, used before or new.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn take(gpu: &Arc<Gpu>) -> Result<Self> {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = idle.iter().position(|lane| Arc::ptr_eq(&lane.gpu, gpu)) {
            return Ok(idle.swap_remove(at));
        }
        drop(idle);
        let words = Pinned::take(gpu, WORDS_BYTES)?;
        // They bore something else, perhaps.
        for at in (0..WORDS_BYTES).step_by(size_of::<u32>()) {
            words.store(at, 0)?;
        }
        Ok(Self {
            gpu: Arc::clone(gpu),
            input: Stream::urgent(gpu)?,
            output: Stream::urgent(gpu)?,
            begun: Event::new(gpu)?,
            is_in: Event::new(gpu)?,
            ended: Event::new(gpu)?,
            words,
            piece: 0,
            round: 0,
        })
    }

    /// Keeps it for the next that asks. It is through with everything.
    pub(crate) fn give_back(self) {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push(self);
    }

    /// What comes is behind everything that the user's stream was told so far.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn begin(&self, user: &Stream) -> Result<()> {
        user.record(&self.begun)?;
        self.input.wait(&self.begun)?;
        self.output.wait(&self.begun)
    }

    /// The number of the round that is enqueued next.
    pub(super) fn next_round(&self) -> u32 {
        self.round.wrapping_add(1)
    }

    /// Begins a round.
    pub(super) fn begin_round(&mut self) -> Result<u32> {
        self.round = self.next_round();
        self.input.write_word(&self.words, BEGUN, self.round)?;
        Ok(self.round)
    }

    /// Ends the round that was begun last.
    pub(super) fn end_round(&self) -> Result<()> {
        self.input.record(&self.is_in)?;
        self.output.wait(&self.is_in)?;
        self.output.write_word(&self.words, END, self.round)
    }

    /// What the user's stream is told from now on is behind everything enqueued here.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn join(&self, user: &Stream) -> Result<()> {
        self.output.record(&self.ended)?;
        user.wait(&self.ended)
    }

    /// Whether the streams are through with a round.
    pub(crate) fn has_ended(&self, round: u32) -> bool {
        has_ended(&self.words, round)
    }
}

/// Whether the streams have come to the round, and whether they are through with it.
pub(super) fn has_begun(words: &Pinned, round: u32) -> bool {
    has_come(words, BEGUN, round)
}

pub(super) fn has_ended(words: &Pinned, round: u32) -> bool {
    has_come(words, END, round)
}

/// Whether the word is there or beyond.
pub(super) fn has_come(words: &Pinned, at: usize, number: u32) -> bool {
    let word = words.load(at).expect("invariant: a word of the lane");
    word.wrapping_sub(number).cast_signed() >= 0
}

pub(super) fn done_at(number: u32) -> usize {
    DONE + number as usize % DONE_WORDS * size_of::<u32>()
}
