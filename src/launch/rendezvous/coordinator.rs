//! Runs the coordinator from the start of the job to its end.

use super::links::Links;
use crate::error::Result;
use crate::launch::attempt::Attempt;
use crate::launch::cause::{Cause, Confidence, Remedy};
use crate::launch::event::{PeerEvent, Peers, Status};
use crate::launch::message::{Join, Message};
use crate::launch::restarts::Restarts;
use std::net::IpAddr;
use std::time::Duration;

/// Time window after the first failure in which a better cause may still arrive from any host.
const CAUSE_GRACE: Duration = Duration::from_millis(200);
/// Like [`CAUSE_GRACE`], but used if the failure may be a consequence of another rank's failure.
/// The other rank is then expected to exit soon.
const CONSEQUENCE_GRACE: Duration = Duration::from_secs(1);

/// A member's launcher and the state of its ranks.
pub(super) struct Node {
    name: String,
    join: Join,
    connection: usize,
    state: State,
    gone: bool,
}

/// The state of the ranks on one host.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Finished,
    Stopped,
}

impl Node {
    /// Creates the entry for node `node`. `join` contains the settings of its launcher.
    pub(super) fn new(node: usize, join: Join, first_rank: usize, connection: usize) -> Self {
        let ranks = match join.ranks {
            1 => format!("rank {first_rank}"),
            ranks => format!("ranks {first_rank} to {}", first_rank + ranks - 1),
        };
        Node {
            name: format!("node {node} (host {}, {ranks})", join.host),
            join,
            connection,
            state: State::Running,
            gone: false,
        }
    }
}

/// The coordinator's view of the job.
pub(super) struct Coordinator {
    own: Join,
    nodes: Vec<Node>,
    links: Links,
    /// The address at which rank 0 listens in every attempt.
    address: IpAddr,
    /// The state of the ranks on this host.
    state: State,
    restarts: Restarts,
    /// `true` while all ranks are being stopped for a restart.
    restarting: bool,
}

impl Coordinator {
    /// Creates the coordinator for `nodes`. `own` holds the coordinator's own settings. Rank 0
    /// listens at `address`.
    pub(super) fn new(own: Join, nodes: Vec<Node>, links: Links, address: IpAddr) -> Self {
        Coordinator {
            restarts: Restarts::new(own.max_restarts),
            own,
            nodes,
            links,
            address,
            state: State::Running,
            restarting: false,
        }
    }

    fn send_all(&self, message: &Message) {
        for node in &self.nodes {
            self.links.send(node.connection, message);
        }
    }

    /// Returns the status of the job and, if all ranks succeeded, notifies the members.
    fn status(&mut self) -> Status {
        if self.nodes.iter().any(|node| node.state != self.state) {
            return Status::Undecided;
        }
        match self.state {
            State::Running => Status::Undecided,
            State::Stopped => Status::Stopped,
            State::Finished => {
                self.send_all(&Message::Done);
                Status::Succeeded
            }
        }
    }

    fn note(&mut self, connection: usize, state: State) -> Status {
        if let Some(node) = self.node(connection) {
            node.state = state;
        }
        self.status()
    }

    fn lost(&mut self, connection: usize) -> Status {
        let restarting = self.restarting;
        let Some(node) = self.node(connection) else {
            return Status::Undecided;
        };
        node.gone = true;
        if node.state == State::Finished && !restarting {
            return Status::Undecided;
        }
        Status::Failed(Cause::last(format!(
            "the launcher of {} is gone, and so are its ranks; start the same command again on \
             every host",
            node.name
        )))
    }

    fn node(&mut self, connection: usize) -> Option<&mut Node> {
        self.nodes
            .iter_mut()
            .find(|node| node.connection == connection)
    }
}

impl Peers for Coordinator {
    fn failed(&mut self, _: &Cause) {}

    fn settling_time(&self, cause: &Cause, _: bool) -> Duration {
        match cause.standing {
            Confidence::Consequence | Confidence::Unknown => CONSEQUENCE_GRACE,
            _ => CAUSE_GRACE,
        }
    }

    fn settled(&mut self, cause: &Cause) -> Status {
        let mut cause = cause.clone();
        if self.nodes.iter().any(|node| node.gone) {
            cause.remedy = Remedy::Nothing;
        }
        let status = self.restarts.after(&cause);
        self.restarting = matches!(status, Status::Restart { .. });
        match &status {
            Status::Restart { cause, .. } => self.send_all(&Message::Restart(cause.clone())),
            Status::Final(cause) => self.send_all(&Message::End(cause.clone())),
            _ => {}
        }
        status
    }

    fn finished(&mut self) -> Status {
        self.state = State::Finished;
        self.status()
    }

    fn stopped(&mut self) -> Status {
        self.state = State::Stopped;
        self.status()
    }

    fn again(&mut self, table: Option<String>) -> Result<Attempt> {
        let (number, tuning) = self.restarts.next(table);
        let attempt = Attempt::at(number, self.address, tuning)?;
        self.send_all(&Message::Again {
            attempt: attempt.number,
            master_port: attempt.rendezvous.port(),
            tuning: attempt.tuning.clone(),
        });
        self.restarting = false;
        self.state = State::Running;
        for node in &mut self.nodes {
            node.state = State::Running;
        }
        Ok(attempt)
    }

    fn awaited(&self) -> String {
        let waiting = |node: &&Node| node.state != State::Stopped;
        match self.nodes.iter().find(waiting) {
            Some(node) => format!("the launcher of {}", node.name),
            None => "the launcher of node 0".to_owned(),
        }
    }

    fn handle(&mut self, heard: PeerEvent) -> Status {
        match heard {
            PeerEvent::Message(connection, Message::Join(join))
                if self.node(connection).is_none() =>
            {
                let mut present = self.nodes.iter().map(|node| &node.join).chain([&self.own]);
                let text = present.find_map(|present| Join::contradiction(present, &join));
                let full = || "the job already has all of its launchers".to_owned();
                let message = Message::Refused(text.unwrap_or_else(full));
                self.links.send(connection, &message);
                Status::Undecided
            }
            PeerEvent::Message(connection, Message::Finished) => {
                self.note(connection, State::Finished)
            }
            PeerEvent::Message(connection, Message::Stopped) => {
                self.note(connection, State::Stopped)
            }
            PeerEvent::Message(connection, Message::Failed(cause)) => match self.node(connection) {
                Some(_) => Status::Failed(cause),
                None => Status::Undecided,
            },
            PeerEvent::Lost(connection) => self.lost(connection),
            _ => Status::Undecided,
        }
    }
}
