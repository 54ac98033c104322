//! Measures a single buffer size with a single algorithm. The results of calls are checked before
//! the first timed batch and between timed batches.

#[cfg(feature = "cuda")]
use super::buffers::DeviceBuffers;
use super::buffers::{Buffers, HostBuffers, zeros};
use super::case::{Case, Memory};
use crate::expected::exact::Inputs;
use crate::expected::result::ExpectedResult;
use ringtree::ddp::Trace;
use ringtree::internal::ddp::is_on;
use ringtree::plan::Algorithm;
use ringtree::plan::internal::spec::is_blocked;
use ringtree::with_element;
use ringtree::{Communicator, Element, Layout, ReduceOp, Result};
use std::time::Instant;

/// Number of batches. The median batch is reported.
const BATCHES: usize = 5;
/// Minimum number of calls per batch if `--iters` is not given.
const ITERATIONS_MIN: usize = 3;
/// Approximate duration of all batches together, in seconds.
const TARGET_S: f64 = 0.5;
/// Maximum number of calls per batch if `--iters` is not given.
const ITERATIONS_MAX: usize = 200_000;

/// The result of a measurement.
#[derive(Clone, Debug)]
pub(crate) struct Measurement {
    pub(crate) algorithm: Algorithm,
    /// Number of elements in the complete buffer.
    pub(crate) count: usize,
    pub(crate) iterations: usize,
    /// Mean time per call on the slowest rank, in the median batch.
    pub(crate) time_s: f64,
    pub(crate) predicted_s: f64,
    /// Number of wrong elements on all ranks in all checked calls.
    pub(crate) wrong: usize,
}

/// Measures `case` and records the messages of one additional call in `trace`.
pub(crate) fn measure(comm: &Communicator, case: &Case, trace: &Trace) -> Result<Measurement> {
    with_element!(case.dtype, T => measure_as::<T>(comm, case, trace))
}

/// A measurement in progress.
struct Bench<'a, B> {
    comm: &'a Communicator,
    case: &'a Case,
    inputs: Inputs,
    buffers: B,
}

fn measure_as<T: Element>(comm: &Communicator, case: &Case, trace: &Trace) -> Result<Measurement> {
    let count = count(comm, case);
    let input_count = if case.in_place { 0 } else { count };
    match &case.memory {
        Memory::Host => {
            let (input, output) = (zeros::<T>(input_count)?, zeros::<T>(count)?);
            measure_on(comm, case, trace, HostBuffers { input, output })
        }
        Memory::Shared => {
            let (input, output) = (comm.alloc::<T>(input_count)?, comm.alloc::<T>(count)?);
            measure_on(comm, case, trace, HostBuffers { input, output })
        }
        #[cfg(feature = "cuda")]
        Memory::Device(device) => {
            let buffers = DeviceBuffers::<T>::new(device, count)?;
            measure_on(comm, case, trace, buffers)
        }
    }
}

/// Returns the number of elements in a call: as many as fit into the requested bytes, rounded to
/// equal blocks for collectives that use blocks.
fn count(comm: &Communicator, case: &Case) -> usize {
    let (count, world_size) = (case.bytes / case.dtype.size(), comm.world_size());
    match is_blocked(case.collective) {
        true => (count / world_size).max(1) * world_size,
        false => count.max(1),
    }
}

/// Returns a text that explains why the algorithm was chosen.
pub(crate) fn explain(comm: &Communicator, case: &Case) -> Result<String> {
    let count = count(comm, case);
    let choice = comm.plan_for(case.collective, count, case.dtype, case.root)?;
    Ok(choice.to_string())
}

/// Returns the algorithm that will run and its predicted time in seconds.
fn preview(comm: &Communicator, case: &Case, count: usize) -> Result<(Algorithm, f64)> {
    let (collective, dtype, root) = (case.collective, case.dtype, case.root);
    match case.memory {
        #[cfg(feature = "cuda")]
        Memory::Device(_) => {
            ringtree::internal::calls::plan_on_device(comm, collective, count, dtype, root)
        }
        _ => {
            let choice = comm.plan_for(collective, count, dtype, root)?;
            Ok((choice.algorithm, choice.predicted_s))
        }
    }
}

