//! The addresses and the names of this process: to resolve, to listen on, to be known by.

use crate::error::{Error, Result};
use crate::limits::RESOLVE_RETRY_TIME;
use crate::sys::interfaces;
use mio::net::TcpListener;
use socket2::{Domain, Protocol, Socket, Type};
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

/// Connections that the system holds for a listener; it lowers this to its own limit.
const BACKLOG: i32 = 4096;
/// Between two attempts to resolve the rendezvous.
const RESOLVE_PAUSE: Duration = Duration::from_millis(250);

/// The addresses of `endpoint`, a host and a port, in the system's order; `what` names it in
/// messages. A name that does not resolve is tried again for [`RESOLVE_RETRY_TIME`]. The library
/// resolves no other name.
pub(crate) fn resolve(what: &str, endpoint: &str, deadline: Instant) -> Result<Vec<SocketAddr>> {
    let wrong = |why: &str| Error::configuration(format!("{what} {endpoint} {why}"));
    let deadline = deadline.min(Instant::now() + RESOLVE_RETRY_TIME);
    let addresses: Vec<SocketAddr> = loop {
        let why = match endpoint.to_socket_addrs() {
            Ok(addresses) if addresses.len() > 0 => break addresses.collect(),
            Ok(_) => "it has no address".to_owned(),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                return Err(wrong(&format!("is no HOST:PORT: {error}")));
            }
            Err(error) => error.to_string(),
        };
        if Instant::now() + RESOLVE_PAUSE >= deadline {
            let message = format!("{what} {endpoint} cannot be resolved: {why}");
            return Err(Error::join(message));
        }
        thread::sleep(RESOLVE_PAUSE);
    };
    let is_wildcard = |address: &SocketAddr| address.ip().is_unspecified();
    if addresses.iter().any(is_wildcard) {
        return Err(wrong("is any address: name one host, where rank 0 is"));
    }
    Ok(addresses)
}

/// The address by which this host reaches others: that of the default route; without one, an
/// interface's, of the older kind first; or loopback.
pub(super) fn outward() -> IpAddr {
    // Connecting a datagram socket sends nothing. No host has these addresses (RFC 5737, 3849).
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

/// The port of `address`, or a free one if that is 0, kept for as long as the socket lives: it does
/// not listen, and only a socket that asks for this very port gets it as well.
pub(super) fn reserve(address: SocketAddr) -> io::Result<(Socket, SocketAddr)> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    let bound = socket.local_addr()?.as_socket();
    Ok((socket, bound.expect("invariant: the socket is of TCP")))
}

/// A listener on exactly `address`.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    // A restarted job must not wait for the old connections' last minute.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    listen_at(socket)
}

/// Lets a socket of [`bind_for_data`](super::listen::bind_for_data) listen.
pub(super) fn listen_at(socket: Socket) -> io::Result<TcpListener> {
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(TcpListener::from_std(socket.into()))
}

/// The address of the interface `asked`, by name or by address; of the same family as `like` if it
/// has one.
pub(super) fn interface_address(asked: &str, like: IpAddr) -> Result<IpAddr> {
    let all =
        interfaces::addresses().map_err(|error| Error::io("listing network interfaces", &error))?;
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
        names.dedup();
        Error::configuration(format!(
            "RINGTREE_INTERFACE={asked} is no interface or address of this host, which has {}",
            names.join(", ")
        ))
    })
}

/// Whether an address reaches its host only with a scope, which an address alone does not carry.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

fn first_line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

/// This host's name, for messages to people.
pub(crate) fn host_name() -> String {
    first_line("/proc/sys/kernel/hostname").unwrap_or_else(|| "unknown host".to_owned())
}

/// A string that is the same for all ranks of this host and container, and differs elsewhere.
pub(super) fn host_id() -> String {
    format!("{}/{}", boot_id().unwrap_or_default(), host_name())
}

/// A string that changes whenever the kernel boots, and is the same in all its containers.
pub(super) fn boot_id() -> Option<String> {
    first_line("/proc/sys/kernel/random/boot_id")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_found_by_name_and_by_address() {
        let like = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(interface_address("lo", like).unwrap(), like);
        assert_eq!(interface_address("127.0.0.1", like).unwrap(), like);
        let error = interface_address("nowhere0", like).unwrap_err().to_string();
        assert!(
            error.contains("nowhere0") && error.contains("lo"),
            "{error}"
        );
    }

    #[test]
    fn the_wildcard_is_no_rendezvous() {
        assert!(matches!(
            resolve("the rendezvous", "0.0.0.0:1", Instant::now()),
            Err(error) if error.is_configuration()
        ));
    }
}
