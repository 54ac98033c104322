//! Runs one scripted rank: its engine, and its progress in the script.

use super::data::Data;
use super::{Moment, Record};
use crate::script::Step;
use ringtree::internal::compute::Region;
use ringtree::internal::engine::{
    Cache, Engine, Group, Key, Memory, Order, Placement, Prepared, Start,
};
use ringtree::internal::limits::IDLE_SLEEP;
use ringtree::internal::protocol::call::Call;
use ringtree::internal::protocol::group_creation::RELAY;
use ringtree::internal::protocol::session::{Agreement, ITS_PROCESS_ENDED, To};
use ringtree::internal::sim::{Network, links, lock};
use ringtree::plan::Topology;
use ringtree::plan::internal::algorithms::entry;
use ringtree::sim::World;
use ringtree::{Error, ErrorKind, Result};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// ID of the only group in a cluster.
const GROUP: u32 = 0;
/// Maximum time for which a rank with a failed call waits for the agreed mark.
const AGREEMENT_TIMEOUT: Duration = Duration::from_secs(30);

/// State that all ranks in a cluster share.
pub(super) struct Shared {
    pub(super) network: Arc<Mutex<Network>>,
    pub(super) world: World,
    pub(super) progress_during_compute: bool,
    pub(super) records: Vec<Record>,
    pub(super) data: Data,
}

impl Shared {
    fn now(&self) -> Duration {
        lock(&self.network).now()
    }
}

/// A call in flight. If it has no identity, the script waits for it before the next step.
struct InFlight {
    identity: Option<u32>,
    slot: usize,
    call: Call,
    record: usize,
}

pub(super) struct Rank {
    rank: usize,
    /// The engine, or `None` once the rank has left or been killed.
    engine: Option<Engine>,
    steps: Arc<[Step]>,
    at: usize,
    calls_made: u64,
    in_flight: Vec<InFlight>,
    busy_until: Option<Duration>,
    cache: Cache,
    fate: Option<Moment>,
    /// The time when the first call failed.
    failed_at: Option<Duration>,
    /// The rank's mark and the agreed mark, as they were when it left or was killed.
    last_marks: (u64, Option<u64>),
    /// The time when the script ended.
    pub(super) end: Option<Duration>,
    pub(super) killed_at: Option<Duration>,
}

impl Rank {
    pub(super) fn new(
        rank: usize,
        steps: Arc<[Step]>,
        fate: Option<Moment>,
        shared: &Shared,
    ) -> Self {
        let world_size = shared.world.world_size;
        // Scripts have no point-to-point messages, so `Order::Pairs` needs no links.
        let group = Group::new(
            rank,
            world_size,
            links(&shared.network, 0, rank, world_size),
            links(&shared.network, 1, rank, 0),
        );
        let mut engine = Engine::default();
        engine.add_group(GROUP, group);
        let topology = Topology {
            world_size,
            hosts: shared.world.hosts.clone(),
        };
        Self {
            rank,
            engine: Some(engine),
            steps,
            at: 0,
            calls_made: 0,
            in_flight: Vec::new(),
            busy_until: None,
            cache: Cache::new(rank, topology, shared.world.tuning, Vec::new())
                .in_rank_order(shared.world.is_reproducible),
            fate,
            failed_at: None,
            last_marks: (0, None),
            end: None,
            killed_at: None,
        }
    }

    /// Returns whether this rank has ended or was killed.
    pub(super) fn is_over(&self) -> bool {
        self.end.is_some() || self.killed_at.is_some()
    }

    /// Returns whether the rank must be killed now, because of the number of calls that it has
    /// started or the number of bytes that it has sent.
    pub(super) fn is_due_to_die(&self, shared: &Shared) -> bool {
        self.engine.is_some()
            && match self.fate {
                Some(Moment::CallsMade(calls)) => self.calls_made >= calls,
                Some(Moment::BytesSent(bytes)) => {
                    lock(&shared.network).bytes_sent(self.rank) >= bytes
                }
                Some(Moment::Time(_)) | None => false,
            }
    }

    /// Kills the rank. Returns `false` if it had already left or been killed.
    pub(super) fn kill(&mut self, shared: &Shared) -> bool {
        if self.engine.is_none() {
            return false;
        }
        lock(&shared.network).close_rank(self.rank);
        self.killed_at = Some(shared.now());
        self.last_marks = self.marks();
        self.engine = None;
        true
    }

