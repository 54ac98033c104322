//! Collectives on device buffers whose results are known exactly.

use super::rank::Rank;
use crate::promise::Promise;
use half::{bf16, f16};
use ringtree::comm::device_buffer::DeviceBuffer;
use ringtree::device::{Memory, Pinned};
use ringtree::plan::{Algorithm, Collective, REGISTRY};
use ringtree::reduce::exact::Inputs;
use ringtree::{Dtype, Element, ReduceOp, Result};

/// What ranks hand each other at once in these calls: little, so that messages have many.
pub(super) const SEGMENT_BYTES: usize = 4096;
/// Calls under way at once.
const BATCH: usize = 8;
/// Wrong calls a rank tells of; the rest is a number.
const TOLD_MAX: usize = 3;

/// How many elements a buffer has.
#[derive(Clone, Copy, Debug)]
enum Length {
    /// Two segments and a bit for each rank.
    Segments,
    None,
    One,
    Some,
}

impl Length {
    const ALL: [Self; 4] = [Self::Segments, Self::None, Self::One, Self::Some];

    fn count(self, dtype: Dtype, world_size: usize) -> usize {
        match self {
            Self::Segments => world_size * (2 * SEGMENT_BYTES / dtype.size()) + 7,
            Self::None => 0,
            Self::One => 1,
            Self::Some => 1001,
        }
    }
}

/// A call, the same on all ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    collective: Collective,
    algorithm: Algorithm,
    dtype: Dtype,
    op: ReduceOp,
    length: Length,
    root: usize,
    seed: u64,
}

/// Every collective by every algorithm, of every type and operator; in four turns each of them in
/// every length.
fn cases(world_size: usize, turn: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for entry in REGISTRY {
        let collectives = entry.collectives.iter();
        for collective in collectives.filter(|one| **one != Collective::Barrier) {
            let pairs = pairs(*collective).enumerate();
            cases.extend(pairs.map(|(nth, (dtype, op))| Case {
                collective: *collective,
                algorithm: entry.algorithm,
                dtype,
                op,
                length: Length::ALL[(nth + turn) % 4],
                root: nth % world_size,
                seed: nth as u64,
            }));
        }
    }
    cases
}

/// The types and operators that make a difference to `collective`.
fn pairs(collective: Collective) -> impl Iterator<Item = (Dtype, ReduceOp)> {
    let all = Dtype::ALL.iter();
    let all = all.flat_map(|dtype| ReduceOp::ALL.iter().map(move |op| (*dtype, *op)));
    all.filter(move |(dtype, op)| match collective.reduces() {
        true => op.supports(*dtype),
        false => *op == ReduceOp::Max,
    })
}

/// What a rank found: calls it made, and what was wrong with some.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) calls: usize,
    pub(super) wrong: Vec<String>,
}

/// A call, with all that it needs allocated: that may take until streams have nothing to wait for.
trait Call {
    /// Makes the call, and tells the stream to copy the result out right behind it.
    fn start(&mut self, rank: &Rank) -> Result<()>;

    /// How many of this rank's elements are not what was promised, once the stream has nothing to
    /// do any more.
    fn wrong(&mut self) -> Result<usize>;
}

struct On<T: Element> {
    case: Case,
    promise: Promise,
    count: usize,
    buffer: DeviceBuffer<T>,
    result: Pinned,
}

impl<T: Element> On<T> {
    /// On `memory`, filled, or on memory of the call's own.
    fn boxed(rank: &Rank, case: &Case, memory: Option<&Memory>) -> Result<Box<dyn Call>> {
        let (number, world_size) = (rank.comm.rank(), rank.comm.world_size());
        let inputs = Inputs::new(case.dtype, case.op, world_size, case.seed);
        let count = match memory {
            Some(memory) => memory.bytes() / size_of::<T>(),
            None => case.length.count(case.dtype, world_size),
        };
        let mut content = vec![T::zeroed(); count];
        inputs.fill(number, 0, bytemuck::cast_slice_mut(&mut content));
        let (device, stream) = (&rank.device, &rank.stream);
        let buffer = match memory {
            Some(memory) => {
                let mut buffer = DeviceBuffer::from_memory(device, stream, memory.clone());
                buffer.write(&content)?;
                buffer
            }
            None => DeviceBuffer::new(device, stream, &content)?,
        };
        Ok(Box::new(Self {
            result: rank.device.pin(buffer.device_memory().bytes())?,
            case: *case,
            promise: Promise {
                collective: case.collective,
                root: case.root,
                inputs,
                rank: number,
                world_size,
            },
            count,
            buffer,
        }))
    }
}

