//! What the links of a communicator cost, measured.

use super::Communicator;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::limits::{
    MEASURING_BATCH, MEASURING_BATCHES_MAX, MEASURING_BATCHES_MIN, MEASURING_CALLS_MAX,
    MEASURING_NETWORK, MEASURING_OVERTIME, MEASURING_PASSES, MEASURING_SHARED_MEMORY,
    MEASURING_WARM_UP_CALLS,
};
use crate::op::ReduceOp;
use crate::plan::Topology;
use crate::plan::calibration::{Exercise, LinkClass, Probe, probes, table_from};
use crate::plan::select::TuningTable;
use crate::plan::spec::{Algorithm, Collective};
use crate::reduce::Kernel;

impl Communicator {
    /// Measures what the links of this communicator cost, in some milliseconds, and says it as a
    /// table: the same on all ranks, for it is made of the slowest rank's times. Classes of links
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
            .iter()
            .map(|probe| Stopwatch::new(self, &topology, *probe))
            .collect::<Result<Vec<Stopwatch<'_>>>>()?;
        // What disturbs one pass, such as ranks that have only just started, leaves the others.
        for _ in 0..MEASURING_PASSES {
            for stopwatch in stopwatches.iter_mut().filter(|one| !one.is_through()) {
                stopwatch.pass()?;
            }
        }
        let times_s: Vec<f64> = stopwatches.into_iter().map(Stopwatch::time_s).collect();
        self.use_algorithm(asked_for)?;
        table_from(&topology, &times_s).map_err(Error::usage)
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
    /// The rank that this one exchanges with.
    partner: Option<usize>,
    /// The time of each pass.
    times_s: Vec<f64>,
    /// All seconds spent, the same on all ranks.
    used_s: f64,
}

impl<'a> Stopwatch<'a> {
    fn new(comm: &'a Communicator, topology: &Topology, probe: Probe) -> Result<Self> {
        let kernel = Kernel::new(Dtype::F32, ReduceOp::Sum);
        let zeros = vec![0.0; probe.bytes / size_of::<f32>()];
        // Neighbours of a host; of an odd number the last is left over.
        let host = topology.host_of(comm.rank());
        let partner = topology.place_of(comm.rank()) ^ 1;
        let has_partner = partner < topology.size_of(host);
        Ok(Self {
            comm,
            probe,
            kernel: kernel.ok_or_else(|| Error::usage("f32 cannot be summed"))?,
            other: zeros.clone(),
            buffer: zeros,
            partner: has_partner.then(|| topology.rank_at(host, partner)),
            times_s: Vec::with_capacity(MEASURING_PASSES),
            used_s: 0.0,
        })
    }

    /// Finds once more how long the exercise takes: each batch as long as on its slowest rank, of
    /// the batches the least. Many short batches, because whatever else the machine does can only
    /// make one longer, and then does not spoil all of them.
    fn pass(&mut self) -> Result<()> {
        // The first calls make links and touch memory, of which a row of segments takes turns.
        let is_shared = self.probe.class == LinkClass::Shm;
        let is_cold = is_shared && self.times_s.is_empty();
        self.batch_s(if is_cold { MEASURING_WARM_UP_CALLS } else { 1 })?;
        let budget_s = self.budget_s() / MEASURING_PASSES as f64;
        let mut calls = 1;
        let mut used_s = 0.0;
        let mut times_s: Vec<f64> = Vec::with_capacity(MEASURING_BATCHES_MAX);
        while times_s.len() < MEASURING_BATCHES_MAX {
            let is_short = times_s.len() < MEASURING_BATCHES_MIN;
            if used_s > budget_s * if is_short { MEASURING_OVERTIME } else { 1.0 } {
                break;
            }
            // So many more than before, and one.
            let batches = 0..=times_s.len();
            let latest_s = batches.map(|_| self.batch_s(calls));
            let mut latest_s = latest_s.collect::<Result<Vec<f64>>>()?;
            self.agree(&mut latest_s)?;
            used_s += latest_s.iter().sum::<f64>() * calls as f64;
            times_s.append(&mut latest_s);
            calls = calls_a_batch(least(&times_s));
        }
        self.used_s += used_s;
        self.times_s.push(least(&times_s));
        Ok(())
    }

    /// Seconds that the exercise takes, the same number on all ranks.
    fn time_s(self) -> f64 {
        least(&self.times_s)
    }

    /// Whether its time is up.
    fn is_through(&self) -> bool {
        self.used_s > self.budget_s()
    }

    /// How long this probe may take.
    fn budget_s(&self) -> f64 {
        let of_all = match self.probe.class {
            LinkClass::Shm => MEASURING_SHARED_MEMORY,
            LinkClass::Tcp => MEASURING_NETWORK,
        };
        of_all.as_secs_f64() / NUMBERS_A_CLASS
    }

    /// The largest over all ranks.
    fn agree(&self, times_s: &mut [f64]) -> Result<()> {
        self.comm
            .use_algorithm(Some(Algorithm::RecursiveDoubling))?;
        self.comm.all_reduce(times_s, ReduceOp::Max)
    }

    /// Seconds that one of `calls` takes on this rank, on average.
    fn batch_s(&mut self, calls: usize) -> Result<f64> {
        if let Exercise::Call(_, algorithm) = self.probe.exercise {
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
        match (self.probe.exercise, self.partner) {
            (Exercise::Call(Collective::Barrier, _), _) => comm.barrier(),
            (Exercise::Call(..), _) => comm.all_reduce(buffer, ReduceOp::Sum),
            (Exercise::Pair, Some(partner)) if partner > comm.rank() => {
                comm.send(buffer, partner)?;
                comm.recv(buffer, partner)
            }
            (Exercise::Pair, Some(partner)) => {
                comm.recv(buffer, partner)?;
                comm.send(buffer, partner)
            }
            (Exercise::Pair, None) => Ok(()),
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
