//! Defines the events that the library reports: the join, algorithms, slow peers, stalls, failures,
//! restarts and warnings.
//!
//! If the program has a `tracing` subscriber, it gets every event, with the target `ringtree`.
//! Otherwise, a binding's receiver gets it. If there is no receiver, the event is printed to
//! standard error, provided that `RINGTREE_LOG` includes its level.
//!
//! *Invariants.* Subscribers and receivers are user code. So [`Event::emit`] is called only on a
//! thread that holds neither a lock nor the polling token. All other threads add events to an
//! [`EventQueue`], which emits them on a separate thread.
//!
//! *May import* the base files.

use crate::error::{Error, Printable};
use crate::limits::EVENTS_QUEUED_MAX;
use crate::lock::lock;
use std::collections::VecDeque;
use std::fmt;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::NoSubscriber;
use tracing::{Dispatch, Level, dispatcher};

/// The variable that selects the events that are printed.
pub(crate) const LOG: &str = "RINGTREE_LOG";

/// Interval at which [`EventQueue::settle`] checks the queue.
const SETTLE_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Events that are printed if `RINGTREE_LOG` is not set.
const PRINTED_BY_DEFAULT: LevelFilter = LevelFilter::WARN;

/// The value of `RINGTREE_LOG`. An invalid value makes the start fail, so it is ignored here.
static SETTING: LazyLock<Option<LevelFilter>> =
    LazyLock::new(|| std::env::var(LOG).ok().and_then(|value| level(&value)));

/// The receiver that a binding has set.
static RECEIVER: RwLock<Option<Receiver>> = RwLock::new(None);

/// A function that gets an event's level (`error`, `warn`, `info` or `debug`), its rank and its
/// text. It returns `false` if the event must be printed to standard error instead.
pub type Receiver = Arc<dyn Fn(&'static str, Option<usize>, &str) -> bool + Send + Sync>;

/// Passes events to `receiver` from now on, or to none if it is `None`. The receiver gets events of
/// the level `debug` only if `RINGTREE_LOG` includes them.
pub fn set_receiver(receiver: Option<Receiver>) {
    *RECEIVER.write().unwrap_or_else(PoisonError::into_inner) = receiver;
}

fn receiver() -> Option<Receiver> {
    let receiver = RECEIVER.read().unwrap_or_else(PoisonError::into_inner);
    receiver.clone()
}

/// An event. `Display` prints it as one line of text.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A rank has joined its job.
    Joined(Box<Joined>),
    /// A rank has chosen the algorithm for a class of calls that it had not made before.
    AlgorithmChosen(Box<AlgorithmChosen>),
    /// A call of a rank is waiting for peers.
    SlowPeers {
        rank: usize,
        call: String,
        peers: String,
        waited_s: f64,
    },
    /// A call has been waiting for a long time.
    Stall { rank: usize, text: String },
    /// A communicator has failed. Its calls return the same error.
    Failure { rank: usize, error: Error },
    /// The launcher restarts the job. It prints the text itself.
    Restart { text: String },
    /// Any other warning.
    Warning { rank: Option<usize>, text: String },
}

/// Emits a warning of world rank `rank`. The calling thread must hold neither a lock nor the
/// polling token.
pub(crate) fn warn(rank: usize, text: String) {
    let rank = Some(rank);
    EventQueue::new().emit(Event::Warning { rank, text });
}

/// How a rank has joined its job.
#[derive(Clone, Debug)]
pub(crate) struct Joined {
    pub rank: usize,
    pub world_size: usize,
    pub host: String,
    /// The launcher that has started the rank; empty if there was none.
    pub launcher: &'static str,
    /// The address at which the rank accepts data connections; empty for a single rank.
    pub address: String,
    /// The transport to each peer.
    pub transport: String,
    /// The origin of the table of link speeds.
    pub tuning: String,
}

/// The algorithm that was chosen for a class of calls.
#[derive(Clone, Debug)]
pub(crate) struct AlgorithmChosen {
    pub rank: usize,
    pub collective: &'static str,
    pub count: usize,
    pub dtype: String,
    pub algorithm: String,
    pub pieces: usize,
    pub predicted_us: f64,
}

impl Event {
    fn level(&self) -> Level {
        match self {
            Self::Joined(_) | Self::Failure { .. } => Level::INFO,
            Self::AlgorithmChosen(_) | Self::SlowPeers { .. } => Level::DEBUG,
            Self::Stall { .. } | Self::Restart { .. } | Self::Warning { .. } => Level::WARN,
        }
    }

