//! Reads and sets properties of TCP connections that have no other safe wrapper.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Option that limits the time between two transmissions, in milliseconds. It has existed since
/// Linux 6.15.
const TCP_RTO_MAX_MS: libc::c_int = 44;

/// The state of the acknowledgments from the host at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    /// `true` if bytes or probes have been sent that have not been acknowledged yet.
    pub is_awaited: bool,
    /// The time since the last acknowledgment arrived.
    pub last: Duration,
}

/// Returns the state of the acknowledgments on `socket`.
///
/// # Errors
/// Returns the operating system's error, for example if `socket` is not a TCP connection.
pub(crate) fn acknowledged(socket: &impl AsFd) -> io::Result<Acknowledged> {
    let info = info(socket)?;
    Ok(Acknowledged {
        is_awaited: info.tcpi_unacked > 0 || info.tcpi_probes > 0,
        last: Duration::from_millis(info.tcpi_last_ack_recv.into()),
    })
}

/// Returns the round-trip time of `socket`, which is the time from sending bytes until their
/// acknowledgment arrives.
///
/// # Errors
/// Returns the operating system's error, for example if `socket` is not a TCP connection.
pub(crate) fn round_trip(socket: &impl AsFd) -> io::Result<Duration> {
    info(socket).map(|info| Duration::from_micros(info.tcpi_rtt.into()))
}

fn info(socket: &impl AsFd) -> io::Result<libc::tcp_info> {
    // SAFETY: every bit pattern, including zeros, is a valid value of this struct of integers.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes, into the live
    // local variable.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(info)
}

/// Makes the kernel retransmit lost bytes, and probe a receiver that accepts no bytes, after at
/// most `most`.
///
/// # Errors
/// Returns the operating system's error. Older kernels do not have this option. They wait longer
/// each time, up to two minutes.
pub(crate) fn try_again_within(socket: &impl AsFd, most: Duration) -> io::Result<()> {
    let most = libc::c_int::try_from(most.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: the descriptor is open, and the kernel reads the bytes of a live local variable.
    let failed = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_RTO_MAX_MS,
            (&raw const most).cast(),
            size_of_val(&most) as libc::socklen_t,
        )
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
