//! A launcher that is not the coordinator.

use super::link::{self, Failure, Heard, Writer};
use super::message::{Join, Message};
use super::{Met, host_name};
use crate::error::{Error, Result};
use crate::launch::attempt::{self, Placement};
use crate::launch::cause::Cause;
use crate::launch::job::{Events, Meeting};
use crate::launch::peers::{Peers, Verdict};
use crate::protocol::handshake::{Refusal, Secret};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// After a failure here, how long the coordinator may take to say what the cause was.
const END_GRACE: Duration = Duration::from_millis(800);
/// The same in a job that may be restarted: who gives up on the coordinator gives up the job.
const DECISION_GRACE: Duration = Duration::from_secs(10);

/// What an attempt to join came to.
pub(super) enum Attempt {
    /// Everybody has come.
    Met(Met),
    /// The connection broke; try again.
    Again(String),
}

/// Joins the coordinator behind `stream`.
pub(super) fn join(
    join: &Join,
    meeting: &Meeting,
    secret: &Secret,
    stream: TcpStream,
    deadline: Instant,
    events: &Events,
) -> Result<Attempt> {
    let endpoint = &meeting.endpoint;
    let Ok(coordinator) = stream.peer_addr() else {
        return Ok(Attempt::Again("the connection broke".to_owned()));
    };
    let (mut writer, mut reader) = match link::initiate(stream, secret) {
        Ok(halves) => halves,
        Err(Failure::Io(error)) => return Ok(Attempt::Again(error.to_string())),
        Err(Failure::Refused(refusal)) => return Err(refused(endpoint, refusal)),
    };
    writer.send(&Message::Join(join.clone()));
    let start = match reader.next(Some(deadline)) {
        Some(Message::Start(start)) => start,
        Some(Message::Refused(why)) => return Err(Error::Join(why)),
        _ if Instant::now() >= deadline => {
            let message = format!("{endpoint} answers, but not all launchers have come");
            return Err(Error::Join(message));
        }
        _ => return Ok(Attempt::Again("node 0 closed the connection".to_owned())),
    };
    reader.listen(writer.connection, events.0.clone())?;
    Ok(Attempt::Met(Met {
        placement: Placement {
            node: start.node,
            nodes: meeting.nodes,
            host: host_name(),
            first_rank: start.first_rank,
            world_size: start.world_size,
            run_id: start.run_id,
        },
        attempt: elsewhere(0, coordinator.ip(), start.master_port),
        peers: Box::new(Member {
            coordinator: writer,
            address: coordinator.ip(),
            endpoint: endpoint.clone(),
            may_restart: join.max_restarts > 0,
            own_cause: None,
            next: None,
        }),
    }))
}

/// An attempt whose rank 0 runs on the coordinator's host.
fn elsewhere(number: u16, address: IpAddr, master_port: u16) -> attempt::Attempt {
    attempt::Attempt {
        number,
        master: SocketAddr::new(address, master_port),
        listener: None,
    }
}

fn refused(endpoint: &str, refusal: Refusal) -> Error {
    Error::Join(match refusal {
        Refusal::Secret => format!(
            "the launcher at {endpoint} holds another secret: RINGTREE_SECRET (or the file that \
             RINGTREE_SECRET_FILE names) must be the same on all hosts"
        ),
        refusal => format!("what answers at {endpoint} is no launcher of this job: {refusal}"),
    })
}

/// The coordinator, as a member sees it.
struct Member {
    coordinator: Writer,
    address: IpAddr,
    endpoint: String,
    may_restart: bool,
    own_cause: Option<Cause>,
    /// The attempt that the coordinator has begun.
    next: Option<attempt::Attempt>,
}

impl Member {
    fn coordinator_is_gone(&self) -> Cause {
        Cause::last(format!(
            "the launcher of node 0 at {} is gone; start the same line again on every host",
            self.endpoint
        ))
    }
}

impl Peers for Member {
    fn failed(&mut self, cause: &Cause) {
        self.own_cause = Some(cause.clone());
        self.coordinator.send(&Message::Failed(cause.clone()));
    }

    fn settling_time(&self) -> Duration {
        if self.may_restart {
            DECISION_GRACE
        } else {
            END_GRACE
        }
    }

    fn settled(&mut self, cause: &Cause) -> Verdict {
        // The coordinator decides, but it does not answer.
        Verdict::Final(cause.clone())
    }

    fn finished(&mut self) -> Verdict {
        self.coordinator.send(&Message::Finished);
        Verdict::Open
    }

    fn stopped(&mut self) -> Verdict {
        self.coordinator.send(&Message::Stopped);
        Verdict::Open
    }

    fn again(&mut self) -> Result<attempt::Attempt> {
        self.own_cause = None;
        self.next
            .take()
            .ok_or_else(|| Error::Join("no further attempt has begun".to_owned()))
    }

    fn awaited(&self) -> String {
        format!("the launcher of node 0 at {}", self.endpoint)
    }

    fn handle(&mut self, heard: Heard) -> Verdict {
        match heard {
            Heard::Said(_, Message::Done) => Verdict::Succeeded,
            Heard::Said(_, Message::End { text }) => Verdict::Final(Cause::last(text)),
            Heard::Said(_, Message::Restart { text }) => Verdict::Restart {
                text,
                pause: Duration::ZERO,
            },
            Heard::Said(
                _,
                Message::Again {
                    attempt,
                    master_port,
                },
            ) => {
                self.next = Some(elsewhere(attempt, self.address, master_port));
                Verdict::Stopped
            }
            Heard::Lost(_) => {
                let own = self.own_cause.clone();
                Verdict::Final(own.unwrap_or_else(|| self.coordinator_is_gone()))
            }
            _ => Verdict::Open,
        }
    }
}
