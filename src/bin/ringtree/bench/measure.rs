//! One measured point: checked calls around timed batches.

use half::{bf16, f16};
use ringtree::plan::layout::part_start;
use ringtree::plan::{Algorithm, Collective};
use ringtree::reduce::exact::Inputs;
use ringtree::{Communicator, Dtype, Element, Error, ReduceOp, Result};
use std::ops::DerefMut;
use std::time::Instant;

/// Batches a point; the median is reported.
const BATCHES: usize = 5;
/// Calls a batch at least, unless told otherwise.
const ITERATIONS_MIN: usize = 3;
/// Seconds a point takes about, all batches together.
const TARGET_S: f64 = 0.5;
/// Calls a batch at most.
const ITERATIONS_MAX: usize = 200_000;

/// What to measure.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) collective: Collective,
    pub(super) dtype: Dtype,
    pub(super) op: ReduceOp,
    pub(super) root: usize,
    /// As asked for.
    pub(super) bytes: usize,
    pub(super) iterations: Option<usize>,
    pub(super) in_place: bool,
    /// Whether the buffers are the communicator's.
    pub(super) is_shared: bool,
}

/// What was measured.
#[derive(Clone, Debug)]
pub(super) struct Measurement {
    pub(super) algorithm: Algorithm,
    /// Elements of the whole buffer.
    pub(super) count: usize,
    pub(super) iterations: usize,
    /// Mean time a call, of the slowest rank, of the median batch.
    pub(super) time_s: f64,
    pub(super) predicted_s: f64,
    /// Wrong elements, over all ranks and checked calls.
    pub(super) wrong: usize,
}

pub(super) fn measure(comm: &Communicator, case: &Case) -> Result<Measurement> {
    match case.dtype {
        Dtype::I8 => measure_as::<i8>(comm, case),
        Dtype::U8 => measure_as::<u8>(comm, case),
        Dtype::I16 => measure_as::<i16>(comm, case),
        Dtype::U16 => measure_as::<u16>(comm, case),
        Dtype::I32 => measure_as::<i32>(comm, case),
        Dtype::U32 => measure_as::<u32>(comm, case),
        Dtype::I64 => measure_as::<i64>(comm, case),
        Dtype::U64 => measure_as::<u64>(comm, case),
        Dtype::F16 => measure_as::<f16>(comm, case),
        Dtype::Bf16 => measure_as::<bf16>(comm, case),
        Dtype::F32 => measure_as::<f32>(comm, case),
        Dtype::F64 => measure_as::<f64>(comm, case),
    }
}

/// A point under way: the communicator, what to call, and the buffers it is called on.
struct Bench<'a, T, B> {
    comm: &'a Communicator,
    case: &'a Case,
    inputs: Inputs,
    count: usize,
    input: Vec<T>,
    output: B,
}

fn measure_as<T: Element>(comm: &Communicator, case: &Case) -> Result<Measurement> {
    if case.is_shared {
        measure_in(comm, case, |count| comm.alloc::<T>(count))
    } else {
        measure_in(comm, case, zeros::<T>)
    }
}

