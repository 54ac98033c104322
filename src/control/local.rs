//! Passes descriptors and wake-ups between the ranks on a host.
//!
//! Every process has an abstract Unix datagram socket. Its name is random and does not appear in a
//! file system, and the socket disappears with the process. Each datagram begins with the
//! receiver's [`Word`], which only the ranks of the job know. A datagram that contains nothing else
//! wakes the receiver. Any other datagram must be an [`FdMessage`] with one descriptor.
//!
//! Every process in the network namespace can write to the socket, and closing a descriptor that an
//! unauthenticated peer has sent can block for as long as the peer likes. So the socket has a
//! filter. If a datagram does not begin with the word, the kernel drops it during the sender's
//! call, and the receiver neither sees the datagram nor closes its descriptors. At most
//! [`DATAGRAMS_AT_ONCE`] datagrams are received in a row.
//!
//! The kernel queues only about ten datagrams per socket. So an exchange alternates between sending
//! and receiving, and never blocks in either. Each rank empties its own queue during an exchange,
//! so a queue is full only temporarily. A descriptor for a different channel is kept until that
//! channel needs it, because two threads may be exchanging descriptors at the same time, and
//! because a local rank may run ahead.
//!
//! An exchange does not wait for ranks that have died. A rank sends all its descriptors before it
//! can exit. So if a rank's socket is closed and this rank's queue contains nothing from it, that
//! rank will not send a descriptor.

mod exchange;

use super::descriptors::DescriptorUsage;
use super::peer::{Peer, local_ranks};
use crate::error::{Error, Result};
use crate::limits::{DATAGRAMS_AT_ONCE, HANDED_CHANNELS_MAX, TIMEOUT_MAX};
use crate::link::tcp::{Reactor, keep_from_children};
use crate::lock::lock;
use crate::protocol::fd_passing::{
    Claim, FD_MESSAGE_BYTES, FdMessage, Nonce, Token, WORD_BYTES, Word,
};
use crate::protocol::handshake::Secret;
use crate::random;
use exchange::check;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use socket2::{SockFilter, SockRef};
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// This rank's socket, to which the other local ranks write.
#[derive(Debug)]
pub struct LocalSocket {
    socket: OwnedFd,
    /// The abstract name of the socket.
    pub(crate) name: String,
    /// This rank's contribution to the nonce that the local ranks share.
    pub(crate) token: Token,
}

impl LocalSocket {
    /// Creates a socket with a new random name.
    ///
    /// # Errors
    /// Returns the system's error if the socket cannot be created.
    pub fn new() -> io::Result<Self> {
        let name = format!("ringtree-{:032x}", u128::from_ne_bytes(random::bytes()?));
        let token = Token(random::bytes()?);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        // Attach the filter before the socket has a name, so that no datagram arrives earlier.
        SockRef::from(&socket).attach_filter(&filter_for(token.word()))?;
        rustix::net::bind(&socket, &address(&name)?)?;
        keep_from_children(&socket);
        Ok(Self {
            socket,
            name,
            token,
        })
    }
}

fn address(name: &str) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

/// Returns the filter that accepts only datagrams that begin with `word`. The kernel drops
/// datagrams that are too short to match.
fn filter_for(word: Word) -> [SockFilter; 6] {
    let [a, b, c, d, e, f, g, h] = word;
    // All codes fit in 16 bits.
    let step =
        |code: u32, jump: (u8, u8), value| SockFilter::new(code as u16, jump.0, jump.1, value);
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equals = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let end = libc::BPF_RET | libc::BPF_K;
    [
        step(load, (0, 0), 0),
        step(equals, (0, 3), u32::from_be_bytes([a, b, c, d])),
        step(load, (0, 0), 4),
        step(equals, (0, 1), u32::from_be_bytes([e, f, g, h])),
        step(end, (0, 0), u32::MAX),
        step(end, (0, 0), 0),
    ]
}

/// Received descriptors, indexed by channel and sender. `None` represents a descriptor that the
/// kernel dropped because this process had no free descriptor number.
type Stash = BTreeMap<u32, BTreeMap<usize, Option<OwnedFd>>>;

/// This rank's connection to the other ranks that share memory with it.
pub(crate) struct LocalPeers {
    rank: usize,
    attempt: u16,
    secret: Secret,
    nonce: Nonce,
    socket: OwnedFd,
    word: Word,
    /// Sockets and words of the other local ranks, indexed by rank.
    addresses: BTreeMap<usize, (SocketAddrUnix, Word)>,
    stash: Mutex<Stash>,
    reactor: OnceLock<Arc<Reactor>>,
}

