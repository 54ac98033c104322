//! Devices: memory, streams and events of a GPU, as a host that drives collectives needs them.
//!
//! *Purpose.* [`Device`] and [`Stream`] are all that the rest of the library sees of a GPU. There
//! are two of them: [`cuda`], and [`fake`], a device pretended in host memory, for tests and for
//! machines without a GPU, across processes too. One suite of tests runs on both.
//!
//! *Invariants.*
//! - *Asynchronous, in order.* An operation of a stream returns at once, and is done after all that
//!   were enqueued before it. Two streams are ordered by events and words alone.
//! - *Device memory is out of the host's reach*; what the host reads goes through [`Pinned`].
//! - *In bounds.* Operations work on [`Span`]s, which are checked when they are made.
//! - *Kept until done.* An enqueued operation keeps alive everything it names. So a memory may be
//!   dropped at any time: it is freed once no operation uses it. The host reaches the bytes of a
//!   [`Pinned`] only when no operation has it.
//! - *Seen done.* A stream lets go of what its operations name when the host has seen an event done
//!   that was recorded behind them ([`Event::is_done`]), or after [`Stream::synchronize`].
//! - *The host can always release.* A stream waits for words that this rank's host can write.
//!
//! *May import* `reduce`, `sys` and the base files.

pub mod cuda;
pub mod fake;
mod memory;
mod orders;
pub mod published;
mod unheld;

pub use memory::{Event, Mapping, Memory, Pinned, PinnedSpan, Span, Word, Words};
pub use orders::{Cast, Fold};
pub use unheld::Unheld;

use crate::error::{Error, Result};
use std::any::Any;
use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Bytes of a handle by which another process finds an allocation.
pub const HANDLE_BYTES: usize = 64;

/// A GPU, or what pretends to be one. One per process and GPU; ranks that are threads share it.
///
/// ```
/// use ringtree::device::{Device, Stream, fake::Fake};
///
/// # fn main() -> ringtree::Result<()> {
/// let device = Fake::new();
/// let (memory, stream) = (device.allocate(4)?, device.stream()?);
/// let mut pinned = device.pin(4)?;
/// pinned.bytes_mut()?.copy_from_slice(&[1, 2, 3, 4]);
/// stream.copy_from_host(&pinned.whole(), &memory.whole())?;
/// stream.copy(&memory.span(0, 1)?, &memory.span(3, 1)?)?;
/// stream.copy_to_host(&memory.whole(), &pinned.whole())?;
/// let event = device.event()?;
/// stream.record(&event)?;
/// while !event.is_done()? {
///     std::thread::yield_now();
/// }
/// assert_eq!(pinned.bytes_mut()?, [1, 2, 3, 1]);
/// # Ok(()) }
/// ```
pub trait Device: Debug + Send + Sync {
    /// What it is.
    fn description(&self) -> &Description;

    /// Memory of the device, of undefined content, that can be exported.
    ///
    /// # Errors
    /// [`Error::Device`]: there is not so much.
    fn allocate(&self, bytes: usize) -> Result<Memory>;

    /// What another process needs to import `memory`. The exporter keeps it until all importers
    /// have dropped theirs.
    ///
    /// # Errors
    /// [`Error::Usage`] for memory that this process did not allocate; [`Error::Device`].
    fn export(&self, memory: &Memory) -> Result<Exported>;

    /// Another process's memory, of `bytes` bytes, on this device or one that it can reach.
    /// Dropping it closes it and frees nothing.
    ///
    /// # Errors
    /// [`Error::Device`]: the handle is no longer good, is this process's own (share the [`Memory`]
    /// itself), or is of a smaller memory.
    fn import(&self, exported: &Exported, bytes: usize) -> Result<Memory>;

    /// Whether streams here can use the memory of the device with this unique id, its own among
    /// them, where it is imported or adopted. For another one that takes *peer access*.
    fn can_reach(&self, unique_id: &[u8; 16]) -> bool;

    /// The memory of another device of this process, for streams of this one; its own is that
    /// memory itself.
    ///
    /// # Errors
    /// [`Error::Device`]: the device cannot be reached. [`Error::Usage`]: it is of another kind.
    fn adopt(&self, memory: &Memory) -> Result<Memory>;

    /// Host memory that streams copy from and to, all zero.
    ///
    /// # Errors
    /// [`Error::Device`]: there is not so much that can be pinned.
    fn pin(&self, bytes: usize) -> Result<Pinned>;

    /// Words for streams to wait for, at least `count`, all zero, in host memory that can be given
    /// to other processes ([`Words::file`]).
    ///
    /// # Errors
    /// [`Error::Device`], [`Error::System`].
    fn words(&self, count: usize) -> Result<Words>;

