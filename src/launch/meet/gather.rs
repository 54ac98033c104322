//! The coordinator, until all launchers have come.

use super::coordinator::{Coordinator, Node};
use super::link::{self, Failure, Heard, Writer};
use super::message::{Join, Message, Start};
use super::{Met, host_name};
use crate::error::{Error, Result};
use crate::launch::attempt::{Attempt, Placement};
use crate::launch::job::{Events, Meeting};
use crate::launch::supervise::{Event, spawn_thread};
use crate::limits::{HANDSHAKE_TIMEOUT, HANDSHAKES_PENDING_MAX, RANKS_PER_HOST_MAX};
use crate::protocol::handshake::{Refusal, Secret};
use crossbeam::channel::Sender;
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Of strangers that are turned away, the first few are told to the user.
const STRANGERS_TOLD_MAX: usize = 8;

/// A launcher that has come, with the connection to it; the coordinator has none to itself.
struct Arrival {
    join: Join,
    writer: Option<Writer>,
}

/// Waits until all launchers have come to `listener`, and gives out their places.
pub(super) fn gather(
    (own, run_id): (Join, String),
    meeting: &Meeting,
    secret: &Secret,
    listener: TcpListener,
    deadline: Instant,
    events: &Events,
) -> Result<Met> {
    let broken = |error| Error::system("the launchers' socket broke", &error);
    let address = listener.local_addr().map_err(broken)?.ip();
    let door = listener.try_clone().map_err(broken)?;
    let (secret, heard) = (secret.clone(), events.0.clone());
    spawn_thread("ringtree-launchers", move || answer(&door, &secret, &heard))?;
    let mut arrivals = vec![Arrival {
        join: own,
        writer: None,
    }];
    let mut turned_away = Vec::new();
    while arrivals.len() < meeting.nodes {
        let Ok(Event::Peer(heard)) = events.1.recv_deadline(deadline) else {
            let error = missing(meeting, address, &arrivals, &turned_away);
            return Err(refuse_all(arrivals, error));
        };
        match heard {
            Heard::Came(join, writer) => admit(&mut arrivals, join, writer)?,
            Heard::TurnedAway(address, why) => {
                if turned_away.len() < STRANGERS_TOLD_MAX {
                    eprintln!("ringtree: turned {address} away: {why}");
                    turned_away.push(address);
                }
            }
            Heard::Lost(connection) => arrivals.retain(|arrival| {
                arrival
                    .writer
                    .as_ref()
                    .is_none_or(|writer| writer.connection != connection)
            }),
            Heard::Said(..) => {}
        }
    }
    start(arrivals, run_id, address, listener)
}

/// Takes a launcher in, or refuses it; a contradiction between two of one job ends the job.
fn admit(arrivals: &mut Vec<Arrival>, join: Join, mut writer: Writer) -> Result<()> {
    let own = &arrivals[0].join;
    if join.id != own.id {
        let text = format!(
            "{} came with {} to {}, which has {}",
            join.who(),
            join.name(),
            own.who(),
            own.name()
        );
        eprintln!("ringtree: {text}; it was turned away");
        writer.send(&Message::Refused(text));
        return Ok(());
    }
    let contradiction = arrivals
        .iter()
        .find_map(|present| contradiction(&present.join, &join));
    arrivals.push(Arrival {
        join,
        writer: Some(writer),
    });
    match contradiction {
        None => Ok(()),
        Some(text) => Err(refuse_all(std::mem::take(arrivals), Error::Join(text))),
    }
}

/// What about two launchers cannot be true of one job.
pub(super) fn contradiction(first: &Join, second: &Join) -> Option<String> {
    let both = |what: &str, one: String, other: String| {
        let (first, second) = (first.who(), second.who());
        Some(format!(
            "{first} has {what} {one}, {second} has {other}; correct one of them"
        ))
    };
    if first.nodes != second.nodes {
        return both(
            "--nnodes",
            first.nodes.to_string(),
            second.nodes.to_string(),
        );
    }
    if first.max_restarts != second.max_restarts {
        return both(
            "--max-restarts",
            first.max_restarts.to_string(),
            second.max_restarts.to_string(),
        );
    }
    let place = |join: &Join| match join.node_rank {
        Some(node_rank) => node_rank.to_string(),
        None => "none".to_owned(),
    };
    let same = first.node_rank.is_some() && first.node_rank == second.node_rank;
    if same || first.node_rank.is_some() != second.node_rank.is_some() {
        return both("--node-rank", place(first), place(second));
    }
    let beyond = second
        .node_rank
        .is_some_and(|node_rank| node_rank >= second.nodes);
    if beyond || second.ranks == 0 || second.ranks > RANKS_PER_HOST_MAX {
        return Some(format!("{} has impossible settings", second.who()));
    }
    None
}

