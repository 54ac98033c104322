//! Measures the costs of a communicator's links.

use super::Communicator;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::limits::{
    MEASURING_BATCH, MEASURING_BATCHES_MAX, MEASURING_BATCHES_MIN, MEASURING_BYTES_MAX,
    MEASURING_CALLS_MAX, MEASURING_GROWTH, MEASURING_NETWORK, MEASURING_OVERTIME, MEASURING_PASSES,
    MEASURING_ROUND_TRIPS, MEASURING_SETTLED, MEASURING_SHARED_MEMORY, MEASURING_WARM_UP_CALLS,
    MEASURING_WINDOW,
};
use crate::op::ReduceOp;
use crate::plan::internal::calibration::{
    Exercise, LinkClass, Number, Probe, probes, reach, rings, table_from,
};
use crate::plan::{Algorithm, Topology, TuningTable};
use crate::reduce::Kernel;

/// Measures the costs of the communicator's links and returns them as a table. This takes a few
/// milliseconds. The table is computed from the times measured on all ranks and is therefore the
/// same on all ranks. For classes of links that the communicator does not have, the table contains
/// the built-in values. The communicator itself is not changed. All ranks must make this call in
/// the same order relative to their other calls on this communicator.
///
/// If the ranks are on several hosts, they also measure their links at startup, unless a
/// [setting or the launcher](crate::tuning::TuningOrigin) supplies the table. They then use the
/// rounded result of that measurement to choose algorithms.
///
/// # Errors
/// Returns one of the [errors that all calls share](Communicator#errors).
pub fn measure(comm: &Communicator) -> Result<TuningTable> {
    let topology = comm.core.parts.topology();
    let asked_for = comm.algorithm();
    let mut stopwatches = probes(&topology)
        .into_iter()
        .map(|probe| Stopwatch::new(comm, &topology, probe))
        .collect::<Result<Vec<Stopwatch<'_>>>>()?;
    for stopwatch in &mut stopwatches {
        stopwatch.warm_up()?;
    }
    // A temporary disturbance, such as ranks that are still starting up, spoils one pass but not
    // the others.
    for _ in 0..MEASURING_PASSES {
        for stopwatch in stopwatches.iter_mut().filter(|one| !one.is_finished()) {
            stopwatch.pass()?;
        }
    }
    let timed: Vec<(Probe, f64)> = stopwatches.into_iter().map(Stopwatch::end).collect();
    comm.use_algorithm(asked_for)?;
    table_from(&topology, &timed).map_err(Error::usage)
}

/// A probe that is being timed.
struct Stopwatch<'a> {
    comm: &'a Communicator,
    probe: Probe,
    kernel: Kernel,
    buffer: Vec<f32>,
    /// Space for the messages that this rank receives, or the operand that is reduced into
    /// `buffer`.
    other: Vec<f32>,
    /// Peers of this rank, if messages are timed. Each pair contains the rank to send to and the
    /// rank to receive from, and all of these messages are in flight at the same time. A rank
    /// without peers does not take part.
    peers: Vec<(usize, usize)>,
    /// Times measured so far, in seconds per call. The lowest one is used.
    times_s: Vec<f64>,
    /// Time spent so far, in seconds. It is the same on all ranks.
    used_s: f64,
}

impl<'a> Stopwatch<'a> {
    fn new(comm: &'a Communicator, topology: &Topology, probe: Probe) -> Result<Self> {
        let kernel = Kernel::new(Dtype::F32, ReduceOp::Sum);
        let zeros = vec![0.0; probe.bytes / size_of::<f32>()];
        let peers = peers(comm.rank(), topology, &probe);
        Ok(Self {
            comm,
            probe,
            kernel: kernel.ok_or_else(|| Error::usage("f32 cannot be summed"))?,
            other: zeros.repeat(peers.len().max(1)),
            buffer: zeros,
            peers,
            times_s: Vec::with_capacity(MEASURING_PASSES),
            used_s: 0.0,
        })
    }

