//! Memory shared between processes: written by the one that made it, read by the others.
//!
//! A region is a memfd, so it has no name in any file system and goes with the last process that
//! holds it. It is sealed: its size is fixed for ever, so that no process can take pages away under
//! a reader, and, where the system knows how (Linux 5.1), only its maker can map it for writing.
//! First come words that both sides reach as atomics, then plain bytes; no byte is both.

use super::generation::{Generation, count_forks};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate};
use rustix::process::{Resource, getrlimit};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};

/// Bytes of a word.
pub(crate) const WORD_BYTES: usize = size_of::<u64>();

/// Words that another process may be writing.
///
/// The rings are written against this and [`WriteWords`] alone, so that a model checker can run
/// them over memory of its own.
pub trait ReadWords {
    /// The word at `at`, without any order.
    fn load(&self, at: usize) -> u64;

    /// What was loaded before is older than what is read after.
    fn acquire(&self);
}

/// Words that only this side writes.
pub trait WriteWords {
    /// Writes the word at `at`, without any order.
    fn store(&self, at: usize, value: u64);

    /// Writes the word at `at`, after everything written before.
    fn release(&self, at: usize, value: u64);

    /// The word at `at` will be written soon: its line may be fetched for that, while there is
    /// time.
    fn prepare(&self, _at: usize) {}
}

/// Pages of a file that this process has mapped, and its forked children have not, unless they are
/// [inherited](Mapping::inherited).
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) start: NonNull<u8>,
    bytes: usize,
    /// The process that has it; none if all its children have it, too.
    only_in: Option<Generation>,
}

// SAFETY: the pages belong to the process, not to a thread; access to them is through atomics, or
// through `OwnRegion` and `PeerRegion`, neither of which can be cloned, and whose borrows the
// compiler checks.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`; a shared `Mapping` reaches its words as atomics only.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(super) fn new(file: BorrowedFd<'_>, bytes: usize, access: libc::c_int) -> io::Result<Self> {
        count_forks()?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                access,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start: NonNull<u8> = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the pages were mapped just now; the advice changes what a child gets alone. Where
        // the system does not know it, children have the pages and no use for them.
        unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_DONTFORK) };
        Ok(Self {
            start,
            bytes,
            only_in: Some(Generation::current()),
        })
    }

    /// The same; forked children have the pages, too.
    fn inherited(mut self) -> Self {
        self.only_in = None;
        // SAFETY: the pages are mapped; the advice changes what a child gets alone.
        unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, libc::MADV_DOFORK) };
        self
    }

    /// The word at `at`, which the caller has checked to be one of the region's words.
    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: `at` is below the number of words (`Layout::check`), so it lies in the mapping,
        // which starts at a page and is mapped until `drop`, in this process (a forked child
        // reaches no mapping that it has not inherited: the runtime refuses its calls, and `drop`
        // does nothing); words are only ever reached as atomics. A mapping for reading is only
        // loaded from, relaxed and eight bytes at a time, which needs no write access on the
        // platforms this crate has (x86-64, aarch64).
        unsafe { self.start.cast::<AtomicU64>().add(at).as_ref() }
    }
}

/// Whether this process may map so many more bytes.
///
/// # Errors
/// The system's: a limit of its address space (`ulimit -v`) is in the way.
pub(crate) fn address_space_holds(bytes: usize) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use; it
    // cannot be accessed, and it is unmapped below by the address and length it was made with.
    unsafe {
        let start = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0);
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        libc::munmap(start, bytes);
    }
    Ok(())
}

/// Whether a file may have so many bytes. A longer one would be refused by a signal that ends this
/// process (SIGXFSZ).
fn file_limit_allows(bytes: usize) -> io::Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if bytes as u64 > limit => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it needs {bytes} bytes, and `ulimit -f` allows a file {limit}"),
        )),
        _ => Ok(()),
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.only_in.is_some_and(|only| !only.is_current()) {
            // A forked child may have other memory at the addresses by now.
            return;
        }
        // SAFETY: the pages were mapped by `new`, in this process or for all its children as well,
        // and no borrow of them outlives this.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// What fixes a file's length for ever.
