//! Resolves addresses, opens listeners and determines the names of this host.

use crate::error::{Error, Result};
use crate::limits::RESOLVE_RETRY_TIME;
use crate::sys::interfaces;
use mio::net::TcpListener;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

/// Requested length of a listener's accept queue. The system caps it at its own limit.
pub(super) const BACKLOG: i32 = 4096;
/// The pause before name resolution is retried.
const RESOLVE_PAUSE: Duration = Duration::from_millis(250);

/// Resolves `endpoint`, given as `HOST:PORT`, and returns its addresses in the order in which the
/// system reports them.
///
/// `what` describes the endpoint in messages. If the name does not resolve, the function keeps
/// retrying for up to [`RESOLVE_RETRY_TIME`]. The library resolves names nowhere else.
pub(crate) fn resolve(what: &str, endpoint: &str, deadline: Instant) -> Result<Vec<SocketAddr>> {
    let wrong = |why: &str| Error::configuration(format!("{what} {endpoint} {why}"));
    let deadline = deadline.min(Instant::now() + RESOLVE_RETRY_TIME);
    let addresses: Vec<SocketAddr> = loop {
        let why = match endpoint.to_socket_addrs() {
            Ok(addresses) if addresses.len() > 0 => break addresses.collect(),
            Ok(_) => "the name has no address".to_owned(),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                return Err(wrong(&format!("is not of the form HOST:PORT: {error}")));
            }
            Err(error) => error.to_string(),
        };
        if Instant::now() + RESOLVE_PAUSE >= deadline {
            let message = format!("cannot resolve {what} {endpoint}: {why}");
            return Err(Error::join(message));
        }
        thread::sleep(RESOLVE_PAUSE);
    };
    let is_wildcard = |address: &SocketAddr| address.ip().is_unspecified();
    if addresses.iter().any(is_wildcard) {
        return Err(wrong(
            "is a wildcard address; use an address of rank 0's host",
        ));
    }
    Ok(addresses)
}

/// Returns the address from which this host reaches other hosts: the source address of the default
/// route; if there is no such route, an interface address, preferably IPv4; failing that, loopback.
pub(super) fn outward() -> IpAddr {
    // Connecting a datagram socket sends nothing. These addresses are reserved (RFC 5737, 3849).
    let routes = [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")];
    let route = |(own, other)| {
        let socket = UdpSocket::bind(own).ok()?;
        socket.connect(other).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let by_route = routes.into_iter().filter_map(route);
    let mut own = interfaces::addresses().unwrap_or_default();
    own.sort_by_key(|(_, address)| address.is_ipv6());
    let of_interfaces = own.into_iter().map(|(_, address)| address);
    let is_usable = |address: &IpAddr| {
        !address.is_unspecified() && !address.is_loopback() && !is_link_local(*address)
    };
    let usable = by_route.chain(of_interfaces).find(is_usable);
    usable.unwrap_or(IpAddr::from([127, 0, 0, 1]))
}

/// Reserves the port of `address`, or a free port if that port is 0, for as long as the returned
/// socket exists. The socket does not listen. Only a socket that explicitly requests this port can
/// also bind to it.
pub(super) fn reserve(address: SocketAddr) -> io::Result<(Socket, SocketAddr)> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    // A restarted job must not have to wait until the old connections leave TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    let bound = socket.local_addr()?.as_socket();
    Ok((socket, bound.expect("invariant: the socket is of TCP")))
}

/// Listens on `address`.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    listen_at(reserve(address)?.0)
}

/// Starts listening on `socket`, which is already bound.
pub(super) fn listen_at(socket: Socket) -> io::Result<TcpListener> {
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(TcpListener::from_std(socket.into()))
}

/// Returns an address of the interface whose name or address is `asked`, preferably one of the same
/// family as `like`.
pub(super) fn interface_address(asked: &str, like: IpAddr) -> Result<IpAddr> {
    let all =
        interfaces::addresses().map_err(|error| Error::io("cannot list interfaces", &error))?;
    let address = asked.parse::<IpAddr>().ok();
    let mut found = all
        .iter()
        .filter(|(name, own)| name == asked || address == Some(*own))
        .map(|(_, own)| *own)
        .filter(|own| !is_link_local(*own))
        .collect::<Vec<_>>();
    found.sort_by_key(|own| own.is_ipv4() != like.is_ipv4());
    found.first().copied().ok_or_else(|| {
        let mut names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        Error::configuration(format!(
            "RINGTREE_INTERFACE={asked} is not an interface or address of this host; use one of {}",
            names.join(", ")
        ))
    })
}

/// Returns `true` if the address is valid only with a scope ID, which an `IpAddr` cannot hold.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

fn first_line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

/// Returns the name of this host, for use in messages.
#[must_use]
pub fn host_name() -> String {
    first_line("/proc/sys/kernel/hostname").unwrap_or_else(|| "unknown host".to_owned())
}

/// Returns the maximum number of bytes in a TCP segment of this connection.
///
/// # Errors
/// Returns the operating system's error.
pub fn segment_bytes(stream: &TcpStream) -> io::Result<u32> {
    SockRef::from(stream).tcp_mss()
}

/// Returns a string that is the same for all ranks on this host or in this container and different
/// elsewhere.
pub(super) fn host_id() -> String {
    format!("{}/{}", boot_id().unwrap_or_default(), host_name())
}

/// Returns a string that changes each time the kernel boots and is the same in all containers on
/// that kernel.
pub(super) fn boot_id() -> Option<String> {
    first_line("/proc/sys/kernel/random/boot_id")
}

#[cfg(test)]
mod tests;