/// Tells all launchers why they are not started.
fn refuse_all(arrivals: Vec<Arrival>, error: Error) -> Error {
    for mut writer in arrivals.into_iter().filter_map(|arrival| arrival.writer) {
        writer.send(&Message::Refused(error.to_string()));
    }
    error
}

fn missing(
    meeting: &Meeting,
    address: IpAddr,
    arrivals: &[Arrival],
    turned_away: &[SocketAddr],
) -> Error {
    let came: HashSet<_> = arrivals
        .iter()
        .map(|arrival| arrival.join.host.as_str())
        .collect();
    let came: Vec<_> = came.into_iter().collect();
    let (there, all, at) = (arrivals.len(), meeting.nodes, &meeting.endpoint);
    let mut text = format!(
        "only {there} of {all} launchers came to {at}, from {}",
        came.join(" ")
    );
    if !turned_away.is_empty() {
        text += &format!("; {} were turned away", turned_away.len());
    }
    if address.is_loopback() {
        text += "; other hosts cannot reach a loopback address";
    }
    Error::Join(text + "; start the same line on every host")
}

/// Gives out the places and lets everybody start.
fn start(
    mut arrivals: Vec<Arrival>,
    run_id: String,
    address: IpAddr,
    door: TcpListener,
) -> Result<Met> {
    arrivals.sort_by_key(|arrival| arrival.join.node_rank);
    let attempt = Attempt::at(0, address)?;
    let world_size = arrivals.iter().map(|arrival| arrival.join.ranks).sum();
    let placement = Placement {
        node: 0,
        nodes: arrivals.len(),
        host: host_name(),
        first_rank: 0,
        world_size,
        run_id: run_id.clone(),
    };
    // Sorting left the coordinator first: it has place 0, or nobody has a place and it came first.
    let own = arrivals.remove(0).join;
    let mut nodes = Vec::new();
    let mut first_rank = own.ranks;
    for (node, Arrival { join, writer }) in (1..).zip(arrivals) {
        let ranks = join.ranks;
        if let Some(mut writer) = writer {
            writer.send(&Message::Start(Start {
                node,
                first_rank,
                world_size,
                run_id: run_id.clone(),
                master_port: attempt.master.port(),
            }));
            nodes.push(Node::new(node, join, first_rank, writer));
        }
        first_rank += ranks;
    }
    Ok(Met {
        placement,
        attempt,
        peers: Box::new(Coordinator::new(own, nodes, door, address)),
    })
}

/// Answers everybody who comes to `door`, until it is shut down, each in a thread of its own.
fn answer(door: &TcpListener, secret: &Secret, events: &Sender<Event>) {
    let pending = Arc::new(AtomicUsize::new(0));
    for connection in 1.. {
        let Ok((stream, address)) = door.accept() else {
            return;
        };
        if pending.load(Ordering::Relaxed) >= HANDSHAKES_PENDING_MAX {
            continue;
        }
        pending.fetch_add(1, Ordering::Relaxed);
        let (secret, events, pending) = (secret.clone(), events.clone(), Arc::clone(&pending));
        let meet = move || {
            let result = introduce(stream, connection, &secret, &events);
            pending.fetch_sub(1, Ordering::Relaxed);
            if let Err(why) = result {
                let _ = events.send(Event::Peer(Heard::TurnedAway(address, why)));
            }
        };
        if spawn_thread("ringtree-handshake", meet).is_err() {
            return;
        }
    }
}

/// Lets one newcomer prove and introduce itself; the error is worth telling the user.
fn introduce(
    stream: TcpStream,
    connection: usize,
    secret: &Secret,
    events: &Sender<Event>,
) -> std::result::Result<(), String> {
    let (writer, mut reader) = match link::accept(stream, connection, secret) {
        Ok(halves) => halves,
        Err(Failure::Refused(Refusal::Secret)) => return Err("it holds another secret".to_owned()),
        // Whoever knocks without speaking the protocol is no launcher: a probe, or noise.
        Err(Failure::Refused(Refusal::Garbage) | Failure::Io(_)) => return Ok(()),
        Err(Failure::Refused(refusal)) => return Err(refusal.to_string()),
    };
    let Some(Message::Join(join)) = reader.next(Some(Instant::now() + HANDSHAKE_TIMEOUT)) else {
        return Err("it did not introduce itself".to_owned());
    };
    let _ = events.send(Event::Peer(Heard::Came(join, writer)));
    reader
        .listen(connection, events.clone())
        .map_err(|error| error.to_string())
}