    fn rank(&self) -> Option<usize> {
        match self {
            Self::Joined(joined) => Some(joined.rank),
            Self::AlgorithmChosen(chosen) => Some(chosen.rank),
            Self::SlowPeers { rank, .. }
            | Self::Stall { rank, .. }
            | Self::Failure { rank, .. } => Some(*rank),
            Self::Warning { rank, .. } => *rank,
            Self::Restart { .. } => None,
        }
    }

    /// Emits the event. The calling thread must hold neither a lock nor the polling token.
    pub(crate) fn emit(&self) {
        // A panic in a subscriber must not unwind into the library.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            // Parts of the text may come from peers.
            let (level, text) = (self.level(), Printable(&self.to_string()).to_string());
            if !has_no_subscriber() {
                return self.record(&text);
            }
            let receiver = receiver().filter(|_| level <= receivable());
            if receiver.is_some_and(|receive| receive(name_of(level), self.rank(), &text)) {
                return;
            }
            let is_printed = level <= SETTING.unwrap_or(PRINTED_BY_DEFAULT);
            // The launcher prints the reason for a restart itself, in order with its ranks' output.
            if is_printed && !matches!(self, Self::Restart { .. }) {
                // If standard error is not available, the program continues without the line.
                let line = line(&text, SETTING.map(|_| level));
                let _ = std::io::stderr().write_all(line.as_bytes());
            }
        }));
    }

    /// Passes the event, which has this text, to the subscriber of this thread.
    fn record(&self, text: &str) {
        const TARGET: &str = "ringtree";
        match self {
            Self::Joined(joined) => {
                let Joined {
                    rank, world_size, ..
                } = **joined;
                let (version, launcher) = (env!("CARGO_PKG_VERSION"), joined.launcher);
                let (host, address) = (&*joined.host, &*joined.address);
                let (transport, tuning) = (&*joined.transport, &*joined.tuning);
                tracing::info!(
                    name: "joined", target: TARGET, rank, world_size, version, host, launcher,
                    address, transport, tuning, "{text}"
                );
            }
            Self::AlgorithmChosen(chosen) => {
                let (rank, collective) = (chosen.rank, chosen.collective);
                let (count, dtype) = (chosen.count, &*chosen.dtype);
                let (algorithm, pieces) = (&*chosen.algorithm, chosen.pieces);
                let predicted_us = chosen.predicted_us;
                tracing::debug!(
                    name: "algorithm chosen", target: TARGET, rank, collective, count, dtype,
                    algorithm, pieces, predicted_us, "{text}"
                );
            }
            Self::SlowPeers {
                rank,
                call,
                peers,
                waited_s,
            } => {
                let (call, peers) = (Printable(call), Printable(peers));
                tracing::debug!(
                    name: "slow peers", target: TARGET, rank, %call, %peers, waited_s, "{text}"
                );
            }
            Self::Stall { rank, .. } => {
                tracing::warn!(name: "stall", target: TARGET, rank, "{text}");
            }
            Self::Failure { rank, error } => {
                let kind = format!("{:?}", error.kind());
                let (missing, peer) = (error.missing(), error.peer());
                tracing::info!(
                    name: "failure", target: TARGET, rank, kind, peer, ?missing, "{text}"
                );
            }
            Self::Restart { .. } => tracing::warn!(name: "restart", target: TARGET, "{text}"),
            Self::Warning { rank, .. } => {
                tracing::warn!(name: "warning", target: TARGET, rank, "{text}");
            }
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joined(joined) => {
                let (rank, world_size, version) =
                    (joined.rank, joined.world_size, env!("CARGO_PKG_VERSION"));
                let host = &joined.host;
                write!(formatter, "rank {rank} of {world_size} joined on {host}")?;
                write!(formatter, " with ringtree {version}")?;
                if !joined.launcher.is_empty() {
                    write!(formatter, ", started by {}", joined.launcher)?;
                }
                if !joined.address.is_empty() {
                    write!(formatter, "; it listens on {}", joined.address)?;
                    write!(formatter, " and uses {}", joined.transport)?;
                }
                write!(formatter, "; tuning table {}", joined.tuning)
            }
            Self::AlgorithmChosen(chosen) => write!(
                formatter,
                "rank {} chose {} in {} pieces for {} of {} {}; predicted {:.1} µs",
                chosen.rank,
                chosen.algorithm,
                chosen.pieces,
                chosen.collective,
                chosen.count,
                chosen.dtype,
                chosen.predicted_us
            ),
            Self::SlowPeers {
                rank,
                call,
                peers,
                waited_s,
            } => {
                write!(
                    formatter,
                    "rank {rank} has waited {waited_s:.1} s in {call} for {peers}"
                )
            }
            Self::Stall { text, .. } | Self::Restart { text } | Self::Warning { text, .. } => {
                formatter.write_str(text)
            }
            Self::Failure { rank, error } => {
                write!(formatter, "rank {rank}: the communicator failed: {error}")
            }
        }
    }
}

