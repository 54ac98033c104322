//! Takes over a listening socket that this process has inherited from its parent.

use crate::lock::lock;
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::net::sockopt::{socket_acceptconn, socket_type};
use rustix::net::{AddressFamily, SocketType, getpeername, sockopt::socket_domain};
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Mutex;

/// Descriptors that have been taken over. Each of them can be taken over only once.
static TAKEN: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

fn refused(descriptor: RawFd, why: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("descriptor {descriptor} {why}"),
    )
}

/// Checks that `descriptor` is an open socket.
fn check_socket(descriptor: RawFd) -> io::Result<()> {
    let link = fs::read_link(format!("/proc/self/fd/{descriptor}"))
        .map_err(|_| refused(descriptor, "is not open"))?;
    match descriptor > 2 && link.to_string_lossy().starts_with("socket:") {
        true => Ok(()),
        false => Err(refused(descriptor, "is not a socket")),
    }
}

/// Takes over `descriptor`, which must be a listening TCP socket, and makes sure that it is closed
/// in new programs that this process starts. Returns `None` if the descriptor has been taken over
/// before, because it may now refer to a different file.
///
/// # Errors
/// Returns an error if the descriptor is not a listening TCP socket, in which case it stays open.
/// Otherwise, returns the operating system's error.
pub(crate) fn take_listener(descriptor: RawFd) -> io::Result<Option<TcpListener>> {
    let mut taken = lock(&TAKEN);
    if taken.contains(&descriptor) {
        return Ok(None);
    }
    check_socket(descriptor)?;
    // SAFETY: the descriptor is open (its link was read), and the parent that named it gave it to
    // this process to own. `TAKEN` lets only one caller become the owner. If it turns out to be
    // something else, it is released again below, unclosed.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let listens = socket_type(&socket).is_ok_and(|kind| kind == SocketType::STREAM)
        && socket_acceptconn(&socket).unwrap_or(false)
        && socket_domain(&socket).is_ok_and(|domain| {
            domain == rustix::net::AddressFamily::INET
                || domain == rustix::net::AddressFamily::INET6
        });
    if !listens {
        let _not_ours = socket.into_raw_fd();
        return Err(refused(descriptor, "is not a listening TCP socket"));
    }
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    taken.push(descriptor);
    Ok(Some(TcpListener::from(socket)))
}

/// Returns a duplicate of `descriptor`, which must be one end of a pair of local sockets whose
/// other end a launcher holds. The original stays open.
///
/// # Errors
/// Returns an error if the descriptor is not such a socket, or the operating system's error.
pub(crate) fn duplicate_socket(descriptor: RawFd) -> io::Result<OwnedFd> {
    check_socket(descriptor)?;
    // SAFETY: the descriptor is open (its link was read), and is borrowed only for this call. If
    // another thread closes it in the meantime, the call fails or duplicates another descriptor.
    // Neither breaks memory.
    let socket = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let socket = fcntl_dupfd_cloexec(socket, 3)?;
    // The program may have closed the descriptor and opened another socket under its number.
    let is_local = socket_domain(&socket)? == AddressFamily::UNIX;
    let is_stream = socket_type(&socket)? == SocketType::STREAM;
    let peer = getpeername(&socket)?;
    let is_unnamed = peer.is_some_and(|peer| peer.addr_len() as usize <= size_of::<u16>());
    match is_local && is_stream && is_unnamed {
        true => Ok(socket),
        false => Err(refused(descriptor, "is not connected to a launcher")),
    }
}

#[cfg(test)]
mod tests;
