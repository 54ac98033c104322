//! A listener and the handshakes in progress, incoming and outgoing.
//!
//! Unauthenticated connections are bounded in number and in time. While
//! [`HANDSHAKES_PENDING_MAX`] incoming handshakes are in progress, further connections wait in the
//! kernel's queue, and a handshake that has taken longer than an honest one would is closed to make
//! room.

use super::descriptors;
use super::handshake::{Failure, Handshake, Proven};
use crate::limits::{DESCRIPTORS_GRACE, HANDSHAKE_CROWDED_AFTER, HANDSHAKES_PENDING_MAX};
use crate::protocol::handshake::{Expected, Secret};
use mio::net::TcpListener;
use mio::{Interest, Registry, Token};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Instant;

/// The listener's token.
pub(super) const LISTENER: Token = Token(1);
/// Handshakes have tokens from here on, none used twice.
pub(super) const FIRST_HANDSHAKE: usize = 1 << 32;

/// How a handshake ended.
pub(crate) struct Outcome {
    pub(crate) remote: SocketAddr,
    /// The group and the peer of an outgoing connection.
    pub(crate) dialed: Option<(u32, usize)>,
    pub(crate) result: Result<Proven, Failure>,
}

/// Whether the connection came in and its other end has not proven that it holds the secret.
fn is_unproven(handshake: &Handshake) -> bool {
    handshake.dialed.is_none() && handshake.deadline.is_some()
}

/// A listener and the handshakes in progress.
pub(crate) struct Acceptor {
    registry: Registry,
    listener: Option<TcpListener>,
    expected: Expected,
    secret: Option<Secret>,
    handshakes: BTreeMap<usize, Handshake>,
    next_token: usize,
    /// Connections may wait at the listener without a new event for them.
    crowded: bool,
    /// Since when this process could not open a connection for lack of descriptors, and the error.
    starved: Option<(Instant, io::Error)>,
}

impl Acceptor {
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
            handshakes: BTreeMap::new(),
            next_token: FIRST_HANDSHAKE,
            crowded: false,
            starved: None,
        })
    }

    /// The job's secret, or what stands for it in a job without one.
    pub(super) fn secret(&self) -> Secret {
        self.secret.clone().unwrap_or_else(Secret::absent)
    }

    /// The attempt of the job that both ends must be of.
    pub(super) fn attempt(&self) -> u16 {
        self.expected.attempt
    }

    /// Starts an outgoing handshake.
    pub(super) fn start(&mut self, mut handshake: Handshake) -> io::Result<()> {
        self.next_token += 1;
        let token = Token(self.next_token);
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.registry
            .register(&mut handshake.stream, token, interest)?;
        self.handshakes.insert(token.0, handshake);
        self.starved = None;
        Ok(())
    }

    /// This process could not open a connection that its rank needs, because of `error`.
    pub(super) fn starve(&mut self, error: io::Error) {
        self.starved.get_or_insert((Instant::now(), error));
    }

    /// Why this process can open no connection any more, once that has lasted for a while.
    pub(crate) fn starvation(&mut self) -> Option<io::Error> {
        let starved = &mut self.starved;
        let starved = starved.take_if(|(since, _)| since.elapsed() >= DESCRIPTORS_GRACE);
        starved.map(|(_, error)| error)
    }

    /// Accepts connections while there is room. Called when the listener is ready, and by
    /// [`Acceptor::expire`] when room was made.
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
                    let handshake = Handshake::accept(stream, remote, &secret, self.expected);
                    // A connection that cannot be set up is dropped; the other end dials again.
                    let Ok(handshake) = handshake else { continue };
                    if self.start(handshake).is_ok() {
                        outcomes.extend(self.advance(Token(self.next_token)));
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.starved = None;
                    return outcomes;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Out of descriptors or memory: try again when something has ended. If no
                    // stranger holds the descriptors, this process has too few.
                    if descriptors::are_exhausted(&error) && self.incoming() == 0 {
                        self.starve(error);
                    }
                    self.crowded = true;
                    return outcomes;
                }
            }
        }
    }

    fn incoming(&self) -> usize {
        self.handshakes
            .values()
            .filter(|handshake| is_unproven(handshake))
            .count()
    }

    /// Drops the oldest incoming handshake if an honest one would be long done.
    fn make_room(&mut self) -> bool {
        let oldest = self
            .handshakes
            .iter()
            .find(|(_, handshake)| is_unproven(handshake));
        match oldest {
            Some((&token, handshake)) if handshake.began.elapsed() > HANDSHAKE_CROWDED_AFTER => {
                self.handshakes.remove(&token);
                true
            }
            _ => false,
        }
    }

    /// Goes on with the handshake of `token`, if it is one; how it ended, if it did.
    pub(super) fn advance(&mut self, token: Token) -> Option<Outcome> {
        let failure = match self.handshakes.get_mut(&token.0)?.advance() {
            Ok(false) => return None,
            Ok(true) => None,
            Err(failure) => Some(failure),
        };
        self.end(token, failure)
    }

    fn end(&mut self, token: Token, failure: Option<Failure>) -> Option<Outcome> {
        let mut handshake = self.handshakes.remove(&token.0)?;
        let (remote, dialed) = (handshake.remote, handshake.dialed);
        let result = match failure {
            Some(failure) => Err(failure),
            None => match self.registry.deregister(&mut handshake.stream) {
                Ok(()) => handshake.into_proven(),
                Err(error) => Err(error.into()),
            },
        };
        Some(Outcome {
            remote,
            dialed,
            result,
        })
    }

    /// Ends the handshakes that have taken too long, and accepts connections in their place.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Outcome> {
        let late = |(token, handshake): (&usize, &Handshake)| {
            handshake
                .deadline
                .is_some_and(|at| at <= now)
                .then_some(Token(*token))
        };
        let late: Vec<Token> = self.handshakes.iter().filter_map(late).collect();
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

    /// When [`Acceptor::expire`], or `Connections::note`, is due even if nothing happens.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let deadline = self
            .handshakes
            .values()
            .filter_map(|handshake| handshake.deadline)
            .min();
        let retry = self
            .crowded
            .then(|| Instant::now() + HANDSHAKE_CROWDED_AFTER / 4);
        deadline.into_iter().chain(retry).min()
    }

    pub(super) fn is_listening(&self) -> bool {
        self.listener.is_some()
    }

    /// Stops listening and drops what is in progress.
    pub(super) fn close(&mut self) {
        if let Some(mut listener) = self.listener.take() {
            // Closing deregisters it as well.
            let _ = self.registry.deregister(&mut listener);
        }
        self.handshakes.clear();
    }
}