/// Measures on a buffer made by `make`.
fn measure_in<T: Element, B: DerefMut<Target = [T]>>(
    comm: &Communicator,
    case: &Case,
    make: impl Fn(usize) -> Result<B>,
) -> Result<Measurement> {
    let world_size = comm.world_size();
    let mut count = (case.bytes / case.dtype.size()).max(1);
    if case.collective.is_blocked() {
        count = (count / world_size).max(1) * world_size;
    }
    let (algorithm, predicted_s) = comm.preview(case.collective, count, case.dtype, case.root)?;
    let seed = case.bytes as u64;
    let mut bench = Bench {
        comm,
        case,
        inputs: Inputs::new(case.dtype, case.op, world_size, seed),
        count,
        input: if case.in_place {
            Vec::new()
        } else {
            zeros::<T>(count)?
        },
        output: make(count)?,
    };
    let mut wrong = bench.checked_call()?;
    bench.fill_with_zeros();
    let iterations = bench.choose_iterations()?;
    let mut times_s = Vec::with_capacity(BATCHES);
    for _ in 0..BATCHES {
        bench.fill_with_zeros();
        times_s.push(bench.batch(iterations)?);
        wrong += bench.checked_call()?;
    }
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

/// A buffer in touched memory, or an error where the system has not that much.
fn zeros<T: Element>(count: usize) -> Result<Vec<T>> {
    let mut buffer: Vec<T> = Vec::new();
    buffer.try_reserve_exact(count).map_err(|_| {
        let bytes = count.saturating_mul(size_of::<T>());
        Error::System(format!(
            "no memory for a buffer of {bytes} bytes: choose smaller --sizes"
        ))
    })?;
    buffer.resize(count, T::zeroed());
    Ok(buffer)
}

impl<T: Element, B: DerefMut<Target = [T]>> Bench<'_, T, B> {
    fn block(&self, rank: usize) -> std::ops::Range<usize> {
        let start = |rank| part_start(self.count, self.comm.world_size(), rank);
        start(rank)..start(rank + 1)
    }

    /// The call that is measured.
    fn call(&mut self) -> Result<()> {
        let Self {
            comm,
            case,
            input,
            output,
            ..
        } = self;
        let block = comm.block(self.count);
        let output: &mut [T] = output;
        match (case.collective, case.in_place) {
            (Collective::AllReduce, true) => comm.all_reduce(output, case.op),
            (Collective::AllReduce, false) => comm.all_reduce_into(input, output, case.op),
            (Collective::Broadcast, _) => comm.broadcast(output, case.root),
            (Collective::Reduce, true) => comm.reduce(output, case.op, case.root),
            (Collective::Reduce, false) => comm.reduce_into(input, output, case.op, case.root),
            (Collective::ReduceScatter, true) => comm.reduce_scatter(output, case.op),
            (Collective::ReduceScatter, false) => {
                comm.reduce_scatter_into(input, &mut output[block], case.op)
            }
            (Collective::AllGather, true) => comm.all_gather(output),
            (Collective::AllGather, false) => comm.all_gather_into(&input[block], output),
            (Collective::Barrier, _) => comm.barrier(),
        }
    }

    fn fill_with_zeros(&mut self) {
        self.input.fill(T::zeroed());
        self.output.fill(T::zeroed());
    }

    /// Makes one call on predictable inputs; returns how many elements of this rank are wrong.
    fn checked_call(&mut self) -> Result<usize> {
        let (rank, root) = (self.comm.rank(), self.case.root);
        self.inputs
            .fill(rank, 0, bytemuck::cast_slice_mut(&mut self.output));
        if !self.case.in_place {
            self.input.copy_from_slice(&self.output);
        }
        self.call()?;
        let size = size_of::<T>();
        let bytes: &[u8] = bytemuck::cast_slice(&self.output);
        let own = self.block(rank);
        Ok(match self.case.collective {
            Collective::AllReduce => self.inputs.count_wrong(0, bytes),
            Collective::Broadcast => self.inputs.count_wrong_input(root, 0, bytes),
            Collective::Reduce if rank == root => self.inputs.count_wrong(0, bytes),
            Collective::Reduce | Collective::Barrier => 0,
            Collective::ReduceScatter => self
                .inputs
                .count_wrong(own.start, &bytes[own.start * size..own.end * size]),
            Collective::AllGather => (0..self.comm.world_size())
                .map(|rank| {
                    let block = self.block(rank);
                    let bytes = &bytes[block.start * size..block.end * size];
                    self.inputs.count_wrong_input(rank, block.start, bytes)
                })
                .sum(),
        })
    }

    /// Whether the root could run ahead, so that only calls between barriers tell a time.
    fn is_timed_call_by_call(&self) -> bool {
        self.case.collective.is_rooted()
    }

    /// The mean time a call of a batch, of the slowest rank, in seconds.
    fn batch(&mut self, iterations: usize) -> Result<f64> {
        let mut elapsed_s = 0.0;
        self.comm.barrier()?;
        if self.is_timed_call_by_call() {
            for _ in 0..iterations {
                self.comm.barrier()?;
                let start = Instant::now();
                self.call()?;
                elapsed_s += start.elapsed().as_secs_f64();
            }
        } else {
            let start = Instant::now();
            for _ in 0..iterations {
                self.call()?;
            }
            elapsed_s = start.elapsed().as_secs_f64();
        }
        let mut mean_s = [elapsed_s / iterations as f64];
        self.comm.all_reduce(&mut mean_s, ReduceOp::Max)?;
        Ok(mean_s[0])
    }

    /// Calls a batch: as told, or so many that the point takes its share of time. All ranks agree,
    /// since the batch time they choose by is the slowest rank's.
    fn choose_iterations(&mut self) -> Result<usize> {
        if let Some(iterations) = self.case.iterations {
            return Ok(iterations);
        }
        let mut iterations = ITERATIONS_MIN;
        loop {
            let per_call_s = self.batch(iterations)?.max(1e-9);
            let wanted = TARGET_S / BATCHES as f64 / per_call_s;
            let wanted = (wanted as usize).clamp(ITERATIONS_MIN, ITERATIONS_MAX);
            // A first few calls say little about many: grow by steps.
            if wanted <= iterations * 16 {
                return Ok(wanted);
            }
            iterations *= 16;
        }
    }
}
