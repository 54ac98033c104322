//! Checks which user runs the process at the other end of a connection within this host.
//!
//! In a job without a secret, a handshake proves nothing, and any user of the host can connect to a
//! loopback address. So this module asks the kernel: `/proc/net/tcp` and `tcp6` list every socket
//! in the network namespace, together with the user that created it.

use super::descriptors;
use super::failure::Failure;
use mio::net::TcpStream;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};

/// Maximum number of times that the list is read. A single read may miss a socket while others are
/// being opened and closed.
const READS_MAX: usize = 3;
/// The value in the state column of an established connection.
const ESTABLISHED: &str = "01";

/// Checks that the process at the other end of `stream` runs as the same user as this process.
///
/// # Errors
/// Returns [`Failure::Broken`] if that process runs as a different user or its user cannot be
/// determined, and [`Failure::Starved`] if this process has too many open files.
pub(super) fn check(stream: &TcpStream) -> Result<(), Failure> {
    let ours = rustix::process::geteuid().as_raw();
    let ends = stream
        .peer_addr()
        .and_then(|theirs| Ok((theirs, stream.local_addr()?)));
    let (theirs, here) = ends?;
    let advice = "without RINGTREE_SECRET, all ranks must run as the same user; set the secret on \
                  every rank";
    let why = match look_up(theirs, here) {
        Ok(Some(user)) if user == ours => return Ok(()),
        Ok(Some(user)) => {
            format!(
                "the process at {theirs} runs as user {user}, but this process runs as user \
                     {ours}; {advice}"
            )
        }
        Ok(None) => format!("the kernel does not list a process at {theirs}; {advice}"),
        Err(error) => match error.raw_os_error() {
            Some(code) if descriptors::are_exhausted(&error) => return Err(Failure::Starved(code)),
            _ => format!("cannot find the user of the process at {theirs}: {error}; {advice}"),
        },
    };
    Err(Failure::Broken(why))
}

/// Returns the user that owns the socket that is connected from `theirs` to `here`.
fn look_up(theirs: SocketAddr, here: SocketAddr) -> io::Result<Option<u32>> {
    let table = match theirs {
        SocketAddr::V4(_) => "/proc/net/tcp",
        SocketAddr::V6(_) => "/proc/net/tcp6",
    };
    for _ in 0..READS_MAX {
        for line in BufReader::new(File::open(table)?).lines() {
            if let Some(user) = user_in(&line?, theirs, here) {
                return Ok(Some(user));
            }
        }
    }
    Ok(None)
}

/// Returns the user in a line of the table, if the line describes the connection from `theirs` to
/// `here`.
fn user_in(line: &str, theirs: SocketAddr, here: SocketAddr) -> Option<u32> {
    // sl local_address rem_address st tx:rx tr:when retrnsmt uid
    let mut columns = line.split_whitespace().skip(1);
    let (local, remote, state) = (columns.next()?, columns.next()?, columns.next()?);
    let is_it =
        state == ESTABLISHED && address(local) == Some(theirs) && address(remote) == Some(here);
    is_it.then(|| columns.nth(3)?.parse().ok()).flatten()
}

/// Parses an address from the table. It consists of 32-bit words in the CPU's byte order, a colon
/// and the port, all in hexadecimal.
fn address(text: &str) -> Option<SocketAddr> {
    let (digits, port) = text.split_once(':')?;
    let mut bytes = Vec::with_capacity(16);
    for at in (0..digits.len()).step_by(8) {
        let word = u32::from_str_radix(digits.get(at..at + 8)?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let address = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        _ => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
    };
    Some(SocketAddr::new(
        address,
        u16::from_str_radix(port, 16).ok()?,
    ))
}

#[cfg(test)]
mod tests;
