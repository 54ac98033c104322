//! The connections between launchers: those of the control plane, with messages of the launch.

use crate::control::connections::{Connections, Incoming};
use crate::control::handshake::Proven;
use crate::control::wait::wait;
use crate::error::{Error, Printable, Result, Told};
use crate::launch::cause::Cause;
use crate::launch::event::{Event, Heard, spawn_thread};
use crate::launch::message::{Join, Message, Start};
use crate::limits::ERROR_BYTES_MAX;
use crate::protocol::handshake::{Expected, Hello, Purpose, Secret};
use crossbeam_channel::Sender;
use mio::net::TcpListener;
use mio::{Events, Poll, Token, Waker};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The waker's token.
const WAKER: Token = Token(0);
/// The number of a member's connection to the coordinator, and of the first to come to that.
pub(super) const FIRST: usize = 0;

/// What a member says of itself in the handshake. The world is a coordinator, 0, and a member, 1.
pub(super) const HELLO: Hello = Hello {
    purpose: Purpose::Launch,
    world_size: 2,
    group: 0,
    epoch: 0,
    attempt: 0,
    from: 1,
    to: 0,
};

/// Connections to other launchers, by number. They close when this is dropped.
pub(super) struct Links {
    connections: Arc<Mutex<Connections>>,
    waker: Waker,
}

impl Links {
    /// Holds the connection that was `dialed` and accepts further ones from `listener`. A thread of
    /// its own tells `events` what arrives.
    pub(super) fn new(
        dialed: Option<Proven>,
        listener: Option<TcpListener>,
        secret: &Secret,
        events: &Sender<Event>,
    ) -> Result<Self> {
        let broken = |error| Error::io("setting up the launchers' connections", &error);
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
        // The thread that listens reports a connection that breaks.
        self.wake();
    }

    fn wake(&self) {
        // It fails only when the counter behind it is full, and then the thread wakes anyway.
        let _ = self.waker.wake();
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        lock(&self.connections).close();
        self.wake();
    }
}

fn lock(connections: &Mutex<Connections>) -> MutexGuard<'_, Connections> {
    // Whole between any two statements: a panic of another holder leaves nothing half done.
    connections.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The message as a terminal may show it.
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
            // A table, which the launcher hands on to its ranks.
            tuning: tuning.map(|table| Printable(&table).to_string()),
        },
        Message::Finished | Message::Done | Message::Stopped => message,
    }
}

/// Tells `events` what other launchers do, until nothing can arrive any more.
fn listen(mut poll: Poll, connections: &Mutex<Connections>, events: &Sender<Event>) {
    let mut ready = Events::with_capacity(64);
    loop {
        let mut open = lock(connections);
        open.note(&ready);
        while let Some(incoming) = open.next() {
            let heard = match incoming {
                Incoming::Message(connection, message) => {
                    Heard::Said(connection, printable(message))
                }
                Incoming::Lost(connection, _) => Heard::Lost(connection),
                Incoming::Handshake(outcome) => {
                    match outcome.result.map(|proven| open.add(proven, false)) {
                        Ok(_) => continue,
                        Err(failure) => Heard::TurnedAway(outcome.remote, failure),
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
            // Without a poll nothing is heard any more, which is as bad as closed connections.
            for connection in lock(connections).ids() {
                let _ = events.send(Event::Peer(Heard::Lost(connection)));
            }
            return;
        }
    }
}
