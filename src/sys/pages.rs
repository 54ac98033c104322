//! Memory that several processes write: words that streams wait for, and pretended device memory.
//!
//! Both are memfds: without a name in any file system, gone with the last process that holds them,
//! sealed against a change of size. Unlike [`super::shared`]'s regions, every process that holds
//! the file writes them, whenever it likes, so that nothing here is ever a plain reference: all
//! access is atomic, of one size a file.

use super::shared::Mapping;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Files are multiples of this long; so are the pieces that a driver can register.
const PAGE_BYTES: usize = 4096;
/// Bytes that are read and written at once.
const GRAIN_BYTES: usize = size_of::<u64>();

/// A sealed memfd, mapped for reading and writing.
#[derive(Debug)]
struct Pages {
    mapping: Mapping,
    file: OwnedFd,
    bytes: usize,
}

impl Pages {
    fn new(bytes: usize) -> io::Result<Self> {
        let bytes = bytes
            .max(1)
            .checked_next_multiple_of(PAGE_BYTES)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("ringtree-device", flags)?;
        ftruncate(&file, bytes as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::map(file, bytes)
    }

    fn open(file: OwnedFd) -> io::Result<Self> {
        let seals = fcntl_get_seals(&file)?;
        let bytes = usize::try_from(fstat(&file)?.st_size).unwrap_or(0);
        // A file that shrinks under its readers would end the process.
        if !seals.contains(SealFlags::SHRINK) || bytes == 0 || bytes % PAGE_BYTES != 0 {
            return Err(io::Error::other(
                "the peer's memory is not sealed, or not of whole pages",
            ));
        }
        Self::map(file, bytes)
    }

    fn map(file: OwnedFd, bytes: usize) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let mapping = Mapping::new(file.as_fd(), bytes, access)?;
        Ok(Self {
            mapping,
            file,
            bytes,
        })
    }
}

/// Words of 32 bits that this process, its streams and other processes read and write.
///
/// ```
/// let words = ringtree::sys::pages::SharedWords::new(2).expect("a page of memory");
/// words.store(1, 7);
/// assert_eq!((words.load(0), words.load(1)), (0, 7));
/// ```
#[derive(Debug)]
pub struct SharedWords {
    pages: Pages,
}

impl SharedWords {
    /// At least `count` words, all zero.
    ///
    /// # Errors
    /// The system's.
    pub fn new(count: usize) -> io::Result<Self> {
        let bytes = count.checked_mul(size_of::<u32>());
        let pages = Pages::new(bytes.ok_or(io::ErrorKind::OutOfMemory)?)?;
        Ok(Self { pages })
    }

    /// The words behind another process's [`SharedWords::file`].
    ///
    /// # Errors
    /// The file is no such file, or the system's error.
    pub fn open(file: OwnedFd) -> io::Result<Self> {
        let pages = Pages::open(file)?;
        Ok(Self { pages })
    }

    /// How many words there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.pages.bytes / size_of::<u32>()
    }

    /// The file, to be handed to other processes.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.pages.file.as_fd()
    }

    /// How many bytes the file has.
    #[must_use]
    pub fn file_bytes(&self) -> usize {
        self.pages.bytes
    }

    /// The word at `at`; what was written before it was, is seen after this.
    ///
    /// # Panics
    /// There is no word at `at`.
    #[must_use]
    pub fn load(&self, at: usize) -> u32 {
        self.word(at).load(Ordering::Acquire)
    }

    /// Writes the word at `at`, after everything written before.
    ///
    /// # Panics
    /// There is no word at `at`.
    pub fn store(&self, at: usize, value: u32) {
        self.word(at).store(value, Ordering::Release);
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at < self.count(), "invariant: a word of the file");
        // SAFETY: the word lies in the mapping, which starts at a page and is mapped as long as
        // `self` is; words of this file are only ever reached as atomics of 32 bits.
        unsafe {
            self.pages
                .mapping
                .start
                .cast::<AtomicU32>()
                .add(at)
                .as_ref()
        }
    }

    /// Where the words are mapped, and how long the mapping is, for a driver to register.
    pub(super) fn mapped(&self) -> (*mut u8, usize) {
        (self.pages.mapping.start.as_ptr(), self.pages.bytes)
    }
}

