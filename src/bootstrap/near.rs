//! What passes between ranks of one host besides their memory: descriptors, and calls to wake up.
//!
//! Every process has one abstract Unix datagram socket: a random name that no file system shows and
//! that goes with the process. An empty datagram wakes its receiver; any other must be a
//! [`HandOver`] with one descriptor beside it. Anybody in the network namespace can write to the
//! socket, so whatever proves nothing is dropped, its descriptors closed, and at most
//! [`DATAGRAMS_AT_ONCE`] are taken in a row.
//!
//! The system queues only about ten datagrams for a socket. So an exchange tries to send and to
//! receive in turn and never waits in one of them: whoever's queue is full, its owner empties it as
//! soon as it comes to exchange. What came for another channel is kept for it, for two
//! threads may exchange at once and a neighbour may be ahead.
//!
//! Nobody waits for the dead: a rank sends all it has to hand over before it can go away, so who
//! has closed its socket, and has nothing for us in our queue, will never hand over.

use super::messages::Peer;
use super::settings::Settings;
use crate::error::{Error, Result};
use crate::limits::{DATAGRAMS_AT_ONCE, HAND_OVER_PROBE_EVERY, HANDED_CHANNELS_MAX};
use crate::protocol::hand_over::{Claim, HAND_OVER_BYTES, HandOver, Nonce, TOKEN_BYTES, Token};
use crate::protocol::handshake::Secret;
use crate::link::tcp::Reactor;
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The first and the longest pause in an exchange that goes neither forth nor back.
const PAUSE_FIRST: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(2);
/// Random bytes in a socket's name.
const NAME_BYTES: usize = 16;

/// A socket that neighbours will write to.
#[derive(Debug)]
pub struct NearSocket {
    socket: OwnedFd,
    name: String,
    token: Token,
}

impl NearSocket {
    /// A socket with a fresh name.
    ///
    /// # Errors
    /// The system's.
    pub fn new() -> io::Result<Self> {
        let mut random = [0; NAME_BYTES + TOKEN_BYTES];
        getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
        let (name_bytes, token) = random.split_at(NAME_BYTES);
        let mut name = "ringtree-".to_owned();
        for byte in name_bytes {
            // Writing to a string cannot fail.
            let _ = write!(name, "{byte:02x}");
        }
        let mut token_bytes = [0; TOKEN_BYTES];
        token_bytes.copy_from_slice(token);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        rustix::net::bind(&socket, &address(&name)?)?;
        Ok(Self {
            socket,
            name,
            token: Token(token_bytes),
        })
    }

    /// Its abstract name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its owner adds to the neighbours' nonce.
    #[must_use]
    pub fn token(&self) -> &Token {
        &self.token
    }
}

fn address(name: &str) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

/// What came, by channel and sender. Nothing stands for a descriptor that this process had no
/// number left for.
type Stash = BTreeMap<u32, BTreeMap<usize, Option<OwnedFd>>>;

/// Speaks to the other ranks that share memory with this one.
pub struct Near {
    rank: usize,
    attempt: u16,
    secret: Secret,
    nonce: Nonce,
    socket: OwnedFd,
    /// The others', by rank.
    addresses: BTreeMap<usize, SocketAddrUnix>,
    stash: Mutex<Stash>,
    reactor: OnceLock<Arc<Reactor>>,
}

impl fmt::Debug for Near {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let others: Vec<_> = self.addresses.keys().collect();
        write!(formatter, "Near({} to {others:?})", self.rank)
    }
}

impl Near {
    /// Speaks to the neighbours among `peers` over `socket`, whose name this rank's own entry has.
    ///
    /// # Errors
    /// [`Error::Join`]: a neighbour's entry is malformed.
    pub fn new(socket: NearSocket, settings: &Settings, peers: &[Peer]) -> Result<Self> {
        let rank = settings.rank;
        let mut addresses = BTreeMap::new();
        let mut tokens = Vec::new();
        for neighbour in super::sharing::neighbours(peers, rank) {
            let Ok(place) = &peers[neighbour].place else {
                continue;
            };
            tokens.push(&place.token);
            if neighbour != rank {
                let address = address(&place.socket).map_err(|error| {
                    Error::Join(format!("rank {neighbour}'s local socket: {error}"))
                })?;
                addresses.insert(neighbour, address);
            }
        }
        Ok(Self {
            rank,
            attempt: settings.attempt,
            secret: settings.secret.clone().unwrap_or_else(Secret::absent),
            nonce: Nonce::new(tokens),
            socket: socket.socket,
            addresses,
            stash: Mutex::default(),
            reactor: OnceLock::new(),
        })
    }

    /// Whether another rank shares memory with this one.
    #[must_use]
    pub fn has_neighbours(&self) -> bool {
        !self.addresses.is_empty()
    }

