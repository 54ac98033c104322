//! Carries rank 0's address and a fresh secret to the other ranks of a step of Slurm, protected by
//! munge.
//!
//! Rank 0 listens at the step's address. To each process that connects, it sends a new credential
//! that contains the job's ID, and closes the connection. Anyone may connect, but only processes of
//! the same user on hosts of the cluster can read a credential. A rank accepts a credential only if
//! it comes from the same user and from the same step.

use super::address::{BACKLOG, reserve, resolve};
use super::unique_id::UniqueId;
use crate::sys::munge::Munge;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Maximum time of one attempt to connect to rank 0 and of one read.
const ATTEMPT_MAX: Duration = Duration::from_millis(500);
/// The pause after a failure.
const PAUSE: Duration = Duration::from_millis(10);
/// Maximum length of a credential. One with an ID has about 300 bytes.
const CREDENTIAL_BYTES_MAX: u64 = 4096;

/// Passes an ID to the other ranks until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    /// Wakes the server's thread when it is dropped.
    _running: UnixStream,
}

impl Server {
    /// Starts passing `id` to the ranks of `step`. Listens at the port of `address` or, if that
    /// port is in use, at the next one.
    ///
    /// # Errors
    /// Returns a message if munge is not available or if both ports are in use.
    pub(super) fn start(address: &str, step: &str, id: &UniqueId) -> Result<Self, String> {
        let munge = Munge::load().ok_or("libmunge.so.2 is not installed")?;
        let content = content(step, id);
        // Fail now if munge's daemon does not answer.
        munge.encode(&content)?;
        let port = port_of(address).ok_or("the address has no port")?;
        let ports = [port, port.saturating_add(1)];
        let listener = ports
            .into_iter()
            .find_map(|port| listen_everywhere(port).ok());
        let listener = listener.ok_or_else(|| format!("ports {ports:?} are in use"))?;
        let (running, stopped) = UnixStream::pair().map_err(|error| error.to_string())?;
        let serve = move || serve(&listener, &stopped, || munge.encode(&content));
        let thread = std::thread::Builder::new().name("ringtree-munge".to_owned());
        let spawned = thread.spawn(serve);
        spawned.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Self { _running: running })
    }
}

/// Listens on all interfaces, because a credential may be sent to anyone. Accepts IPv4 and, if
/// available, IPv6.
fn listen_everywhere(port: u16) -> io::Result<TcpListener> {
    let at = |ip: IpAddr| {
        let (socket, _) = reserve(SocketAddr::new(ip, port))?;
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    };
    at(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| at(Ipv4Addr::UNSPECIFIED.into()))
}

/// Sends a credential to each process that connects, until the other end of `stopped` is closed.
fn serve(
    listener: &TcpListener,
    stopped: &UnixStream,
    credential: impl Fn() -> Result<String, String>,
) {
    loop {
        let mut ready = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::new(stopped, PollFlags::IN),
        ];
        if poll(&mut ready, None).is_err() {
            continue;
        }
        if !ready[1].revents().is_empty() {
            return;
        }
        let sent = listener.accept().and_then(|(mut stream, _)| {
            let credential = credential().map_err(io::Error::other)?;
            stream.set_write_timeout(Some(ATTEMPT_MAX))?;
            stream.write_all(credential.as_bytes())
        });
        if sent.is_err() {
            // The rank connects again. A lack of descriptors must not keep this thread busy.
            std::thread::sleep(PAUSE);
        }
    }
}

/// Asks rank 0 for the ID of `step`. Tries the port of `address` and the next one.
///
/// # Errors
/// Returns the reason why there is no ID yet.
pub(super) fn fetch(address: &str, step: &str) -> Result<UniqueId, String> {
    let munge = Munge::load().ok_or("libmunge.so.2 is not installed")?;
    let until = Instant::now() + ATTEMPT_MAX;
    let remotes = resolve("SLURM_STEP_NODELIST", address, until);
    let remotes = remotes.map_err(|error| error.to_string())?;
    let mut why = format!("{address} has no address");
    for mut remote in remotes {
        for port in [remote.port(), remote.port().saturating_add(1)] {
            remote.set_port(port);
            let credential = credential_from(remote).map_err(|error| error.to_string());
            let content = credential.and_then(|text| munge.decode(&text));
            match content.and_then(|content| id_in(&content, step)) {
                Ok(id) => return Ok(id),
                Err(error) => why = format!("{remote}: {error}"),
            }
        }
    }
    Err(why)
}

fn credential_from(remote: SocketAddr) -> io::Result<String> {
    let stream = TcpStream::connect_timeout(&remote, ATTEMPT_MAX)?;
    stream.set_read_timeout(Some(ATTEMPT_MAX))?;
    let mut credential = String::new();
    stream
        .take(CREDENTIAL_BYTES_MAX)
        .read_to_string(&mut credential)?;
    Ok(credential)
}

/// Returns the bytes that a credential contains.
fn content(step: &str, id: &UniqueId) -> Vec<u8> {
    [b"ringtree ", step.as_bytes(), b"\0", &id.to_bytes()[..]].concat()
}

/// Returns the ID in the bytes of a credential, if it belongs to `step`.
fn id_in(content: &[u8], step: &str) -> Result<UniqueId, String> {
    let start = [b"ringtree ", step.as_bytes(), b"\0"].concat();
    let id = content.strip_prefix(&start[..]);
    let id = id.ok_or("the credential belongs to another job")?;
    UniqueId::from_bytes(id).map_err(|error| error.to_string())
}

fn port_of(address: &str) -> Option<u16> {
    address.rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests;