    /// Runs the script and its calls as far as possible at this time, and sets a timer for the next
    /// attempt.
    pub(super) fn advance(&mut self, shared: &mut Shared) -> Result<()> {
        let now = shared.now();
        let is_busy = self.busy_until.is_some_and(|until| now < until);
        if is_busy && !shared.progress_during_compute {
            self.set_timer(shared, now);
            return Ok(());
        }
        while self.engine.is_some() && !self.is_due_to_die(shared) {
            if let Err(error) = self.progress(shared, now) {
                self.fail(&error, shared, now)?;
            }
            if self.failed_at.is_some() {
                self.leave_if_done(shared, now);
                break;
            }
            if !self.step(shared, now)? {
                break;
            }
        }
        self.set_timer(shared, now);
        Ok(())
    }

    fn set_timer(&self, shared: &Shared, now: Duration) {
        let is_settling = self.failed_at.is_some() || self.is_busy();
        let nap = is_settling.then_some(now + IDLE_SLEEP);
        let wake = match self.busy_until {
            Some(until) if shared.progress_during_compute => {
                Some(nap.map_or(until, |nap| nap.min(until)))
            }
            Some(until) => Some(until),
            None => nap,
        };
        if let Some(wake) = wake.filter(|_| self.engine.is_some()) {
            lock(&shared.network).set_timer(self.rank, wake);
        }
    }

    /// Advances the operations and records the completed ones. Returns an error if a call has
    /// failed.
    fn progress(&mut self, shared: &mut Shared, now: Duration) -> Result<()> {
        let Some(engine) = &mut self.engine else {
            return Ok(());
        };
        loop {
            let message = lock(&shared.network).receive_control(self.rank);
            let Some((from, group, payload)) = message else {
                break;
            };
            engine.control(group, from, &payload);
        }
        while let Some(peer) = lock(&shared.network).next_lost(self.rank) {
            engine.control_lost(peer, ITS_PROCESS_ENDED);
        }
        while engine.poll() {}
        engine.tick(now);
        send_controls(self.rank, engine, shared);
        let mut failure = Ok(());
        let (rank, records, data) = (self.rank, &mut shared.records, &mut shared.data);
        self.in_flight.retain(|flight| {
            let group = engine.group(GROUP);
            let taken = group.and_then(|group| group.take(Order::Collectives, flight.slot));
            let Some((memory, result)) = taken else {
                return true;
            };
            let record = &mut records[flight.record];
            record.end = Some(now);
            if result.is_ok() {
                let bytes = memory.output.as_ref().map_or(&[][..], Region::bytes);
                record.wrong = data.count_wrong(rank, &flight.call, record.sequence, bytes);
            } else {
                failure = result.clone();
            }
            record.result = Some(result);
            false
        });
        failure
    }

    /// Starts or finishes the next step of the script. Returns `false` if the script has to wait or
    /// has ended.
    fn step(&mut self, shared: &mut Shared, now: Duration) -> Result<bool> {
        let waits_for = |identity| {
            let mut flights = self.in_flight.iter();
            flights.any(|flight| flight.identity == identity)
        };
        if waits_for(None) {
            return Ok(false);
        }
        match self.steps.get(self.at).copied() {
            None => {
                self.end.get_or_insert(now);
                return Ok(false);
            }
            Some(Step::Compute(time)) => {
                if *self.busy_until.get_or_insert(now + time) > now {
                    return Ok(false);
                }
                self.busy_until = None;
            }
            Some(Step::Call(call)) => self.post(None, call, shared, now)?,
            Some(Step::Start(identity, call)) => self.post(Some(identity), call, shared, now)?,
            Some(Step::Barrier) => {
                self.post(None, Call::barrier(), shared, now)?;
            }
            Some(Step::Wait(identity)) if waits_for(Some(identity)) => return Ok(false),
            Some(Step::Mark(number)) => {
                if let Some(group) = self.group() {
                    group.mark(number);
                }
            }
            Some(Step::Leave) if self.is_busy() => return Ok(false),
            Some(Step::Leave) => self.leave(shared, now),
            Some(Step::Wait(_)) => {}
        }
        self.at += 1;
        Ok(true)
    }