    /// From now on a neighbour's [`Near::wake`] ends the sleeps of `reactor`. Call [`Near::drain`]
    /// after each of them: only what comes after it counts. Once.
    ///
    /// # Errors
    /// The system's.
    pub fn end_sleeps_of(&self, reactor: &Arc<Reactor>) -> io::Result<()> {
        if self.reactor.set(Arc::clone(reactor)).is_ok() {
            reactor.watch(&self.socket)?;
        }
        Ok(())
    }

    /// Ends the sleep of a neighbour, or its next one. Never waits; what cannot be told is not
    /// told: a queue that is full wakes its owner anyway.
    pub fn wake(&self, rank: usize) {
        if let Some(address) = self.addresses.get(&rank) {
            // See above; and who is gone needs no waking.
            let _ = rustix::net::sendto(&self.socket, &[], send_flags(), address);
        }
    }

    /// Takes what has come since the last call. For the thread that sleeps in the reactor.
    pub fn drain(&self) {
        self.receive(&mut self.lock());
    }

    /// Hands `own` to every neighbour and returns what they hand over, by rank, ascending. All of
    /// them make the same call at about the same time, once a channel. Each descriptor that is
    /// returned is a sealed memfd of exactly `bytes` bytes, which nobody can make shorter.
    ///
    /// # Errors
    /// [`Error::PeerLost`] names a rank that is gone, [`Error::Deadline`] those that did not hand
    /// over in time, [`Error::Protocol`] one that handed over something else; or the system's.
    pub fn exchange(
        &self,
        channel: u32,
        own: &impl AsFd,
        bytes: usize,
        at_most: Duration,
    ) -> Result<Vec<(usize, OwnedFd)>> {
        let others: BTreeSet<usize> = self.addresses.keys().copied().collect();
        let mut exchange = Exchange {
            near: self,
            channel,
            bytes,
            unsent: others.clone(),
            missing: others,
            handed: Vec::new(),
        };
        let done = exchange.run(own.as_fd(), Instant::now() + at_most);
        if done.is_err() {
            self.lock().remove(&channel);
        }
        done?;
        exchange.handed.sort_by_key(|(rank, _)| *rank);
        Ok(exchange.handed)
    }

    fn lock(&self) -> MutexGuard<'_, Stash> {
        // Whole between any two statements: a panic of another holder leaves nothing half done.
        self.stash.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what is in the socket's queue; whether somebody wanted to wake the sleeper.
    fn receive(&self, stash: &mut Stash) -> bool {
        let mut is_waking = false;
        for _ in 0..DATAGRAMS_AT_ONCE {
            match self.receive_one() {
                Ok(Datagram::Wake) => is_waking = true,
                Ok(Datagram::HandOver(said, descriptor)) => keep(stash, said, descriptor),
                Ok(Datagram::Strange) | Err(Errno::INTR) => {}
                Err(_) => return is_waking,
            }
        }
        // More may be there, which no later sleep would be told of.
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
        let mut bytes = [0; HAND_OVER_BYTES + 1];
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
        if received.bytes == 0 && descriptors.is_empty() && !is_cut {
            return Ok(Datagram::Wake);
        }
        let claim = Claim::decode(&bytes[..received.bytes]);
        Ok(match claim.filter(|claim| self.believes(claim)) {
            // Descriptors that found no number here are cut off: the sender sends one.
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

    /// Whether `rank` took our descriptor for `channel`, or why it never will.
    fn hand_over(&self, channel: u32, own: BorrowedFd<'_>, rank: usize) -> Result<bool> {
        let Some(address) = self.addresses.get(&rank) else {
            let why = format!("rank {rank} shares no memory with rank {}", self.rank);
            return Err(Error::Usage(why));
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
            &[IoSlice::new(&message)],
            &mut beside,
            send_flags(),
        );
        match sent {
            Ok(_) => Ok(true),
            // Its queue is full, or too many descriptors are on their way on this host.
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::TOOMANYREFS | Errno::INTR) => Ok(false),
            Err(Errno::CONNREFUSED) => Err(self.gone(rank)),
            Err(error) => Err(Error::System(format!(
                "rank {} cannot hand its memory to rank {rank}: {error}; RINGTREE_TRANSPORT=tcp \
                 does without",
                self.rank
            ))),
        }
    }

    /// Whether the socket of `rank` is closed.
    fn is_gone(&self, rank: usize) -> bool {
        self.addresses.get(&rank).is_some_and(|address| {
            let sent = rustix::net::sendto(&self.socket, &[], send_flags(), address);
            sent == Err(Errno::CONNREFUSED)
        })
    }

    fn gone(&self, rank: usize) -> Error {
        Error::PeerLost {
            rank,
            message: format!(
                "rank {rank} is gone: rank {} waited for its shared memory",
                self.rank
            ),
        }
    }
}

impl Drop for Near {
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
    /// Proven; without the descriptor if that was cut off.
    HandOver(HandOver, Option<OwnedFd>),
    Strange,
}

/// Keeps what was handed over; of a sender's second for a channel, and of channels beyond the
/// limit, the descriptors are closed.
fn keep(stash: &mut Stash, said: HandOver, descriptor: Option<OwnedFd>) {
    if stash.len() < HANDED_CHANNELS_MAX || stash.contains_key(&said.channel) {
        let channel = stash.entry(said.channel).or_default();
        channel.entry(said.from as usize).or_insert(descriptor);
    }
}

/// One rank's part of an exchange.
struct Exchange<'a> {
    near: &'a Near,
    channel: u32,
    bytes: usize,
    /// Who has not taken our descriptor.
    unsent: BTreeSet<usize>,
    /// Who has not handed over its own.
    missing: BTreeSet<usize>,
    handed: Vec<(usize, OwnedFd)>,
}

impl Exchange<'_> {
    fn run(&mut self, own: BorrowedFd<'_>, deadline: Instant) -> Result<()> {
        let mut pause = PAUSE_FIRST;
        let mut next_probe = Instant::now() + HAND_OVER_PROBE_EVERY;
        loop {
            let open = self.unsent.len() + self.missing.len();
            self.send(own)?;
            self.collect()?;
            let still_open = self.unsent.len() + self.missing.len();
            if still_open == 0 {
                return Ok(());
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(self.late());
            }
            if now >= next_probe {
                next_probe = now + HAND_OVER_PROBE_EVERY;
                self.look_for_the_gone()?;
            }
            pause = if still_open < open {
                PAUSE_FIRST
            } else {
                (pause * 2).min(PAUSE_MAX)
            };
            thread::sleep(pause.min(deadline - now));
        }
    }

