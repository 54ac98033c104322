#![doc = include_str!("session.md")]

mod calls;
mod checks;
mod clock;
mod coordinator;
mod ended;
mod marks;
mod places;
mod waits;

use super::call::Call;
use super::members::Members;
use super::message::{Clock, Message, PairPlace, Wait};
use crate::error::Error;
use crate::limits::{COMPARISON_GRACE, FIRST_ERROR_GRACE, GOODBYE_GRACE};
use calls::Made;
use checks::Checks;
use ended::Ended;
pub use marks::Agreement;
use marks::Marks;
use places::Position;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
pub use waits::WaitReport;

/// Text that describes a rank whose process ended or that closed its connections.
const GONE: &str = "is gone";
/// Cause of a loss that the operating system reported.
pub const ITS_PROCESS_ENDED: &str = "its process ended";

/// The receivers of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// One rank.
    Rank(usize),
    /// Every other rank.
    All,
}

/// An error that this rank saw before the first error was decided.
#[derive(Debug)]
struct Pending {
    error: Error,
    awaited: Awaited,
    reported: bool,
    /// The time of the first tick after the error or, if the error is reported, after the report.
    since: Option<Duration>,
}

/// A message that may still explain a pending error.
#[derive(Debug)]
enum Awaited {
    /// The goodbye of the peer whose link closed during this call.
    Goodbye(usize, Call),
    /// The error of this peer, which compares both calls.
    Comparison(usize),
    Nothing,
}

/// The goodbye of a rank that has left.
#[derive(Debug)]
struct Departed {
    calls: u64,
    failed_beside: Option<Error>,
    /// The time of the first call of [`Session::has_left_for`] after the goodbye.
    since: Option<Duration>,
}

/// One rank's view of a group: the ranks that have left, the calls that were made, the first error,
/// and the agreed mark.
///
/// ```
/// use ringtree::internal::protocol::session::{Session, To};
///
/// let (mut coordinator, mut other) = (Session::new(0, 3), Session::new(1, 3));
/// coordinator.control_lost(2, "connection reset");
/// let Some((To::All, first)) = coordinator.next_message() else { panic!("nothing broadcast") };
/// other.receive(0, first);
/// assert!(other.first_error().is_some_and(|error| error.to_string().contains("rank 2")));
/// assert_eq!(other.first_error(), coordinator.first_error());
/// ```
#[derive(Debug, Default)]
pub struct Session {
    rank: usize,
    members: Members,
    /// The group's number.
    group: u32,
    calls: Made,
    /// The most recent sends and receives of this rank, each with its peer.
    pair_calls: VecDeque<(usize, Call)>,
    /// Number of sends and receives that this rank has made.
    pairs_made: u64,
    /// Number of collectives that this rank has made.
    collectives_made: u64,
    /// `true` while the last of these collectives is in flight.
    inside: bool,
    /// The ranks that this rank is waiting for.
    awaited: Vec<usize>,
    /// A send or receive that is in flight.
    pair: Option<PairPlace>,
    /// The wait of the thread that calls this group, and the other ranks' waits that it depends on.
    waits: Vec<Wait>,
    /// The name that the program has set for the communicator.
    title: Option<String>,
    /// Calls in which peers have reported that they are waiting, and which this rank has not made
    /// yet.
    announced: BTreeMap<usize, Call>,
    announced_pairs: Vec<(usize, Call)>,
    /// The last reported positions of ranks, and of the ranks that are blocking them.
    positions: BTreeMap<usize, Position>,
    /// The rank that decides the first error and the agreed mark: the lowest rank that has neither
    /// left nor died.
    coordinator: usize,
    /// `true` if this rank has asked the coordinator for its position in the current call.
    has_asked_coordinator: bool,
    /// Sequence numbers of collectives in which ranks are known to wait without a deadline, each
    /// with the rank that was the coordinator at that time. Contains at most
    /// [`CALLS_REMEMBERED`](crate::limits::CALLS_REMEMBERED) collectives.
    untimed_waits: BTreeMap<u64, usize>,
    /// Clocks of such collectives, indexed by sequence number.
    clocks: BTreeMap<u64, Clock>,
    /// `None` unless calls are checked.
    checks: Option<Checks>,
    departed: BTreeMap<usize, Departed>,
    /// Ranks whose control connection to this rank is lost.
    lost: BTreeSet<usize>,
    /// Ranks whose processes have ended and whose goodbyes have not arrived yet, in the order in
    /// which this rank learned that they had ended.
    ended: Vec<Ended>,
    pending: Option<Pending>,
    first_error: Option<Error>,
    marks: Marks,
    outbox: VecDeque<(To, Message)>,
}