impl fmt::Debug for LocalPeers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let others: Vec<_> = self.addresses.keys().collect();
        write!(formatter, "LocalPeers({} to {others:?})", self.rank)
    }
}

impl LocalPeers {
    /// Creates the connection over `socket` to those ranks among `peers` that share memory with
    /// `rank`. This rank's own entry contains the name of `socket`.
    ///
    /// # Errors
    /// Returns `ErrorKind::Join` if a local rank's entry is malformed.
    pub(crate) fn new(
        socket: LocalSocket,
        (rank, attempt): (usize, u16),
        secret: Option<Secret>,
        peers: &[Peer],
    ) -> Result<Self> {
        let mut addresses = BTreeMap::new();
        let mut tokens = Vec::new();
        for local in local_ranks(peers, rank) {
            let Ok(place) = &peers[local].place else {
                continue;
            };
            tokens.push(&place.token);
            if local != rank {
                let address = address(&place.socket).map_err(|error| {
                    Error::join(format!("rank {local} has an invalid local socket: {error}"))
                })?;
                addresses.insert(local, (address, place.token.word()));
            }
        }
        Ok(Self {
            rank,
            attempt,
            secret: secret.unwrap_or_else(Secret::absent),
            nonce: Nonce::new(tokens),
            word: socket.token.word(),
            socket: socket.socket,
            addresses,
            stash: Mutex::default(),
            reactor: OnceLock::new(),
        })
    }

    /// Returns `true` if another rank shares memory with this rank.
    #[must_use]
    pub(crate) fn has_peers(&self) -> bool {
        !self.addresses.is_empty()
    }

    /// Lets local ranks end the sleeps of `reactor` with [`LocalPeers::wake`]. Call this method
    /// once. Call [`LocalPeers::drain`] after each sleep, because the next sleep is ended only by a
    /// datagram that arrives after that call.
    ///
    /// # Errors
    /// Returns the system's error if the socket cannot be watched.
    pub(crate) fn end_sleeps_of(&self, reactor: &Arc<Reactor>) -> io::Result<()> {
        if self.reactor.set(Arc::clone(reactor)).is_ok() {
            reactor.watch(&self.socket)?;
        }
        Ok(())
    }

    /// Ends the current or the next sleep of a local rank. Never blocks. If the queue is full, the
    /// datagram is dropped.
    pub(crate) fn wake(&self, rank: usize) {
        if let Some((address, word)) = self.addresses.get(&rank) {
            // A full queue wakes its owner anyway, and a rank that is gone does not sleep.
            let _ = rustix::net::sendto(&self.socket, word, send_flags(), address);
        }
    }

    /// Receives the datagrams that have arrived. Only the thread that sleeps in the reactor calls
    /// this.
    pub(crate) fn drain(&self) {
        self.receive(&mut lock(&self.stash));
    }

    /// Like [`LocalPeers::drain`], but called by any other thread. Wakes the sleeping thread if a
    /// datagram is for that thread.
    pub(crate) fn drain_and_wake_sleeper(&self) {
        if self.receive(&mut lock(&self.stash)) {
            self.wake_sleeper();
        }
    }

    /// Sends the descriptor `own` to every local rank, and returns the descriptors that these ranks
    /// send, in ascending order of rank. All local ranks make the same call at about the same time,
    /// once per channel. If `bytes` is set, each returned descriptor is a sealed memfd of exactly
    /// that length, which no process can shorten. Otherwise, each may be any descriptor.
    ///
    /// # Errors
    /// Returns:
    /// - `ErrorKind::PeerLost` if a rank is gone.
    /// - `ErrorKind::Deadline`, naming the missing ranks, if the exchange takes longer than
    ///   `at_most`.
    /// - `ErrorKind::Protocol` if a rank sent a different kind of descriptor.
    /// - `ErrorKind::System` if the system refuses a request.
    pub(crate) fn exchange(
        &self,
        channel: u32,
        own: &impl AsFd,
        bytes: Option<usize>,
        at_most: Duration,
    ) -> Result<Vec<(usize, OwnedFd)>> {
        let others: Vec<usize> = self.addresses.keys().copied().collect();
        self.exchange_among(&others, channel, (own, bytes), at_most, &|| true)
    }

