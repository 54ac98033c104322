//! Runs programs on simulated ranks.

use super::connector;
use super::network::{Network, NetworkConfig, Transfer};
use super::schedule::Baton;
use crate::comm::tuning::TuningOrigin;
use crate::comm::{Communicator, Parts};
use crate::engine::log::Clock;
use crate::engine::medium::host::Links;
use crate::limits::{DEADLINE_DEFAULT, IDLE_SLEEP};
use crate::lock::lock;
use crate::plan::{Algorithm, Hosts, Topology, TuningTable};
use crate::protocol::members::Members;
use crate::protocol::session::To;
use crate::runtime::fork_guard::RuntimeHandle;
use crate::runtime::host::{Host, Waited};
use crate::sys::generation::count_forks;
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

/// Number of the group that contains all ranks of a simulated world.
const GROUP: u32 = 0;

/// A simulated world, which consists of a network and the settings for its communicators.
///
/// ```
/// use ringtree::sim::World;
/// let mut world = World::new(3);
/// world.network.seed = 7;
/// let ranks = world.run(|comm| comm.rank());
/// assert_eq!(ranks, [0, 1, 2]);
/// ```
#[derive(Clone, Debug)]
pub struct World {
    /// Number of ranks.
    pub world_size: usize,
    /// Placement of ranks on hosts and of hosts at sites that plans assume. By default, each rank
    /// has its own host, and all hosts are at the same site. The placement does not affect the
    /// network, except for [`NetworkConfig::uplinks`].
    pub hosts: Hosts,
    /// Links, faults, and the seed for all random choices.
    pub network: NetworkConfig,
    /// Table of link speeds that is used to choose algorithms.
    pub tuning: TuningTable,
    /// Algorithm to use for every collective that it implements.
    pub algorithm: Option<Algorithm>,
    /// Timeout for calls, in virtual time.
    pub timeout: Duration,
    /// `true` if calls are checked, as with [`Builder::check_calls`](crate::Builder::check_calls).
    ///
    /// ```
    /// use ringtree::{ReduceOp, sim::World};
    /// let mut world = World::new(2);
    /// world.checks_calls = true;
    /// let ends = world.run(|comm| {
    ///     // This program is wrong, but works as long as the links can hold the message.
    ///     comm.with_timeout(std::time::Duration::from_secs(2)).send(&[1u8], 1 - comm.rank())
    /// });
    /// let text = ends[0].clone().unwrap_err().to_string();
    /// assert!(text.contains("they wait for each other"), "{text}");
    /// ```
    pub checks_calls: bool,
    /// `true` if sums are reproducible. See [`Builder::reproducible`](crate::Builder::reproducible)
    /// for an example.
    pub is_reproducible: bool,
}

impl World {
    /// Creates a world of `world_size` ranks that uses the default network.
    #[must_use]
    pub fn new(world_size: usize) -> Self {
        Self {
            world_size,
            hosts: Hosts::APART,
            network: NetworkConfig::default(),
            tuning: TuningTable::default(),
            algorithm: None,
            timeout: DEADLINE_DEFAULT,
            checks_calls: false,
            is_reproducible: false,
        }
    }

    /// Runs `code` on every rank and returns the results in rank order. Each rank has its own
    /// thread, and only one rank runs at a time. Virtual time passes only while ranks are waiting.
    ///
    /// # Panics
    /// Panics if `code` panics on a rank. The other ranks get an error as if that rank had died.
    pub fn run<R: Send>(&self, code: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
        run_on(self, &self.new_network(), code)
    }

    /// Runs `code` like [`World::run`]. Also returns the transfers of all packets, in the order in
    /// which they arrived.
    ///
    /// # Panics
    /// Panics if `code` panics on a rank. The other ranks get an error as if that rank had died.
    pub fn run_recorded<R: Send>(
        &self,
        code: impl Fn(&Communicator) -> R + Sync,
    ) -> (Vec<R>, Vec<Transfer>) {
        let network = self.new_network();
        lock(&network).record_transfers();
        let results = run_on(self, &network, code);
        let transfers = lock(&network).transfers().to_vec();
        (results, transfers)
    }

    /// Runs `code` and returns the times of all events. Events include the arrival of a packet or a
    /// control message and the end of a timer. Nothing happens between two of these times. You can
    /// therefore test the death of a rank at every possible step: run `code` once for each of these
    /// times, and let the rank die at that time. The rank then does not process the events that
    /// occur at that time.
    ///
    /// ```
    /// use ringtree::sim::World;
    /// let program = |comm: &ringtree::Communicator| comm.barrier();
    /// let mut world = World::new(3);
    /// for at in world.event_times(program) {
    ///     world.network.faults.deaths = vec![(2, at)];
    ///     for end in &world.run(program)[..2] {
    ///         // The barrier has completed, or the error names rank 2.
    ///         let is_told = |error: &ringtree::Error| error.peer() == Some(2);
    ///         assert!(end.as_ref().err().is_none_or(is_told), "{at:?}: {end:?}");
    ///     }
    /// }
    /// ```
    ///
    /// # Panics
    /// Panics if `code` panics on a rank.
    #[must_use]
    pub fn event_times<R: Send>(&self, code: impl Fn(&Communicator) -> R + Sync) -> Vec<Duration> {
        let network = self.new_network();
        lock(&network).record_event_times();
        run_on(self, &network, code);
        lock(&network).event_times().collect()
    }

    fn new_network(&self) -> Arc<Mutex<Network>> {
        let network = Network::new(self.network.clone(), self.world_size);
        Arc::new(Mutex::new(network))
    }