    fn post(
        &mut self,
        identity: Option<u32>,
        call: Call,
        shared: &mut Shared,
        now: Duration,
    ) -> Result<()> {
        let prepared = self.prepare(call, &shared.world)?;
        self.calls_made += 1;
        let sequence = self.calls_made;
        let data = shared.data.input(self.rank, &call, sequence);
        let mut memory = Memory::in_place(Region::own(data));
        let mut start = Start {
            prepared: &prepared,
            sequence,
            memory: &mut memory,
            timeout: shared.world.timeout,
            gate: None,
        };
        let record = shared.records.len();
        shared.records.push(Record {
            rank: self.rank,
            sequence,
            call,
            mark: self.marks().0,
            start: now,
            end: None,
            result: None,
            wrong: 0,
        });
        let Some(group) = self.group() else {
            return Ok(());
        };
        match group.post(Order::Collectives, &mut start) {
            Ok(slot) => self.in_flight.push(InFlight {
                identity,
                slot,
                call,
                record,
            }),
            Err(error) => {
                shared.records[record].end = Some(now);
                shared.records[record].result = Some(Err(error.clone()));
                self.fail(&error, shared, now)?;
            }
        }
        if let Some(engine) = &mut self.engine {
            engine.poll();
        }
        Ok(())
    }

    fn prepare(&mut self, call: Call, world: &World) -> Result<Arc<Prepared>> {
        let usual = world.algorithm.filter(|usual| {
            let collective = call.collective();
            collective.is_some_and(|collective| entry(collective, *usual).is_some())
        });
        let key = Key {
            call: Call {
                algorithm: call.algorithm.or(usual),
                ..call
            },
            placement: Placement::InPlace,
            is_exposed: false,
        };
        self.cache.get(key).map(Arc::clone)
    }

    /// Handles the failure of a call. Returns `error` if it is a usage error, because the script is
    /// then wrong. Any other error ends all calls of this rank that are in flight, and the script
    /// does not continue.
    fn fail(&mut self, error: &Error, shared: &mut Shared, now: Duration) -> Result<()> {
        if error.kind() == ErrorKind::Usage {
            return Err(error.clone());
        }
        self.failed_at.get_or_insert(now);
        self.busy_until = None;
        for flight in self.in_flight.drain(..) {
            let record = &mut shared.records[flight.record];
            record.end = Some(now);
            record.result = Some(Err(error.clone()));
        }
        Ok(())
    }

    /// Leaves after a failure, unless this rank is still busy or waits for the agreed mark.
    fn leave_if_done(&mut self, shared: &Shared, now: Duration) {
        let has_marks = self.steps.iter().any(|step| matches!(step, Step::Mark(_)));
        let agreement = self.group().map(|group| group.agreement());
        let until = self.failed_at.unwrap_or(now) + AGREEMENT_TIMEOUT;
        let learns = has_marks && agreement == Some(Agreement::Pending) && now < until;
        if !learns && !self.is_busy() {
            self.leave(shared, now);
        }
    }

    fn group(&mut self) -> Option<&mut Group> {
        self.engine.as_mut()?.group(GROUP)
    }

    fn is_busy(&self) -> bool {
        !self.in_flight.is_empty() || self.engine.as_ref().is_some_and(Engine::is_busy)
    }

    /// Returns the rank's mark and the agreed mark.
    pub(super) fn marks(&mut self) -> (u64, Option<u64>) {
        match self.group() {
            Some(group) => match group.agreement() {
                Agreement::Reached(number) => (group.own_mark(), Some(number)),
                Agreement::Pending | Agreement::Unreachable => (group.own_mark(), None),
            },
            None => self.last_marks,
        }
    }

    fn leave(&mut self, shared: &Shared, now: Duration) {
        self.end.get_or_insert(now);
        self.last_marks = self.marks();
        let Some(mut engine) = self.engine.take() else {
            return;
        };
        engine.leave_group(GROUP);
        engine.leave(self.rank == RELAY);
        send_controls(self.rank, &mut engine, shared);
        lock(&shared.network).close_rank(self.rank);
    }
}

fn send_controls(rank: usize, engine: &mut Engine, shared: &Shared) {
    while let Some((group, to, payload)) = engine.next_control() {
        let mut network = lock(&shared.network);
        match to {
            To::Rank(to) => network.send_control(rank, to, group, payload),
            To::All => (0..shared.world.world_size)
                .filter(|to| *to != rank)
                .for_each(|to| network.send_control(rank, to, group, payload.clone())),
        }
    }
}
