//! Accepts connections and advances incoming and outgoing handshakes.
//!
//! Connections from unauthenticated peers are limited in number, duration and cost:
//!
//! - Each connection has a single deadline for its complete handshake.
//! - At most [`HANDSHAKES_PENDING_MAX`] handshakes are pending. If this limit is reached, a new
//!   connection replaces the handshake from which the fewest bytes have arrived. If several
//!   handshakes tie, it replaces the oldest one from the address that has the most pending
//!   handshakes. So silent connections are dropped before connections that send data.
//! - A running rank spends at most 1/[`STRANGERS_SHARE`] of its time on such connections. Until it
//!   has time for more, further connections wait in the kernel's queue. This limit does not apply
//!   during the join, because a joining rank has nothing else to do.

use super::descriptors;
use super::failure::Failure;
use super::handshake::{Handshake, Proven};
use crate::limits::{DESCRIPTORS_GRACE, HANDSHAKES_PENDING_MAX, STRANGERS_BURST, STRANGERS_SHARE};
use crate::protocol::handshake::{Expected, Purpose, Secret};
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Token of the listener.
pub(super) const LISTENER: Token = Token(1);
/// Maximum time spent accepting connections before the owner turns to its other connections.
const ADMITTING_AT_ONCE: Duration = Duration::from_millis(2);
/// Pause before the next attempt to accept a connection after the system lacked the resources for
/// one.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);
/// A lower bound on the tokens of handshakes. No token is used twice.
pub(super) const FIRST_HANDSHAKE: usize = 1 << 32;

/// The result of a handshake.
pub(crate) struct Outcome {
    pub(crate) remote: SocketAddr,
    /// The group and the peer that this end dialed, or `None` for an accepted connection.
    pub(crate) dialed: Option<(u32, usize)>,
    pub(crate) result: Result<Proven, Failure>,
}

/// A handshake in progress.
struct Pending {
    handshake: Handshake,
    since: Instant,
    /// Time spent on this handshake while the other end was unauthenticated.
    cost: Duration,
}

/// The share of the owner's time that unauthenticated peers may use.
struct Budget {
    /// The reciprocal of the share.
    share: u32,
    /// The instant from which the time that these peers have used no longer exceeds their share.
    paid_until: Instant,
}

impl Budget {
    fn charge(&mut self, now: Instant, cost: Duration) {
        self.paid_until = self.paid_until.max(now) + cost * (self.share - 1);
    }

    /// Refunds the cost of a peer that has been authenticated in the meantime.
    fn refund(&mut self, cost: Duration) {
        let back = self.paid_until.checked_sub(cost * (self.share - 1));
        self.paid_until = back.unwrap_or(self.paid_until);
    }

    /// Returns the instant from which unauthenticated peers may use time again.
    fn next(&self) -> Instant {
        let burst = STRANGERS_BURST;
        self.paid_until
            .checked_sub(burst)
            .unwrap_or(self.paid_until)
    }
}

