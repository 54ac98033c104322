//! Runs ordinary blocking code on simulated ranks. Each rank has its own thread, and only one rank
//! runs at a time.
//!
//! The running rank holds the *baton*. When this rank cannot continue, it calls [`Baton::wait`],
//! which passes the baton to a rank that has been reached by an event. If there are several such
//! ranks, one of them is picked at random, based on the seed. If there is no such rank, the
//! network's clock advances. A run therefore depends only on the seed, no matter how the operating
//! system schedules the threads.

use super::faults::SplitMix64;
use super::network::Network;
use crate::lock::lock;
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Minimum virtual time that a wait takes. It ensures that a rank that polls in a loop does not
/// stop the clock for all ranks.
const POLL_TIME: Duration = Duration::from_micros(1);

/// The error that is returned if a program is stuck because every unfinished rank is waiting
/// without a deadline and nothing is in progress in the network. A rank that gets this error must
/// stop because every later wait returns the error again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// The ranks that were waiting.
    pub waiting: Vec<usize>,
    /// The virtual time at which the deadlock occurred.
    pub at: Duration,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Deadlock { waiting, at } = self;
        write!(
            formatter,
            "deadlock at {at:?}: ranks {waiting:?} are waiting and nothing is in progress"
        )
    }
}

impl std::error::Error for Deadlock {}

/// A scheduler that lets only one rank run at a time. The module documentation describes
/// how it works.
#[derive(Debug)]
pub struct Baton {
    network: Arc<Mutex<Network>>,
    state: Mutex<State>,
    /// Condition variable of each rank. It is notified when the rank gets the baton.
    turns: Vec<Condvar>,
}

#[derive(Debug)]
struct State {
    chance: SplitMix64,
    phases: Vec<Phase>,
    /// The rank that holds the baton.
    running: Option<usize>,
    /// Ranks that have been reached by an event, in the order of the events. Each rank is listed
    /// only once.
    ready: Vec<usize>,
    is_ready: Vec<bool>,
    deadlock: Option<Deadlock>,
    /// The first rank that panicked, and its message.
    panic: Option<(usize, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not started, waiting, or running.
    Alive,
    Finished,
}

impl State {
    fn make_ready(&mut self, rank: usize) {
        if self.phases[rank] == Phase::Alive && !self.is_ready[rank] {
            self.is_ready[rank] = true;
            self.ready.push(rank);
        }
    }
}

impl Baton {
    /// Creates a baton for the ranks of `network`. It can be used for only one call to
    /// [`Baton::run`]. `seed` determines the order in which the ranks run.
    #[must_use]
    pub fn new(network: Arc<Mutex<Network>>, seed: u64) -> Self {
        let world_size = lock(&network).world_size();
        let state = State {
            chance: SplitMix64::new(seed),
            phases: vec![Phase::Alive; world_size],
            running: None,
            ready: (0..world_size).collect(),
            is_ready: vec![true; world_size],
            deadlock: None,
            panic: None,
        };
        let turns = (0..world_size).map(|_| Condvar::new()).collect();
        Baton {
            network,
            state: Mutex::new(state),
            turns,
        }
    }

    /// Returns the current virtual time.
    #[must_use]
    pub fn now(&self) -> Duration {
        lock(&self.network).now()
    }

    /// Lets other ranks run until an event reaches `rank` or the virtual time reaches `until`. Pass
    /// [`Duration::MAX`] for no deadline. The running rank calls this method when it cannot
    /// continue. The call may return early, so the caller must check its condition again. The
    /// caller must not hold the network's lock.
    ///
    /// # Errors
    /// Returns [`Deadlock`] if no rank can ever continue.
    pub fn wait(&self, rank: usize, until: Duration) -> Result<(), Deadlock> {
        let mut state = lock(&self.state);
        if let Some(deadlock) = &state.deadlock {
            return Err(deadlock.clone());
        }
        if until < Duration::MAX {
            let mut network = lock(&self.network);
            let soonest = network.now().saturating_add(POLL_TIME);
            network.set_timer(rank, until.max(soonest));
        }
        self.pass(&mut state);
        let state = self.await_turn(rank, state);
        lock(&self.network).cancel_timer(rank);
        match &state.deadlock {
            Some(deadlock) => Err(deadlock.clone()),
            None => Ok(()),
        }
    }