const FIXED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// A file of `bytes` zeros in memory, which can still be sealed.
fn memory_file(bytes: usize) -> io::Result<OwnedFd> {
    file_limit_allows(bytes)?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("ringtree", flags)?;
    let bytes = i64::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
    ftruncate(&file, bytes.cast_unsigned())?;
    Ok(file)
}

/// A file of `bytes` zeros in memory, of fixed length, that every process it is handed to can
/// write.
pub(super) fn fixed_file(bytes: usize) -> io::Result<OwnedFd> {
    let file = memory_file(bytes)?;
    fcntl_add_seals(&file, FIXED | SealFlags::SEAL)?;
    Ok(file)
}

/// How a region is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    /// Words, from the start.
    pub words: usize,
    /// Bytes behind them.
    pub bytes: usize,
}

impl Division {
    /// Bytes of the whole region.
    #[must_use]
    pub const fn total_bytes(self) -> usize {
        // The system refuses a length that does not exist.
        self.words
            .saturating_mul(WORD_BYTES)
            .saturating_add(self.bytes)
    }

    #[inline]
    fn check(self, at: usize) {
        assert!(at < self.words, "invariant: a word of the region");
    }

    /// Where the `length` bytes from byte `from` on lie in the region.
    #[inline]
    fn range(self, from: usize, length: usize) -> usize {
        let end = from.checked_add(length);
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "invariant: bytes of the region"
        );
        self.words * WORD_BYTES + from
    }
}

/// The words of a region that this process has made; every copy writes the same words.
#[derive(Clone, Debug)]
pub struct OwnWords {
    mapping: Arc<Mapping>,
    division: Division,
}

/// Plain bytes of a region that this process has made, to be written by one owner alone.
#[derive(Debug)]
pub struct OwnBytes {
    mapping: Arc<Mapping>,
    /// Where they start in the mapping.
    offset: usize,
    length: usize,
}

/// A region that this process has made.
#[derive(Debug)]
pub struct OwnRegion {
    words: OwnWords,
    bytes: OwnBytes,
}

impl OwnBytes {
    /// Where the `length` bytes from byte `from` on start in the mapping.
    #[inline]
    fn at(&self, from: usize, length: usize) -> usize {
        let end = from.checked_add(length);
        assert!(
            end.is_some_and(|end| end <= self.length),
            "invariant: bytes of the region"
        );
        self.offset + from
    }

    /// Bytes `from..from + length`, to be written.
    #[must_use]
    #[inline]
    pub fn bytes_mut(&mut self, from: usize, length: usize) -> &mut [u8] {
        let offset = self.at(from, length);
        // SAFETY: the range lies in this owner's part of the mapping (`at`), which is behind the
        // words, so it is no atomic, and shares no byte with another owner's part (`new` makes one
        // owner, `into_rows` cuts it). This process alone can write it, and does so only through
        // this exclusive borrow. Other processes read it, but only what has been published and not
        // yet acknowledged, and the owner does not write that (the rings' protocol; the call
        // borrows exposed memory until its readers have acknowledged it). After a call has failed
        // a reader may still read: it reads what `PeerRegion::bytes` describes and discards it,
        // because the failed call has revoked the memory before.
        unsafe {
            let start = self.mapping.start.as_ptr().add(offset);
            std::slice::from_raw_parts_mut(start, length)
        }
    }

    /// Bytes `from..from + length`.
    #[must_use]
    #[inline]
    pub fn bytes(&self, from: usize, length: usize) -> &[u8] {
        let offset = self.at(from, length);
        // SAFETY: the range lies in this owner's part of the mapping (`at`), so it is no atomic;
        // it is initialised (a memfd starts as zeros), and only this owner can write it, through
        // `bytes_mut`, which this borrow excludes.
        unsafe {
            let start = self.mapping.start.as_ptr().add(offset);
            std::slice::from_raw_parts(start, length)
        }
    }
}