/// Events that a separate thread emits, because the threads that add them may hold locks.
/// Neither a slow subscriber nor a full pipe delays the threads that add events.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventQueue(Arc<Mutex<Queued>>);

#[derive(Debug, Default)]
struct Queued {
    events: VecDeque<Event>,
    /// The subscriber of the thread that created the queue.
    subscriber: Option<Dispatch>,
    /// `true` while the queue's thread is running.
    is_emitting: bool,
    /// Number of events that did not fit since the queue was empty.
    lost: usize,
}

impl EventQueue {
    /// Creates a queue whose events go to the subscriber of the calling thread, or to the global
    /// subscriber if the thread has none.
    pub(crate) fn new() -> Self {
        let subscriber = dispatcher::get_default(Dispatch::clone);
        let subscriber = (!subscriber.is::<NoSubscriber>()).then_some(subscriber);
        Self(Arc::new(Mutex::new(Queued {
            subscriber,
            ..Queued::default()
        })))
    }

    /// Adds an event, without waiting until it has been emitted. Drops the event if nothing
    /// receives it.
    pub(crate) fn push(&self, event: Event) {
        if !is_received(event.level()) {
            return;
        }
        let mut queued = lock(&self.0);
        if queued.events.len() >= EVENTS_QUEUED_MAX {
            queued.lost += 1;
            return;
        }
        queued.events.push_back(event);
        if queued.is_emitting {
            return;
        }
        let this = self.clone();
        let thread = std::thread::Builder::new().name("ringtree-events".into());
        // If no thread can be started now, the next event starts one.
        queued.is_emitting = thread.spawn(move || this.emit_all()).is_ok();
    }

    /// Emits an event of a thread that holds neither a lock nor the polling token. User code could
    /// block that thread, so a subscriber or a receiver gets the event from the queue's thread.
    pub(crate) fn emit(&self, event: Event) {
        match has_no_subscriber() && receiver().is_none() {
            true => event.emit(),
            false => self.push(event),
        }
    }

    /// Waits until all events have been emitted, for at most `at_most`.
    pub(crate) fn settle(&self, at_most: Duration) {
        let end = Instant::now() + at_most;
        while lock(&self.0).is_emitting && Instant::now() < end {
            std::thread::sleep(SETTLE_CHECK_INTERVAL);
        }
    }

    /// Emits events until none is left.
    fn emit_all(&self) {
        let subscriber = lock(&self.0).subscriber.clone();
        while let Some(event) = self.pop() {
            match &subscriber {
                Some(subscriber) => dispatcher::with_default(subscriber, || event.emit()),
                None => event.emit(),
            }
        }
    }

    fn pop(&self) -> Option<Event> {
        let mut queued = lock(&self.0);
        let event = queued.events.pop_front();
        if event.is_some() {
            return event;
        }
        let lost = std::mem::take(&mut queued.lost);
        queued.is_emitting = lost > 0;
        (lost > 0).then(|| Event::Warning {
            rank: None,
            text: format!("{lost} events were dropped because the log is too slow"),
        })
    }
}

/// Returns `true` if anything may receive events of this level.
fn is_received(level: Level) -> bool {
    level <= SETTING.unwrap_or(PRINTED_BY_DEFAULT)
        || level <= LevelFilter::current()
        || level <= receivable() && receiver().is_some()
}

/// Returns the highest level of the events that a receiver gets.
fn receivable() -> LevelFilter {
    LevelFilter::INFO.max(SETTING.unwrap_or(PRINTED_BY_DEFAULT))
}

/// Returns `true` if this thread has no `tracing` subscriber.
fn has_no_subscriber() -> bool {
    dispatcher::get_default(|subscriber| subscriber.is::<NoSubscriber>())
}

/// Returns the level that a value of `RINGTREE_LOG` names.
pub(crate) fn level(value: &str) -> Option<LevelFilter> {
    let names = ["off", "error", "warn", "info", "debug", "trace"];
    let name = value.trim();
    names.contains(&name).then(|| name.parse().ok()).flatten()
}

fn name_of(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        _ => "debug",
    }
}

/// Returns the line to print for an event, with its level if one is given.
fn line(text: &str, level: Option<Level>) -> String {
    match level {
        Some(level) => format!("ringtree: {}: {text}\n", name_of(level)),
        None => format!("ringtree: {text}\n"),
    }
}

#[cfg(test)]
mod tests;
