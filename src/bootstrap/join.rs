//! Joins a rank to its world and starts its control thread.

use super::address;
use super::by_id;
use super::client::{self, own_peer};
use super::exchange;
use super::listen;
use super::rendezvous;
use super::settings::{Settings, TransportChoice};
use super::sharing;
use crate::control::descriptors;
use crate::control::peer::joint_secret;
use crate::control::thread::{self, Parts};
use crate::control::{Handler, LocalPeers, Membership};
use crate::error::{Error, Result};
use crate::limits::TIMEOUT_MAX;
use socket2::Socket;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

/// A rank that has joined its world but whose control thread is not running yet.
pub(crate) struct Joined {
    /// This rank's view of the world.
    pub(crate) membership: Membership,
    parts: Parts,
    /// The socket for data connections, which is not listening yet.
    listener: Option<Socket>,
}

/// Joins the world that `settings` describes, within its timeout.
///
/// # Errors
/// Returns `ErrorKind::Join` if ranks are still missing when the timeout expires, cannot be
/// reached, or have different settings; `ErrorKind::Configuration` if a setting is invalid;
/// `ErrorKind::System` if the operating system refuses to provide a resource.
pub(crate) fn join(settings: &Settings) -> Result<Joined> {
    settings.check()?;
    let settings = &mut settings.clone();
    descriptors::raise_limit();
    exchange::carry(settings)?;
    let (mut poll, control) =
        thread::prepare().map_err(|error| Error::io("cannot set up the control thread", &error))?;
    let (place, socket) = sharing::offer(settings);
    let (channels, listener, peers) = if settings.world_size == 1 {
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let own = own_peer(settings, nowhere, place);
        (BTreeMap::new(), None, vec![own])
    } else {
        let gathered = match settings.rank {
            0 => {
                by_id::publish(settings)?;
                rendezvous::gather(settings, place, &mut poll)?
            }
            _ => client::join(settings, place, &mut poll)?,
        };
        (gathered.channels, Some(gathered.listener), gathered.peers)
    };
    if settings.secret.is_none() {
        for peer in &peers {
            listen::check_secretless(settings, peer.address.ip())?;
        }
    }
    if settings.transport == TransportChoice::Shm
        && let Some(why) = sharing::obstacle(&peers)
    {
        return Err(Error::join(why));
    }
    let place = (settings.rank, settings.attempt);
    let local =
        socket.map(|socket| LocalPeers::new(socket, place, settings.secret.clone(), &peers));
    let local = local.transpose()?.filter(LocalPeers::has_peers);
    let membership = Membership {
        rank: settings.rank,
        world_size: settings.world_size,
        peers: Arc::new(peers),
        local: local.map(Arc::new),
        control,
    };
    let parts = Parts {
        poll,
        channels,
        listener: None,
        secret: settings
            .secret
            .clone()
            .or_else(|| joint_secret(&membership.peers)),
        timeout: settings.timeout.min(TIMEOUT_MAX),
        attempt: settings.attempt,
    };
    Ok(Joined {
        membership,
        parts,
        listener,
    })
}

impl Joined {
    /// Starts the control thread, which then calls `handler`. `data_events` is the epoll descriptor
    /// of a `Reactor` for the data sockets. The thread watches this descriptor whenever the handler
    /// requests it. The descriptor must stay open until the control thread has been shut down.
    ///
    /// # Errors
    /// Returns `ErrorKind::System` if the operating system refuses to provide a resource.
    pub(crate) fn start(
        mut self,
        handler: Arc<dyn Handler>,
        data_events: Option<RawFd>,
    ) -> Result<Membership> {
        let starting = |error| Error::io("cannot start the control thread", &error);
        let listener = self.listener.map(address::listen_at).transpose();
        self.parts.listener = listener.map_err(starting)?;
        thread::start(&self.membership, self.parts, handler, data_events).map_err(starting)?;
        Ok(self.membership)
    }
}