impl<T: Element> Call for On<T> {
    fn start(&mut self, rank: &Rank) -> Result<()> {
        let (comm, buffer) = (&rank.comm, &mut self.buffer);
        let Case { op, root, .. } = self.case;
        comm.use_algorithm(Some(self.case.algorithm))?;
        match self.case.collective {
            Collective::AllReduce => comm.all_reduce(buffer, op)?,
            Collective::Broadcast => comm.broadcast(buffer, root)?,
            Collective::Reduce => comm.reduce(buffer, op, root)?,
            Collective::ReduceScatter => comm.reduce_scatter(buffer, op)?,
            Collective::AllGather => comm.all_gather(buffer)?,
            Collective::Barrier => comm.barrier()?,
        }
        let from = buffer.device_memory().whole();
        rank.stream.copy_to_host(&from, &self.result.whole())
    }

    fn wrong(&mut self) -> Result<usize> {
        let bytes = &self.result.bytes_mut()?[..self.count * size_of::<T>()];
        let mut result = vec![T::zeroed(); self.count];
        bytemuck::cast_slice_mut(&mut result).copy_from_slice(bytes);
        Ok(self.promise.count_wrong(&result))
    }
}

fn call(rank: &Rank, case: &Case, memory: Option<&Memory>) -> Result<Box<dyn Call>> {
    match case.dtype {
        Dtype::I8 => On::<i8>::boxed(rank, case, memory),
        Dtype::U8 => On::<u8>::boxed(rank, case, memory),
        Dtype::I16 => On::<i16>::boxed(rank, case, memory),
        Dtype::U16 => On::<u16>::boxed(rank, case, memory),
        Dtype::I32 => On::<i32>::boxed(rank, case, memory),
        Dtype::U32 => On::<u32>::boxed(rank, case, memory),
        Dtype::I64 => On::<i64>::boxed(rank, case, memory),
        Dtype::U64 => On::<u64>::boxed(rank, case, memory),
        Dtype::F16 => On::<f16>::boxed(rank, case, memory),
        Dtype::Bf16 => On::<bf16>::boxed(rank, case, memory),
        Dtype::F32 => On::<f32>::boxed(rank, case, memory),
        Dtype::F64 => On::<f64>::boxed(rank, case, memory),
    }
}

impl Rank {
    /// Makes all calls, some at once, on memory of each one's own; then some of them on memory that
    /// peers read where it lies, if any can.
    pub(super) fn check(&self, turn: usize) -> Result<Found> {
        let world_size = self.comm.world_size();
        let mut found = self.check_on(&cases(world_size, turn), &[])?;
        if self.comm.device_transport().as_deref() == Some("cuda") {
            let bytes = world_size * 2 * SEGMENT_BYTES + 7 * 8;
            let registered = || self.comm.alloc_on_device::<u8>(&self.stream, bytes);
            let registered = (0..BATCH).map(|_| registered());
            let registered: Vec<_> = registered.collect::<Result<_>>()?;
            let memories = registered.iter().map(|one| one.device_memory().clone());
            let all = cases(world_size, turn).into_iter();
            let some: Vec<_> = all.skip(turn % 3).step_by(3).collect();
            let more = self.check_on(&some, &memories.collect::<Vec<_>>())?;
            found.calls += more.calls;
            let more = more.wrong.into_iter();
            found
                .wrong
                .extend(more.map(|wrong| format!("on registered memory, {wrong}")));
        }
        Ok(found)
    }

    /// Makes the calls on `memories`, or where there are none, each on its own.
    fn check_on(&self, cases: &[Case], memories: &[Memory]) -> Result<Found> {
        let mut found = Found::default();
        let mut wrong_calls = 0;
        for batch in cases.chunks(BATCH) {
            let calls = batch.iter().enumerate();
            let calls = calls.map(|(nth, case)| call(self, case, memories.get(nth)));
            let mut calls: Vec<_> = calls.collect::<Result<_>>()?;
            for call in &mut calls {
                call.start(self)?;
            }
            // The stream alone makes this wait for the results.
            self.stream.synchronize()?;
            for (case, call) in batch.iter().zip(&mut calls) {
                found.calls += 1;
                let wrong = call.wrong()?;
                if wrong == 0 {
                    continue;
                }
                wrong_calls += 1;
                if wrong_calls <= TOLD_MAX {
                    found
                        .wrong
                        .push(format!("{wrong} wrong elements: {case:?}"));
                }
            }
        }
        self.comm.synchronize()?;
        if wrong_calls > TOLD_MAX {
            found.wrong.push(format!("{wrong_calls} calls were wrong"));
        }
        Ok(found)
    }
}
