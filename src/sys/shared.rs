//! Implements memory that processes share. The process that created the memory writes it, and the
//! other processes read it.
//!
//! A region is a memfd, so it has no name in any file system and is freed when the last process
//! that holds it releases it. The memfd is sealed, which fixes its size, so no process can remove
//! pages while another process reads them. If the system supports it (Linux 5.1), only the creator
//! can map the region for writing. The region consists of words, which all processes access as
//! atomics, followed by plain bytes. No byte belongs to both parts.

use super::generation::{Generation, count_forks};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate};
use rustix::process::{Resource, getrlimit};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};

/// Size of a word in bytes.
pub(crate) const WORD_BYTES: usize = size_of::<u64>();

/// Words to which another process may be writing.
///
/// The rings access memory only through this trait and [`WriteWords`], so that a model checker can
/// run them on its own memory.
pub trait ReadWords {
    /// Loads the word at `at`, without any ordering.
    fn load(&self, at: usize) -> u64;

    /// Orders earlier loads before later reads.
    fn acquire(&self);
}

/// Words to which only this process writes.
pub trait WriteWords {
    /// Stores the word at `at`, without any ordering.
    fn store(&self, at: usize, value: u64);

    /// Stores the word at `at`, ordered after all earlier writes.
    fn release(&self, at: usize, value: u64);

    /// Hints that the word at `at` will be written soon, so that its cache line can be fetched for
    /// writing.
    fn prepare(&self, _at: usize) {}
}

/// Pages of a file that this process has mapped. Forked children do not have these pages unless
/// they are [inherited](Mapping::inherited).
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) start: NonNull<u8>,
    bytes: usize,
    /// The process that has the pages, or `None` if forked children also have them.
    only_in: Option<Generation>,
}

// SAFETY: the pages belong to the process, not to a thread. They are accessed through atomics, or
// through `OwnRegion` and `PeerRegion`. Neither can be cloned, and the compiler checks their
// borrows.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`. A shared `Mapping` accesses its words only as atomics.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(super) fn new(file: BorrowedFd<'_>, bytes: usize, access: libc::c_int) -> io::Result<Self> {
        count_forks()?;
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory in use.
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
        // SAFETY: the pages were mapped just now. The advice changes only what a child gets. If the
        // system does not know it, children have the pages and do not use them.
        unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_DONTFORK) };
        Ok(Self {
            start,
            bytes,
            only_in: Some(Generation::current()),
        })
    }

    /// Makes forked children inherit the pages.
    fn inherited(mut self) -> Self {
        self.only_in = None;
        // SAFETY: the pages are mapped. The advice changes only what a child gets.
        unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, libc::MADV_DOFORK) };
        self
    }

    /// Returns the word at `at`. The caller must have checked that it is one of the region's words.
    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: `at` is below the number of words (`Division::check`), so it is in the mapping,
        // which starts at a page and is mapped until `drop`, in this process. (A forked child
        // accesses no mapping that it has not inherited: the runtime rejects its calls, and `drop`
        // does nothing.) Words are accessed only as atomics. A mapping for reading is only loaded
        // from, relaxed and eight bytes at a time, which needs no write access on the platforms
        // that this crate supports (x86-64, aarch64).
        unsafe { self.start.cast::<AtomicU64>().add(at).as_ref() }
    }
}

/// Checks that this process can map another `bytes` bytes.
///
/// # Errors
/// Returns the operating system's error if the limit on the address space (`ulimit -v`) would be
/// exceeded.
pub(crate) fn address_space_holds(bytes: usize) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses touches no memory in use. It
    // cannot be accessed, and it is unmapped below with the address and length with which it was
    // created.
    unsafe {
        let start = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0);
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        libc::munmap(start, bytes);
    }
    Ok(())
}

/// Checks that this process may create a file of `bytes` bytes. If the process created a file that
/// exceeds its limit, the system would end the process with a signal (SIGXFSZ).
fn file_limit_allows(bytes: usize) -> io::Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if bytes as u64 > limit => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it needs {bytes} bytes, but `ulimit -f` limits files to {limit}"),
        )),
        _ => Ok(()),
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.only_in.is_some_and(|only| !only.is_current()) {
            // A forked child may already have other memory at these addresses.
            return;
        }
        // SAFETY: the pages were mapped by `new`, in this process or also for all its children, and
        // no borrow of them outlives this.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// The seals that fix the length of a file.
