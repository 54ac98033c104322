//! Exchanges messages between launchers over control plane connections.

use crate::control::connections::{Connections, Incoming};
use crate::control::handshake::Proven;
use crate::control::wait::wait;
use crate::error::{Error, PeerText, Printable, Result};
use crate::launch::cause::Cause;
use crate::launch::event::{Event, PeerEvent, spawn_thread};
use crate::launch::message::{Join, Message, Start};
use crate::limits::ERROR_BYTES_MAX;
use crate::lock::lock;
use crate::protocol::handshake::{Expected, Hello, Purpose, Secret};
use crossbeam_channel::Sender;
use mio::net::TcpListener;
use mio::{Events, Poll, Token, Waker};
use std::sync::{Arc, Mutex};

/// The waker's token.
const WAKER: Token = Token(0);
/// The ID of the first connection. A member has only this connection, which leads to the
/// coordinator.
pub(super) const FIRST: usize = 0;

/// A member's identity in the handshake: rank 1 of a world in which the coordinator is rank 0.
pub(super) const HELLO: Hello = Hello {
    purpose: Purpose::Launch,
    world_size: 2,
    group: 0,
    epoch: 0,
    attempt: 0,
    from: 1,
    to: 0,
};

/// Connections to other launchers, identified by their IDs. They close when this value is dropped.
pub(super) struct Links {
    connections: Arc<Mutex<Connections>>,
    waker: Waker,
}

impl Links {
    /// Takes over the connection `dialed` and accepts connections from `listener`. A separate
    /// thread sends everything that arrives to `events`.
    pub(super) fn new(
        dialed: Option<Proven>,
        listener: Option<TcpListener>,
        secret: &Secret,
        events: &Sender<Event>,
    ) -> Result<Self> {
        let broken = |error| Error::io("cannot set up the launchers' connections", &error);
        let expected = Expected {
            purpose: HELLO.purpose,
            world_size: HELLO.world_size,
            rank: HELLO.to,
            attempt: HELLO.attempt,
        };
        let poll = Poll::new().map_err(broken)?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(broken)?;
        let secret = Some(secret.clone());
        let mut connections =
            Connections::new(poll.registry(), listener, expected, secret).map_err(broken)?;
        if let Some(dialed) = dialed {
            connections.add(dialed, true).map_err(broken)?;
        }
        let connections = Arc::new(Mutex::new(connections));
        let (heard, events) = (Arc::clone(&connections), events.clone());
        spawn_thread("ringtree-launchers", move || listen(poll, &heard, &events))?;
        Ok(Links { connections, waker })
    }

    pub(super) fn send(&self, connection: usize, message: &Message) {
        lock(&self.connections).send(connection, message);
        // The listening thread reports a connection that breaks.
        self.wake();
    }

    fn wake(&self) {
        // Waking fails only if the waker's counter is full, and then the thread wakes anyway.
        let _ = self.waker.wake();
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        lock(&self.connections).close();
        self.wake();
    }
}

/// Returns the message with its texts stripped of control characters and, except for a link speed
/// table, shortened.
fn printable(message: Message) -> Message {
    let text = |text: String| Printable(&text.cut(ERROR_BYTES_MAX)).to_string();
    let told = |cause: Cause| Cause {
        text: text(cause.text),
        words: cause.words.map(text),
        log: cause.log.map(text),
        then: cause.then.map(text),
        ..cause
    };
    match message {
        Message::Join(join) => Message::Join(Join {
            id: join.id.map(text),
            host: text(join.host),
            ..join
        }),
        Message::Start(start) => Message::Start(Start {
            run_id: text(start.run_id),
            ..start
        }),
        Message::Failed(cause) => Message::Failed(told(cause)),
        Message::Refused(why) => Message::Refused(text(why)),
        Message::End(cause) => Message::End(told(cause)),
        Message::Restart(cause) => Message::Restart(told(cause)),
        Message::Again {
            attempt,
            master_port,
            tuning,
        } => Message::Again {
            attempt,
            master_port,
            // The launcher passes the table on to its ranks, so the table must not be shortened.
            tuning: tuning.map(|table| Printable(&table).to_string()),
        },
        Message::Finished | Message::Done | Message::Stopped => message,
    }
}

/// Sends the events from other launchers to `events` until all connections and the listener are
/// closed.
fn listen(mut poll: Poll, connections: &Mutex<Connections>, events: &Sender<Event>) {
    let mut ready = Events::with_capacity(64);
    loop {
        let mut open = lock(connections);
        open.note(&ready);
        while let Some(incoming) = open.next() {
            let heard = match incoming {
                Incoming::Message(connection, message) => {
                    PeerEvent::Message(connection, printable(message))
                }
                Incoming::Lost(connection, _) => PeerEvent::Lost(connection),
                Incoming::Handshake(outcome) => {
                    match outcome.result.map(|proven| open.add(proven, false)) {
                        Ok(_) => continue,
                        Err(failure) => PeerEvent::Rejected(outcome.remote, failure),
                    }
                }
            };
            let _ = events.send(Event::Peer(heard));
        }
        if open.is_closed() {
            return;
        }
        let until = open.next_deadline();
        drop(open);
        if wait(&mut poll, &mut ready, until).is_err() {
            // If polling fails, nothing can be received, so all connections count as lost.
            for connection in lock(connections).ids() {
                let _ = events.send(Event::Peer(PeerEvent::Lost(connection)));
            }
            return;
        }
    }
}
