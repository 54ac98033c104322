//! What the links of a communicator cost, measured.

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
use crate::plan::Topology;
use crate::plan::calibration::{
    Exercise, LinkClass, Number, Probe, probes, reach, rings, table_from,
};
use crate::plan::select::TuningTable;
use crate::plan::spec::Algorithm;
use crate::reduce::Kernel;

impl Communicator {
    /// Measures what the links of this communicator cost, in some milliseconds, and says it as a
    /// table: the same on all ranks, for it is made of the times of all. Classes of links
    /// that it does not have are as in the built-in table. Nothing else changes. All ranks call it,
    /// in the order of their calls.
    ///
    /// A communicator of all ranks does this when it is made, if they are on several hosts and no
    /// [setting or launcher](crate::TuningOrigin) gives the table; it chooses its algorithms by
    /// what comes out, [rounded](TuningTable::rounded).
    ///
    /// ```
    /// use ringtree::sim::simulate::World;
    /// use std::time::Duration;
    ///
    /// let mut world = World::new(4);
    /// world.network.latency = Duration::from_millis(5);
    /// let tables = world.run(|comm| comm.measure());
    /// let alpha_s = tables[0].clone()?.tcp.alpha_s;
    /// assert!((0.005..0.006).contains(&alpha_s), "{alpha_s}");
    /// assert!(tables.iter().all(|table| *table == tables[0]));
    /// # Ok::<(), ringtree::Error>(())
    /// ```
    ///
    /// # Errors
    /// Any of [`Error`].
    pub fn measure(&self) -> Result<TuningTable> {
        let topology = self.0.parts.topology();
        let asked_for = self.algorithm();
        let mut stopwatches = probes(&topology)
            .into_iter()
            .map(|probe| Stopwatch::new(self, &topology, probe))
            .collect::<Result<Vec<Stopwatch<'_>>>>()?;
        for stopwatch in &mut stopwatches {
            stopwatch.warm_up()?;
        }
        // What disturbs one pass, such as ranks that have only just started, leaves the others.
        for _ in 0..MEASURING_PASSES {
            for stopwatch in stopwatches.iter_mut().filter(|one| !one.is_through()) {
                stopwatch.pass()?;
            }
        }
        let timed: Vec<(Probe, f64)> = stopwatches.into_iter().map(Stopwatch::end).collect();
        self.use_algorithm(asked_for)?;
        table_from(&topology, &timed).map_err(Error::usage)
    }
}

/// One probe under way.
struct Stopwatch<'a> {
    comm: &'a Communicator,
    probe: Probe,
    kernel: Kernel,
    buffer: Vec<f32>,
    /// What is folded into it.
    other: Vec<f32>,
    /// The ranks that this one sends to and receives from at once, where messages are timed.
    /// Without one it takes no part.
    peers: Vec<(usize, usize)>,
    /// The time of each pass.
    times_s: Vec<f64>,
    /// All seconds spent, the same on all ranks.
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

    /// The first calls make links and touch memory, of which a row of segments takes turns. A
    /// connection's window opens as bytes pass: a long message is made longer until its bytes do
    /// not pass faster for it, or until the time is up.
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

    /// Finds once more how long the exercise takes: of the batches the least. Many short batches,
    /// because whatever else the machine does can only make one longer, and then does not spoil all
    /// of them.
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
            calls = calls_a_batch(least(&times_s));
            // As many as there is time for: to agree on times takes longer than many a batch.
            let left_s = budget_s - (self.used_s - before_s);
            let wanted = (left_s / (least(&times_s) * calls as f64)) as usize;
            batches = wanted.min(MEASURING_BATCHES_MAX - times_s.len()).max(1);
        }
        self.times_s.push(least(&times_s));
        Ok(())
    }

    /// The probe, and the seconds that its exercise takes: the same on all ranks.
    fn end(self) -> (Probe, f64) {
        (self.probe, least(&self.times_s))
    }

    /// Whether a window that opens slowly could make it look slower than it is.
    fn is_long_message(&self) -> bool {
        self.probe.exercise == Exercise::Shift(1) && self.probe.number == Number::Beta
    }

    /// Whether its time is up.
    fn is_through(&self) -> bool {
        self.used_s > self.budget_s()
    }

    /// How long this probe may take.
    fn budget_s(&self) -> f64 {
        let of_all = match self.probe.class {
            LinkClass::Shm => MEASURING_SHARED_MEMORY,
            LinkClass::Tcp | LinkClass::Uplink => MEASURING_NETWORK,
        };
        of_all.as_secs_f64() / NUMBERS_A_CLASS
    }

    /// Times some batches of calls: of each, the seconds of a call, on average over the ranks that
    /// take part. Around a ring, a rank that begins late finds a message waiting, and lets another
    /// rank wait as long: the two cancel. Where a rank waits for several, two calls that are not
    /// timed let all ranks end at once.
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

    /// How much this rank's times count: 1, or 0 where it has no peer to exchange with.
    fn weight(&self) -> f64 {
        let needs_peers = matches!(self.probe.exercise, Exercise::Pair | Exercise::Shift(_));
        f64::from(!needs_peers || !self.peers.is_empty())
    }

    /// Seconds that one of `calls` takes on this rank, on average.
    fn batch_s(&mut self, calls: usize) -> Result<f64> {
        if let Exercise::AllReduce(algorithm) = self.probe.exercise {
            self.comm.use_algorithm(Some(algorithm))?;
        }
        let start = self.comm.clock();
        for _ in 0..calls {
            self.once()?;
        }
        let seconds = (self.comm.clock() - start).as_secs_f64();
        // There and back were two messages.
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
            (Exercise::Shift(_), peers) => comm.group(|group| {
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

/// The ranks that rank `rank` sends to and receives from in an exercise.
fn peers(rank: usize, topology: &Topology, probe: &Probe) -> Vec<(usize, usize)> {
    match probe.exercise {
        // Neighbours of a host; of an odd number the last is left over.
        Exercise::Pair => {
            let host = topology.host_of(rank);
            let place = topology.place_of(rank) ^ 1;
            let partner = (place < topology.size_of(host)).then(|| topology.rank_at(host, place));
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

/// L, o, G and γ share the time of a class.
const NUMBERS_A_CLASS: f64 = 4.0;

/// The least; nothing of nothing.
fn least(times_s: &[f64]) -> f64 {
    times_s
        .iter()
        .copied()
        .min_by(f64::total_cmp)
        .unwrap_or(0.0)
}

/// As many calls as it takes to make a batch long enough for the clock.
fn calls_a_batch(call_s: f64) -> usize {
    let calls = MEASURING_BATCH.as_secs_f64() / call_s;
    (calls as usize).clamp(1, MEASURING_CALLS_MAX)
}
