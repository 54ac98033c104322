//! The coordinator, from the start of the job to its end.

use super::gather::contradiction;
use super::link::{Heard, Writer};
use super::message::{Join, Message};
use crate::error::Result;
use crate::launch::attempt::Attempt;
use crate::launch::cause::{Cause, Remedy};
use crate::launch::peers::{Peers, Verdict};
use crate::launch::restarts::Restarts;
use socket2::SockRef;
use std::net::{IpAddr, Shutdown, TcpListener};
use std::time::Duration;

/// After the first failure, how long a better cause may arrive from any host.
const CAUSE_GRACE: Duration = Duration::from_millis(200);

/// A member, as the coordinator sees it.
pub(super) struct Node {
    name: String,
    join: Join,
    writer: Writer,
    state: State,
    gone: bool,
}

/// Of the ranks of a host.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Finished,
    Stopped,
}

impl Node {
    /// The launcher that introduced itself with `join`, in its place.
    pub(super) fn new(node: usize, join: Join, first_rank: usize, writer: Writer) -> Self {
        let ranks = match join.ranks {
            1 => format!("rank {first_rank}"),
            ranks => format!("ranks {first_rank} to {}", first_rank + ranks - 1),
        };
        Node {
            name: format!("node {node} (host {}, {ranks})", join.host),
            join,
            writer,
            state: State::Running,
            gone: false,
        }
    }
}

/// The other launchers, as the coordinator sees them.
pub(super) struct Coordinator {
    own: Join,
    nodes: Vec<Node>,
    door: TcpListener,
    /// Where the ranks 0 answer.
    address: IpAddr,
    /// Of the ranks of this host.
    state: State,
    restarts: Restarts,
    /// Whether all ranks are being stopped, to be started again.
    restarting: bool,
}

impl Coordinator {
    /// The coordinator, which introduced itself with `own`, of `nodes`; `door` is shut with it.
    pub(super) fn new(own: Join, nodes: Vec<Node>, door: TcpListener, address: IpAddr) -> Self {
        Coordinator {
            restarts: Restarts::new(own.max_restarts),
            own,
            nodes,
            door,
            address,
            state: State::Running,
            restarting: false,
        }
    }

    fn tell_all(&mut self, message: &Message) {
        self.nodes
            .iter_mut()
            .for_each(|node| node.writer.send(message));
    }

    /// What follows from the states of all hosts.
    fn judge(&mut self) -> Verdict {
        let states = self.nodes.iter().map(|node| node.state);
        let all = |sought| {
            states
                .clone()
                .chain([self.state])
                .all(|state| state == sought)
        };
        if all(State::Stopped) {
            return Verdict::Stopped;
        }
        if !all(State::Finished) {
            return Verdict::Open;
        }
        self.tell_all(&Message::Done);
        Verdict::Succeeded
    }

    fn note(&mut self, connection: usize, state: State) -> Verdict {
        if let Some(node) = self.node(connection) {
            node.state = state;
        }
        self.judge()
    }

    fn lost(&mut self, connection: usize) -> Verdict {
        let restarting = self.restarting;
        let Some(node) = self.node(connection) else {
            return Verdict::Open;
        };
        node.gone = true;
        if node.state == State::Finished && !restarting {
            return Verdict::Open;
        }
        Verdict::Failed(Cause::last(format!(
            "the launcher of {} is gone, and its ranks; start the same line again on every host",
            node.name
        )))
    }

    fn node(&mut self, connection: usize) -> Option<&mut Node> {
        self.nodes
            .iter_mut()
            .find(|node| node.writer.connection == connection)
    }
}

impl Peers for Coordinator {
    fn failed(&mut self, _: &Cause) {}

    fn settling_time(&self) -> Duration {
        CAUSE_GRACE
    }

    fn settled(&mut self, cause: &Cause) -> Verdict {
        let mut cause = cause.clone();
        if self.nodes.iter().any(|node| node.gone) {
            cause.remedy = Remedy::Nothing;
        }
        let verdict = self.restarts.after(&cause);
        self.restarting = matches!(verdict, Verdict::Restart { .. });
        match &verdict {
            Verdict::Restart { text, .. } => {
                self.tell_all(&Message::Restart { text: text.clone() })
            }
            Verdict::Final(Cause { text, .. }) => {
                self.tell_all(&Message::End { text: text.clone() });
            }
            _ => {}
        }
        verdict
    }

    fn finished(&mut self) -> Verdict {
        self.state = State::Finished;
        self.judge()
    }

    fn stopped(&mut self) -> Verdict {
        self.state = State::Stopped;
        self.judge()
    }

    fn again(&mut self) -> Result<Attempt> {
        let attempt = Attempt::at(self.restarts.attempt(), self.address)?;
        self.tell_all(&Message::Again {
            attempt: attempt.number,
            master_port: attempt.master.port(),
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

    fn handle(&mut self, heard: Heard) -> Verdict {
        match heard {
            Heard::Came(join, mut writer) => {
                let mut present = self.nodes.iter().map(|node| &node.join).chain([&self.own]);
                let text = present.find_map(|present| contradiction(present, &join));
                let full = || "the job has all its launchers already".to_owned();
                writer.send(&Message::Refused(text.unwrap_or_else(full)));
                Verdict::Open
            }
            Heard::Said(connection, Message::Finished) => self.note(connection, State::Finished),
            Heard::Said(connection, Message::Stopped) => self.note(connection, State::Stopped),
            Heard::Said(connection, Message::Failed(cause)) => match self.node(connection) {
                Some(_) => Verdict::Failed(cause),
                None => Verdict::Open,
            },
            Heard::Lost(connection) => self.lost(connection),
            _ => Verdict::Open,
        }
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        // Wakes the thread that answers the door.
        let _ = SockRef::from(&self.door).shutdown(Shutdown::Both);
    }
}
