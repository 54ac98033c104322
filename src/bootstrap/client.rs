//! Joins as a rank other than 0: connects to rank 0, sends it this rank's record and receives the
//! table of all ranks.

use super::address;
use super::listen;
use super::messages::{Message, Record};
use super::settings::Settings;
use super::{by_id, sharing};
use crate::control::channel::{Channel, Received};
use crate::control::descriptors::DescriptorUsage;
use crate::control::failure::Failure;
use crate::control::handshake::{Proven, connect};
use crate::control::notices::RankNotices;
use crate::control::peer::{Offer, Peer};
use crate::control::wait::wait;
use crate::error::{Error, Result};
use crate::limits::{FOREIGN_SERVICE_AFTER, HANDSHAKE_TIMEOUT, JOIN_FAILURE_NOTICE};
use crate::protocol::handshake::{Hello, Purpose, Refusal};
use mio::{Events, Poll, Token};
use socket2::Socket;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

/// The initial pause between attempts to reach the rendezvous.
const RETRY_FIRST: Duration = Duration::from_millis(10);
/// The longest pause between attempts to reach the rendezvous.
const RETRY_MAX: Duration = Duration::from_millis(200);

/// The result of a join.
pub(super) struct Gathered {
    /// Control channels, keyed by rank. Rank 0 has a channel to every other rank, and every other
    /// rank has one to rank 0.
    pub(super) channels: BTreeMap<usize, Channel>,
    /// The socket for data connections, which is not listening yet.
    pub(super) listener: Socket,
    /// All ranks, indexed by rank.
    pub(super) peers: Vec<Peer>,
}

/// The token of the connection to rank 0 during the join.
const CHANNEL: Token = Token(16);

/// Joins as a rank other than 0.
pub(super) fn join(settings: &mut Settings, place: Offer, poll: &mut Poll) -> Result<Gathered> {
    let deadline = settings.deadline();
    let Proven { stream, key, .. } = reach(settings, deadline)?;
    let settings = &*settings;
    let unusable = |error| Error::io("cannot set up the control connection", &error);
    let (local, remote) = stream
        .local_addr()
        .and_then(|local| Ok((local, stream.peer_addr()?)))
        .map_err(unusable)?;
    let mut channel = Channel::new(stream, key, true);
    channel
        .register(poll.registry(), CHANNEL)
        .map_err(unusable)?;
    let bound = listen::bind_for_data(settings, local.ip());
    let (listener, address) = bound.inspect_err(|error| {
        // This rank returns the error whether or not rank 0 receives the message.
        channel.send(&Message::Failed(error.clone()));
    })?;
    let record = Record {
        rank: settings.rank,
        peer: own_peer(settings, address, place),
        agreed: settings.to_agree(),
        room: DescriptorUsage::here(),
    };
    let at = format!("the rendezvous {}", at(settings, remote));
    channel.send(&Message::Record(Box::new(record)));
    let peers = wait_for_table(settings, poll, &mut channel, deadline, &at)?;
    Ok(Gathered {
        channels: BTreeMap::from([(0, channel)]),
        listener,
        peers,
    })
}

/// Returns this rank's entry in the table of ranks.
pub(super) fn own_peer(settings: &Settings, address: SocketAddr, place: Offer) -> Peer {
    Peer {
        address,
        host_name: address::host_name(),
        host_id: settings.host_id.clone().unwrap_or_else(address::host_id),
        site: settings.site.clone().unwrap_or_default(),
        place,
        pid: std::process::id(),
        process: sharing::own_process(),
    }
}

/// Returns the rendezvous as configured, followed by its address if that differs.
fn at(settings: &Settings, remote: SocketAddr) -> String {
    let given = &settings.rendezvous;
    if *given == remote.to_string() {
        given.clone()
    } else {
        format!("{given} ({remote})")
    }
}