/// A listener and the handshakes in progress.
pub(crate) struct Acceptor {
    registry: Registry,
    listener: Option<TcpListener>,
    expected: Expected,
    secret: Option<Secret>,
    handshakes: BTreeMap<usize, Pending>,
    next_token: usize,
    budget: Budget,
    /// The instant at which to accept waiting connections even if the listener reports no new
    /// event.
    admit_at: Option<Instant>,
    /// The instant at which this process ran out of descriptors for connections, and the error.
    /// Reset when a connection can be opened.
    starved: Option<(Instant, io::Error)>,
    /// Like `starved`, but records that this process could not look up the user at the other end of
    /// a connection. Accepting a connection does not reset this field, because each connection
    /// takes the last descriptor and then releases it.
    unproven: Option<(Instant, io::Error)>,
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
        let share = match expected.purpose {
            Purpose::Control => 1,
            Purpose::Data | Purpose::Launch => STRANGERS_SHARE,
        };
        Ok(Self {
            registry,
            listener,
            expected,
            secret,
            handshakes: BTreeMap::new(),
            next_token: FIRST_HANDSHAKE,
            budget: Budget {
                share,
                paid_until: Instant::now(),
            },
            admit_at: None,
            starved: None,
            unproven: None,
        })
    }

    /// Returns the job's secret, or `None` if the job has no secret.
    pub(super) fn secret(&self) -> Option<&Secret> {
        self.secret.as_ref()
    }

    /// Returns the attempt that both ends of a connection must belong to.
    pub(super) fn attempt(&self) -> u16 {
        self.expected.attempt
    }

    /// Starts an outgoing handshake.
    pub(super) fn start(&mut self, handshake: Handshake) -> io::Result<()> {
        self.insert(handshake).map(drop)
    }

    fn insert(&mut self, mut handshake: Handshake) -> io::Result<Token> {
        self.next_token += 1;
        let token = Token(self.next_token);
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.registry
            .register(&mut handshake.stream, token, interest)?;
        let pending = Pending {
            handshake,
            since: Instant::now(),
            cost: Duration::ZERO,
        };
        self.handshakes.insert(token.0, pending);
        self.starved = None;
        Ok(token)
    }

    /// Records that this process could not open a connection that its rank needs, because of
    /// `error`.
    pub(super) fn starve(&mut self, error: io::Error) {
        self.starved.get_or_insert((Instant::now(), error));
    }

    /// Returns the error that keeps this process from opening connections, if the shortage has
    /// lasted for [`DESCRIPTORS_GRACE`].
    pub(crate) fn starvation(&mut self) -> Option<io::Error> {
        let lasts = |(since, _): &mut (Instant, io::Error)| since.elapsed() >= DESCRIPTORS_GRACE;
        let starved = self.starved.take_if(lasts);
        let starved = starved.or_else(|| self.unproven.take_if(lasts));
        starved.map(|(_, error)| error)
    }

    /// Accepts connections until the budget is used up. This method is called when the listener is
    /// ready, and by [`Acceptor::expire`] if connections may still be waiting.
    pub(super) fn admit(&mut self) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        let end = Instant::now() + ADMITTING_AT_ONCE;
        loop {
            let now = Instant::now();
            let next = self.budget.next();
            if next > now || now >= end {
                self.admit_at = Some(next.max(now));
                return outcomes;
            }
            self.admit_at = None;
            let Some(listener) = &self.listener else {
                return outcomes;
            };
            match listener.accept() {
                Ok((stream, remote)) => outcomes.extend(self.take(stream, remote, now)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.starved = None;
                    return outcomes;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Out of descriptors or memory: try again later. If no unauthenticated peer
                    // holds descriptors, this process has too few.
                    if descriptors::are_exhausted(&error) && self.unauthenticated().next().is_none()
                    {
                        self.starve(error);
                    }
                    // Ranks that dial at the same time must not evict each other's handshakes, or
                    // no handshake would ever complete. So each handshake gets the length of a
                    // pause before it can be evicted.
                    self.evict_handshake(REFUSED_PAUSE);
                    self.admit_at = Some(now + REFUSED_PAUSE);
                    return outcomes;
                }
            }
        }
    }

    /// Starts the handshake on a connection that was accepted at `began`.
    fn take(&mut self, stream: TcpStream, remote: SocketAddr, began: Instant) -> Option<Outcome> {
        if self.secret.is_none() && !remote.ip().is_loopback() {
            return None;
        }
        if self.unauthenticated().count() >= HANDSHAKES_PENDING_MAX {
            self.evict_handshake(Duration::ZERO);
        }
        let handshake = Handshake::accept(stream, remote, self.secret.as_ref(), self.expected);
        // A connection that cannot be set up is dropped; the other end dials again.
        let token = self.insert(handshake.ok()?).ok()?;
        self.proceed(token, began)
    }

    fn unauthenticated(&self) -> impl Iterator<Item = (usize, &Pending)> {
        let all = self.handshakes.iter();
        all.map(|(token, one)| (*token, one))
            .filter(|(_, one)| one.handshake.is_unauthenticated())
    }

    /// Drops the connection of an unauthenticated peer to make room for another connection.
    /// Considers only handshakes that are at least `age` old. The module documentation explains
    /// which of them is dropped.
    fn evict_handshake(&mut self, age: Duration) {
        let mut places: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for (_, one) in self.unauthenticated() {
            *places.entry(one.handshake.remote.ip()).or_default() += 1;
        }
        let right = |(token, one): &(usize, &Pending)| {
            let places = places.get(&one.handshake.remote.ip()).copied();
            (one.handshake.received, Reverse(places), *token)
        };
        let old = self
            .unauthenticated()
            .filter(|(_, one)| one.since.elapsed() >= age);
        if let Some((token, _)) = old.min_by_key(right) {
            self.handshakes.remove(&token);
        }
    }

    /// Advances the handshake with this `token`. Returns its outcome if it ends, or `None` if it
    /// continues or if no handshake has this token.
    pub(super) fn advance(&mut self, token: Token) -> Option<Outcome> {
        self.proceed(token, Instant::now())
    }

    /// Like [`Acceptor::advance`], but charges the time since `began`, and not only the time spent
    /// in this call, to the budget of unauthenticated peers.
    fn proceed(&mut self, token: Token, began: Instant) -> Option<Outcome> {
        let pending = self.handshakes.get_mut(&token.0)?;
        let was_strange = pending.handshake.is_unauthenticated();
        let advanced = pending.handshake.advance();
        if was_strange {
            let now = Instant::now();
            let cost = now - began;
            pending.cost += cost;
            self.budget.charge(now, cost);
            if !pending.handshake.is_unauthenticated() {
                self.budget.refund(pending.cost);
            }
        }
        let failure = match advanced {
            Ok(false) => return None,
            Ok(true) => None,
            Err(failure) => Some(failure),
        };
        self.end(token, failure)
    }

    fn end(&mut self, token: Token, failure: Option<Failure>) -> Option<Outcome> {
        let mut handshake = self.handshakes.remove(&token.0)?.handshake;
        let (remote, dialed) = (handshake.remote, handshake.dialed);
        match &failure {
            None => self.unproven = None,
            Some(Failure::Starved(code)) if self.unauthenticated().next().is_none() => {
                let now = || (Instant::now(), io::Error::from_raw_os_error(*code));
                self.unproven.get_or_insert_with(now);
            }
            Some(_) => {}
        }
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

    /// Fails handshakes that have passed their deadline, and accepts waiting connections if
    /// [`Acceptor::admit`] postponed them until now.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Outcome> {
        let late = |(token, one): (&usize, &Pending)| {
            (one.handshake.deadline <= now).then_some(Token(*token))
        };
        let late: Vec<Token> = self.handshakes.iter().filter_map(late).collect();
        let mut outcomes = Vec::new();
        for token in late {
            let failure = Failure::Broken("the handshake timed out".into());
            outcomes.extend(self.end(token, Some(failure)));
        }
        if self.admit_at.is_some_and(|at| at <= now) {
            outcomes.extend(self.admit());
        }
        outcomes
    }

    /// Returns the instant at which [`Acceptor::expire`] is due if no event occurs.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let deadlines = self.handshakes.values().map(|one| one.handshake.deadline);
        deadlines.chain(self.admit_at).min()
    }

    pub(super) fn is_listening(&self) -> bool {
        self.listener.is_some()
    }

    /// Stops listening and drops the handshakes in progress.
    pub(super) fn close(&mut self) {
        if let Some(mut listener) = self.listener.take() {
            // Even if this fails, closing the listener deregisters it.
            let _ = self.registry.deregister(&mut listener);
        }
        self.handshakes.clear();
        self.admit_at = None;
    }
}

#[cfg(test)]
mod tests;