    fn communicator(
        &self,
        rank: usize,
        network: &Arc<Mutex<Network>>,
        baton: &Arc<Baton>,
    ) -> Communicator {
        let host = SimHost {
            rank,
            world_size: self.world_size,
            network: Arc::clone(network),
            baton: Arc::clone(baton),
        };
        // If this fails, calls in forked children are not detected.
        let _ = count_forks();
        let own = RuntimeHandle::new(rank, Box::new(host));
        let members = Members::everyone(self.world_size);
        let topology = Topology {
            world_size: self.world_size,
            hosts: self.hosts.clone(),
        };
        let hosts: Vec<usize> = (0..self.world_size)
            .map(|rank| topology.host_of(rank))
            .collect();
        let local_rank = hosts[..rank]
            .iter()
            .filter(|host| **host == hosts[rank])
            .count();
        let sites: Vec<usize> = hosts.iter().map(|host| topology.site_of(*host)).collect();
        let runtime = own.get().expect("invariant: it was created here");
        runtime
            .add_group(GROUP, rank, &members, self.checks_calls, Duration::ZERO)
            .expect("invariant: simulated links can always be created");
        Communicator::assemble(Parts {
            rank,
            hosts: hosts.into(),
            sites: sites.into(),
            members,
            local_rank,
            group: GROUP,
            runtime: own,
            transport_name: "sim",
            timeout: self.timeout,
            device_path: Default::default(),
            tuning: self.tuning,
            tuning_origin: TuningOrigin::BuiltIn,
            algorithm: self.algorithm,
            checks_calls: self.checks_calls,
            is_reproducible: self.is_reproducible,
        })
    }
}

/// Runs `code` like [`World::run`], but on a network that the caller keeps, for example to read its
/// clock or its records.
///
/// # Panics
/// Panics if `code` panics on a rank.
pub fn run_on<R: Send>(
    world: &World,
    network: &Arc<Mutex<Network>>,
    code: impl Fn(&Communicator) -> R + Sync,
) -> Vec<R> {
    let baton = Arc::new(Baton::new(Arc::clone(network), world.network.seed));
    baton.run(|rank| code(&world.communicator(rank, network, &baton)))
}

/// Runs `code` on `world_size` simulated ranks in virtual time and returns the results in rank
/// order. The seed is always 0, so every run is the same. To set the seed, the network or the
/// faults, use [`World`].
///
/// # Panics
/// Panics if `code` panics on a rank.
pub fn simulate<R: Send>(world_size: usize, code: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    World::new(world_size).run(code)
}

/// Lets virtual time pass on this rank, as if the rank were computing. Operations in flight
/// continue in the meantime, as they do in a real process.
///
/// ```
/// use ringtree::sim::sleep;
/// use std::time::Duration;
/// let ends = ringtree::simulate(2, |comm| {
///     if comm.rank() == 1 {
///         sleep(comm, Duration::from_secs(60));
///     }
///     comm.barrier()
/// });
/// assert_eq!(ends, [Ok(()), Ok(())]);
/// ```
pub fn sleep(comm: &Communicator, time: Duration) {
    comm.pass_time(time);
}

/// The [`Host`] on which the runtime of a simulated rank runs.
struct SimHost {
    rank: usize,
    world_size: usize,
    network: Arc<Mutex<Network>>,
    baton: Arc<Baton>,
}

impl Host for SimHost {
    fn now(&self) -> Duration {
        self.baton.now()
    }

    fn clock(&self) -> Clock {
        let baton = Arc::clone(&self.baton);
        Box::new(move || baton.now())
    }

    fn pause_polling(&self, _idle_passes: u32, at_most: Duration) -> Waited {
        let until = self.baton.now() + at_most;
        // Ignore the result: every waiting rank has a timer, so a deadlock is impossible, and calls
        // that are stuck end at their deadlines.
        let _ = self.baton.wait(self.rank, until);
        Waited::Asleep
    }

    fn wake(&self) {}

    fn background_work(&self, _at_once: bool) {}

    fn await_in_task(&self, waker: &Waker) {
        self.pause_polling(0, IDLE_SLEEP);
        waker.wake_by_ref();
    }

    fn links(
        &self,
        group: u32,
        _rank: usize,
        members: &Members,
        _at_most: Duration,
    ) -> crate::error::Result<[Links; 2]> {
        Ok([0, 1].map(|channel| {
            let channel = group * 2 + channel;
            connector::links_among(&self.network, channel, self.rank, members)
        }))
    }

    fn send_control(&self, to: To, group: u32, payload: &[u8]) {
        let mut network = lock(&self.network);
        let one = |network: &mut Network, to| {
            network.send_control(self.rank, to, group, payload.to_vec());
        };
        match to {
            To::Rank(rank) => one(&mut network, rank),
            To::All => {
                let others = (0..self.world_size).filter(|rank| *rank != self.rank);
                others.for_each(|rank| one(&mut network, rank));
            }
        }
    }

    fn receive_control(&self) -> Option<(u32, usize, Vec<u8>)> {
        let (from, group, payload) = lock(&self.network).receive_control(self.rank)?;
        Some((group, from, payload))
    }

    fn next_lost(&self) -> Option<(usize, String)> {
        let mut network = lock(&self.network);
        if network.is_closed(self.rank) {
            return Some((self.rank, "its process was killed".into()));
        }
        let dead = network.next_lost(self.rank)?;
        Some((dead, "its control connection closed".into()))
    }
}