impl OwnRegion {
    /// A new region, all zero, and the file to hand to others. Forked children do not have it.
    ///
    /// # Errors
    /// The system's: memfd refused, no memory, no descriptors.
    pub(crate) fn new(division: Division) -> io::Result<(Self, OwnedFd)> {
        Self::mapped(division, |mapping| mapping)
    }

    /// The same; forked children have it, too.
    ///
    /// # Errors
    /// As [`OwnRegion::new`].
    pub(crate) fn inherited(division: Division) -> io::Result<(Self, OwnedFd)> {
        Self::mapped(division, Mapping::inherited)
    }

    fn mapped(
        division: Division,
        kept: impl FnOnce(Mapping) -> Mapping,
    ) -> io::Result<(Self, OwnedFd)> {
        let bytes = division.total_bytes();
        let file = memory_file(bytes)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let mapping = Arc::new(kept(Mapping::new(file.as_fd(), bytes, access)?));
        // Older kernels lack this seal; then a peer could write, against the protocol.
        if fcntl_add_seals(&file, FIXED | SealFlags::FUTURE_WRITE | SealFlags::SEAL).is_err() {
            fcntl_add_seals(&file, FIXED | SealFlags::SEAL)?;
        }
        let bytes = OwnBytes {
            mapping: Arc::clone(&mapping),
            offset: division.range(0, 0),
            length: division.bytes,
        };
        let words = OwnWords { mapping, division };
        Ok((Self { words, bytes }, file))
    }

    /// The words, and the plain bytes cut into `rows` rows of equal length, each to be written by
    /// an owner of its own. What does not divide is left out.
    #[must_use]
    pub fn into_rows(self, rows: usize) -> (OwnWords, Vec<OwnBytes>) {
        let Self { words, bytes } = self;
        let length = bytes.length / rows.max(1);
        let row = |at| OwnBytes {
            mapping: Arc::clone(&bytes.mapping),
            offset: bytes.offset + at * length,
            length,
        };
        (words, (0..rows).map(row).collect())
    }

    /// Bytes `from..from + length` of the plain part, to be written.
    #[must_use]
    #[inline]
    pub fn bytes_mut(&mut self, from: usize, length: usize) -> &mut [u8] {
        self.bytes.bytes_mut(from, length)
    }

    /// Bytes `from..from + length` of the plain part.
    #[must_use]
    #[inline]
    pub fn bytes(&self, from: usize, length: usize) -> &[u8] {
        self.bytes.bytes(from, length)
    }

    /// Where the plain part lies in this process.
    #[must_use]
    pub fn extent(&self) -> Extent {
        let OwnBytes {
            mapping,
            offset,
            length,
        } = &self.bytes;
        Extent {
            mapping: Arc::downgrade(mapping),
            start: mapping.start.addr().get() + offset,
            bytes: *length,
        }
    }

    /// The word at `at`, alone, for other threads of this process to write.
    #[must_use]
    pub fn bell(&self, at: usize) -> Bell {
        self.words.division.check(at);
        Bell {
            mapping: Arc::downgrade(&self.words.mapping),
            at,
        }
    }
}

impl WriteWords for OwnRegion {
    #[inline]
    fn store(&self, at: usize, value: u64) {
        self.words.store(at, value);
    }

    #[inline]
    fn release(&self, at: usize, value: u64) {
        self.words.release(at, value);
    }
}

impl WriteWords for OwnWords {
    #[inline]
    fn store(&self, at: usize, value: u64) {
        self.division.check(at);
        self.mapping.word(at).store(value, Ordering::Relaxed);
    }

    #[inline]
    fn release(&self, at: usize, value: u64) {
        self.division.check(at);
        self.mapping.word(at).store(value, Ordering::Release);
    }

