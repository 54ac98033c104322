//! A launcher that is not the coordinator.

use super::link::{self, Failure, Heard, Writer};
use super::message::{Join, Message};
use super::{Met, host_name};
use crate::error::{Error, Result};
use crate::launch::cause::Cause;
use crate::launch::job::{Events, Meeting, Placement};
use crate::launch::peers::{Peers, Verdict};
use crate::protocol::handshake::{Refusal, Secret};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// After a failure here, how long the coordinator may take to say what the cause was.
const END_GRACE: Duration = Duration::from_millis(800);

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
            master: SocketAddr::new(coordinator.ip(), start.master_port),
        },
        listener: None,
        peers: Box::new(Member {
            coordinator: writer,
            endpoint: endpoint.clone(),
            own_cause: None,
        }),
    }))
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
    endpoint: String,
    own_cause: Option<Cause>,
}

impl Peers for Member {
    fn failed(&mut self, cause: &Cause) {
        self.own_cause = Some(cause.clone());
        self.coordinator.send(&Message::failed(cause));
    }

    fn settling_time(&self) -> Duration {
        END_GRACE
    }

    fn settled(&mut self, _: &Cause) {}

    fn finished(&mut self) -> Verdict {
        self.coordinator.send(&Message::Finished);
        Verdict::Open
    }

    fn handle(&mut self, heard: Heard) -> Verdict {
        match heard {
            Heard::Said(_, Message::Done) => Verdict::Succeeded,
            Heard::Said(_, Message::End { text }) => Verdict::Final(Cause {
                text,
                original: true,
            }),
            Heard::Lost(_) => Verdict::Final(self.own_cause.clone().unwrap_or_else(|| Cause {
                text: format!("the launcher of node 0 at {} is gone", self.endpoint),
                original: true,
            })),
            _ => Verdict::Open,
        }
    }
}
