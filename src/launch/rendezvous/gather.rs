//! Runs the coordinator until all launchers have joined.

use super::coordinator::{Coordinator, Node};
use super::links::Links;
use super::next_event;
use crate::bootstrap::address::host_name;
use crate::control::failure::Failure;
use crate::control::notices::Notices;
use crate::error::{Error, Result};
use crate::launch::attempt::{Attempt, Placement};
use crate::launch::event::{Event, Events, Met, PeerEvent};
use crate::launch::job::Rendezvous;
use crate::launch::message::{Join, Message, Start};
use crate::launch::streams;
use crate::protocol::handshake::{Refusal, Secret};
use mio::net::TcpListener;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Instant;

/// Maximum number of rejections to print, each with an address and a reason.
const STRANGERS_TOLD_MAX: usize = 8;

/// A launcher that has joined, and the ID of its connection. The coordinator itself has no
/// connection.
struct Arrival {
    join: Join,
    connection: Option<usize>,
}

/// Waits until all launchers have joined at `listener`, and then assigns their positions in the
/// job.
pub(super) fn gather(
    (own, run_id): (Join, String),
    rendezvous: &Rendezvous,
    secret: &Secret,
    listener: TcpListener,
    deadline: Instant,
    events: &Events,
) -> Result<Met> {
    let broken = |error| Error::io("cannot use the launchers' socket", &error);
    let address = listener.local_addr().map_err(broken)?.ip();
    let links = Links::new(None, Some(listener), secret, &events.0)?;
    let mut arrivals = vec![Arrival {
        join: own,
        connection: None,
    }];
    let mut turned_away = BTreeSet::new();
    let mut notices = Notices::new();
    while arrivals.len() < rendezvous.nodes {
        let event = next_event(events, deadline, &mut notices, |seconds| {
            let (came, all, at) = (arrivals.len(), rendezvous.nodes, &rendezvous.endpoint);
            format!("{came} of {all} launchers have connected to {at} after {seconds} s")
        });
        let Some(Event::Peer(heard)) = event else {
            let error = missing(rendezvous, address, &arrivals, turned_away.len());
            return Err(refuse_all(&links, &arrivals, error));
        };
        match heard {
            PeerEvent::Rejected(remote, failure) => {
                // A rejected launcher retries, so each reason is printed only once per address.
                if let Some(why) = objection(failure)
                    && turned_away.len() < STRANGERS_TOLD_MAX
                    && turned_away.insert((remote.ip(), why.clone()))
                {
                    streams::print_line(&format!("rejected {remote}: {why}"));
                }
            }
            PeerEvent::Message(connection, Message::Join(join)) => {
                admit(&links, &mut arrivals, join, connection)?;
            }
            PeerEvent::Message(..) => {}
            PeerEvent::Lost(connection) => {
                arrivals.retain(|arrival| arrival.connection != Some(connection));
            }
        }
    }
    start(links, arrivals, run_id, address)
}

/// Returns the reason why a handshake failed, if the user should see it.
fn objection(failure: Failure) -> Option<String> {
    match failure {
        Failure::Refused(Refusal::Secret, _) => Some("it uses a different secret".to_owned()),
        // A process that does not speak the protocol, such as a port scanner, is not a launcher.
        Failure::Refused(Refusal::Garbage, _)
        | Failure::NoListener
        | Failure::Broken(_)
        | Failure::Starved(_) => None,
        Failure::Refused(refusal, _) => Some(refusal.to_string()),
    }
}

/// Admits a launcher, or rejects it if it belongs to a different job.
///
/// # Errors
/// Returns `ErrorKind::Join` if the settings of two of the job's launchers contradict each other.
fn admit(links: &Links, arrivals: &mut Vec<Arrival>, join: Join, connection: usize) -> Result<()> {
    let own = &arrivals[0].join;
    if join.id != own.id {
        let text = format!(
            "{} has {}, but {} has {}; pass the same --rdzv-id on every host",
            join.who(),
            join.name(),
            own.who(),
            own.name()
        );
        streams::print_line(&format!("rejected a launcher: {text}"));
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

/// Sends `error` to all launchers as the reason why the job does not start, and returns it.
fn refuse_all(links: &Links, arrivals: &[Arrival], error: Error) -> Error {
    for connection in arrivals.iter().filter_map(|arrival| arrival.connection) {
        links.send(connection, &Message::Refused(error.to_string()));
    }
    error
}

fn missing(
    rendezvous: &Rendezvous,
    address: IpAddr,
    arrivals: &[Arrival],
    turned_away: usize,
) -> Error {
    let came: BTreeSet<_> = arrivals
        .iter()
        .map(|arrival| arrival.join.host.as_str())
        .collect();
    let came: Vec<_> = came.into_iter().collect();
    let (there, all, at) = (arrivals.len(), rendezvous.nodes, &rendezvous.endpoint);
    let mut text = format!(
        "only {there} of {all} launchers connected to {at}, from {}",
        came.join(", ")
    );
    if turned_away > 0 {
        text += &format!("; {turned_away} were rejected");
    }
    if address.is_loopback() {
        text += "; other hosts cannot reach a loopback address";
    }
    Error::join(text + "; start the same command on every host")
}

/// Assigns a position to each launcher and sends it to that launcher, which then starts its ranks.
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
    // The coordinator is first after sorting: either it has node rank 0, or no launcher has a node
    // rank and the stable sort kept the coordinator, which was first to arrive, in front.
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
