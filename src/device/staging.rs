//! Copies between a device's memory and pinned memory of the host, tied to the host's operations by
//! words.
//!
//! A [`Lane`] has two streams, so that copies go both ways at once. For each *round* of a call, the
//! pieces that are begun together, the caller's thread enqueues
//!
//! ```text
//! stream "in":   wait for the user's stream;  for each piece: copy in,  write READY = its number
//! stream "out":  wait for the user's stream;  for each piece: wait for DONE = its number, copy
//! out;
//!                write END = the round's number;  record an event, which the user's stream awaits
//! ```
//!
//! and all of that before it does anything else. The host's operation on a piece begins when it
//! sees READY, and stores DONE when it has ended, well or not ([`StreamGate`]). So every entry
//! waits only for entries before it and for words that the host stores without the driver: also
//! where all streams share one queue of the GPU, as nothing is enqueued behind a wait that the
//! waited-for operation needs. The entries of "in" come before those of "out" for that reason.
//!
//! Numbers grow by one and wrap around; words are compared as on a circle.

use crate::error::Result;
use crate::limits::DEVICE_ENTRIES_MAX;
use crate::sys::cuda::{Event, Gpu, Memory, Pinned, Rows, Stream};
use std::sync::{Arc, Mutex, PoisonError};

/// Where the words are, in bytes. READY and END have cache lines of their own; the words of DONE
/// are used in turns, more of them than pieces can be under way.
const READY: usize = 0;
const END: usize = 64;
const DONE: usize = 128;
const DONE_WORDS: usize = DEVICE_ENTRIES_MAX;
const WORDS_BYTES: usize = DONE + DONE_WORDS * size_of::<u32>();

/// A piece of a call: what is copied in and out. The host's part of all rows is the piece's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Elements of the host's operation.
    pub(crate) count: usize,
    /// Where its bytes begin in the round's pinned memory, and how many there are.
    pub(crate) host_at: usize,
    pub(crate) bytes: usize,
    pub(crate) inputs: Vec<Rows>,
    pub(crate) outputs: Vec<Rows>,
}

/// Entries of one of the queues for a round of these pieces, at most.
pub(crate) fn entries(pieces: &[Piece]) -> usize {
    let of = |piece: &Piece| 1 + piece.inputs.len().max(piece.outputs.len());
    3 + pieces.iter().map(of).sum::<usize>()
}

/// The streams, events and words of one communicator on one GPU.
#[derive(Debug)]
pub(crate) struct Lane {
    gpu: Arc<Gpu>,
    input: Stream,
    output: Stream,
    /// The user's stream has come to the call; the stream "out" has come to its end.
    begun: Event,
    ended: Event,
    words: Arc<Pinned>,
    /// The numbers given last.
    piece: u32,
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

    /// The gate of the next piece.
    pub(crate) fn next_gate(&mut self) -> StreamGate {
        self.piece = self.piece.wrapping_add(1);
        StreamGate {
            words: Arc::clone(&self.words),
            number: self.piece,
        }
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

    /// Enqueues a round, whose pieces' gates were the last that were taken; its number. The words
    /// of its pieces are stored by the host, whatever happens.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn enqueue(
        &mut self,
        memory: &Memory,
        pinned: &Pinned,
        pieces: &[Piece],
    ) -> Result<u32> {
        let first = self.piece.wrapping_sub(pieces.len() as u32).wrapping_add(1);
        let numbers = (0..pieces.len() as u32).map(|nth| first.wrapping_add(nth));
        for (number, piece) in numbers.clone().zip(pieces) {
            for rows in &piece.inputs {
                self.input.copy_in(memory, pinned, rows)?;
            }
            self.input.write_word(&self.words, READY, number)?;
        }
        for (number, piece) in numbers.zip(pieces) {
            self.output
                .wait_word(&self.words, done_at(number), number)?;
            for rows in &piece.outputs {
                self.output.copy_out(pinned, memory, rows)?;
            }
        }
        self.round = self.round.wrapping_add(1);
        self.output.write_word(&self.words, END, self.round)?;
        Ok(self.round)
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
        has_come(&self.words, END, round)
    }
}

/// Whether the word is there or beyond.
fn has_come(words: &Pinned, at: usize, number: u32) -> bool {
    let word = words.load(at).expect("invariant: a word of the lane");
    word.wrapping_sub(number).cast_signed() >= 0
}

fn done_at(number: u32) -> usize {
    DONE + number as usize % DONE_WORDS * size_of::<u32>()
}

/// Ties a piece's operation to the lane's streams.
pub(crate) struct StreamGate {
    words: Arc<Pinned>,
    number: u32,
}

impl StreamGate {
    /// Whether the piece lies in pinned memory.
    pub(crate) fn is_ready(&self) -> bool {
        has_come(&self.words, READY, self.number)
    }

    /// The stream "out" goes on.
    pub(crate) fn open(&self) {
        let stored = self.words.store(done_at(self.number), self.number);
        stored.expect("invariant: a word of the lane");
    }
}
