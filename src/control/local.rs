//! What passes between the ranks of one host besides their memory: descriptors and wake-ups.
//!
//! Every process has one abstract Unix datagram socket. Its name is random and in no file system,
//! and it vanishes with the process. A datagram begins with the receiver's [`Word`], which only the
//! ranks of the job know. One that holds nothing else wakes the receiver; any other must be a
//! [`HandOver`] with one descriptor.
//!
//! Every process in the network namespace can write to the socket, and closing a stranger's
//! descriptor can block for as long as the stranger likes. So a filter of the socket lets the
//! kernel drop what does not begin with the word, while the sender sends it: the receiver neither
//! sees it nor closes its descriptors. At most [`DATAGRAMS_AT_ONCE`] are taken in a row.
//!
//! The kernel queues only about ten datagrams per socket. So an exchange tries to send and to
//! receive in turn and never blocks in either: each rank empties its own queue while it exchanges,
//! so a full queue is only full for a while. A descriptor for another channel is kept for that
//! channel, for two threads may exchange at once and a local rank may be ahead.
//!
//! An exchange does not wait for dead ranks. A rank sends all its descriptors before it can exit.
//! So a rank whose socket is closed, and from which nothing is in our queue, will never send one.

mod exchange;

use super::descriptors::Room;
use super::peer::{Peer, local_ranks};
use crate::error::{Error, Result};
use crate::limits::{DATAGRAMS_AT_ONCE, HANDED_CHANNELS_MAX, TIMEOUT_MAX};
use crate::link::tcp::{Reactor, keep_from_children};
use crate::protocol::hand_over::{
    Claim, HAND_OVER_BYTES, HandOver, Nonce, Token, WORD_BYTES, Word,
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
use std::fmt::{self, Write};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Random bytes in a socket's name.
const NAME_BYTES: usize = 16;

/// The socket that the other local ranks will write to.
#[derive(Debug)]
pub struct LocalSocket {
    socket: OwnedFd,
    name: String,
    token: Token,
}

impl LocalSocket {
    /// A socket with a fresh name.
    ///
    /// # Errors
    /// The system's.
    pub fn new() -> io::Result<Self> {
        let mut name = "ringtree-".to_owned();
        for byte in random::bytes::<NAME_BYTES>()? {
            // Writing to a string cannot fail.
            let _ = write!(name, "{byte:02x}");
        }
        let token = Token(random::bytes()?);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        // Before the socket has a name: nothing gets in earlier.
        SockRef::from(&socket).attach_filter(&only_behind(token.word()))?;
        rustix::net::bind(&socket, &address(&name)?)?;
        keep_from_children(&socket);
        Ok(Self {
            socket,
            name,
            token,
        })
    }

    /// Its abstract name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// This rank's share of the local ranks' nonce.
    #[must_use]
    pub fn token(&self) -> &Token {
        &self.token
    }
}

fn address(name: &str) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

/// The filter that passes datagrams which begin with `word`. Of a shorter one the kernel drops all.
fn only_behind(word: Word) -> [SockFilter; 6] {
    let [a, b, c, d, e, f, g, h] = word;
    // The codes fit 16 bits.
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

/// Descriptors that arrived, by channel and sender. `None` stands for one that the kernel dropped
/// because this process had no descriptor number left.
type Stash = BTreeMap<u32, BTreeMap<usize, Option<OwnedFd>>>;

/// Speaks to the other ranks that share memory with this one.
pub(crate) struct LocalPeers {
    rank: usize,
    attempt: u16,
    secret: Secret,
    nonce: Nonce,
    socket: OwnedFd,
    word: Word,
    /// The other local ranks' sockets and words, by rank.
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
    /// Speaks to the ranks among `peers` that share memory with `rank`, over `socket`, whose name
    /// is in this rank's own entry.
    ///
    /// # Errors
    /// [`Error::join`]: a local rank's entry is malformed.
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
                    Error::join(format!("rank {local}'s local socket: {error}"))
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

    /// Whether another rank shares memory with this one.
    #[must_use]
    pub(crate) fn has_peers(&self) -> bool {
        !self.addresses.is_empty()
    }

    /// From now on a local rank's [`LocalPeers::wake`] ends the sleeps of `reactor`. Call
    /// [`LocalPeers::drain`] after each sleep: only a datagram that arrives after it ends the next.
    /// Call this once.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn end_sleeps_of(&self, reactor: &Arc<Reactor>) -> io::Result<()> {
        if self.reactor.set(Arc::clone(reactor)).is_ok() {
            reactor.watch(&self.socket)?;
        }
        Ok(())
    }

    /// Ends the current or the next sleep of a local rank. Never blocks. A datagram that does not
    /// fit is dropped: a full queue wakes its owner anyway.
    pub(crate) fn wake(&self, rank: usize) {
        if let Some((address, word)) = self.addresses.get(&rank) {
            // A full queue wakes its owner, and a rank that is gone needs no waking.
            let _ = rustix::net::sendto(&self.socket, word, send_flags(), address);
        }
    }

    /// Takes what has arrived since the last call. For the thread that sleeps in the reactor.
    pub(crate) fn drain(&self) {
        self.receive(&mut self.lock());
    }

    /// Likewise, for any other thread: what was meant for the sleeping one ends its sleep.
    pub(crate) fn drain_beside_sleeper(&self) {
        if self.receive(&mut self.lock()) {
            self.wake_sleeper();
        }
    }

    /// Sends the descriptor `own` to every local rank and returns the descriptors that they send,
    /// by rank, ascending. All local ranks make the same call at about the same time, once per
    /// channel. With `bytes`, each descriptor returned is a sealed memfd of exactly so many bytes,
    /// which no process can make shorter; without, it may be anything.
    ///
    /// # Errors
    /// [`Error::peer_lost`] names a rank that is gone, [`Error::deadline`] the ranks that sent none
    /// in time, [`Error::protocol`] one that sent something else; or the system's.
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

    /// The same among this rank and `others`, which are local ranks. Ten times a second it is asked
    /// whether it `goes_on`; if not, it ends as at its deadline.
    ///
    /// # Errors
    /// Those of [`LocalPeers::exchange`].
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
            self.lock().remove(&channel);
        }
        handed
    }

    /// Takes the descriptors that have come for channels that are `wanted`: channel, sender, and
    /// the descriptor, unless this process had no number left for it.
    pub(crate) fn take(&self, wanted: impl Fn(u32) -> bool) -> Vec<(u32, usize, Option<OwnedFd>)> {
        let mut stash = self.lock();
        let all = std::mem::take(&mut *stash).into_iter();
        let (taken, rest): (Stash, Stash) = all.partition(|(channel, _)| wanted(*channel));
        *stash = rest;
        let each = |(channel, files): (u32, BTreeMap<_, _>)| {
            let files = files.into_iter();
            files.map(move |(from, file)| (channel, from, file))
        };
        taken.into_iter().flat_map(each).collect()
    }

    /// Closes what has come for channels that are not `wanted`.
    pub(crate) fn keep_only(&self, wanted: impl Fn(u32) -> bool) {
        self.lock().retain(|channel, _| wanted(*channel));
    }

    /// What has come, if it is sealed memory of this length.
    ///
    /// # Errors
    /// It is not, or this process had no number left for it.
    pub(crate) fn checked(&self, file: Option<OwnedFd>, bytes: usize) -> Result<OwnedFd> {
        let refused =
            || Error::system(format!("its descriptor was refused here; {}", Room::here()));
        let file = file.ok_or_else(refused)?;
        check(&file, bytes).map_err(Error::protocol)?;
        Ok(file)
    }

    fn lock(&self) -> MutexGuard<'_, Stash> {
        // Whole between any two statements: a panic of another holder leaves nothing half done.
        self.stash.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what is in the socket's queue; whether it concerns the sleeping thread.
    fn receive(&self, stash: &mut Stash) -> bool {
        let mut is_waking = false;
        for _ in 0..DATAGRAMS_AT_ONCE {
            match self.receive_one() {
                Ok(Datagram::Wake) => is_waking = true,
                Ok(Datagram::HandOver(said, descriptor)) => {
                    keep(stash, said, descriptor);
                    is_waking = true;
                }
                Ok(Datagram::Strange) | Err(Errno::INTR) => {}
                Err(_) => return is_waking,
            }
        }
        // More may be queued, and the reactor tells of it only once.
        self.wake_sleeper();
        is_waking
    }

    fn wake_sleeper(&self) {
        if let Some(reactor) = self.reactor.get() {
            reactor.wake();
        }
    }

    /// Takes one datagram.
    fn receive_one(&self) -> rustix::io::Result<Datagram> {
        let mut bytes = [0; WORD_BYTES + HAND_OVER_BYTES + 1];
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
        Ok(match claim.filter(|claim| self.believes(claim)) {
            // The kernel cuts off descriptors that this process has no number for.
            Some(claim) if descriptors.len() == 1 || is_cut => {
                Datagram::HandOver(claim.said, descriptors.pop())
            }
            _ => Datagram::Strange,
        })
    }

    fn believes(&self, claim: &Claim) -> bool {
        let HandOver {
            attempt, from, to, ..
        } = claim.said;
        attempt == self.attempt
            && to as usize == self.rank
            && self.addresses.contains_key(&(from as usize))
            && claim.is_proven(&self.secret, &self.nonce)
    }

    /// Whether the socket of `rank` took our descriptor for `channel`, or why it never will.
    ///
    /// # Errors
    /// [`Error::peer_lost`] if that rank is gone; or the system's.
    pub(crate) fn hand_over(&self, channel: u32, own: impl AsFd, rank: usize) -> Result<bool> {
        let own = own.as_fd();
        let Some((address, word)) = self.addresses.get(&rank) else {
            let why = format!("rank {rank} shares no memory with rank {}", self.rank);
            return Err(Error::usage(why));
        };
        let message = HandOver {
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
            // Its queue is full, or too many descriptors are on their way on this host.
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::TOOMANYREFS | Errno::INTR) => Ok(false),
            Err(Errno::CONNREFUSED) => Err(self.gone(rank)),
            Err(error) => Err(Error::system(format!(
                "rank {} cannot hand its memory to rank {rank}: {error}; RINGTREE_TRANSPORT=tcp \
                 does without",
                self.rank
            ))
            .with_rank(self.rank)
            .with_peer(rank)
            .with_source(std::io::Error::from(error))),
        }
    }

    /// Whether the socket of `rank` is closed.
    fn is_gone(&self, rank: usize) -> bool {
        self.addresses.get(&rank).is_some_and(|(address, _)| {
            // Without the word nothing arrives there, but that there is a socket is checked.
            let sent = rustix::net::sendto(&self.socket, &[], send_flags(), address);
            sent == Err(Errno::CONNREFUSED)
        })
    }

    fn gone(&self, rank: usize) -> Error {
        Error::peer_lost(
            rank,
            format!(
                "rank {rank} is gone: rank {} waited for its shared memory",
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

/// What a datagram was.
enum Datagram {
    Wake,
    /// Its proof is valid; without the descriptor if that was cut off.
    HandOver(HandOver, Option<OwnedFd>),
    Strange,
}

/// Keeps a descriptor for its channel. A sender's second one for a channel is closed, and so is one
/// for a channel beyond the limit.
fn keep(stash: &mut Stash, said: HandOver, descriptor: Option<OwnedFd>) {
    if stash.len() < HANDED_CHANNELS_MAX || stash.contains_key(&said.channel) {
        let channel = stash.entry(said.channel).or_default();
        channel.entry(said.from as usize).or_insert(descriptor);
    }
}

#[cfg(test)]
mod tests;