/// Tries the rendezvous addresses in turn until one authenticates as rank 0. Answers from
/// unauthenticated processes never end the join. They are only kept for the error message.
fn reach(settings: &mut Settings, deadline: Instant) -> Result<Proven> {
    let mut pause = RETRY_FIRST;
    let mut told: Option<String> = None;
    let mut before = None;
    // If the ranks know their local ranks, only the first rank on each host prints notices.
    let is_first = settings.local_rank.is_none_or(|rank| rank == 0);
    let mut notices =
        RankNotices::new(settings.rank, is_first && !settings.stall_warning.is_zero());
    loop {
        settings.check_cancelled()?;
        by_id::refresh(settings, deadline, &mut notices)?;
        let (mut refused, mut last) = (None, None);
        for remote in candidates(settings, deadline)? {
            match attempt(settings, remote, deadline) {
                Ok(found) => return Ok(found),
                Err(Failure::Refused(refusal, _)) if refusal != Refusal::Garbage => {
                    let line = refusal_line(settings, remote, refusal);
                    if is_final(refusal) {
                        return Err(Error::join(line));
                    }
                    if told.is_none() {
                        notices.now(|| format!("{line}; retrying"));
                    }
                    refused = refused.or(Some(line));
                }
                // The failure at the configured port explains more than the failure at the next
                // port.
                Err(failure) => last = last.or(Some((remote, failure))),
            }
        }
        // An attempt that was cut short by the deadline explains less than the one before it.
        if Instant::now() >= deadline {
            last = before.take().or(last);
        }
        if Instant::now() + pause >= deadline {
            let line = match refused {
                Some(line) => format!("{line}; gave up after {} ms", settings.timeout.as_millis()),
                None => unreached_line(settings, last, told),
            };
            return Err(Error::join(line));
        }
        notices.still(|seconds| {
            let why = match (&refused, &last) {
                (Some(line), _) => line.clone(),
                (None, Some((remote, failure))) => format!("{}: {failure}", at(settings, *remote)),
                (None, None) => settings.rendezvous.clone(),
            };
            let rank = settings.rank;
            format!("rank {rank} has been trying to reach rank 0 for {seconds} s: {why}")
        });
        told = refused.or(told);
        before = last;
        thread::sleep(pause);
        pause = (pause * 3 / 2).min(RETRY_MAX);
    }
}

/// Returns `true` if a retry would also be rejected. If rank 0 belongs to an earlier attempt, it
/// exits once it learns that it has been replaced, so a retry can reach the new rank 0.
fn is_final(refusal: Refusal) -> bool {
    match refusal {
        Refusal::Attempt { ours, theirs } => ours < theirs,
        _ => refusal.is_proven(),
    }
}

/// Returns the error message for a join in which rank 0 was not reached. It contains the last
/// failure and, if present, the earlier rejection by an unauthenticated process in `told`.
fn unreached_line(
    settings: &Settings,
    last: Option<(SocketAddr, Failure)>,
    told: Option<String>,
) -> String {
    let (remote, failure) = last.expect("invariant: an address that did not refuse has failed");
    let told = told.map_or_else(String::new, |line| format!("; earlier, {line}"));
    format!(
        "rank {}: cannot reach rank 0 at {} within {} ms: {failure}; check that rank 0 is running \
         and that this is its address{}{told}",
        settings.rank,
        at(settings, remote),
        settings.timeout.as_millis(),
        listen::loopback_hint(settings, remote.ip()),
    )
}

/// Returns the addresses to try: first those with the configured port and then, if this is allowed,
/// those with the next port.
fn candidates(settings: &Settings, deadline: Instant) -> Result<Vec<SocketAddr>> {
    let given = address::resolve("the rendezvous", &settings.rendezvous, deadline)?;
    for remote in &given {
        listen::check_secretless(settings, remote.ip())?;
    }
    let next = given.iter().filter(|_| settings.next_port_too);
    let next = next.filter_map(|remote| {
        let port = remote.port().checked_add(1)?;
        Some(SocketAddr::new(remote.ip(), port))
    });
    Ok(given.iter().copied().chain(next).collect())
}