    /// Like [`LocalPeers::exchange`], but exchanges descriptors with only the local ranks `others`.
    /// Calls `goes_on` at intervals of
    /// [`FD_PASSING_PROBE_EVERY`](crate::limits::FD_PASSING_PROBE_EVERY), and if it returns
    /// `false`, fails with the same error as at the deadline.
    ///
    /// # Errors
    /// Returns the same errors as [`LocalPeers::exchange`].
    pub(crate) fn exchange_among(
        &self,
        others: &[usize],
        channel: u32,
        (own, bytes): (&impl AsFd, Option<usize>),
        at_most: Duration,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Vec<(usize, OwnedFd)>> {
        let deadline = Instant::now() + at_most.min(TIMEOUT_MAX);
        let file = (own.as_fd(), bytes);
        let handed = exchange::exchange(self, others, channel, file, deadline, goes_on);
        if handed.is_err() {
            lock(&self.stash).remove(&channel);
        }
        handed
    }

    /// Removes and returns the received descriptors of the channels for which `wanted` returns
    /// `true`, each with its channel and its sender. A descriptor is `None` if this process had no
    /// free descriptor number for it.
    pub(crate) fn take(&self, wanted: impl Fn(u32) -> bool) -> Vec<(u32, usize, Option<OwnedFd>)> {
        let mut stash = lock(&self.stash);
        let all = std::mem::take(&mut *stash).into_iter();
        let (taken, rest): (Stash, Stash) = all.partition(|(channel, _)| wanted(*channel));
        *stash = rest;
        let each = |(channel, files): (u32, BTreeMap<_, _>)| {
            let files = files.into_iter();
            files.map(move |(from, file)| (channel, from, file))
        };
        taken.into_iter().flat_map(each).collect()
    }

    /// Closes the received descriptors of the channels for which `wanted` returns `false`.
    pub(crate) fn keep_only(&self, wanted: impl Fn(u32) -> bool) {
        lock(&self.stash).retain(|channel, _| wanted(*channel));
    }

    /// Returns the received descriptor if it is sealed memory of this length.
    ///
    /// # Errors
    /// Returns `ErrorKind::Protocol` if the descriptor is anything else, and `ErrorKind::System` if
    /// this process had no free descriptor number for it.
    pub(crate) fn checked(&self, file: Option<OwnedFd>, bytes: usize) -> Result<OwnedFd> {
        let refused = || {
            Error::system(format!(
                "no file descriptors were available; {}",
                DescriptorUsage::here()
            ))
        };
        let file = file.ok_or_else(refused)?;
        check(&file, bytes).map_err(Error::protocol)?;
        Ok(file)
    }

    /// Receives the datagrams that are in the socket's queue. Returns `true` if any of them is for
    /// the sleeping thread.
    fn receive(&self, stash: &mut Stash) -> bool {
        let mut is_waking = false;
        for _ in 0..DATAGRAMS_AT_ONCE {
            match self.receive_one() {
                Ok(Datagram::Wake) => is_waking = true,
                Ok(Datagram::FdMessage(said, descriptor)) => {
                    keep(stash, said, descriptor);
                    is_waking = true;
                }
                Ok(Datagram::Strange) | Err(Errno::INTR) => {}
                Err(_) => return is_waking,
            }
        }
        // More datagrams may be queued, and the reactor does not report them again.
        self.wake_sleeper();
        is_waking
    }

    fn wake_sleeper(&self) {
        if let Some(reactor) = self.reactor.get() {
            reactor.wake();
        }
    }

    /// Receives one datagram.
    fn receive_one(&self) -> rustix::io::Result<Datagram> {
        let mut bytes = [0; WORD_BYTES + FD_MESSAGE_BYTES + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::net::recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut beside,
            RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
        )?;
        let mut descriptors = Vec::new();
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(all) = message {
                descriptors.extend(all);
            }
        }
        let is_cut = received.flags.contains(ReturnFlags::CTRUNC);
        let said = bytes[..received.bytes].strip_prefix(&self.word);
        if said == Some(&[]) && descriptors.is_empty() && !is_cut {
            return Ok(Datagram::Wake);
        }
        let claim = said.and_then(Claim::decode);
        Ok(match claim.filter(|claim| self.is_authentic(claim)) {
            // The kernel drops a descriptor if this process has no free number for it.
            Some(claim) if descriptors.len() == 1 || is_cut => {
                Datagram::FdMessage(claim.said, descriptors.pop())
            }
            _ => Datagram::Strange,
        })
    }

