//! Opens the listening sockets: the rendezvous socket of rank 0, and a socket for data connections
//! on every rank.

use super::address;
use super::placement;
use super::settings::Settings;
use crate::error::{Error, Result};
use crate::link::tcp::keep_from_children;
use crate::sys::inherit;
use mio::net::TcpListener;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

/// Returns the listener for the rendezvous. It is either inherited, or opened on the configured
/// address and port, or on the next port if that is allowed.
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
        ErrorKind::AddrInUse => {
            "stop the process that is listening there (a second rank 0?), or choose a different \
             port"
        }
        ErrorKind::AddrNotAvailable => "use an address of rank 0's host",
        _ => "choose a different port with RINGTREE_RENDEZVOUS=HOST:PORT",
    };
    Err(Error::join(format!(
        "rank 0 cannot listen on the rendezvous {at} ({address}): {error}; {hint}"
    )))
}

/// Returns the listener that the launcher provided, unless an earlier join has already taken it.
fn passed_on(settings: &Settings) -> Result<Option<(TcpListener, SocketAddr)>> {
    let Some(descriptor) = settings.listener_fd else {
        return Ok(None);
    };
    let name = format!("RINGTREE_LISTENER_FD={descriptor}");
    let unusable = |error: std::io::Error| Error::configuration(format!("{name}: {error}"));
    let Some(listener) = inherit::take_listener(descriptor).map_err(unusable)? else {
        return Ok(None);
    };
    listener.set_nonblocking(true).map_err(unusable)?;
    let address = listener.local_addr().map_err(unusable)?;
    if address.ip().is_unspecified() {
        return Err(Error::configuration(format!(
            "{name} listens on the wildcard address {address}; bind it to one address"
        )));
    }
    check_secretless(settings, address.ip())?;
    Ok(Some((TcpListener::from_std(listener), address)))
}

/// Returns a hint to append to messages if the job spans several hosts but the rendezvous is on
/// loopback.
pub(super) fn loopback_hint(settings: &Settings, address: IpAddr) -> String {
    if address.is_loopback() && settings.local_world_size_at_most() < settings.world_size {
        let host = settings.rendezvous.rsplit_once(':');
        let host = host.map_or(settings.rendezvous.as_str(), |(host, _)| host);
        format!(
            "; note: on this host, {host} resolves to {address}, a loopback address that other \
             hosts cannot reach"
        )
    } else {
        String::new()
    }
}

/// Checks that the job has a secret or that `address` is a loopback address.
pub(super) fn check_secretless(settings: &Settings, address: IpAddr) -> Result<()> {
    if settings.secret.is_some() || address.is_loopback() {
        return Ok(());
    }
    let advice = match settings.launcher {
        placement::SLURM => {
            "unset MASTER_ADDR and RINGTREE_RENDEZVOUS so that munge is used, use `srun \
             --mpi=pmi2`, or run `export RINGTREE_SECRET=$(openssl rand -hex 32)` before srun"
        }
        _ => {
            "generate one secret with `openssl rand -hex 32` and set RINGTREE_SECRET (or \
             RINGTREE_SECRET_FILE) on every rank"
        }
    };
    Err(Error::configuration(format!(
        "RINGTREE_SECRET is not set, and {address} is not a loopback address; {advice}"
    )))
}

/// Binds the socket for data connections and returns it together with its address. The socket is
/// bound to the configured interface or, if none is configured, to the local address that routes to
/// the rendezvous (`route`).
///
/// The socket does not listen until connections are accepted. Before that, unauthenticated peers
/// cannot fill its queue, and a rank that connects too early retries.
pub(super) fn bind_for_data(settings: &Settings, route: IpAddr) -> Result<(Socket, SocketAddr)> {
    let address = match &settings.interface {
        None => route,
        Some(asked) => address::interface_address(asked, route)?,
    };
    check_secretless(settings, address)?;
    // SO_REUSEADDR is not set, because with it, another process could bind the same address until
    // the socket listens.
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
            format_args!("cannot listen for data connections on {address}"),
            &error,
        )
    })
}

#[cfg(test)]
mod tests;