    /// Another process's words, so that streams here can write them.
    ///
    /// # Errors
    /// [`Error::System`]: the file is no such file. [`Error::Device`].
    fn open_words(&self, file: OwnedFd) -> Result<Words>;

    /// A stream of its own.
    ///
    /// # Errors
    /// [`Error::Device`].
    fn stream(&self) -> Result<Arc<dyn Stream>>;

    /// A stream whose operations go before those of other streams, and are never queued behind a
    /// wait of theirs.
    ///
    /// # Errors
    /// [`Error::Device`].
    fn urgent_stream(&self) -> Result<Arc<dyn Stream>>;

    /// An event that counts as done until it is recorded.
    ///
    /// # Errors
    /// [`Error::Device`].
    fn event(&self) -> Result<Event>;
}

/// A queue of operations that are done one after another. All methods but
/// [`Stream::synchronize`] only enqueue.
///
/// Each returns [`Error::Usage`] for what belongs to another device, or does not fit, and
/// [`Error::Device`] when the device has failed.
pub trait Stream: Any + Debug + Send + Sync {
    /// Copies between memories of equal length that do not overlap, imported ones among them.
    ///
    /// # Errors
    /// See [`Stream`].
    fn copy(&self, from: &Span, to: &Span) -> Result<()>;

    /// Copies into host memory.
    ///
    /// # Errors
    /// See [`Stream`].
    fn copy_to_host(&self, from: &Span, to: &PinnedSpan) -> Result<()>;

    /// Copies from host memory.
    ///
    /// # Errors
    /// See [`Stream`].
    fn copy_from_host(&self, from: &PinnedSpan, to: &Span) -> Result<()>;

    /// Folds operands element by element.
    ///
    /// # Errors
    /// See [`Stream`].
    fn fold(&self, fold: &Fold<'_>) -> Result<()>;

    /// Converts elements.
    ///
    /// # Errors
    /// See [`Stream`].
    fn cast(&self, cast: &Cast<'_>) -> Result<()>;

    /// The event is done when everything enqueued here so far is. An event that was recorded
    /// before is recorded anew.
    ///
    /// # Errors
    /// See [`Stream`].
    fn record(&self, event: &Event) -> Result<()>;

    /// What is enqueued from now on begins after the event's latest recording *so far* is done; at
    /// once if there is none.
    ///
    /// # Errors
    /// See [`Stream`].
    fn wait(&self, event: &Event) -> Result<()>;

    /// Writes the word, after what everything enqueued before has written.
    ///
    /// # Errors
    /// See [`Stream`]; also where [`Description::word_operations`] is false.
    fn write_word(&self, word: &Word, value: u32) -> Result<()>;

    /// What is enqueued from now on begins when the word is at least `value`, in the sense that
    /// `word - value`, wrapping, is not negative as an `i32`.
    ///
    /// # Errors
    /// See [`Stream`]; also where [`Description::word_operations`] is false.
    fn wait_word(&self, word: &Word, value: u32) -> Result<()>;

    /// Whether what is enqueued here is being captured into a graph instead of being done.
    ///
    /// # Errors
    /// See [`Stream`].
    fn is_captured(&self) -> Result<bool>;

    /// Waits until everything enqueued is done. For tests and for the end of a process: a stream
    /// that waits for a word nobody writes makes this wait for ever.
    ///
    /// # Errors
    /// See [`Stream`].
    fn synchronize(&self) -> Result<()>;

    /// Refuses a stream that is being captured.
    ///
    /// # Errors
    /// [`Error::Usage`] if it is; and see [`Stream`].
    fn refuse_capture(&self) -> Result<()> {
        if self.is_captured()? {
            return Err(Error::Usage(
                "the stream is being captured into a graph, but a collective needs the host \
                 while it runs: call it before or after the capture"
                    .into(),
            ));
        }
        Ok(())
    }
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The product's name.
    pub name: String,
    /// Which of this process's devices.
    pub ordinal: usize,
    /// The same for every process that uses this very GPU, and for no other GPU.
    pub unique_id: [u8; 16],
    /// The newest CUDA version that the driver knows, as 1000 × major + 10 × minor.
    pub driver_version: u32,
    /// Bytes of memory, used or not.
    pub memory_bytes: usize,
    /// Units that run blocks of threads.
    pub multiprocessors: usize,
    /// Whether streams can write words and wait for them.
    pub word_operations: bool,
    /// Whether they also can with words of 64 bits.
    pub word_operations_64_bit: bool,
}

/// What an importer needs; plain bytes, to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// The allocation.
    pub handle: [u8; HANDLE_BYTES],
    /// Where in it the memory begins.
    pub offset: u64,
}
