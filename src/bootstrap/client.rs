//! The join of every rank but 0: find rank 0, send it this rank's record, wait for the table.

use super::address;
use super::listen;
use super::messages::{Message, Record};
use super::settings::Settings;
use super::{by_id, sharing};
use crate::control::channel::{Channel, Received};
use crate::control::descriptors::Room;
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

/// The first and the longest pause between two attempts to reach the rendezvous.
const RETRY_FIRST: Duration = Duration::from_millis(10);
const RETRY_MAX: Duration = Duration::from_millis(200);

/// What a rank has after the join.
pub(super) struct Gathered {
    /// By rank: to rank 0, or at rank 0 to all others.
    pub(super) channels: BTreeMap<usize, Channel>,
    /// For data connections; it does not listen yet.
    pub(super) listener: Socket,
    /// All ranks, by rank.
    pub(super) peers: Vec<Peer>,
}

/// The token of the connection to rank 0 during the join.
const CHANNEL: Token = Token(16);

/// Joins as a rank other than 0.
pub(super) fn join(settings: &mut Settings, place: Offer, poll: &mut Poll) -> Result<Gathered> {
    let deadline = settings.deadline();
    let Proven { stream, key, .. } = reach(settings, deadline)?;
    let settings = &*settings;
    let unusable = |error| Error::io("setting up the control connection", &error);
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
        // This rank's own error is told either way.
        channel.send(&Message::Failed(error.clone()));
    })?;
    let record = Record {
        rank: settings.rank,
        peer: own_peer(settings, address, place),
        agreed: settings.to_agree(),
        room: Room::here(),
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

/// This rank as the others see it.
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

/// The rendezvous as it was given, with its address if that says more.
fn at(settings: &Settings, remote: SocketAddr) -> String {
    let given = &settings.rendezvous;
    if *given == remote.to_string() {
        given.clone()
    } else {
        format!("{given} ({remote})")
    }
}

/// Tries the addresses of the rendezvous in turn until one proves to be rank 0. What a process says
/// that proves nothing ends nothing: it is remembered for the message.
fn reach(settings: &mut Settings, deadline: Instant) -> Result<Proven> {
    let mut pause = RETRY_FIRST;
    let mut told: Option<String> = None;
    let mut before = None;
    // One rank of a host tells the user, as far as the ranks know their numbers there.
    let is_first = settings.local_rank.is_none_or(|rank| rank == 0);
    let mut notices = RankNotices::new(is_first && !settings.stall_warning.is_zero());
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
                        notices.now(|| format!("{line}; it tries again"));
                    }
                    refused = refused.or(Some(line));
                }
                // The given port tells more than the next one, which is tried after it.
                Err(failure) => last = last.or(Some((remote, failure))),
            }
        }
        // What the deadline has cut short tells less than the failure before it.
        if Instant::now() >= deadline {
            last = before.take().or(last);
        }
        if Instant::now() + pause >= deadline {
            let line = match refused {
                Some(line) => format!("{line}, for {} ms", settings.timeout.as_millis()),
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
            format!("rank {rank} has looked for rank 0 for {seconds} s: {why}")
        });
        told = refused.or(told);
        before = last;
        thread::sleep(pause);
        pause = (pause * 3 / 2).min(RETRY_MAX);
    }
}

/// Whether another try would be refused too. A rank 0 of an earlier attempt of the job exits once
/// it learns that it was replaced.
fn is_final(refusal: Refusal) -> bool {
    match refusal {
        Refusal::Attempt { ours, theirs } => ours < theirs,
        _ => refusal.is_proven(),
    }
}

/// Why no rendezvous was found: the last failure, and what some process `told` before.
fn unreached_line(
    settings: &Settings,
    last: Option<(SocketAddr, Failure)>,
    told: Option<String>,
) -> String {
    let (remote, failure) = last.expect("invariant: an address that did not refuse has failed");
    let told = told.map_or_else(String::new, |line| format!("; earlier, {line}"));
    format!(
        "rank {}: no rendezvous at {} within {} ms: {failure}; is rank 0 running, and is this its \
         address?{}{told}",
        settings.rank,
        at(settings, remote),
        settings.timeout.as_millis(),
        listen::loopback_hint(settings, remote.ip()),
    )
}

/// The addresses to try, the given port before the next one.
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
        Refusal::Secret if settings.start.has_id() => format!(
            "rank {rank}: the rendezvous {at} refused the secret of this rank's unique id (is it \
             the id that rank 0 has?)"
        ),
        Refusal::Secret => format!(
            "rank {rank}: the rendezvous {at} refused the job secret (RINGTREE_SECRET differs?)"
        ),
        Refusal::WorldSize { ours, theirs } => format!(
            "rank {rank}: WORLD_SIZE is {ours} here, but {theirs} at rank 0 (rendezvous {at})"
        ),
        Refusal::Attempt { ours, theirs } => format!(
            "rank {rank}: this process is of attempt {ours} of the job, but the rendezvous {at} of \
             attempt {theirs}: a restart has replaced this process, which ends"
        ),
        other => format!("rank {rank}: the rendezvous {at}: {other}"),
    }
}

/// One connection to `remote` and one handshake on it.
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
    // Rank 0 gives up first if it can, for it knows which ranks are missing.
    let deadline = deadline + JOIN_FAILURE_NOTICE / 10;
    loop {
        loop {
            match channel.flush_and_receive() {
                Received::Message(Message::Table {
                    first,
                    peers: piece,
                }) => {
                    if first != peers.len() || first + piece.len() > settings.world_size {
                        let message = format!("rank {rank}: {at} sent a table of another world");
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
                    let message = format!("rank {rank}: {at} sent something else than the table");
                    return Err(Error::join(message));
                }
                Received::Empty => break,
                Received::Lost(why) => {
                    let message = format!("rank {rank}: lost {at} during the join: {why}{missing}");
                    return Err(Error::join(message));
                }
            }
        }
        if settings.start.cancel.is_cancelled() {
            let error = settings.cancelled();
            channel.send(&Message::Failed(error.clone()));
            return Err(error);
        }
        if Instant::now() >= deadline {
            let error = Error::join(format!(
                "rank {rank}: reached {at}, but not all ranks came within {} ms{missing}",
                settings.timeout.as_millis()
            ));
            let error = error.with_rank(rank).with_elapsed(settings.timeout);
            // Rank 0 may have been started later: it learns why this rank is gone.
            channel.send(&Message::Failed(error.clone()));
            return Err(error);
        }
        let until = settings.start.cancel.look_by(deadline);
        wait(poll, &mut events, Some(until))
            .map_err(|error| Error::io("waiting for the other ranks", &error))?;
    }
}
