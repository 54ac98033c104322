use super::*;
use std::io::Read;
use std::net::{TcpListener, TcpStream};

/// Returns the two ends of a connection.
fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

/// Runs `body` while an idle forked child exists.
pub(crate) fn with_forked_child(body: impl FnOnce()) {
    let (reader, writer) = std::io::pipe().unwrap();
    let (ours, theirs) = (writer.as_raw_fd(), reader.as_raw_fd());
    // SAFETY: the child makes only async-signal-safe calls on plain integers and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut byte = 0u8;
        // SAFETY: as above. It reads into a live local variable and exits when the parent
        // closes the pipe.
        unsafe {
            libc::close(ours);
            libc::read(theirs, (&raw mut byte).cast(), 1);
            libc::_exit(0);
        }
    }
    assert!(child > 0);
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
    drop(writer);
    // SAFETY: this waits for the child just created, for which no other code waits.
    let waited = unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    assert_eq!(waited, child);
    ended.unwrap();
}

#[test]
fn forked_child_does_not_hold_connection_open() {
    let (near, mut far) = pair();
    let (kept, mut other) = pair();
    close_in_children(&near).unwrap();
    with_forked_child(|| {
        drop((near, kept));
        assert_eq!(far.read(&mut [0]).unwrap(), 0, "the connection has ended");
        other.set_nonblocking(true).unwrap();
        assert!(
            other.read(&mut [0]).is_err(),
            "the child holds the connection open"
        );
    });
    other.set_nonblocking(false).unwrap();
    assert_eq!(other.read(&mut [0]).unwrap(), 0);
}

#[test]
fn identity_distinguishes_sockets_and_files() {
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
