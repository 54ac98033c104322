//! Runs thousands of scripted ranks in one thread.
//!
//! Every rank has a real engine, group and links, but instead of running a program, it follows a
//! [`Script`]. The network's clock moves from event to event, and only ranks with a new event are
//! polled. A run is therefore a pure function of the world, the script and the seed, and its cost
//! depends only on its messages.
//!
//! The peers of a killed rank detect its death as they would over TCP. Everything that it wrote
//! still arrives, and then its links close. Rank 0 sees the control connection of the killed rank
//! close. If rank 0 is killed, every other rank sees its own control connection close.

mod data;
mod rank;

use super::script::{Call, Script};
use data::Data;
use rank::{Rank, Shared};
use ringtree::Result;
use ringtree::internal::sim::{Network, lock};
use ringtree::sim::World;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The moment at which a rank is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// At this virtual time.
    Time(Duration),
    /// After the rank has written this many bytes.
    BytesSent(u64),
    /// After the rank has started this many calls.
    CallsMade(u64),
}

/// One call of one rank, with its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The rank.
    pub rank: usize,
    /// The call's sequence number on that rank, counted from 1.
    pub sequence: u64,
    /// The call.
    pub call: Call,
    /// The rank's mark when it started the call.
    pub mark: u64,
    /// The time when the call started.
    pub start: Duration,
    /// The time when the call ended. `None` if the call did not end or its rank was killed first.
    pub end: Option<Duration>,
    /// The result of the call.
    pub result: Option<Result<()>>,
    /// Number of wrong elements in the result.
    pub wrong: usize,
}

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Every call of every rank, in the order in which the calls started.
    pub records: Vec<Record>,
    /// The time when each rank's script ended. `None` if it did not end.
    pub ends: Vec<Option<Duration>>,
    /// The time when each rank was killed. `None` if it was not killed.
    pub kills: Vec<Option<Duration>>,
    /// The last mark of each rank. For a rank that left or was killed, the mark at that time.
    pub marks: Vec<u64>,
    /// The agreed mark that each rank learned. `None` if the rank did not learn it.
    pub agreed: Vec<Option<u64>>,
    /// Number of bytes, including headers, that each rank wrote to its links.
    pub bytes_sent: Vec<u64>,
}

impl Outcome {
    /// Returns the time when the last script ended.
    #[must_use]
    pub fn end(&self) -> Duration {
        self.ends
            .iter()
            .flatten()
            .copied()
            .max()
            .unwrap_or_default()
    }

    /// Returns the records of the ranks that were not killed.
    pub fn survivors(&self) -> impl Iterator<Item = &Record> {
        let is_alive = |record: &&Record| self.kills[record.rank].is_none();
        self.records.iter().filter(is_alive)
    }
}

/// A simulated world whose ranks follow a script.
///
/// ```
/// use ringtree::plan::Collective;
/// use ringtree_kit::checkers::exact;
/// use ringtree_kit::cluster::Cluster;
/// use ringtree_kit::script::{Call, Script, Step};
/// use ringtree::sim::World;
///
/// let steps = vec![Step::Call(Call::new(Collective::AllReduce, 100)), Step::Barrier];
/// let outcome = Cluster::new(World::new(64)).run(&Script::same(64, steps))?;
/// assert_eq!(exact::check(&outcome), Ok(()));
/// # Ok::<(), ringtree::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Cluster {
    world: World,
    /// `true` if operations in flight advance while their rank computes, as they do in a process
    /// whose control thread has a core. This is the default.
    pub progress_during_compute: bool,
    fates: Vec<Option<Moment>>,
}

/// The ranks that will be killed at a given time, ordered by that time.
type TimedDeaths = BTreeSet<(Duration, usize)>;

impl Cluster {
    /// Creates a cluster of the ranks of `world`.
    #[must_use]
    pub fn new(world: World) -> Self {
        Self {
            fates: vec![None; world.world_size],
            progress_during_compute: true,
            world,
        }
    }

    /// Specifies that every run kills `rank` at `moment`. A later call for the same rank replaces
    /// the moment.
    ///
    /// # Panics
    /// Panics if `rank` does not exist.
    pub fn kill(&mut self, rank: usize, moment: Moment) {
        self.fates[rank] = Some(moment);
    }

    /// Runs `script` until every rank has ended or no events are left.
    ///
    /// # Errors
    /// Returns `ErrorKind::Usage` if the script does not fit the world. Errors of calls
    /// are in the records.
    pub fn run(&self, script: &Script) -> Result<Outcome> {
        let World {
            world_size,
            network,
            ..
        } = &self.world;
        script.check(*world_size)?;
        let mut shared = Shared {
            network: Arc::new(Mutex::new(Network::new(network.clone(), *world_size))),
            world: self.world.clone(),
            progress_during_compute: self.progress_during_compute,
            records: Vec::new(),
            data: Data::new(network.seed, *world_size),
        };
        let mut ranks: Vec<_> = (0..*world_size)
            .map(|rank| Rank::new(rank, script.steps(rank), self.fates[rank], &shared))
            .collect();
        self.drive(&mut ranks, &mut shared)?;
        let network = lock(&shared.network);
        Ok(Outcome {
            ends: ranks.iter().map(|rank| rank.end).collect(),
            kills: ranks.iter().map(|rank| rank.killed_at).collect(),
            marks: ranks.iter_mut().map(|rank| rank.marks().0).collect(),
            agreed: ranks.iter_mut().map(|rank| rank.marks().1).collect(),
            bytes_sent: (0..*world_size)
                .map(|rank| network.bytes_sent(rank))
                .collect(),
            records: std::mem::take(&mut shared.records),
        })
    }

    fn drive(&self, ranks: &mut [Rank], shared: &mut Shared) -> Result<()> {
        let times = self.fates.iter().enumerate();
        let mut timed_deaths: TimedDeaths = times
            .filter_map(|(rank, fate)| match fate {
                Some(Moment::Time(time)) => Some((*time, rank)),
                _ => None,
            })
            .collect();
        let mut touched: Vec<_> = (0..ranks.len()).collect();
        let mut left = ranks.len();
        loop {
            for rank in touched {
                let was_over = ranks[rank].is_over();
                ranks[rank].advance(shared)?;
                if ranks[rank].is_due_to_die(shared) {
                    ranks[rank].kill(shared);
                }
                left -= usize::from(!was_over && ranks[rank].is_over());
            }
            touched = lock(&shared.network).take_touched();
            while touched.is_empty() && left > 0 {
                let next = lock(&shared.network).next_event_at();
                let due = timed_deaths.first().map(|(time, _)| *time);
                match (due, next) {
                    (Some(due), next) if next.is_none_or(|next| due <= next) => {
                        lock(&shared.network).advance_to(due);
                        let Some((_, rank)) = timed_deaths.pop_first() else {
                            continue;
                        };
                        let was_over = ranks[rank].is_over();
                        ranks[rank].kill(shared);
                        left -= usize::from(!was_over && ranks[rank].is_over());
                    }
                    (_, None) => return Ok(()),
                    _ => {
                        lock(&shared.network).advance();
                    }
                }
                touched.extend(lock(&shared.network).take_touched());
            }
            if left == 0 {
                return Ok(());
            }
        }
    }
}
