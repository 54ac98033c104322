//! Where a rank listens: rank 0 for the others, and each rank for data connections.

use super::address;
use super::settings::Settings;
use crate::error::{Error, Result};
use crate::link::tcp::keep_from_children;
use crate::sys::inherit;
use mio::net::TcpListener;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

/// The rendezvous' listener: passed on, or on the address (and port, or the next) that was given.
pub(super) fn listen(settings: &Settings, deadline: Instant) -> Result<(TcpListener, SocketAddr)> {
    let at = &settings.rendezvous;
    if let Some(passed_on) = passed_on(settings)? {
        return Ok(passed_on);
    }
    let mut last = None;
    for given in address::resolve("the rendezvous", at, deadline)? {
        check_secretless(settings, given.ip())?;
        let mut address = given;
        let mut result = address::listen(address);
        let taken = |error: &std::io::Error| error.kind() == ErrorKind::AddrInUse;
        if settings.next_port_too && result.as_ref().is_err_and(taken) && given.port() < u16::MAX {
            address.set_port(given.port() + 1);
            result = address::listen(address);
        }
        match result {
            Ok(listener) => {
                let address = listener.local_addr().unwrap_or(address);
                return Ok((listener, address));
            }
            Err(error) => last = Some((address, error)),
        }
    }
    let (address, error) = last.expect("invariant: a rendezvous has at least one address");
    let hint = match error.kind() {
        ErrorKind::AddrInUse => "another process listens there (a second rank 0?)",
        ErrorKind::AddrNotAvailable => "the rendezvous must be an address of rank 0's own host",
        _ => "choose another port with RINGTREE_RENDEZVOUS=host:port",
    };
    Err(Error::join(format!(
        "rank 0 cannot listen at the rendezvous {at} ({address}): {error}; {hint}"
    )))
}

/// The listener that the program or its launcher passed on, unless an earlier join took it.
fn passed_on(settings: &Settings) -> Result<Option<(TcpListener, SocketAddr)>> {
    let own = settings.start.take_listener();
    let name = match (&own, settings.listener_fd) {
        (Some(_), _) => "the program's listener".to_owned(),
        (None, Some(descriptor)) => format!("RINGTREE_LISTENER_FD={descriptor}"),
        (None, None) => return Ok(None),
    };
    let unusable = |error: std::io::Error| Error::configuration(format!("{name}: {error}"));
    let inherited = || settings.listener_fd.map(inherit::take_listener);
    let listener = match own {
        Some(own) => Some(own),
        None => inherited().transpose().map_err(unusable)?.flatten(),
    };
    let Some(listener) = listener else {
        return Ok(None);
    };
    listener.set_nonblocking(true).map_err(unusable)?;
    let address = listener.local_addr().map_err(unusable)?;
    if address.ip().is_unspecified() {
        return Err(Error::configuration(format!(
            "{name} listens on the wildcard {address}; bind it to one address"
        )));
    }
    check_secretless(settings, address.ip())?;
    Ok(Some((TcpListener::from_std(listener), address)))
}

/// What to add to a message when the rendezvous can be reached from one host only.
pub(super) fn loopback_hint(settings: &Settings, address: IpAddr) -> String {
    if address.is_loopback() && settings.local_world_size_at_most() < settings.world_size {
        let host = settings.rendezvous.rsplit_once(':');
        let host = host.map_or(settings.rendezvous.as_str(), |(host, _)| host);
        format!(
            "; note: {host} is {address} here, a loopback address, which other hosts cannot reach"
        )
    } else {
        String::new()
    }
}

/// Without a secret only loopback may be used.
pub(super) fn check_secretless(settings: &Settings, address: IpAddr) -> Result<()> {
    if settings.secret.is_some() || address.is_loopback() {
        return Ok(());
    }
    Err(Error::configuration(format!(
        "RINGTREE_SECRET is not set, and without a secret only loopback addresses are used, which \
         {address} is not: make one with `openssl rand -hex 32` and set RINGTREE_SECRET (or \
         RINGTREE_SECRET_FILE) to it on every rank"
    )))
}

/// A socket for data connections, on the address that routes to the rendezvous (`route`) or on the
/// interface that was asked for, and its address. It listens once connections are accepted: until
/// then strangers cannot fill its queue, and a peer that comes early dials again.
pub(super) fn bind_for_data(settings: &Settings, route: IpAddr) -> Result<(Socket, SocketAddr)> {
    let address = match &settings.interface {
        None => route,
        Some(asked) => address::interface_address(asked, route)?,
    };
    check_secretless(settings, address)?;
    // Its address is not to be used again: while it does not listen, another process could take it.
    let bind = || {
        let address = SocketAddr::new(address, 0);
        let domain = Domain::for_address(address);
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        socket.bind(&address.into())?;
        keep_from_children(&socket);
        let bound = socket.local_addr()?.as_socket();
        Ok((socket, bound.expect("invariant: the socket is of TCP")))
    };
    bind().map_err(|error| {
        Error::io(
            format_args!("listening for data connections on {address}"),
            &error,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_needs_no_secret() {
        let mut settings = Settings::new(0, 2, "10.0.0.1:29500");
        let address = IpAddr::from([10, 0, 0, 1]);
        let error = check_secretless(&settings, address)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("RINGTREE_SECRET") && error.contains("10.0.0.1"),
            "{error}"
        );
        check_secretless(&settings, IpAddr::from([127, 0, 0, 2])).unwrap();
        settings.secret = Some(crate::protocol::handshake::Secret::new([1; 32]));
        check_secretless(&settings, address).unwrap();
    }

    #[test]
    fn a_loopback_rendezvous_of_several_hosts_is_named() {
        let mut settings = Settings::new(0, 4, "node1:29500");
        let loopback = IpAddr::from([127, 0, 1, 1]);
        assert_eq!(loopback_hint(&settings, loopback), "");
        settings.local_world_size = Some(2);
        assert!(loopback_hint(&settings, loopback).contains("node1 is 127.0.1.1"));
        assert_eq!(loopback_hint(&settings, IpAddr::from([10, 0, 0, 1])), "");
    }
}