fn refusal_line(settings: &Settings, remote: SocketAddr, refusal: Refusal) -> String {
    let rank = settings.rank;
    let at = at(settings, remote);
    match refusal {
        Refusal::Secret if settings.start.id.is_some() => format!(
            "rank {rank}: the rendezvous {at} rejected the secret of this rank's unique id (all \
             ranks must use rank 0's id)"
        ),
        Refusal::Secret => format!(
            "rank {rank}: the rendezvous {at} rejected the job secret (RINGTREE_SECRET must be \
             the same on all ranks)"
        ),
        Refusal::WorldSize { ours, theirs } => format!(
            "rank {rank}: WORLD_SIZE is {ours} here, but {theirs} on rank 0 (rendezvous {at})"
        ),
        Refusal::Attempt { ours, theirs } => format!(
            "rank {rank}: this process belongs to attempt {ours} of the job, but the rendezvous \
             {at} belongs to attempt {theirs}: a restart has replaced this process, which now exits"
        ),
        other => format!("rank {rank}: the rendezvous {at}: {other}"),
    }
}

/// Connects to `remote` and runs one handshake.
fn attempt(
    settings: &Settings,
    remote: SocketAddr,
    deadline: Instant,
) -> std::result::Result<Proven, Failure> {
    let to_answer = match settings.next_port_too {
        true => FOREIGN_SERVICE_AFTER,
        false => HANDSHAKE_TIMEOUT,
    };
    let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    let hello = Hello {
        purpose: Purpose::Control,
        world_size: number(settings.world_size),
        group: 0,
        epoch: 0,
        attempt: settings.attempt,
        from: number(settings.rank),
        to: 0,
    };
    let cancel = &settings.start.cancel;
    let secret = settings.secret.as_ref();
    connect(remote, secret, hello, to_answer, deadline, cancel)
}

fn wait_for_table(
    settings: &Settings,
    poll: &mut Poll,
    channel: &mut Channel,
    deadline: Instant,
    at: &str,
) -> Result<Vec<Peer>> {
    let rank = settings.rank;
    let mut events = Events::with_capacity(16);
    let mut peers: Vec<Peer> = Vec::new();
    let mut missing = String::new();
    // Let rank 0 time out first if possible, because it knows which ranks are missing.
    let deadline = deadline + JOIN_FAILURE_NOTICE / 10;
    loop {
        loop {
            match channel.flush_and_receive() {
                Received::Message(Message::Table {
                    first,
                    peers: piece,
                }) => {
                    if first != peers.len() || first + piece.len() > settings.world_size {
                        let message =
                            format!("rank {rank}: {at} sent the table of a different world");
                        return Err(Error::join(message));
                    }
                    peers.extend(piece);
                    if peers.len() == settings.world_size {
                        return Ok(peers);
                    }
                }
                Received::Message(Message::Failed(error)) => {
                    return Err(error.within(settings.world_size));
                }
                Received::Message(Message::Waiting(who)) => missing = format!("; {who}"),
                Received::Message(_) => {
                    let message = format!("rank {rank}: {at} sent an unexpected kind of message");
                    return Err(Error::join(message));
                }
                Received::Empty => break,
                Received::Lost(why) => {
                    let message = format!(
                        "rank {rank}: lost the connection to {at} while joining: {why}{missing}"
                    );
                    return Err(Error::join(message));
                }
            }
        }
        if settings.start.cancel.is_canceled() {
            let error = settings.cancelled();
            channel.send(&Message::Failed(error.clone()));
            return Err(error);
        }
        if Instant::now() >= deadline {
            let error = Error::join(format!(
                "rank {rank}: reached {at}, but not all ranks joined within {} ms{missing}",
                settings.timeout.as_millis()
            ));
            let error = error.with_rank(rank).with_elapsed(settings.timeout);
            // Rank 0 may have started later and may still be waiting, so tell it why this rank
            // leaves.
            channel.send(&Message::Failed(error.clone()));
            return Err(error);
        }
        let until = settings.start.cancel.next_check(deadline);
        wait(poll, &mut events, Some(until))
            .map_err(|error| Error::io("cannot wait for the other ranks", &error))?;
    }
}
