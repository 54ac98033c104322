//! Where rank 0 listens for the others.

use super::address;
use super::settings::Settings;
use crate::error::{Error, Result};
use crate::sys::inherit;
use mio::net::TcpListener;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Instant;

/// The rendezvous' listener: passed on, or on the address (and port, or the next) that was given.
pub(super) fn listen(settings: &Settings, deadline: Instant) -> Result<(TcpListener, SocketAddr)> {
    let at = &settings.rendezvous;
    if let Some(passed_on) = passed_on(settings)? {
        return Ok(passed_on);
    }
    let mut last = None;
    for given in address::resolve("the rendezvous", at, deadline)? {
        address::check_secretless(settings, given.ip())?;
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
    address::check_secretless(settings, address.ip())?;
    Ok(Some((TcpListener::from_std(listener), address)))
}
