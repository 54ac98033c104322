//! The coordinator, from the start of the job to its end.

use super::gather::contradiction;
use super::link::{Heard, Writer};
use super::message::{Join, Message};
use crate::launch::cause::Cause;
use crate::launch::peers::{Peers, Verdict};
use socket2::SockRef;
use std::net::{Shutdown, TcpListener};
use std::time::Duration;

/// After the first failure, how long a better cause may arrive from any host.
const CAUSE_GRACE: Duration = Duration::from_millis(200);

/// A member, as the coordinator sees it.
pub(super) struct Node {
    name: String,
    join: Join,
    writer: Writer,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Finished,
    Failed,
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
        }
    }
}

/// The other launchers, as the coordinator sees them.
pub(super) struct Coordinator {
    own: Join,
    nodes: Vec<Node>,
    door: TcpListener,
    finished_here: bool,
}

impl Coordinator {
    /// The coordinator, which introduced itself with `own`, of `nodes`; `door` is shut with it.
    pub(super) fn new(own: Join, nodes: Vec<Node>, door: TcpListener) -> Self {
        Coordinator {
            own,
            nodes,
            door,
            finished_here: false,
        }
    }

    fn tell_all(&mut self, message: &Message) {
        self.nodes
            .iter_mut()
            .for_each(|node| node.writer.send(message));
    }

    fn judge(&mut self) -> Verdict {
        let finished = self.nodes.iter().all(|node| node.state == State::Finished);
        if !(finished && self.finished_here) {
            return Verdict::Open;
        }
        self.tell_all(&Message::Done);
        Verdict::Succeeded
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

    fn settled(&mut self, cause: &Cause) {
        let text = cause.text.clone();
        self.tell_all(&Message::End { text });
    }

    fn finished(&mut self) -> Verdict {
        self.finished_here = true;
        self.judge()
    }

    fn handle(&mut self, heard: Heard) -> Verdict {
        match heard {
            Heard::Came(join, mut writer) => {
                let mut present = self.nodes.iter().map(|node| &node.join).chain([&self.own]);
                let text = present.find_map(|present| contradiction(present, &join));
                let full = || "the job has all its launchers already".to_owned();
                writer.send(&Message::Refused(text.unwrap_or_else(full)));
            }
            Heard::Said(connection, Message::Finished) => {
                if let Some(node) = self.node(connection) {
                    node.state = State::Finished;
                }
                return self.judge();
            }
            Heard::Said(connection, Message::Failed { text, original }) => {
                if let Some(node) = self.node(connection) {
                    node.state = State::Failed;
                    return Verdict::Failed(Cause { text, original });
                }
            }
            Heard::Lost(connection) => {
                if let Some(node) = self.node(connection)
                    && node.state == State::Running
                {
                    let text = format!("the launcher of {} is gone, and its ranks", node.name);
                    let original = true;
                    return Verdict::Failed(Cause { text, original });
                }
            }
            _ => {}
        }
        Verdict::Open
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        // Wakes the thread that answers the door.
        let _ = SockRef::from(&self.door).shutdown(Shutdown::Both);
    }
}