    /// Marks `rank` as finished, because its code has returned or panicked, and lets another rank
    /// run.
    fn finish(&self, rank: usize, panic: Option<String>) {
        let mut state = lock(&self.state);
        state.phases[rank] = Phase::Finished;
        if let Some(message) = panic {
            lock(&self.network).close_rank(rank);
            state.panic.get_or_insert((rank, message));
        }
        self.pass(&mut state);
    }

    fn await_turn<'a>(&self, rank: usize, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.turns[rank]
            .wait_while(state, |state| state.running != Some(rank))
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes the baton to a rank that can continue. If there is no such rank, advances the clock
    /// until there is one, or reports a deadlock to all unfinished ranks.
    fn pass(&self, state: &mut State) {
        state.running = None;
        if state.phases.iter().all(|&phase| phase == Phase::Finished) {
            return;
        }
        let mut network = lock(&self.network);
        loop {
            for rank in network.take_touched() {
                state.make_ready(rank);
            }
            if !state.ready.is_empty() {
                break;
            }
            if network.advance().is_none() {
                release_all(state, network.now());
            }
        }
        let place = state.chance.below(state.ready.len() as u64) as usize;
        let rank = state.ready.swap_remove(place);
        state.is_ready[rank] = false;
        state.running = Some(rank);
        // The rank may have started other threads that also wait for its turn.
        self.turns[rank].notify_all();
    }

    /// Runs `code` on each rank, in a separate thread, and returns the results in rank order. If a
    /// rank panics, the other ranks notice that it has died because they read the end of its
    /// streams.
    ///
    /// # Panics
    /// Panics if a rank panics. The panic occurs after all ranks have ended, and its message names
    /// the first rank that panicked and quotes the message of that panic. Panics immediately if
    /// this baton has been used before.
    pub fn run<R: Send>(&self, code: impl Fn(usize) -> R + Sync) -> Vec<R> {
        let is_alive = |&phase: &Phase| phase == Phase::Alive;
        let unused = lock(&self.state).phases.iter().all(is_alive);
        assert!(unused, "a baton can be used for only one run");
        let code = &code;
        let results: Vec<Option<R>> = thread::scope(|scope| {
            let ranks = 0..self.turns.len();
            let threads: Vec<_> = ranks
                .map(|rank| {
                    let name = format!("rank {rank}");
                    let thread = thread::Builder::new().name(name);
                    thread.spawn_scoped(scope, move || self.run_rank(rank, code))
                })
                .collect();
            self.start(&threads);
            let end = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().ok().flatten();
            threads
                .into_iter()
                .map(|thread| thread.ok().and_then(end))
                .collect()
        });
        if let Some((rank, message)) = lock(&self.state).panic.take() {
            panic!("rank {rank} panicked: {message}");
        }
        let all: Option<Vec<R>> = results.into_iter().collect();
        all.expect("invariant: a rank without a result has recorded its panic message")
    }

    /// Lets the first rank run. A rank whose thread could not be created counts as panicked.
    fn start<T>(&self, threads: &[std::io::Result<T>]) {
        let mut state = lock(&self.state);
        for (rank, thread) in threads.iter().enumerate() {
            if let Err(error) = thread {
                state.phases[rank] = Phase::Finished;
                state.ready.retain(|&other| other != rank);
                lock(&self.network).close_rank(rank);
                state
                    .panic
                    .get_or_insert((rank, format!("cannot start its thread: {error}")));
            }
        }
        self.pass(&mut state);
    }

    fn run_rank<R>(&self, rank: usize, code: &(impl Fn(usize) -> R + Sync)) -> Option<R> {
        drop(self.await_turn(rank, lock(&self.state)));
        match catch_unwind(AssertUnwindSafe(|| code(rank))) {
            Ok(result) => {
                self.finish(rank, None);
                Some(result)
            }
            Err(payload) => {
                self.finish(rank, Some(panic_message(payload.as_ref())));
                None
            }
        }
    }
}

/// Wakes every unfinished rank so that it gets the deadlock error.
fn release_all(state: &mut State, at: Duration) {
    let alive = |rank: &usize| state.phases[*rank] == Phase::Alive;
    let waiting: Vec<usize> = (0..state.phases.len()).filter(alive).collect();
    for &rank in &waiting {
        state.make_ready(rank);
    }
    state.deadlock.get_or_insert(Deadlock { waiting, at });
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_string());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no panic message".to_string())
}

#[cfg(test)]
mod tests;