impl Session {
    /// Creates the session of `rank` in the group that consists of all `world_size` ranks.
    #[must_use]
    pub fn new(rank: usize, world_size: usize) -> Self {
        Self::among(rank, Members::everyone(world_size))
    }

    /// Creates the session of group rank `rank` in the group that consists of `members`.
    #[must_use]
    pub fn among(rank: usize, members: Members) -> Self {
        Self {
            rank,
            members,
            ..Self::default()
        }
    }

    /// Returns the first error, once it is known.
    #[must_use]
    pub fn first_error(&self) -> Option<&Error> {
        self.first_error.as_ref()
    }

    /// Returns `true` if this rank has the first error or a pending error. In either case, it moves
    /// no more data.
    #[must_use]
    pub fn has_error(&self) -> bool {
        self.error().is_some()
    }

    /// Returns the first error if it is known, or else the pending error.
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        let pending = self.pending.as_ref().map(|pending| &pending.error);
        self.first_error.as_ref().or(pending)
    }

    /// Removes and returns the next message to send, if any.
    pub fn next_message(&mut self) -> Option<(To, Message)> {
        self.outbox.pop_front()
    }

    /// Returns `true` if there is a message to send.
    #[must_use]
    pub fn has_message(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Processes a message from rank `from`.
    pub fn receive(&mut self, from: usize, message: Message) {
        if !message.is_possible(from, &self.members) {
            // The sender holds the secret, so it is a faulty rank. Errors that it reports are not
            // trusted either.
            let what = format!(
                "{} sent an impossible message; run the same version of ringtree on all ranks",
                self.rank_name(from)
            );
            let error = Error::protocol(what);
            self.failed(error.with_rank(self.rank).with_peer(from));
            return;
        }
        self.answer_with_first_error(from, &message);
        match message {
            Message::Waiting(call) if call.is_pair() => self.compare_pair(from, call),
            Message::Waiting(call) => self.compare(from, call, None),
            Message::Counts(call, counts) => self.compare(from, call, Some(&counts)),
            Message::Position {
                place,
                blocked_by,
                waits,
            } => {
                let position = Position {
                    place,
                    blocked_by,
                    waits,
                    asked: 0,
                };
                self.positions.insert(from, position);
            }
            Message::Goodbye {
                calls,
                failed_beside,
            } => self.receive_goodbye(
                from,
                Departed {
                    calls,
                    failed_beside,
                    since: None,
                },
            ),
            Message::Report(error) => self.receive_report(error),
            Message::FirstError(error) => self.conclude(error),
            Message::Mark(number) => self.receive_mark(from, number),
            Message::Agreed(number) => self.receive_agreed_mark(from, number),
            // The sender is mistaken, because this process is running.
            Message::Ended(rank) if rank as usize == self.rank => {}
            Message::Ended(rank) => self.process_ended(rank as usize, ITS_PROCESS_ENDED),
            Message::UntimedWait(number) => self.receive_untimed_wait(from, number),
            Message::Clock(clock) => self.receive_clock(clock),
            Message::Entered(call) => self.receive_entered(from, call),
            Message::AllEntered(number) => self.receive_all_entered(number),
            Message::Posted(call) => self.receive_posted(from, call),
            Message::PostedAny(waits) => self.receive_posted_any(from, waits),
            Message::Asking => self.answer(from),
        }
    }

    /// Sets the state that this rank reports when asked for its position: the ranks that it is
    /// waiting for, a send or receive in flight, and the wait of the thread that calls this group,
    /// followed by the waits that it depends on.
    pub fn set_position(&mut self, awaited: Vec<usize>, pair: Option<PairPlace>, waits: Vec<Wait>) {
        self.awaited = awaited;
        self.pair = pair;
        self.waits = waits;
    }

    /// Sets the name that messages use for the communicator.
    pub fn set_title(&mut self, name: String) {
        self.title = Some(name);
    }

    /// Returns the name that the program has set for the communicator.
    #[must_use]
    pub fn title(&self) -> Option<&str> {
        self.title.as_deref()
    }

    /// Returns the text that names the communicator after a call, such as `, on "gradients"`, or an
    /// empty string if the communicator has no name.
    #[must_use]
    pub fn title_suffix(&self) -> String {
        let title = self.title.as_ref();
        title.map_or_else(String::new, |title| format!(", on {title:?}"))
    }

    /// Returns the number of collectives that this rank has made, and the number of its sends and
    /// receives that have a sequence number.
    #[must_use]
    pub fn calls_made(&self) -> (u64, u64) {
        (self.collectives_made, self.pairs_made)
    }

    /// Records that the link to `peer`, which `call` still needs, is lost.
    pub fn link_lost(&mut self, peer: usize, call: &Call, why: &str) {
        self.link_failed(peer, call, GONE, why);
    }

    /// Records that `peer` cannot be reached over its link, which `call` still needs. The peer's
    /// process may still be running.
    pub fn link_cut(&mut self, peer: usize, call: &Call, why: &str) {
        self.link_failed(peer, call, "cannot be reached", why);
    }

    fn link_failed(&mut self, peer: usize, call: &Call, how: &str, why: &str) {
        let error = match self.departed.get(&peer) {
            Some(departed) => self.departed_error(peer, departed, call),
            None => self.lost_error(peer, how, Some(call), why),
        };
        self.set_pending(error, Awaited::Goodbye(peer, *call));
    }

    /// Makes `error`, such as an expired deadline, the pending error unless this rank already has
    /// an error. Then reports the pending error without further waiting.
    pub fn failed(&mut self, error: Error) {
        self.set_pending(error.within(self.members.count()), Awaited::Nothing);
        self.report();
    }

    /// Waits for the peer's comparison of two calls no longer than for a goodbye.
    pub fn stop_comparing(&mut self) {
        if let Some(pending) = &mut self.pending
            && let Awaited::Comparison(_) = pending.awaited
        {
            pending.awaited = Awaited::Nothing;
        }
    }

    /// Enforces the time limits. Reports a pending error that is due. Declares that a rank has died
    /// if its process has ended and its goodbye is overdue. If the coordinator has not answered the
    /// report in time, makes the pending error the first error and broadcasts it. If this rank is
    /// the coordinator, it stops waiting for marks after their time limit.
    pub fn tick(&mut self, now: Duration) {
        self.agree_in_time(now);
        self.declare_ended_dead(now);
        let Some(pending) = &mut self.pending else {
            return;
        };
        let waited = now.saturating_sub(*pending.since.get_or_insert(now));
        let grace = match pending.awaited {
            _ if pending.reported => FIRST_ERROR_GRACE,
            Awaited::Comparison(peer) if !self.departed.contains_key(&peer) => COMPARISON_GRACE,
            _ => GOODBYE_GRACE,
        };
        if waited < grace {
            return;
        }
        if !pending.reported {
            self.report();
        } else if let Some(pending) = self.pending.take() {
            self.broadcast(pending.error);
        }
    }

    /// Leaves the group with a goodbye. The goodbye contains `failed_beside`, the error of another
    /// group of this process, if such a group has failed. A pending error that the coordinator has
    /// not answered is sent to every rank before the goodbye.
    pub fn leave(&mut self, failed_beside: Option<Error>) {
        if let Some(pending) = self.pending.take() {
            self.broadcast(pending.error);
        }
        let goodbye = Message::Goodbye {
            calls: self.collectives_made,
            failed_beside,
        };
        self.send_all(goodbye);
    }

    fn send(&mut self, rank: usize, message: Message) {
        self.outbox.push_back((To::Rank(rank), message));
    }

    fn send_all(&mut self, message: Message) {
        self.outbox.push_back((To::All, message));
    }

    /// Returns the name that messages use for a rank of the group.
    #[must_use]
    pub fn rank_name(&self, rank: usize) -> String {
        self.members.name(rank)
    }

    /// Returns the members of the group.
    #[must_use]
    pub fn members(&self) -> &Members {
        &self.members
    }

    fn lost_error(&self, peer: usize, how: &str, call: Option<&Call>, why: &str) -> Error {
        let during = call.map_or_else(String::new, |call| format!(" during {}", call.name()));
        let message = format!(
            "{} {how}{during}, detected by {}: {why}; check that rank's last output and restart \
             the job",
            self.rank_name(peer),
            self.rank_name(self.rank)
        );
        let error = Error::peer_lost(peer, message).with_rank(self.rank);
        match call {
            Some(call) => call.mark(error),
            None => error,
        }
    }

    /// Returns the error for `call`, which still needs `peer` although that rank has left.
    fn departed_error(&self, peer: usize, departed: &Departed, call: &Call) -> Error {
        let (calls, failed_beside) = (departed.calls, &departed.failed_beside);
        let why = match (failed_beside, call.is_pair()) {
            (Some(_), _) => "another group of its process had failed",
            (None, true) => {
                "every send needs a matching receive, and every receive needs a \
                             matching send"
            }
            (None, false) => {
                "check that rank's last output for an error; all ranks must make the same calls"
            }
        };
        let message = format!(
            "{} left after call #{calls}, but {} still needs it for {}; {why}",
            self.rank_name(peer),
            self.rank_name(self.rank),
            call.name()
        );
        let error = call.mark(Error::peer_lost(peer, message).with_rank(self.rank));
        match failed_beside {
            Some(cause) => error.with_origin(cause),
            None => error,
        }
    }

    /// Fails with an error if `peer`, which `call` needs, has left.
    pub fn fail_if_left(&mut self, peer: usize, call: &Call) {
        if let Some(departed) = self.departed.get(&peer) {
            let error = self.departed_error(peer, departed, call);
            self.failed(error);
        }
    }

    fn set_pending(&mut self, error: Error, awaited: Awaited) {
        if !self.has_error() {
            self.pending = Some(Pending {
                error,
                awaited,
                reported: false,
                since: None,
            });
        }
    }

    fn receive_goodbye(&mut self, peer: usize, departed: Departed) {
        self.departed.insert(peer, departed);
        self.expect_no_goodbye(peer);
        self.elect();
        self.agree_if_all_reported();
        // If this rank has seen the link to the peer close but has not reported this yet, the
        // goodbye explains why, and so replaces the pending error.
        let call = match &self.pending {
            Some(Pending {
                awaited: Awaited::Goodbye(lost, call),
                reported: false,
                ..
            }) if *lost == peer => *call,
            _ => return,
        };
        self.pending = None;
        self.fail_if_left(peer, &call);
    }

    /// Returns `true` if `peer` has said goodbye.
    #[must_use]
    pub fn has_left(&self, peer: usize) -> bool {
        self.departed.contains_key(&peer)
    }

    /// Returns `true` if any rank has left.
    #[must_use]
    pub fn has_departures(&self) -> bool {
        !self.departed.is_empty()
    }

    /// Returns the time since the first call of this method after the goodbye of `peer`, or `None`
    /// if `peer` has not said goodbye.
    pub fn has_left_for(&mut self, peer: usize, now: Duration) -> Option<Duration> {
        let departed = self.departed.get_mut(&peer)?;
        Some(now.saturating_sub(*departed.since.get_or_insert(now)))
    }

    /// Fails with an error if `peer` left without making the collective `call`, which is waiting
    /// for it.
    pub fn fail_if_left_before(&mut self, peer: usize, call: &Call) {
        match self.departed.get(&peer) {
            Some(departed) if departed.calls < call.sequence && !call.is_pair() => {
                self.fail_if_left(peer, call);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
