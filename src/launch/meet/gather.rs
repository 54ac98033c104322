//! The coordinator, until all launchers have come.

use super::coordinator::{Coordinator, Node};
use super::links::Links;
use super::next_event;
use crate::bootstrap::address::host_name;
use crate::control::failure::Failure;
use crate::control::notices::Notices;
use crate::error::{Error, Result};
use crate::launch::attempt::{Attempt, Placement};
use crate::launch::event::{Event, Events, Heard, Met};
use crate::launch::job::Meeting;
use crate::launch::message::{Join, Message, Start};
use crate::launch::streams;
use crate::protocol::handshake::{Refusal, Secret};
use mio::net::TcpListener;
use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::time::Instant;

/// Of the connections that are turned away, the first few are told to the user.
const STRANGERS_TOLD_MAX: usize = 8;

/// A launcher that has come, with the number of its connection; the coordinator has none to itself.
struct Arrival {
    join: Join,
    connection: Option<usize>,
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
    let broken = |error| Error::io("the launchers' socket broke", &error);
    let address = listener.local_addr().map_err(broken)?.ip();
    let links = Links::new(None, Some(listener), secret, &events.0)?;
    let mut arrivals = vec![Arrival {
        join: own,
        connection: None,
    }];
    let mut turned_away = BTreeSet::new();
    let mut notices = Notices::new();
    while arrivals.len() < meeting.nodes {
        let event = next_event(events, deadline, &mut notices, |seconds| {
            let (came, all, at) = (arrivals.len(), meeting.nodes, &meeting.endpoint);
            format!("{came} of {all} launchers have come to {at} in {seconds} s")
        });
        let Some(Event::Peer(heard)) = event else {
            let error = missing(meeting, address, &arrivals, turned_away.len());
            return Err(refuse_all(&links, &arrivals, error));
        };
        match heard {
            Heard::TurnedAway(remote, failure) => {
                // A launcher that is turned away tries again and again.
                if let Some(why) = objection(failure)
                    && turned_away.len() < STRANGERS_TOLD_MAX
                    && turned_away.insert((remote.ip(), why.clone()))
                {
                    streams::say(&format!("turned {remote} away: {why}"));
                }
            }
            Heard::Said(connection, Message::Join(join)) => {
                admit(&links, &mut arrivals, join, connection)?;
            }
            Heard::Said(..) => {}
            Heard::Lost(connection) => {
                arrivals.retain(|arrival| arrival.connection != Some(connection));
            }
        }
    }
    start(links, arrivals, run_id, address)
}

/// Why a handshake failed, if that is worth telling the user.
fn objection(failure: Failure) -> Option<String> {
    match failure {
        Failure::Refused(Refusal::Secret, _) => Some("it holds another secret".to_owned()),
        // What does not speak the protocol is no launcher: a probe, or noise.
        Failure::Refused(Refusal::Garbage, _)
        | Failure::NoListener
        | Failure::Broken(_)
        | Failure::Starved(_) => None,
        Failure::Refused(refusal, _) => Some(refusal.to_string()),
    }
}

/// Takes a launcher in, or refuses it; a contradiction between two of one job ends the job.
fn admit(links: &Links, arrivals: &mut Vec<Arrival>, join: Join, connection: usize) -> Result<()> {
    let own = &arrivals[0].join;
    if join.id != own.id {
        let text = format!(
            "{} came with {} to {}, which has {}",
            join.who(),
            join.name(),
            own.who(),
            own.name()
        );
        streams::say(&format!("{text}; it was turned away"));
        links.send(connection, &Message::Refused(text));
        return Ok(());
    }
    let contradiction = arrivals
        .iter()
        .find_map(|present| Join::contradiction(&present.join, &join));
    arrivals.push(Arrival {
        join,
        connection: Some(connection),
    });
    match contradiction {
        None => Ok(()),
        Some(text) => Err(refuse_all(links, arrivals, Error::join(text))),
    }
}

/// Tells all launchers why they are not started.
fn refuse_all(links: &Links, arrivals: &[Arrival], error: Error) -> Error {
    for connection in arrivals.iter().filter_map(|arrival| arrival.connection) {
        links.send(connection, &Message::Refused(error.to_string()));
    }
    error
}

fn missing(meeting: &Meeting, address: IpAddr, arrivals: &[Arrival], turned_away: usize) -> Error {
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
    if turned_away > 0 {
        text += &format!("; {turned_away} were turned away");
    }
    if address.is_loopback() {
        text += "; other hosts cannot reach a loopback address";
    }
    Error::join(text + "; start the same line on every host")
}

/// Gives out the places and lets all launchers start.
fn start(links: Links, mut arrivals: Vec<Arrival>, run_id: String, address: IpAddr) -> Result<Met> {
    arrivals.sort_by_key(|arrival| arrival.join.node_rank);
    let attempt = Attempt::at(0, address, None)?;
    let world_size = arrivals.iter().map(|arrival| arrival.join.ranks).sum();
    let placement = Placement {
        node: 0,
        nodes: arrivals.len(),
        host: host_name(),
        first_rank: 0,
        world_size,
        run_id: run_id.clone(),
    };
    // Sorting left the coordinator first: it has place 0, or no launcher has a place and it came
    // first.
    let own = arrivals.remove(0).join;
    let mut nodes = Vec::new();
    let mut first_rank = own.ranks;
    for (node, Arrival { join, connection }) in (1..).zip(arrivals) {
        let ranks = join.ranks;
        if let Some(connection) = connection {
            let start = Message::Start(Start {
                node,
                first_rank,
                world_size,
                run_id: run_id.clone(),
                master_port: attempt.rendezvous.port(),
            });
            links.send(connection, &start);
            nodes.push(Node::new(node, join, first_rank, connection));
        }
        first_rank += ranks;
    }
    Ok(Met {
        placement,
        attempt,
        peers: Box::new(Coordinator::new(own, nodes, links, address)),
    })
}
