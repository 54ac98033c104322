//! Sockets and files that a forked child does not hold.
//!
//! A child that is forked and runs no other program, as data loaders are, inherits every
//! descriptor. When its parent is killed, such a child would keep the parent's connections open,
//! and no peer would notice the death; it would keep the parent's file locks, too. So a handler in
//! the child puts `/dev/null` in their places: the parent's files stay as they are, and every
//! number still means something to whatever object of the child's memory holds it.
//!
//! A socket is known by its cookie, which the kernel gives to no other one, and any other file by
//! its file system and its number there. So a file that was closed needs not be reported here, and
//! a descriptor that has its number now is left alone.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

/// Files with higher descriptors are inherited.
const DESCRIPTORS_MAX: usize = 1 << 16;

/// By descriptor: which file it stands for, or 0.
static FILES: [AtomicU64; DESCRIPTORS_MAX] = [const { AtomicU64::new(0) }; DESCRIPTORS_MAX];
/// No higher descriptor has a file here.
static USED: AtomicUsize = AtomicUsize::new(0);
/// A descriptor of `/dev/null`, once the handler is there.
static NULL: AtomicI32 = AtomicI32::new(-1);

/// From now on no forked child holds `file`.
///
/// # Errors
/// The system's; then children hold it.
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

/// Registers the handler, once.
fn prepare() -> io::Result<()> {
    static IS_REGISTERED: Mutex<bool> = Mutex::new(false);
    let mut is_registered = IS_REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    if *is_registered {
        return Ok(());
    }
    if NULL.load(Ordering::Relaxed) < 0 {
        let null = File::options().read(true).write(true).open("/dev/null")?;
        NULL.store(null.into_raw_fd(), Ordering::Relaxed);
    }
    // SAFETY: `in_child` may be called in any forked child: it uses atomics of static lifetime and
    // async-signal-safe system calls, allocates nothing, takes no lock and cannot panic.
    match unsafe { libc::pthread_atfork(None, None, Some(in_child)) } {
        0 => *is_registered = true,
        error => return Err(io::Error::from_raw_os_error(error)),
    }
    Ok(())
}

/// Runs in every forked child, on its only thread, before `fork` returns.
extern "C" fn in_child() {
    let null = NULL.load(Ordering::Relaxed);
    let used = USED.load(Ordering::Relaxed);
    for (descriptor, file) in (0..).zip(FILES.iter().take(used)) {
        let file = file.load(Ordering::Relaxed);
        if file != 0 && identity(descriptor) == file {
            // SAFETY: both are plain integers. The file is one that its owner gave to
            // `close_in_children`; its descriptor stays open, for another file. If it fails, the
            // child holds the file.
            unsafe { libc::dup3(null, descriptor, libc::O_CLOEXEC) };
        }
    }
}

/// Which file `descriptor` stands for; 0 if for none.
fn identity(descriptor: i32) -> u64 {
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, those of a live local of that size.
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
    // SAFETY: the kernel writes one `stat`, into a live local of that type.
    if unsafe { libc::fstat(descriptor, status.as_mut_ptr()) } != 0 {
        return 0;
    }
    // SAFETY: `fstat` has succeeded, so the kernel has filled it.
    let status = unsafe { status.assume_init() };
    // Cookies are counted from 1 and come nowhere near the last bit.
    (status.st_ino ^ status.st_dev.rotate_left(32)) | 1 << 63
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    /// The two ends of a connection.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    /// Runs `body` while a forked child lives that does nothing.
    pub(crate) fn beside_a_child(body: impl FnOnce()) {
        let (reader, writer) = std::io::pipe().unwrap();
        let (ours, theirs) = (writer.as_raw_fd(), reader.as_raw_fd());
        // SAFETY: the child makes only async-signal-safe calls on plain integers and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut byte = 0u8;
            // SAFETY: as above; it reads into a live local and ends when the parent closes.
            unsafe {
                libc::close(ours);
                libc::read(theirs, (&raw mut byte).cast(), 1);
                libc::_exit(0);
            }
        }
        assert!(child > 0);
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        drop(writer);
        // SAFETY: waits for the child just made, which no other code waits for.
        let waited = unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        assert_eq!(waited, child);
        ended.unwrap();
    }

    #[test]
    fn a_forked_child_keeps_no_connection_of_its_parent_open() {
        let (near, mut far) = pair();
        let (kept, mut other) = pair();
        close_in_children(&near).unwrap();
        beside_a_child(|| {
            drop((near, kept));
            assert_eq!(far.read(&mut [0]).unwrap(), 0, "the connection has ended");
            other.set_nonblocking(true).unwrap();
            assert!(other.read(&mut [0]).is_err(), "the child holds this one");
        });
        other.set_nonblocking(false).unwrap();
        assert_eq!(other.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn a_number_that_means_something_else_by_now_is_left_alone() {
        let (near, far) = pair();
        let file = || tempfile::tempfile().unwrap();
        let (one, other) = (file(), file());
        let identities = [
            near.as_raw_fd(),
            far.as_raw_fd(),
            one.as_raw_fd(),
            other.as_raw_fd(),
        ]
        .map(identity);
        let different: std::collections::BTreeSet<_> = identities.into_iter().collect();
        assert!(different.len() == 4 && !different.contains(&0));
        assert_eq!(
            identity(one.try_clone().unwrap().as_raw_fd()),
            identities[2]
        );
        assert_eq!(identity(-1), 0);
    }
}