    /// Warms up the links, because the first calls create links and touch memory. In shared memory,
    /// successive calls use successive segments, so several calls are needed to touch all of them.
    /// The window of a connection opens as bytes pass through the connection. A long message is
    /// therefore lengthened until its time per byte no longer falls, or until its time or its
    /// length reaches the limit.
    fn warm_up(&mut self) -> Result<()> {
        if self.probe.class == LinkClass::Shm {
            return self.batch_s(MEASURING_WARM_UP_CALLS).map(|_| ());
        }
        let bytes = self.probe.bytes;
        if !self.is_long_message() {
            return self.batch_s(1).map(|_| ());
        }
        self.resize(size_of::<f32>());
        self.batch_s(1)?;
        let round_trips_s = self.batches_s(1, 1)?[0] * 2.0 * MEASURING_ROUND_TRIPS;
        let limit_s = MEASURING_WINDOW.as_secs_f64().max(round_trips_s);
        self.resize(bytes);
        let mut byte_s = f64::INFINITY;
        loop {
            let time_s = self.batches_s(1, 1)?[0];
            let (before_s, now_s) = (byte_s, time_s / self.probe.bytes as f64);
            byte_s = now_s;
            let next_s = time_s * MEASURING_GROWTH as f64;
            let is_open = now_s > before_s * MEASURING_SETTLED;
            let is_late = self.used_s + next_s > limit_s;
            let bytes = self.probe.bytes * MEASURING_GROWTH;
            if is_open || is_late || bytes > MEASURING_BYTES_MAX {
                self.times_s.push(time_s);
                let again_s = self.batches_s(1, 1)?;
                self.times_s.extend(again_s);
                return Ok(());
            }
            self.resize(bytes);
        }
    }

    fn resize(&mut self, bytes: usize) {
        self.probe.bytes = bytes;
        self.buffer.resize(bytes / size_of::<f32>(), 0.0);
        self.other.resize(bytes / size_of::<f32>(), 0.0);
    }

    /// Times the exercise once more and records the shortest time of many short batches. Other work
    /// on the machine can only lengthen a batch, and it does not lengthen all batches.
    fn pass(&mut self) -> Result<()> {
        let budget_s = self.budget_s() / MEASURING_PASSES as f64;
        let (mut batches, mut calls) = (1, 1);
        let before_s = self.used_s;
        let mut times_s: Vec<f64> = Vec::with_capacity(MEASURING_BATCHES_MAX);
        while times_s.len() < MEASURING_BATCHES_MAX {
            let is_short = times_s.len() < MEASURING_BATCHES_MIN;
            let limit_s = budget_s * if is_short { MEASURING_OVERTIME } else { 1.0 };
            if self.used_s - before_s > limit_s {
                break;
            }
            times_s.append(&mut self.batches_s(batches, calls)?);
            calls = calls_per_batch(least(&times_s));
            // Run as many batches as fit into the remaining time before the ranks exchange their
            // times, because the exchange may take longer than a batch.
            let left_s = budget_s - (self.used_s - before_s);
            let wanted = (left_s / (least(&times_s) * calls as f64)) as usize;
            batches = wanted.min(MEASURING_BATCHES_MAX - times_s.len()).max(1);
        }
        self.times_s.push(least(&times_s));
        Ok(())
    }

    /// Returns the probe and the time that its exercise takes, in seconds. The result is the same
    /// on all ranks.
    fn end(self) -> (Probe, f64) {
        (self.probe, least(&self.times_s))
    }

    /// Returns `true` if a window that opens slowly could make the link look slower than it is.
    fn is_long_message(&self) -> bool {
        self.probe.exercise == Exercise::Shift(1) && self.probe.number == Number::Beta
    }

    /// Returns `true` if this probe has used up its time budget.
    fn is_finished(&self) -> bool {
        self.used_s > self.budget_s()
    }

    /// Returns the time budget of this probe, in seconds.
    fn budget_s(&self) -> f64 {
        let of_all = match self.probe.class {
            LinkClass::Shm => MEASURING_SHARED_MEMORY,
            LinkClass::Tcp | LinkClass::Uplink => MEASURING_NETWORK,
        };
        of_all.as_secs_f64() / COSTS_PER_CLASS
    }

    /// Times `batches` batches of `calls` calls. Returns the seconds per call of each batch,
    /// averaged over the ranks that take part.
    ///
    /// In a ring, a rank that starts late finds a message already waiting for it, but makes another
    /// rank wait equally long, so the errors cancel. In all other exercises that exchange messages,
    /// two untimed calls first synchronize the ranks.
    fn batches_s(&mut self, batches: usize, calls: usize) -> Result<Vec<f64>> {
        let is_even = matches!(self.probe.exercise, Exercise::Shift(1) | Exercise::Fold);
        if !is_even {
            self.batch_s(2)?;
        }
        let times_s = (0..batches).map(|_| self.batch_s(calls));
        let mut times_s = times_s.collect::<Result<Vec<f64>>>()?;
        let weight = self.weight();
        times_s.iter_mut().for_each(|time_s| *time_s *= weight);
        times_s.push(weight);
        self.comm
            .use_algorithm(Some(Algorithm::RecursiveDoubling))?;
        self.comm.all_reduce(&mut times_s, ReduceOp::Sum)?;
        let ranks = times_s.pop().unwrap_or(0.0);
        times_s.iter_mut().for_each(|time_s| *time_s /= ranks);
        self.used_s += times_s.iter().sum::<f64>() * calls as f64;
        Ok(times_s)
    }

