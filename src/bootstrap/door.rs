//! A listener and the handshakes in progress, incoming and outgoing.
//!
//! Strangers cost a bounded number of connections for a bounded time: when all places are taken,
//! newcomers wait in the kernel until one falls free, and one that has taken longer than an honest
//! handshake does makes room.

use super::greeting::{Failure, Greeted, Greeting};
use crate::limits::{HANDSHAKE_CROWDED_AFTER, HANDSHAKE_TIMEOUT, HANDSHAKES_PENDING_MAX};
use crate::protocol::handshake::{Expected, Secret};
use mio::net::TcpListener;
use mio::{Interest, Registry, Token};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Instant;

/// The listener's token.
pub(super) const LISTENER: Token = Token(1);
/// Handshakes have tokens from here on, never used twice.
const FIRST_GREETING: usize = 1 << 32;

/// How a handshake ended.
pub(super) struct Outcome {
    pub(super) remote: SocketAddr,
    /// What was dialed, if this end did: group and peer.
    pub(super) dialed: Option<(u32, usize)>,
    pub(super) result: Result<Greeted, Failure>,
}

/// Whether it came in and may be anybody's.
fn is_unproven(greeting: &Greeting) -> bool {
    greeting.dialed.is_none() && greeting.deadline.is_some()
}

/// A listener and the handshakes in progress.
pub(super) struct Door {
    registry: Registry,
    listener: Option<TcpListener>,
    expected: Expected,
    secret: Option<Secret>,
    greetings: BTreeMap<usize, Greeting>,
    next_token: usize,
    /// Connections may wait at the listener without a new event for them.
    crowded: bool,
}

impl Door {
    pub(super) fn new(
        registry: Registry,
        mut listener: Option<TcpListener>,
        expected: Expected,
        secret: Option<Secret>,
    ) -> io::Result<Self> {
        if let Some(listener) = &mut listener {
            registry.register(listener, LISTENER, Interest::READABLE)?;
        }
        Ok(Self {
            registry,
            listener,
            expected,
            secret,
            greetings: BTreeMap::new(),
            next_token: FIRST_GREETING,
            crowded: false,
        })
    }

    /// The key that stands for the job's secret.
    pub(super) fn secret(&self) -> Secret {
        self.secret.clone().unwrap_or_else(Secret::absent)
    }

    /// The attempt of the job that both ends must be of.
    pub(super) fn attempt(&self) -> u16 {
        self.expected.attempt
    }

    /// A token that was never used.
    pub(super) fn fresh_token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    /// Starts an outgoing handshake.
    pub(super) fn greet(&mut self, mut greeting: Greeting) -> io::Result<()> {
        let token = self.fresh_token();
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.registry
            .register(&mut greeting.stream, token, interest)?;
        self.greetings.insert(token.0, greeting);
        Ok(())
    }

    /// Takes in what waits at the listener, as far as there is room. Called when the listener is
    /// ready, and by [`Door::expire`] when room was made.
    pub(super) fn admit(&mut self) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        self.crowded = false;
        loop {
            if self.incoming() >= HANDSHAKES_PENDING_MAX && !self.make_room() {
                self.crowded = true;
                return outcomes;
            }
            let Some(listener) = &self.listener else {
                return outcomes;
            };
            match listener.accept() {
                Ok((stream, remote)) => {
                    if self.secret.is_none() && !remote.ip().is_loopback() {
                        continue;
                    }
                    let secret = self.secret();
                    let greeting =
                        Greeting::accept(stream, remote, &secret, self.expected, HANDSHAKE_TIMEOUT);
                    // A connection that cannot even be set up is the caller's loss; it dials again.
                    let Ok(greeting) = greeting else { continue };
                    if self.greet(greeting).is_ok() {
                        outcomes.extend(self.advance(Token(self.next_token)));
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return outcomes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(_) => {
                    // Out of descriptors or memory: try again when something has ended.
                    self.crowded = true;
                    return outcomes;
                }
            }
        }
    }

    fn incoming(&self) -> usize {
        self.greetings
            .values()
            .filter(|greeting| is_unproven(greeting))
            .count()
    }

    /// Drops the oldest incoming handshake if an honest one would be long done.
    fn make_room(&mut self) -> bool {
        let oldest = self
            .greetings
            .iter()
            .find(|(_, greeting)| is_unproven(greeting));
        match oldest {
            Some((&token, greeting)) if greeting.began.elapsed() > HANDSHAKE_CROWDED_AFTER => {
                self.greetings.remove(&token);
                true
            }
            _ => false,
        }
    }

    /// Goes on with the handshake of `token`, if it is one; how it ended, if it did.
    pub(super) fn advance(&mut self, token: Token) -> Option<Outcome> {
        let failure = match self.greetings.get_mut(&token.0)?.advance() {
            Ok(false) => return None,
            Ok(true) => None,
            Err(failure) => Some(failure),
        };
        self.end(token, failure)
    }

    fn end(&mut self, token: Token, failure: Option<Failure>) -> Option<Outcome> {
        let mut greeting = self.greetings.remove(&token.0)?;
        let (remote, dialed) = (greeting.remote, greeting.dialed);
        let gone = || Failure::Broken("the handshake was cut short".into());
        let result = match failure {
            Some(failure) => Err(failure),
            None => match self.registry.deregister(&mut greeting.stream) {
                Ok(()) => greeting.into_greeted().ok_or_else(gone),
                Err(error) => Err(error.into()),
            },
        };
        Some(Outcome {
            remote,
            dialed,
            result,
        })
    }

    /// Ends the handshakes that have taken too long, and admits who waited for their places.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Outcome> {
        let late = |(token, greeting): (&usize, &Greeting)| {
            greeting
                .deadline
                .is_some_and(|at| at <= now)
                .then_some(Token(*token))
        };
        let late: Vec<Token> = self.greetings.iter().filter_map(late).collect();
        let mut outcomes = Vec::new();
        for token in late {
            let failure = Failure::Broken("no answer to the handshake in time".into());
            outcomes.extend(self.end(token, Some(failure)));
        }
        if self.crowded {
            outcomes.extend(self.admit());
        }
        outcomes
    }

    /// When [`Door::expire`] should be called next.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let deadline = self
            .greetings
            .values()
            .filter_map(|greeting| greeting.deadline)
            .min();
        let retry = self
            .crowded
            .then(|| Instant::now() + HANDSHAKE_CROWDED_AFTER / 4);
        deadline.into_iter().chain(retry).min()
    }

    /// Stops listening and drops what is in progress.
    pub(super) fn close(&mut self) {
        if let Some(mut listener) = self.listener.take() {
            // Closing deregisters it as well.
            let _ = self.registry.deregister(&mut listener);
        }
        self.greetings.clear();
    }
}
