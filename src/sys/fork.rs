//! Replaces sockets and files in forked children, so that a child does not keep them open.
//!
//! A child that is forked but does not run a different program, such as a data loader, inherits
//! every descriptor. If its parent is killed, the child would keep the parent's connections open,
//! and no peer would notice the death. The child would also keep the parent's file locks. So a
//! handler in the child replaces these files with `/dev/null`. The parent's files are unaffected,
//! and the descriptors remain valid for the objects in the child's memory that hold them.
//!
//! A socket is identified by its cookie, which is unique in the kernel. Any other file is
//! identified by its file system and inode number. So callers need not report that they have closed
//! a file, and a descriptor that reuses its number is left unchanged.

use crate::lock::lock;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

/// Number of descriptors that can be replaced. Children inherit files that have higher descriptors.
const DESCRIPTORS_MAX: usize = 1 << 16;

/// Identity of the file to replace, indexed by descriptor; 0 if the descriptor must not be
/// replaced.
static FILES: [AtomicU64; DESCRIPTORS_MAX] = [const { AtomicU64::new(0) }; DESCRIPTORS_MAX];
/// The highest descriptor that has an entry in [`FILES`], plus one.
static USED: AtomicUsize = AtomicUsize::new(0);
/// A descriptor for `/dev/null`, or -1 until it has been opened.
static NULL: AtomicI32 = AtomicI32::new(-1);

/// Makes sure that children that are forked afterwards do not keep `file` open.
///
/// # Errors
/// Returns the operating system's error. In that case, children keep the file open.
pub(crate) fn close_in_children(file: &impl AsFd) -> io::Result<()> {
    prepare()?;
    let descriptor = file.as_fd().as_raw_fd();
    let at = usize::try_from(descriptor).unwrap_or(usize::MAX);
    if let Some(place) = FILES.get(at) {
        place.store(identity(descriptor), Ordering::Relaxed);
        USED.fetch_max(at + 1, Ordering::Relaxed);
    }
    Ok(())
}

/// Registers the handler, unless it is already registered.
fn prepare() -> io::Result<()> {
    static IS_REGISTERED: Mutex<bool> = Mutex::new(false);
    let mut is_registered = lock(&IS_REGISTERED);
    if *is_registered {
        return Ok(());
    }
    if NULL.load(Ordering::Relaxed) < 0 {
        let null = File::options().read(true).write(true).open("/dev/null")?;
        NULL.store(null.into_raw_fd(), Ordering::Relaxed);
    }
    // SAFETY: `in_child` may be called in any forked child. It uses atomics of static lifetime and
    // async-signal-safe system calls, allocates nothing, takes no lock and cannot panic.
    match unsafe { libc::pthread_atfork(None, None, Some(in_child)) } {
        0 => *is_registered = true,
        error => return Err(io::Error::from_raw_os_error(error)),
    }
    Ok(())
}

/// Replaces the files. This function runs in every forked child, on its only thread, before `fork`
/// returns.
extern "C" fn in_child() {
    let null = NULL.load(Ordering::Relaxed);
    let used = USED.load(Ordering::Relaxed);
    for (descriptor, file) in (0..).zip(FILES.iter().take(used)) {
        let file = file.load(Ordering::Relaxed);
        if file != 0 && identity(descriptor) == file {
            // SAFETY: both are plain integers. The file is one that its owner passed to
            // `close_in_children`. Its descriptor stays open, for another file. If the call fails,
            // the child holds the file.
            unsafe { libc::dup3(null, descriptor, libc::O_CLOEXEC) };
        }
    }
}

/// Returns the identity of the file that `descriptor` refers to, or 0 if there is no such file.
fn identity(descriptor: i32) -> u64 {
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, into a live local variable of that size.
    let failed = unsafe {
        libc::getsockopt(
            descriptor,
            libc::SOL_SOCKET,
            libc::SO_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if failed == 0 {
        return cookie;
    }
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel writes one `stat`, into a live local variable of that type.
    if unsafe { libc::fstat(descriptor, status.as_mut_ptr()) } != 0 {
        return 0;
    }
    // SAFETY: `fstat` has succeeded, so the kernel has initialized the value.
    let status = unsafe { status.assume_init() };
    // The highest bit distinguishes the result from a cookie, because cookies count from 1 and
    // never reach that bit.
    (status.st_ino ^ status.st_dev.rotate_left(32)) | 1 << 63
}

#[cfg(test)]
pub(crate) mod tests;