    /// Returns the weight of this rank's times: 1, or 0 if the exercise needs a peer and this rank
    /// has none.
    fn weight(&self) -> f64 {
        let needs_peers = matches!(self.probe.exercise, Exercise::Pair | Exercise::Shift(_));
        f64::from(!needs_peers || !self.peers.is_empty())
    }

    /// Runs `calls` calls and returns their average time on this rank, in seconds per call. For an
    /// exchange between a pair, returns the time per message instead.
    fn batch_s(&mut self, calls: usize) -> Result<f64> {
        if let Exercise::AllReduce(algorithm) = self.probe.exercise {
            self.comm.use_algorithm(Some(algorithm))?;
        }
        let start = self.comm.clock();
        for _ in 0..calls {
            self.once()?;
        }
        let seconds = (self.comm.clock() - start).as_secs_f64();
        // In a pair, each call sends one message in each direction.
        let messages = if self.probe.exercise == Exercise::Pair {
            2 * calls
        } else {
            calls
        };
        Ok(seconds / messages as f64)
    }

    fn once(&mut self) -> Result<()> {
        let Self {
            comm,
            buffer,
            other,
            ..
        } = self;
        match (self.probe.exercise, &self.peers[..]) {
            (Exercise::AllReduce(_), _) => comm.all_reduce(buffer, ReduceOp::Sum),
            (Exercise::Pair, [(partner, _)]) if *partner > comm.rank() => {
                comm.send(buffer, *partner)?;
                comm.recv(buffer, *partner)
            }
            (Exercise::Pair, [(partner, _)]) => {
                comm.recv(buffer, *partner)?;
                comm.send(buffer, *partner)
            }
            (Exercise::Pair, _) => Ok(()),
            (Exercise::Shift(_), peers) => comm.batch(|group| {
                let places = other.chunks_exact_mut(buffer.len());
                for ((to, from), place) in peers.iter().zip(places) {
                    group.send(&*buffer, *to)?;
                    group.recv(place, *from)?;
                }
                Ok(())
            }),
            (Exercise::Fold, _) => {
                let (own, theirs) = (
                    bytemuck::cast_slice_mut(buffer),
                    bytemuck::cast_slice(other),
                );
                self.kernel.fold(own, Some(0), &[theirs], None);
                Ok(())
            }
        }
    }
}

/// Returns the peers of `rank` in an exercise. Each pair contains the rank to send to and the rank
/// to receive from.
fn peers(rank: usize, topology: &Topology, probe: &Probe) -> Vec<(usize, usize)> {
    match probe.exercise {
        // Neighboring ranks on a host form pairs. If the host has an odd number of ranks, the last
        // one does not take part.
        Exercise::Pair => {
            let host = topology.host_of(rank);
            let ranks = topology.ranks_of(host);
            let place = ranks.partition_point(|one| *one < rank) ^ 1;
            let partner = ranks.get(place).copied();
            partner
                .map(|partner| (partner, partner))
                .into_iter()
                .collect()
        }
        Exercise::Shift(messages) => {
            let rings = rings(topology, probe.class);
            let distances = 1..=reach(&rings, messages);
            let place_in = |ring: &Vec<usize>| ring.iter().position(|one| *one == rank);
            let own = rings
                .iter()
                .find_map(|ring| place_in(ring).map(|place| (ring, place)));
            let pairs = own.into_iter().flat_map(|(ring, place)| {
                let at = |place: usize| ring[place % ring.len()];
                let pair = move |far: usize| (at(place + far), at(place + ring.len() - far));
                distances.clone().map(pair)
            });
            pairs.collect()
        }
        Exercise::AllReduce(_) | Exercise::Fold => Vec::new(),
    }
}

/// Number of costs per class of links (L, o, G and γ). These costs share the time budget of the
/// class.
const COSTS_PER_CLASS: f64 = 4.0;

/// Returns the shortest time, or 0 if `times_s` is empty.
fn least(times_s: &[f64]) -> f64 {
    times_s
        .iter()
        .copied()
        .min_by(f64::total_cmp)
        .unwrap_or(0.0)
}

/// Returns the number of calls per batch that makes a batch long enough to be timed accurately, if
/// each call takes `call_s` seconds.
fn calls_per_batch(call_s: f64) -> usize {
    let calls = MEASURING_BATCH.as_secs_f64() / call_s;
    (calls as usize).clamp(1, MEASURING_CALLS_MAX)
}
