//! Provides a communicator's streams on its GPU, and the words that synchronize the streams with
//! the host.
//!
//! A [`Lane`] has two streams, so that the GPU can copy in both directions at the same time and the
//! pieces of a call overlap. The caller's thread enqueues a call in *rounds*, which are bounded
//! parts of the call whose pieces end together.
//!
//! ```text
//! call    both streams:  wait for the user's stream
//! round   "in":          write BEGUN = the round's number;  the round's work, on both streams
//!         "out":         wait for "in";  write END = the round's number
//! call    "out":         record an event, for which the user's stream waits
//! ```
//!
//! Every entry waits only for earlier entries and for words that this rank's host can store without
//! the driver. Any number of streams can therefore share one hardware queue of the GPU.
//!
//! The numbers of rounds and pieces increase by one and wrap around, so comparisons with words are
//! cyclic.

use crate::error::Result;
use crate::limits::DEVICE_ENTRIES_MAX;
use crate::lock::lock;
use crate::sys::cuda::{Event, Gpu, Pinned, Stream};
use std::sync::{Arc, Mutex};

/// Maximum number of entries that a round needs in one stream in addition to its work, including
/// the entries that order the call with the user's stream.
pub(crate) const ENTRIES_BESIDE: usize = 5;

/// Byte offsets of the words. Each of the first three words has its own cache line. From `DONE` on,
/// there is one word for each piece that can be in flight, and these words are used cyclically.
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
    /// The point in the user's stream at which the call begins.
    begun: Event,
    /// The point in the stream "in" at which a round's entries end.
    is_in: Event,
    /// The point in the stream "out" at which the call ends.
    ended: Event,
    pub(super) words: Arc<Pinned>,
    /// Number of the newest piece.
    pub(super) piece: u32,
    /// Number of the newest round.
    round: u32,
}

/// Idle lanes of communicators that were dropped. None of them has work in flight.
static IDLE: Mutex<Vec<Lane>> = Mutex::new(Vec::new());

impl Lane {
    /// Returns an idle lane on the GPU, or creates one.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn take(gpu: &Arc<Gpu>) -> Result<Self> {
        let mut idle = lock(&IDLE);
        if let Some(at) = idle.iter().position(|lane| Arc::ptr_eq(&lane.gpu, gpu)) {
            return Ok(idle.swap_remove(at));
        }
        drop(idle);
        let words = gpu.take_pinned(WORDS_BYTES)?;
        // Clear the words, because the pinned memory may have been used before.
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

    /// Keeps this lane, which has no work in flight, for the next communicator.
    pub(crate) fn give_back(self) {
        lock(&IDLE).push(self);
    }

    /// Makes later entries in both streams wait for the work that has been enqueued so far on the
    /// user's stream.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn begin(&self, user: &Stream) -> Result<()> {
        user.record(&self.begun)?;
        self.input.wait(&self.begun)?;
        self.output.wait(&self.begun)
    }

    /// Returns the number of the next round.
    pub(super) fn next_round(&self) -> u32 {
        self.round.wrapping_add(1)
    }

    /// Begins a round and returns its number.
    pub(super) fn begin_round(&mut self) -> Result<u32> {
        self.round = self.next_round();
        self.input.write_word(&self.words, BEGUN, self.round)?;
        Ok(self.round)
    }

    /// Ends the current round.
    ///
    /// The stream "out" writes the word `END` after the round's entries in both streams.
    pub(super) fn end_round(&self) -> Result<()> {
        self.input.record(&self.is_in)?;
        self.output.wait(&self.is_in)?;
        self.output.write_word(&self.words, END, self.round)
    }

    /// Makes later entries in the user's stream wait for all entries in this lane.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn join(&self, user: &Stream) -> Result<()> {
        self.output.record(&self.ended)?;
        user.wait(&self.ended)
    }

    /// Returns `true` if the streams have ended a round.
    pub(crate) fn has_ended(&self, round: u32) -> bool {
        has_ended(&self.words, round)
    }
}

/// Returns `true` if the streams have reached a round.
pub(super) fn has_begun(words: &Pinned, round: u32) -> bool {
    is_reached(words, BEGUN, round)
}

/// Returns `true` if the streams have ended a round.
pub(super) fn has_ended(words: &Pinned, round: u32) -> bool {
    is_reached(words, END, round)
}

/// Returns `true` if the word at offset `at` has reached `number` in cyclic order.
pub(super) fn is_reached(words: &Pinned, at: usize, number: u32) -> bool {
    let word = words.load(at).expect("invariant: the word is in the lane");
    word.wrapping_sub(number).cast_signed() >= 0
}

/// Returns the offset of the `DONE` word for piece `number`.
pub(super) fn done_at(number: u32) -> usize {
    DONE + number as usize % DONE_WORDS * size_of::<u32>()
}