    fn is_authentic(&self, claim: &Claim) -> bool {
        let FdMessage {
            attempt, from, to, ..
        } = claim.said;
        attempt == self.attempt
            && to as usize == self.rank
            && self.addresses.contains_key(&(from as usize))
            && claim.is_proven(&self.secret, &self.nonce)
    }

    /// Sends the descriptor `own` for `channel` to `rank`. Returns `false` if the socket of `rank`
    /// cannot currently accept it.
    ///
    /// # Errors
    /// Returns `ErrorKind::PeerLost` if `rank` is gone, `ErrorKind::Usage` if it does not share
    /// memory with this rank, and `ErrorKind::System` if the system refuses to send.
    pub(crate) fn pass_descriptor(
        &self,
        channel: u32,
        own: impl AsFd,
        rank: usize,
    ) -> Result<bool> {
        let own = own.as_fd();
        let Some((address, word)) = self.addresses.get(&rank) else {
            let why = format!("rank {} does not share memory with rank {rank}", self.rank);
            return Err(Error::usage(why));
        };
        let message = FdMessage {
            attempt: self.attempt,
            channel,
            from: number(self.rank),
            to: number(rank),
        };
        let message = message.encode(&self.secret, &self.nonce);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        let descriptors = [own];
        let fits = beside.push(SendAncillaryMessage::ScmRights(&descriptors));
        assert!(fits, "invariant: there is space for one descriptor");
        let sent = rustix::net::sendmsg_addr(
            &self.socket,
            address,
            &[IoSlice::new(word), IoSlice::new(&message)],
            &mut beside,
            send_flags(),
        );
        match sent {
            Ok(_) => Ok(true),
            // The receiver's queue is full, or too many descriptors are in flight on this host.
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::TOOMANYREFS | Errno::INTR) => Ok(false),
            Err(Errno::CONNREFUSED) => Err(self.gone(rank)),
            Err(error) => Err(Error::system(format!(
                "rank {} cannot share its memory with rank {rank}: {error}; set \
                 RINGTREE_TRANSPORT=tcp to avoid shared memory",
                self.rank
            ))
            .with_rank(self.rank)
            .with_peer(rank)
            .with_source(std::io::Error::from(error))),
        }
    }

    /// Returns `true` if the socket of `rank` is closed.
    fn is_gone(&self, rank: usize) -> bool {
        self.addresses.get(&rank).is_some_and(|(address, _)| {
            // The receiver's filter drops this empty datagram. If the socket is closed, sending
            // fails.
            let sent = rustix::net::sendto(&self.socket, &[], send_flags(), address);
            sent == Err(Errno::CONNREFUSED)
        })
    }

    fn gone(&self, rank: usize) -> Error {
        Error::peer_lost(
            rank,
            format!(
                "rank {rank} is gone while rank {} is waiting for its shared memory; check that \
                 rank's last output and restart the job",
                self.rank
            ),
        )
        .with_rank(self.rank)
    }
}

impl Drop for LocalPeers {
    fn drop(&mut self) {
        if let Some(reactor) = self.reactor.get() {
            reactor.unwatch(&self.socket);
        }
    }
}

fn send_flags() -> SendFlags {
    SendFlags::DONTWAIT | SendFlags::NOSIGNAL
}

fn number(rank: usize) -> u32 {
    u32::try_from(rank).unwrap_or(u32::MAX)
}

/// The contents of a datagram.
enum Datagram {
    Wake,
    /// A message with a valid proof, and its descriptor, or `None` if the kernel dropped the
    /// descriptor.
    FdMessage(FdMessage, Option<OwnedFd>),
    Strange,
}

/// Keeps a descriptor for its channel. If the sender has already sent a descriptor for the channel,
/// or if [`HANDED_CHANNELS_MAX`] other channels have descriptors, closes this descriptor instead.
fn keep(stash: &mut Stash, said: FdMessage, descriptor: Option<OwnedFd>) {
    if stash.len() < HANDED_CHANNELS_MAX || stash.contains_key(&said.channel) {
        let channel = stash.entry(said.channel).or_default();
        channel.entry(said.from as usize).or_insert(descriptor);
    }
}

#[cfg(test)]
mod tests;
