//! Carries rank 0's address and a fresh secret to the other ranks of a step of Slurm, protected by
//! munge.
//!
//! Rank 0 listens at the step's address. To each process that connects, it sends a new credential
//! that contains the job's ID, and closes the connection. Anyone may connect, but only processes of
//! the same user on hosts of the cluster can read a credential. A rank accepts a credential only if
//! it comes from the same user and from the same step.

use super::address::{BACKLOG, resolve};
use super::unique_id::UniqueId;
use crate::link::tcp::keep_from_children;
use crate::sys::munge::Munge;
use rustix::event::{PollFd, PollFlags, poll};
use socket2::{Domain, Socket, Type};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum time of one attempt to get a credential.
const ATTEMPT_MAX: Duration = Duration::from_secs(1);
/// The pause after a failure.
const PAUSE: Duration = Duration::from_millis(10);
/// Maximum length of a credential. One with an ID has about 300 bytes.
const CREDENTIAL_BYTES_MAX: usize = 4096;

/// Passes an ID to the other ranks until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    /// Wakes the server's thread when it is shut down.
    running: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // A forked child may have a copy of the socket, so closing it is not enough.
        let _ = self.running.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
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
        let thread = spawned.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Self {
            running,
            thread: Some(thread),
        })
    }
}

/// Listens on all interfaces, because a credential may be sent to anyone. Accepts IPv4 and, if
/// available, IPv6.
fn listen_everywhere(port: u16) -> io::Result<TcpListener> {
    let at = |ip: IpAddr| {
        let address = SocketAddr::new(ip, port);
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        keep_from_children(&socket);
        if ip.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
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
            stream.set_nonblocking(false)?;
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
    let until = Instant::now() + ATTEMPT_MAX;
    let mut stream = TcpStream::connect_timeout(&remote, ATTEMPT_MAX)?;
    let (mut credential, mut part) = (Vec::new(), [0; 512]);
    while credential.len() < CREDENTIAL_BYTES_MAX {
        // Another program may send byte by byte, so limit the time of all reads together.
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => break,
            count => credential.extend_from_slice(&part[..count]),
        }
    }
    String::from_utf8(credential).map_err(|_| io::Error::other("it sends no credential"))
}

/// Checks that this process can use munge, which may be installed although its daemon cannot be
/// reached, for example in a container.
///
/// # Errors
/// Returns munge's message.
pub(super) fn check() -> Result<(), String> {
    let munge = Munge::load().ok_or("libmunge.so.2 is not installed")?;
    let credential = munge.encode(b"ringtree")?;
    munge.decode(&credential).map(drop)
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