/// Bytes that processes copy in and out of, as streams do with a device's memory: what is read
/// while somebody writes it is some mixture of old and new, and never undefined.
///
/// For pretended devices in tests; a byte is never lent out as a reference.
#[derive(Debug)]
pub struct SharedBytes {
    pages: Pages,
}

impl SharedBytes {
    /// At least `bytes` bytes, all zero.
    ///
    /// # Errors
    /// The system's.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let pages = Pages::new(bytes)?;
        Ok(Self { pages })
    }

    /// The bytes behind another process's [`SharedBytes::file`].
    ///
    /// # Errors
    /// The file is no such file, or the system's error.
    pub fn open(file: OwnedFd) -> io::Result<Self> {
        let pages = Pages::open(file)?;
        Ok(Self { pages })
    }

    /// How many bytes there are: whole pages.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pages.bytes
    }

    /// The file, to be handed to other processes.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.pages.file.as_fd()
    }

    /// Copies the bytes from `at` on into `into`.
    ///
    /// # Panics
    /// They reach beyond the end.
    pub fn read(&self, at: usize, into: &mut [u8]) {
        self.each_grain(at, into.len(), |grain, within, part| {
            let bytes = grain.load(Ordering::Relaxed).to_ne_bytes();
            let count = part.len();
            into[part].copy_from_slice(&bytes[within..][..count]);
        });
    }

    /// Copies `from` to the bytes from `at` on.
    ///
    /// # Panics
    /// They reach beyond the end.
    pub fn write(&self, at: usize, from: &[u8]) {
        self.each_grain(at, from.len(), |grain, within, part| {
            let new = &from[part];
            if let Ok(whole) = <[u8; GRAIN_BYTES]>::try_from(new) {
                grain.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
                return;
            }
            // The grain's other bytes may be written by somebody else meanwhile.
            let change = |old: u64| {
                let mut bytes = old.to_ne_bytes();
                bytes[within..][..new.len()].copy_from_slice(new);
                Some(u64::from_ne_bytes(bytes))
            };
            let _always_done = grain.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
        });
    }

    /// Calls `each` with every grain that the range touches, where in it the range begins, and
    /// which part of the range it holds.
    fn each_grain(
        &self,
        at: usize,
        length: usize,
        mut each: impl FnMut(&AtomicU64, usize, std::ops::Range<usize>),
    ) {
        let end = at.checked_add(length);
        assert!(
            end.is_some_and(|end| end <= self.pages.bytes),
            "invariant: bytes of the memory"
        );
        let mut done = 0;
        while done < length {
            let within = (at + done) % GRAIN_BYTES;
            let count = (GRAIN_BYTES - within).min(length - done);
            let grain = self.grain((at + done) / GRAIN_BYTES);
            each(grain, within, done..done + count);
            done += count;
        }
    }

    fn grain(&self, at: usize) -> &AtomicU64 {
        // SAFETY: the caller has checked that bytes of this grain lie in the mapping, which has
        // whole grains, starts at a page and is mapped as long as `self` is; bytes of this file
        // are only ever reached as atomics of 64 bits.
        unsafe {
            self.pages
                .mapping
                .start
                .cast::<AtomicU64>()
                .add(at)
                .as_ref()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_copied_at_any_alignment() {
        let memory = SharedBytes::new(100).unwrap();
        assert_eq!(memory.bytes(), PAGE_BYTES);
        let other = SharedBytes::open(memory.file().try_clone_to_owned().unwrap()).unwrap();
        let numbers: Vec<u8> = (1..=200).collect();
        for at in 0..9 {
            for length in [0, 1, 7, 8, 9, 15, 16, 17, 64] {
                memory.write(0, &[0xff; 100]);
                memory.write(at, &numbers[..length]);
                let mut read = vec![0; 100];
                other.read(0, &mut read);
                let mut expected = vec![0xff; 100];
                expected[at..][..length].copy_from_slice(&numbers[..length]);
                assert_eq!(read, expected);
                other.read(at, &mut read[..length]);
                assert_eq!(read[..length], numbers[..length]);
            }
        }
    }

    #[test]
    fn files_that_may_shrink_are_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("ringtree-test", flags).unwrap();
        ftruncate(&file, PAGE_BYTES as u64).unwrap();
        assert!(SharedWords::open(file.try_clone().unwrap()).is_err());
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        assert!(SharedWords::open(file).is_ok());
    }
}
