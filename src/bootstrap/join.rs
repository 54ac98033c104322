//! The join, from settings to a running control thread.

use super::address;
use super::channel::Channel;
use super::client::{self, own_peer};
use super::control::{ControlHandle, Handler, Membership, Shared};
use super::control_loop::{CHANNEL_FIRST, ControlLoop, Parts, WAKER};
use super::near::Near;
use super::rendezvous;
use super::settings::{Settings, TransportChoice};
use super::sharing;
use crate::error::{Error, Result};
use mio::{Poll, Token, Waker};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::thread;

/// A rank that has met all others but does not listen to them yet.
pub struct Joined {
    membership: Membership,
    parts: Parts,
}

/// Meets all other ranks.
///
/// ```no_run
/// use ringtree::bootstrap::{Settings, join};
/// let joined = join(&Settings::from_env(|name| std::env::var(name).ok())?)?;
/// let here = joined.membership();
/// println!("rank {} of {}", here.rank, here.world_size);
/// # Ok::<(), ringtree::Error>(())
/// ```
///
/// # Errors
/// [`Error::Join`] or [`Error::Configuration`], one line that says what is wrong and where; within
/// the settings' timeout.
pub fn join(settings: &Settings) -> Result<Joined> {
    settings.check()?;
    let unusable = |error| Error::system("setting up the control thread", &error);
    let mut poll = Poll::new().map_err(unusable)?;
    let waker = Waker::new(poll.registry(), WAKER).map_err(unusable)?;
    let mut channels: BTreeMap<usize, Channel> = BTreeMap::new();
    let (place, socket) = sharing::offer(settings);
    let (peers, listener) = if settings.world_size == 1 {
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        (vec![own_peer(settings, nowhere, place)], None)
    } else if settings.rank == 0 {
        let gathered = rendezvous::gather(settings, place, &mut poll)?;
        channels = gathered.channels;
        (gathered.peers, Some(gathered.listener))
    } else {
        let joined = client::join(settings, place, &mut poll, Token(CHANNEL_FIRST))?;
        channels.insert(0, joined.channel);
        (joined.peers, Some(joined.listener))
    };
    for (rank, channel) in &mut channels {
        let token = Token(CHANNEL_FIRST + rank);
        channel
            .reregister(poll.registry(), token)
            .map_err(unusable)?;
    }
    if settings.secret.is_none() {
        for peer in &peers {
            address::check_secretless(settings, peer.address.ip())?;
        }
    }
    if settings.transport == TransportChoice::Shm
        && let Some(why) = sharing::obstacle(&peers)
    {
        return Err(Error::Join(why));
    }
    let near = socket.map(|socket| Near::new(socket, settings, &peers));
    let near = near.transpose()?.filter(Near::has_neighbours);
    let membership = Membership {
        rank: settings.rank,
        world_size: settings.world_size,
        peers: Arc::new(peers),
        near: near.map(Arc::new),
        control: ControlHandle {
            shared: Arc::new(Shared::new(waker)),
        },
    };
    let parts = Parts {
        poll,
        channels,
        listener,
        secret: settings.secret.clone(),
        timeout: settings.timeout,
        attempt: settings.attempt,
    };
    Ok(Joined { membership, parts })
}

impl Joined {
    /// Who is there.
    #[must_use]
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Starts the control thread, which from now on calls `handler`. `data_events` is the epoll
    /// descriptor of the data sockets (a `Reactor`'s), watched while the handler wants it; it must
    /// stay open until [`ControlHandle::shutdown`] has returned.
    ///
    /// # Errors
    /// The system's.
    pub fn start(
        self,
        handler: Arc<dyn Handler>,
        data_events: Option<RawFd>,
    ) -> Result<Membership> {
        let unusable = |error| Error::system("starting the control thread", &error);
        let Self { membership, parts } = self;
        let control = ControlLoop::new(&membership, parts, handler, data_events);
        let control = control.map_err(unusable)?;
        let thread = thread::Builder::new()
            .name("ringtree-control".into())
            .spawn(move || control.run())
            .map_err(unusable)?;
        membership.control.shared.runs_on(thread);
        Ok(membership)
    }
}