    #[inline]
    fn prepare(&self, at: usize) {
        self.division.check(at);
        fetch_for_writing(self.mapping.word(at));
    }
}

/// Has the cache get the word's line for this core alone.
#[inline]
fn fetch_for_writing(word: &AtomicU64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it reads and writes no register, no flag and, as far as a program can see,
    // no memory. Processors without it ignore it.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) word, options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) word, options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = word;
}

/// Where the plain bytes of an own region lie. It does not keep the region.
#[derive(Clone, Debug)]
pub struct Extent {
    mapping: Weak<Mapping>,
    start: usize,
    bytes: usize,
}

impl Extent {
    /// The byte of the region that `data` starts at, if it lies there.
    #[must_use]
    #[inline]
    pub fn offset_of(&self, data: &[u8]) -> Option<usize> {
        let offset = data.as_ptr().addr().checked_sub(self.start)?;
        let lies_within = offset <= self.bytes && data.len() <= self.bytes - offset;
        // Once the region is unmapped, its addresses may be used for other memory.
        (lies_within && self.is_there()).then_some(offset)
    }

    /// Whether the region is still there.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.mapping.strong_count() > 0
    }
}

/// One word of an own region. It does not keep the region.
#[derive(Clone, Debug)]
pub struct Bell {
    mapping: Weak<Mapping>,
    at: usize,
}

impl Bell {
    /// Writes the word, if the region is still there; one thread at a time.
    pub fn set(&self, value: u64) {
        if let Some(mapping) = self.mapping.upgrade() {
            mapping.word(self.at).store(value, Ordering::Relaxed);
        }
    }

    /// Whether the region is still there.
    #[must_use]
    pub fn is_heard(&self) -> bool {
        self.mapping.strong_count() > 0
    }
}

/// A region that another process has made, for reading.
#[derive(Debug)]
pub struct PeerRegion {
    mapping: Mapping,
    division: Division,
}

impl PeerRegion {
    /// Maps the region behind `file`.
    ///
    /// # Errors
    /// The file is no sealed memfd of that size, so that reading it could end the process; or the
    /// system's error.
    pub(crate) fn map(file: &OwnedFd, division: Division) -> io::Result<Self> {
        let bytes = division.total_bytes();
        let seals = fcntl_get_seals(file)?;
        let size = fstat(file)?.st_size;
        if !seals.contains(SealFlags::SHRINK) || u64::try_from(size) != Ok(bytes as u64) {
            return Err(io::Error::other(format!(
                "the peer's memory has {size} bytes where {bytes} were expected, or is not sealed"
            )));
        }
        let mapping = Mapping::new(file.as_fd(), bytes, libc::PROT_READ)?;
        Ok(Self { mapping, division })
    }

    /// How many plain bytes there are.
    #[must_use]
    pub fn length(&self) -> usize {
        self.division.bytes
    }

    /// Bytes `from..from + length` of the plain part.
    #[must_use]
    #[inline]
    pub fn bytes(&self, from: usize, length: usize) -> &[u8] {
        let offset = self.division.range(from, length);
        // SAFETY: the range lies in the mapping behind the words (`range`), is initialised (a
        // memfd starts as zeros) and stays mapped, as the file cannot shrink. Its owner writes no
        // byte that it has published and that was not acknowledged yet, and this is called for
        // such bytes only. An owner that breaks this can make the bytes any bytes, which is what
        // it could have published in the first place: they are plain data, copied or folded.
        unsafe {
            let start = self.mapping.start.as_ptr().add(offset);
            std::slice::from_raw_parts(start, length)
        }
    }
}

impl ReadWords for PeerRegion {
    #[inline]
    fn load(&self, at: usize) -> u64 {
        self.division.check(at);
        self.mapping.word(at).load(Ordering::Relaxed)
    }

    #[inline]
    fn acquire(&self) {
        fence(Ordering::Acquire);
    }
}