fn measure_on(
    comm: &Communicator,
    case: &Case,
    trace: &Trace,
    buffers: impl Buffers,
) -> Result<Measurement> {
    let count = count(comm, case);
    let (algorithm, predicted_s) = preview(comm, case, count)?;
    let seed = case.bytes as u64;
    let mut bench = Bench {
        comm,
        case,
        inputs: Inputs::new(case.dtype, case.op, comm.world_size(), seed),
        buffers,
    };
    let mut wrong = bench.checked_call()?;
    bench.buffers.fill_with_zeros()?;
    let iterations = bench.choose_iterations()?;
    let mut times_s = Vec::with_capacity(BATCHES);
    for _ in 0..BATCHES {
        bench.buffers.fill_with_zeros()?;
        times_s.push(bench.batch(iterations)?);
        wrong += bench.checked_call()?;
    }
    bench.traced_call(trace)?;
    times_s.sort_by(f64::total_cmp);
    let mut total_wrong = [wrong as u64];
    comm.all_reduce(&mut total_wrong, ReduceOp::Sum)?;
    let time_s = times_s[BATCHES / 2];
    let wrong = usize::try_from(total_wrong[0]).unwrap_or(usize::MAX);
    Ok(Measurement {
        algorithm,
        count,
        iterations,
        time_s,
        predicted_s,
        wrong,
    })
}

impl<B: Buffers> Bench<'_, B> {
    /// Issues one call on known inputs. Returns the number of wrong elements on this rank.
    fn checked_call(&mut self) -> Result<usize> {
        let (comm, case) = (self.comm, self.case);
        self.buffers.fill(&self.inputs, comm.rank())?;
        self.call()?;
        self.buffers.settle(comm)?;
        self.buffers.count_wrong(&ExpectedResult {
            collective: case.collective,
            root: case.root,
            inputs: self.inputs,
            rank: comm.rank(),
            world_size: comm.world_size(),
            layout: Layout::Even,
        })
    }

    /// If the trace is on, issues one additional call after a barrier and records it.
    fn traced_call(&mut self, trace: &Trace) -> Result<()> {
        if !is_on(trace) {
            return Ok(());
        }
        self.buffers.fill_with_zeros()?;
        self.comm.barrier()?;
        trace.messages(self.comm, || self.call())
    }

    fn call(&mut self) -> Result<()> {
        self.buffers.call(self.comm, self.case)
    }

    /// Runs a batch and returns the mean time per call on the slowest rank, in seconds.
    fn batch(&mut self, iterations: usize) -> Result<f64> {
        let mut elapsed_s = 0.0;
        self.comm.barrier()?;
        // A root could run ahead of the other ranks, so each call must follow a barrier.
        if self.case.collective.is_rooted() {
            for _ in 0..iterations {
                self.comm.barrier()?;
                let start = Instant::now();
                self.call()?;
                self.buffers.settle(self.comm)?;
                elapsed_s += start.elapsed().as_secs_f64();
            }
        } else {
            let start = Instant::now();
            for _ in 0..iterations {
                self.call()?;
            }
            self.buffers.settle(self.comm)?;
            elapsed_s = start.elapsed().as_secs_f64();
        }
        let mut mean_s = [elapsed_s / iterations as f64];
        self.comm.all_reduce(&mut mean_s, ReduceOp::Max)?;
        Ok(mean_s[0])
    }

    /// Returns the number of calls per batch: the value of `--iters`, or a number with which all
    /// batches together take about [`TARGET_S`]. All ranks return the same number, because they use
    /// the slowest rank's time.
    fn choose_iterations(&mut self) -> Result<usize> {
        if let Some(iterations) = self.case.iterations {
            return Ok(iterations);
        }
        let mut iterations = ITERATIONS_MIN;
        loop {
            let per_call_s = self.batch(iterations)?.max(1e-9);
            let wanted = TARGET_S / BATCHES as f64 / per_call_s;
            let wanted = (wanted as usize).clamp(ITERATIONS_MIN, ITERATIONS_MAX);
            // A few calls are a poor predictor of the time that many calls take, so grow in steps.
            if wanted <= iterations * 16 {
                return Ok(wanted);
            }
            iterations *= 16;
        }
    }
}