    fn send(&mut self, own: BorrowedFd<'_>) -> Result<()> {
        for rank in std::mem::take(&mut self.unsent) {
            if !self.near.hand_over(self.channel, own, rank)? {
                self.unsent.insert(rank);
            }
        }
        Ok(())
    }

    /// Takes what was handed over on this channel, whichever thread received it.
    fn collect(&mut self) -> Result<()> {
        let mut stash = self.near.lock();
        if self.near.receive(&mut stash) {
            // It was meant for the thread that sleeps, which the socket no longer tells.
            self.near.wake_sleeper();
        }
        let came = stash.remove(&self.channel).unwrap_or_default();
        drop(stash);
        for (rank, descriptor) in came {
            let Some(descriptor) = descriptor else {
                let why = "its descriptor was refused here (`ulimit -n` may be too low)";
                return Err(self.wrong(rank, why, Error::System));
            };
            if self.missing.remove(&rank) {
                if let Err(why) = check(&descriptor, self.bytes) {
                    return Err(self.wrong(rank, &why, Error::Protocol));
                }
                self.handed.push((rank, descriptor));
            }
        }
        Ok(())
    }

    fn look_for_the_gone(&mut self) -> Result<()> {
        let gone = self.missing.iter().copied();
        let gone = gone.filter(|rank| self.near.is_gone(*rank));
        let gone: Vec<usize> = gone.collect();
        if gone.is_empty() {
            return Ok(());
        }
        // What they sent before they went is in the queue.
        self.collect()?;
        match gone.iter().find(|rank| self.missing.contains(rank)) {
            Some(rank) => Err(self.near.gone(*rank)),
            None => Ok(()),
        }
    }

    fn wrong(&self, rank: usize, why: &str, kind: fn(String) -> Error) -> Error {
        let own = self.near.rank;
        kind(format!(
            "rank {own} cannot use the memory of rank {rank}: {why}"
        ))
    }

    fn late(&self) -> Error {
        let list = |ranks: &BTreeSet<usize>| {
            let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
            let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
            format!("{noun} {}", ranks.join(", "))
        };
        let own = self.near.rank;
        let what = if self.missing.is_empty() {
            format!("{} did not take it from rank {own}", list(&self.unsent))
        } else {
            format!("{} did not hand it to rank {own}", list(&self.missing))
        };
        Error::Deadline(format!(
            "shared memory was not exchanged in time: {what}; are they stopped, or in another call?"
        ))
    }
}

/// Whether the descriptor is memory that will stay as long as it is.
fn check(descriptor: &OwnedFd, bytes: usize) -> std::result::Result<(), String> {
    // Only memory made to be sealed can have these seals.
    let fixed = SealFlags::SHRINK | SealFlags::GROW;
    let is_fixed = fcntl_get_seals(descriptor).is_ok_and(|seals| seals.contains(fixed));
    if !is_fixed {
        return Err("it is no sealed memory".to_owned());
    }
    let size = fstat(descriptor)
        .map_err(|error| error.to_string())?
        .st_size;
    if usize::try_from(size) == Ok(bytes) {
        Ok(())
    } else {
        Err(format!("it has {size} bytes where {bytes} were expected"))
    }
}

#[cfg(test)]
mod tests;
