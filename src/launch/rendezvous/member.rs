//! Implements a launcher that is not the coordinator.

use super::links::{FIRST, HELLO, Links};
use super::next_event;
use crate::bootstrap::address::host_name;
use crate::control::cancel::Cancel;
use crate::control::failure::Failure;
use crate::control::handshake::connect;
use crate::control::notices::Notices;
use crate::error::{Error, Result};
use crate::launch::attempt::{Attempt, Placement};
use crate::launch::cause::{Cause, Confidence};
use crate::launch::event::{Event, Events, Met, PeerEvent, Peers, Status};
use crate::launch::job::Rendezvous;
use crate::launch::message::{Join, Message};
use crate::limits::HANDSHAKE_TIMEOUT;
use crate::protocol::handshake::{Refusal, Secret};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Maximum time that the coordinator may take to report the cause after a failure on this host.
const END_GRACE: Duration = Duration::from_millis(1800);
/// Like [`END_GRACE`], but used if the job may restart. If a member stops waiting, the job ends.
const DECISION_GRACE: Duration = Duration::from_secs(10);

/// The outcome of trying to join at an address.
pub(super) enum Joined {
    /// All launchers have joined.
    Met(Met),
    /// The coordinator could not be reached, for this reason.
    NotYet(String),
    /// An unauthenticated process responded, and the handshake failed for this reason.
    Rejected(String),
}

/// Connects to the coordinator at `address` and joins the job.
pub(super) fn join(
    join: &Join,
    rendezvous: &Rendezvous,
    secret: &Secret,
    address: SocketAddr,
    deadline: Instant,
    events: &Events,
) -> Result<Joined> {
    let endpoint = &rendezvous.endpoint;
    let never = Cancel::default();
    let proven = match connect(
        address,
        Some(secret),
        HELLO,
        HANDSHAKE_TIMEOUT,
        deadline,
        &never,
    ) {
        Ok(proven) => proven,
        Err(failure @ (Failure::NoListener | Failure::Broken(_) | Failure::Starved(_))) => {
            return Ok(Joined::NotYet(failure.to_string()));
        }
        Err(Failure::Refused(refusal, _)) => {
            let why = refused(endpoint, refusal);
            return match refusal.is_proven() {
                true => Err(Error::join(why)),
                // Any process that holds the port could have sent this.
                false => Ok(Joined::Rejected(why)),
            };
        }
    };
    let links = Links::new(Some(proven), None, secret, &events.0)?;
    links.send(FIRST, &Message::Join(join.clone()));
    let mut notices = Notices::new();
    let line = |seconds| {
        format!("connected to {endpoint}; other launchers are still missing after {seconds} s")
    };
    let start = match next_event(events, deadline, &mut notices, line) {
        Some(Event::Peer(PeerEvent::Message(_, Message::Start(start)))) => start,
        Some(Event::Peer(PeerEvent::Message(_, Message::Refused(why)))) => {
            return Err(Error::join(why));
        }
        None => {
            let what = "other launchers are missing; start the same command on every host";
            return Err(Error::join(format!("connected to {endpoint}, but {what}")));
        }
        _ => return Ok(Joined::NotYet("node 0 closed the connection".to_owned())),
    };
    Ok(Joined::Met(Met {
        placement: Placement {
            node: start.node,
            nodes: rendezvous.nodes,
            host: host_name(),
            first_rank: start.first_rank,
            world_size: start.world_size,
            run_id: start.run_id,
        },
        attempt: elsewhere(0, address.ip(), start.master_port, None),
        peers: Box::new(Member {
            links,
            address: address.ip(),
            endpoint: endpoint.clone(),
            may_restart: join.max_restarts > 0,
            own_cause: None,
            next: None,
        }),
    }))
}

/// Creates an attempt in which rank 0 runs on the coordinator's host.
fn elsewhere(number: u16, address: IpAddr, port: u16, tuning: Option<String>) -> Attempt {
    Attempt::elsewhere(number, SocketAddr::new(address, port), tuning)
}

fn refused(endpoint: &str, refusal: Refusal) -> String {
    match refusal {
        Refusal::Secret => format!(
            "the launcher at {endpoint} uses a different secret; set the same RINGTREE_SECRET (or \
             RINGTREE_SECRET_FILE) on every host"
        ),
        refusal => format!("{endpoint} is not a launcher of this job: {refusal}"),
    }
}

/// The coordinator, as a member sees it.
struct Member {
    links: Links,
    address: IpAddr,
    endpoint: String,
    may_restart: bool,
    own_cause: Option<Cause>,
    /// The next attempt, once the coordinator has begun it.
    next: Option<Attempt>,
}

impl Member {
    fn send(&self, message: &Message) {
        self.links.send(FIRST, message);
    }

    fn coordinator_is_gone(&self) -> Cause {
        Cause::last(format!(
            "the launcher of node 0 at {} is gone; start the same command again on every host",
            self.endpoint
        ))
    }
}

impl Peers for Member {
    fn failed(&mut self, cause: &Cause) {
        self.own_cause = Some(cause.clone());
        self.send(&Message::Failed(cause.clone()));
    }

    fn settling_time(&self, _: &Cause, _: bool) -> Duration {
        if self.may_restart {
            DECISION_GRACE
        } else {
            END_GRACE
        }
    }

    fn settled(&mut self, cause: &Cause) -> Status {
        // The coordinator has not answered in time, so this launcher decides on its own.
        Status::Final(cause.clone())
    }

    fn finished(&mut self) -> Status {
        self.send(&Message::Finished);
        Status::Undecided
    }

    fn stopped(&mut self) -> Status {
        self.send(&Message::Stopped);
        Status::Undecided
    }

    fn again(&mut self, _: Option<String>) -> Result<Attempt> {
        self.own_cause = None;
        self.next
            .take()
            .ok_or_else(|| Error::join("no new attempt has started"))
    }

    fn awaited(&self) -> String {
        format!("the launcher of node 0 at {}", self.endpoint)
    }

    fn handle(&mut self, heard: PeerEvent) -> Status {
        match heard {
            PeerEvent::Message(_, Message::Done) => Status::Succeeded,
            PeerEvent::Message(_, Message::End(cause)) => Status::Final(Cause {
                standing: Confidence::Original,
                ..cause
            }),
            PeerEvent::Message(_, Message::Restart(cause)) => Status::Restart {
                cause,
                pause: Duration::ZERO,
            },
            PeerEvent::Message(
                _,
                Message::Again {
                    attempt,
                    master_port,
                    tuning,
                },
            ) => {
                let next = elsewhere(attempt, self.address, master_port, tuning);
                self.next = Some(next);
                Status::Stopped
            }
            PeerEvent::Lost(_) => {
                let own = self.own_cause.clone();
                Status::Final(own.unwrap_or_else(|| self.coordinator_is_gone()))
            }
            _ => Status::Undecided,
        }
    }
}
