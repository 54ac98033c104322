//! What a stream keeps alive for the operations that it has not done yet.
//!
//! Operations are numbered. A *mark* is a driver's event, recorded behind the operation of some
//! number: when it is done, everything up to that number can go. The caller's own events serve as
//! marks too, when they are seen done. The stream adds some of its own, for callers who never look:
//! one now and then, one behind each wait for a word, one when it is dropped.

use super::event::RawEvent;
use super::gpu::{Gpu, Wait};
use super::memory::{Memory, Pinned, Words};
use super::{check, lock};
use crate::error::Result;
use cudarc::driver::sys::{self as raw, CUresult, CUstream};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};

/// Operations between two marks.
const MARK_EVERY: u64 = 256;

/// Something that an operation uses.
#[expect(dead_code, reason = "it is there to be dropped")]
pub(super) enum Kept {
    Memory(Arc<Memory>),
    Pinned(Arc<Pinned>),
    Words(Arc<Words>),
    Wait(Wait),
}

#[derive(Default)]
struct Book {
    /// The number of the latest operation.
    enqueued: u64,
    /// Until the operation of that number is done.
    kept: VecDeque<(u64, Kept)>,
    /// In order.
    marks: VecDeque<(u64, RawEvent)>,
    marked: u64,
    is_closed: bool,
}

impl Book {
    /// What is kept up to `number`, to be dropped when the book is unlocked: dropping may free.
    fn take(&mut self, number: u64) -> Vec<Kept> {
        while self.marks.front().is_some_and(|(at, _)| *at <= number) {
            self.marks.pop_front();
        }
        let count = self.kept.partition_point(|(until, _)| *until <= number);
        self.kept.drain(..count).map(|(_, kept)| kept).collect()
    }

    fn mark(&mut self, gpu: &Arc<Gpu>, stream: CUstream) -> Result<()> {
        let event = RawEvent::new(gpu)?;
        // SAFETY: the caller's stream is alive, and so is the event.
        let code = unsafe { raw::cuEventRecord(event.raw(), stream) };
        check(code, "cuEventRecord")?;
        self.marked = self.enqueued;
        self.marks.push_back((self.enqueued, event));
        Ok(())
    }
}

#[derive(Default)]
pub(super) struct Ledger {
    book: Mutex<Book>,
}

impl Ledger {
    /// Enqueues one operation by `call` and keeps `kept` until it is done. The stream is alive, its
    /// context current.
    pub(super) fn enqueue(
        &self,
        gpu: &Arc<Gpu>,
        stream: CUstream,
        kept: impl IntoIterator<Item = Kept>,
        what: &str,
        call: impl FnOnce() -> CUresult,
    ) -> Result<()> {
        // Locked over the call, so that the numbers have the order of the operations.
        let mut book = lock(&self.book);
        book.enqueued += 1;
        let number = book.enqueued;
        let mut waits = false;
        for one in kept {
            waits |= matches!(one, Kept::Wait(_));
            book.kept.push_back((number, one));
        }
        check(call(), what)?;
        if waits || number - book.marked >= MARK_EVERY {
            book.mark(gpu, stream)?;
            drop(book);
            self.look();
        }
        Ok(())
    }

    /// The number of the latest operation, after `call` has recorded an event behind it.
    pub(super) fn number_at(&self, what: &str, call: impl FnOnce() -> CUresult) -> Result<u64> {
        let book = lock(&self.book);
        check(call(), what)?;
        Ok(book.enqueued)
    }

    /// Everything up to `number` is done.
    pub(super) fn release(&self, number: u64) {
        let done = lock(&self.book).take(number);
        drop(done);
    }

    /// Looks whether marks are reached. The context is current.
    pub(super) fn look(&self) {
        let mut done = Vec::new();
        let mut book = lock(&self.book);
        while let Some((number, event)) = book.marks.front() {
            // A stream that failed did what it did; what it was told is over as well, but whether
            // the GPU still writes is unknown: nothing is let go of.
            if !matches!(event.is_done(), Ok(true)) {
                break;
            }
            let number = *number;
            done.extend(book.take(number));
        }
        drop(book);
        drop(done);
    }

    /// The stream goes; a last mark says when what it was told is done.
    pub(super) fn close(&self, gpu: &Arc<Gpu>, stream: CUstream) {
        let mut book = lock(&self.book);
        book.is_closed = true;
        // If this fails, what is kept stays for ever, which is safe.
        let _ = book.mark(gpu, stream);
    }

    /// Whether the stream is gone and everything was done.
    pub(super) fn is_over(&self) -> bool {
        let book = lock(&self.book);
        book.is_closed && book.kept.is_empty()
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let book = lock(&self.book);
        write!(formatter, "Ledger({} kept)", book.kept.len())
    }
}