const FIXED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Creates an in-memory file of `bytes` zeros that can be sealed afterwards.
fn memory_file(bytes: usize) -> io::Result<OwnedFd> {
    file_limit_allows(bytes)?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("ringtree", flags)?;
    let bytes = i64::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
    ftruncate(&file, bytes.cast_unsigned())?;
    Ok(file)
}

/// Creates an in-memory file of `bytes` zeros. The length of the file is fixed, and every process
/// that receives the file can write to it.
pub(super) fn fixed_file(bytes: usize) -> io::Result<OwnedFd> {
    let file = memory_file(bytes)?;
    fcntl_add_seals(&file, FIXED | SealFlags::SEAL)?;
    Ok(file)
}

/// The division of a region into words and plain bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    /// Number of words at the start.
    pub words: usize,
    /// Number of bytes after the words.
    pub bytes: usize,
}

impl Division {
    /// Returns the total size of the region in bytes.
    #[must_use]
    pub const fn total_bytes(self) -> usize {
        // If the length saturates, the system rejects it.
        self.words
            .saturating_mul(WORD_BYTES)
            .saturating_add(self.bytes)
    }

    #[inline]
    fn check(self, at: usize) {
        assert!(at < self.words, "invariant: the word is in the region");
    }

    /// Returns the offset, in the region, of the `length` plain bytes that begin at byte `from`.
    #[inline]
    fn range(self, from: usize, length: usize) -> usize {
        let end = from.checked_add(length);
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "invariant: the bytes are in the region"
        );
        self.words * WORD_BYTES + from
    }
}

/// The words of a region that this process has created. All clones write to the same words.
#[derive(Clone, Debug)]
pub struct OwnWords {
    mapping: Arc<Mapping>,
    division: Division,
}

/// Plain bytes of a region that this process has created. Only one owner writes them.
#[derive(Debug)]
pub struct OwnBytes {
    mapping: Arc<Mapping>,
    /// Offset of these bytes in the mapping.
    offset: usize,
    length: usize,
}

/// A region that this process has created.
#[derive(Debug)]
pub struct OwnRegion {
    words: OwnWords,
    bytes: OwnBytes,
}

impl OwnBytes {
    /// Returns the offset, in the mapping, of the `length` bytes that begin at byte `from`.
    #[inline]
    fn at(&self, from: usize, length: usize) -> usize {
        let end = from.checked_add(length);
        assert!(
            end.is_some_and(|end| end <= self.length),
            "invariant: the bytes are in the region"
        );
        self.offset + from
    }

    /// Returns bytes `from..from + length` for writing.
    #[must_use]
    #[inline]
    pub fn bytes_mut(&mut self, from: usize, length: usize) -> &mut [u8] {
        let offset = self.at(from, length);
        // SAFETY: the range is in this owner's part of the mapping (`at`), which is after the
        // words, so it is not an atomic, and shares no byte with another owner's part (`new`
        // creates one owner, `into_rows` splits it). Only this process can write it, and does so
        // only through this exclusive borrow. Other processes read it, but only bytes that were
        // published and are not yet acknowledged, and the owner does not write those (by the
        // protocol of the rings; the call borrows exposed memory until its readers have
        // acknowledged it). After a call has failed, a reader may still read. It reads what
        // `PeerRegion::bytes` describes and discards it, because the failed call has revoked the
        // memory before.
        unsafe {
            let start = self.mapping.start.as_ptr().add(offset);
            std::slice::from_raw_parts_mut(start, length)
        }
    }

    /// Returns bytes `from..from + length`.
    #[must_use]
    #[inline]
    pub fn bytes(&self, from: usize, length: usize) -> &[u8] {
        let offset = self.at(from, length);
        // SAFETY: the range is in this owner's part of the mapping (`at`), which contains no
        // atomics. It is initialized (a memfd starts as zeros), and only this owner can write it,
        // through `bytes_mut`, which this borrow excludes.
        unsafe {
            let start = self.mapping.start.as_ptr().add(offset);
            std::slice::from_raw_parts(start, length)
        }
    }
}

impl OwnRegion {
    /// Creates a region of zeros. Returns the region together with the file that is passed to other
    /// processes. Forked children do not have the region.
    ///
    /// # Errors
    /// Returns the operating system's error if it does not provide the memfd, the memory or a
    /// descriptor.
    pub(crate) fn new(division: Division) -> io::Result<(Self, OwnedFd)> {
        Self::mapped(division, |mapping| mapping)
    }

