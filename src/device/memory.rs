//! What operations work on. Each value has something of its device behind it, which only that
//! device looks at; clones share it.

use crate::error::{Error, Result};
use crate::sys::pages::SharedWords;
use std::any::Any;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

/// What a device keeps behind a value.
pub(super) type Backing = Arc<dyn Any + Send + Sync>;

/// The backing as the type that the device of `T` gives it.
fn of_device<T: Any + Send + Sync>(backing: Backing, what: &str) -> Result<Arc<T>> {
    let found = backing.downcast();
    found.map_err(|_| Error::Usage(format!("the {what} belongs to a device of another kind")))
}

/// Memory of a device: allocated, imported, or a user's. The last clone frees it, as soon as no
/// operation uses it.
#[derive(Clone)]
pub struct Memory {
    backing: Backing,
    bytes: usize,
    mapping: Mapping,
}

/// Of another process's memory: whether this one still has it.
#[derive(Clone, Debug, Default)]
pub struct Mapping(Weak<()>);

impl Mapping {
    /// False once the memory is closed: the last clone was dropped, no operation uses it any more,
    /// and the driver has been told. False for memory that is no other process's.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.strong_count() > 0
    }
}

impl Memory {
    pub(super) fn new(backing: Backing, bytes: usize) -> Self {
        Self {
            backing,
            bytes,
            mapping: Mapping::default(),
        }
    }

    /// Memory of another process, which is open as long as there is the value behind `open`.
    pub(super) fn imported(backing: Backing, bytes: usize, open: Weak<()>) -> Self {
        Self {
            backing,
            bytes,
            mapping: Mapping(open),
        }
    }

    /// Outlives the memory, to tell when it is closed.
    #[must_use]
    pub fn mapping(&self) -> Mapping {
        self.mapping.clone()
    }

    pub(super) fn backing<T: Any + Send + Sync>(&self) -> Result<Arc<T>> {
        of_device(self.backing.clone(), "memory")
    }

    /// Its length.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// `bytes` bytes from `offset` on.
    ///
    /// # Errors
    /// [`Error::Usage`]: they reach beyond the end.
    pub fn span(&self, offset: usize, bytes: usize) -> Result<Span> {
        check_range(offset, bytes, self.bytes, "device memory")?;
        Ok(Span {
            memory: self.clone(),
            offset,
            bytes,
        })
    }

    /// All of it.
    #[must_use]
    pub fn whole(&self) -> Span {
        Span {
            memory: self.clone(),
            offset: 0,
            bytes: self.bytes,
        }
    }

    /// Whether both are clones of one.
    #[must_use]
    pub fn is_same(&self, other: &Memory) -> bool {
        Arc::ptr_eq(&self.backing, &other.backing)
    }
}

fn check_range(offset: usize, bytes: usize, of_bytes: usize, what: &str) -> Result<()> {
    if offset.checked_add(bytes).is_none_or(|end| end > of_bytes) {
        return Err(Error::Usage(format!(
            "bytes {offset}..{offset}+{bytes} of {what} that has {of_bytes}"
        )));
    }
    Ok(())
}

impl fmt::Debug for Memory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Memory({} bytes)", self.bytes)
    }
}

/// A part of a memory, within its bounds. It keeps the memory.
#[derive(Clone, Debug)]
pub struct Span {
    memory: Memory,
    offset: usize,
    bytes: usize,
}

impl Span {
    /// The memory it is part of.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Where it begins.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Its length.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A part of this part.
    ///
    /// # Errors
    /// [`Error::Usage`]: it reaches beyond the end.
    pub fn part(&self, offset: usize, bytes: usize) -> Result<Span> {
        check_range(offset, bytes, self.bytes, "a span of device memory")?;
        self.memory.span(self.offset + offset, bytes)
    }

    /// Whether both are the same bytes, as far as the memories tell: two imports of one are not.
    pub(super) fn is_same(&self, other: &Span) -> bool {
        self.memory.is_same(&other.memory)
            && (self.offset, self.bytes) == (other.offset, other.bytes)
    }

    /// Whether they have bytes in common, as far as the memories tell.
    pub(super) fn overlaps(&self, other: &Span) -> bool {
        self.memory.is_same(&other.memory)
            && self.offset < other.offset + other.bytes
            && other.offset < self.offset + self.bytes
            && self.bytes.min(other.bytes) > 0
    }
}

/// Pinned memory behind a [`Pinned`].
pub(super) trait HostBytes: Any + Send + Sync {
    /// The bytes; as the value is exclusive, no operation has it.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// Host memory that streams copy from and to. The host reaches it only while no operation has it.
pub struct Pinned {
    backing: Arc<dyn HostBytes>,
    bytes: usize,
}

impl Pinned {
    pub(super) fn new(backing: Arc<dyn HostBytes>, bytes: usize) -> Self {
        Self { backing, bytes }
    }

