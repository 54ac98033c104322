//! Thousands of scripted ranks in one thread.
//!
//! Every rank has the engine, the group and the links that a real one has; what it lacks is a
//! program of its own, in whose place it follows a [`Script`]. The network's clock moves from event
//! to event, and only the ranks that something happened to are polled. So a run is a pure function
//! of the world, the script and the seed, and costs what its messages cost.
//!
//! A killed rank's peers find out as they would over TCP: what it wrote still arrives, then its
//! links end; rank 0 sees its control connection close, or every rank does if it was rank 0.

mod data;
mod rank;

use super::script::{Call, Script};
use data::Data;
use rank::{Rank, Shared};
use ringtree::error::Result;
use ringtree::sim::connector::lock;
use ringtree::sim::network::Network;
use ringtree::sim::simulate::World;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// When a rank is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// At this virtual time.
    Time(Duration),
    /// As soon as it has written this many bytes.
    BytesSent(u64),
    /// As soon as it has made this many calls, the last of which it has just begun.
    CallsMade(u64),
}

/// One call of one rank, as it went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The rank.
    pub rank: usize,
    /// The call's number on that rank, from 1.
    pub sequence: u64,
    /// What was called.
    pub call: Call,
    /// The rank's mark when it was made.
    pub mark: u64,
    /// When it was made.
    pub start: Duration,
    /// When it ended; none if it did not, or its rank died first.
    pub end: Option<Duration>,
    /// How it ended.
    pub result: Option<Result<()>>,
    /// Elements of the result that were wrong.
    pub wrong: usize,
}

/// What became of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Every call of every rank, in the order in which they were made.
    pub records: Vec<Record>,
    /// When each rank's script ended; none if it did not.
    pub ends: Vec<Option<Duration>>,
    /// When each rank was killed, of those that were.
    pub kills: Vec<Option<Duration>>,
    /// Each rank's mark: that of its failure, if it failed.
    pub marks: Vec<u64>,
    /// The agreed mark, on the ranks that learned it.
    pub agreed: Vec<Option<u64>>,
    /// Bytes that each rank wrote to its links, headers included.
    pub bytes_sent: Vec<u64>,
}

impl Outcome {
    /// When the last script ended.
    #[must_use]
    pub fn end(&self) -> Duration {
        self.ends
            .iter()
            .flatten()
            .copied()
            .max()
            .unwrap_or_default()
    }

    /// The records of the ranks that were not killed.
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
/// use ringtree::sim::simulate::World;
///
/// let steps = vec![Step::Call(Call::new(Collective::AllReduce, 100)), Step::Barrier];
/// let outcome = Cluster::new(World::new(64)).run(&Script::same(64, steps))?;
/// assert_eq!(exact::check(&outcome), Ok(()));
/// # Ok::<(), ringtree::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Cluster {
    world: World,
    /// Whether operations under way go on while their rank computes, as they do in a process whose
    /// control thread gets a core. True unless changed.
    pub progress_during_compute: bool,
    fates: Vec<Option<Moment>>,
}

/// The ranks that are to be killed, by time.
type Agenda = BTreeSet<(Duration, usize)>;

impl Cluster {
    /// The ranks of `world`.
    #[must_use]
    pub fn new(world: World) -> Self {
        Self {
            fates: vec![None; world.world_size],
            progress_during_compute: true,
            world,
        }
    }

    /// Has `rank` killed in every run, at `moment`; a later call for the same rank replaces it.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn kill(&mut self, rank: usize, moment: Moment) {
        self.fates[rank] = Some(moment);
    }

    /// Runs `script` until every rank has ended, or nothing can happen any more.
    ///
    /// # Errors
    /// [`Error::usage`](ringtree::Error::usage) if the script does not fit the world. What goes
    /// wrong in a call is in its record.
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
            marks: ranks.iter_mut().map(|rank| rank.standing().0).collect(),
            agreed: ranks.iter_mut().map(|rank| rank.standing().1).collect(),
            bytes_sent: (0..*world_size)
                .map(|rank| network.bytes_sent(rank))
                .collect(),
            records: std::mem::take(&mut shared.records),
        })
    }

    fn drive(&self, ranks: &mut [Rank], shared: &mut Shared) -> Result<()> {
        let times = self.fates.iter().enumerate();
        let mut agenda: Agenda = times
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
                if ranks[rank].is_doomed(shared) {
                    ranks[rank].kill(shared);
                }
                left -= usize::from(!was_over && ranks[rank].is_over());
            }
            touched = lock(&shared.network).take_touched();
            while touched.is_empty() && left > 0 {
                let next = lock(&shared.network).next_event_at();
                let due = agenda.first().map(|(time, _)| *time);
                match (due, next) {
                    (Some(due), next) if next.is_none_or(|next| due <= next) => {
                        lock(&shared.network).advance_to(due);
                        let Some((_, rank)) = agenda.pop_first() else {
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