    /// Like [`OwnRegion::new`], but forked children inherit the region.
    ///
    /// # Errors
    /// Returns the same errors as [`OwnRegion::new`].
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
        // Older kernels do not have the seal `FUTURE_WRITE`. Without it, a peer that breaks the
        // protocol can write to the region.
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

    /// Returns the words, and the plain bytes, which are split into `rows` rows of equal length.
    /// Each row can have a separate owner. Bytes that do not fill a row are omitted.
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

    /// Returns bytes `from..from + length` of the plain part for writing.
    #[must_use]
    #[inline]
    pub fn bytes_mut(&mut self, from: usize, length: usize) -> &mut [u8] {
        self.bytes.bytes_mut(from, length)
    }

    /// Returns bytes `from..from + length` of the plain part.
    #[must_use]
    #[inline]
    pub fn bytes(&self, from: usize, length: usize) -> &[u8] {
        self.bytes.bytes(from, length)
    }

    /// Returns the addresses that the plain part has in this process.
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

    /// Returns a handle through which other threads of this process can write the word at `at`.
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

/// Fetches the word's cache line for exclusive use by this core.
#[inline]
fn fetch_for_writing(word: &AtomicU64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint. It reads and writes no register, no flag and, as far as a program can see, no
    // memory. Processors without it ignore it.
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

/// The addresses of the plain bytes of a region. This value does not keep the region alive.
#[derive(Clone, Debug)]
pub struct Extent {
    mapping: Weak<Mapping>,
    start: usize,
    bytes: usize,
}

impl Extent {
    /// Returns the offset at which `data` starts in the region, or `None` if `data` is not in the
    /// region.
    #[must_use]
    #[inline]
    pub fn offset_of(&self, data: &[u8]) -> Option<usize> {
        let offset = data.as_ptr().addr().checked_sub(self.start)?;
        let lies_within = offset <= self.bytes && data.len() <= self.bytes - offset;
        // After the region has been unmapped, its addresses may belong to other memory.
        (lies_within && self.is_there()).then_some(offset)
    }

    /// Returns `true` if the region still exists.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.mapping.strong_count() > 0
    }
}

/// A word of a region. This value does not keep the region alive.
#[derive(Clone, Debug)]
pub struct Bell {
    mapping: Weak<Mapping>,
    at: usize,
}

impl Bell {
    /// Writes the word if the region still exists. Only one thread may call this method at a time.
    pub fn set(&self, value: u64) {
        if let Some(mapping) = self.mapping.upgrade() {
            mapping.word(self.at).store(value, Ordering::Relaxed);
        }
    }

    /// Returns `true` if the region still exists.
    #[must_use]
    pub fn is_heard(&self) -> bool {
        self.mapping.strong_count() > 0
    }
}

/// A region that another process created and that this process has mapped for reading.
#[derive(Debug)]
pub struct PeerRegion {
    mapping: Mapping,
    division: Division,
}

impl PeerRegion {
    /// Maps the region that `file` contains.
    ///
    /// # Errors
    /// Returns an error if the file is not a sealed memfd of the expected size, because reading a
    /// file that is too short, or that shrinks, could end this process. Otherwise, returns the
    /// operating system's error.
    pub(crate) fn map(file: &OwnedFd, division: Division) -> io::Result<Self> {
        let bytes = division.total_bytes();
        let seals = fcntl_get_seals(file)?;
        let size = fstat(file)?.st_size;
        if !seals.contains(SealFlags::SHRINK) || u64::try_from(size) != Ok(bytes as u64) {
            return Err(io::Error::other(format!(
                "the peer's memory has {size} bytes instead of {bytes}, or is not sealed"
            )));
        }
        let mapping = Mapping::new(file.as_fd(), bytes, libc::PROT_READ)?;
        Ok(Self { mapping, division })
    }

    /// Returns the number of plain bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.division.bytes
    }

    /// Returns bytes `from..from + length` of the plain part.
    #[must_use]
    #[inline]
    pub fn bytes(&self, from: usize, length: usize) -> &[u8] {
        let offset = self.division.range(from, length);
        // SAFETY: the range is in the mapping after the words (`range`), is initialized (a memfd
        // starts as zeros) and stays mapped, because the file cannot shrink. Its owner writes no
        // byte that it has published and that was not acknowledged yet, and this is called only for
        // such bytes. An owner that breaks this can make the bytes any bytes, which it could have
        // published in the first place: they are plain data, copied or folded.
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