    /// Its length.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bytes.
    ///
    /// # Errors
    /// [`Error::Usage`]: an operation may be using them, or a [`PinnedSpan`] is left: see an event
    /// done that was recorded behind the operation, and drop the span.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        match Arc::get_mut(&mut self.backing) {
            Some(backing) => Ok(backing.bytes_mut()),
            None => Err(Error::Usage(
                "pinned memory that a stream still uses is not to be touched: see an event done \
                 that was recorded behind the copy"
                    .into(),
            )),
        }
    }

    /// `bytes` bytes from `offset` on, for a copy.
    ///
    /// # Errors
    /// [`Error::Usage`]: they reach beyond the end.
    pub fn span(&self, offset: usize, bytes: usize) -> Result<PinnedSpan> {
        check_range(offset, bytes, self.bytes, "pinned memory")?;
        Ok(PinnedSpan {
            backing: self.backing.clone(),
            offset,
            bytes,
        })
    }

    /// All of it.
    #[must_use]
    pub fn whole(&self) -> PinnedSpan {
        PinnedSpan {
            backing: self.backing.clone(),
            offset: 0,
            bytes: self.bytes,
        }
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Pinned({} bytes)", self.bytes)
    }
}

/// A part of pinned memory, within its bounds.
#[derive(Clone)]
pub struct PinnedSpan {
    backing: Arc<dyn HostBytes>,
    offset: usize,
    bytes: usize,
}

impl PinnedSpan {
    /// Where it begins.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Its length.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn backing<T: Any + Send + Sync>(&self) -> Result<Arc<T>> {
        of_device(self.backing.clone(), "pinned memory")
    }
}

impl fmt::Debug for PinnedSpan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.offset + self.bytes;
        write!(formatter, "PinnedSpan({}..{end})", self.offset)
    }
}

/// Shared words, known to a device.
pub(super) trait HostWords: Any + Send + Sync {
    fn shared(&self) -> &SharedWords;
}

/// Words in host memory: written and read by this host, by streams, and by other processes that
/// have the file.
#[derive(Clone)]
pub struct Words {
    backing: Arc<dyn HostWords>,
}

impl Words {
    pub(super) fn new(backing: Arc<dyn HostWords>) -> Self {
        Self { backing }
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> usize {
        self.backing.shared().count()
    }

    /// The word at `at`.
    ///
    /// # Errors
    /// [`Error::Usage`]: there is none.
    pub fn word(&self, at: usize) -> Result<Word> {
        check_range(at, 1, self.count(), "words")?;
        Ok(Word {
            words: self.clone(),
            at,
        })
    }

    /// Bytes of the file.
    #[must_use]
    pub fn file_bytes(&self) -> usize {
        self.backing.shared().file_bytes()
    }

    /// The file, for other processes to open ([`super::Device::open_words`]): who has it can write.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.backing.shared().file()
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Words({})", self.count())
    }
}

/// One word.
#[derive(Clone, Debug)]
pub struct Word {
    words: Words,
    at: usize,
}

impl Word {
    /// Its value. What a stream had written before it wrote this value is seen after this.
    #[must_use]
    pub fn load(&self) -> u32 {
        self.words.backing.shared().load(self.at)
    }

    /// Writes it: how a host releases a stream that waits for it.
    pub fn store(&self, value: u32) {
        self.words.backing.shared().store(self.at, value);
    }

    /// Which of the words it is.
    #[must_use]
    pub fn at(&self) -> usize {
        self.at
    }

    pub(super) fn backing<T: Any + Send + Sync>(&self) -> Result<Arc<T>> {
        of_device(self.words.backing.clone(), "word")
    }
}

/// A device's event behind an [`Event`].
pub(super) trait Completion: Any + Send + Sync {
    fn is_done(&self) -> Result<bool>;
}

/// A point in a stream that can be asked for, and waited for by other streams.
#[derive(Clone)]
pub struct Event {
    backing: Arc<dyn Completion>,
}

impl Event {
    pub(super) fn new(backing: Arc<dyn Completion>) -> Self {
        Self { backing }
    }

    /// Whether its latest recording is done; true if there is none. If so, the stream lets go of
    /// what operations before that recording named.
    ///
    /// # Errors
    /// [`Error::Device`]: an operation before it failed.
    pub fn is_done(&self) -> Result<bool> {
        self.backing.is_done()
    }

    /// Whether nobody else has it, so that recording it anew misleads nobody.
    #[must_use]
    pub fn is_sole(&self) -> bool {
        Arc::strong_count(&self.backing) == 1
    }

    pub(super) fn backing<T: Any + Send + Sync>(&self) -> Result<Arc<T>> {
        of_device(self.backing.clone(), "event")
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Event")
    }
}
