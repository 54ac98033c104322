//! Collectives on device buffers whose results are known exactly.

use super::rank::Rank;
use crate::promise::Promise;
use half::{bf16, f16};
use ringtree::comm::device_buffer::DeviceBuffer;
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

/// Every collective by every algorithm, of every type and operator: in every length, or, `turn` by
/// turn, each in another one.
pub(super) fn cases(world_size: usize, turn: Option<usize>) -> Vec<Case> {
    let mut cases = Vec::new();
    for entry in REGISTRY {
        let collectives = entry.collectives.iter();
        for collective in collectives.filter(|one| **one != Collective::Barrier) {
            for (nth, (dtype, op)) in pairs(*collective).enumerate() {
                let lengths: &[Length] = match turn {
                    Some(turn) => &Length::ALL[(nth + turn) % 4..][..1],
                    None => &Length::ALL,
                };
                cases.extend(lengths.iter().map(|length| Case {
                    collective: *collective,
                    algorithm: entry.algorithm,
                    dtype,
                    op,
                    length: *length,
                    root: nth % world_size,
                    seed: nth as u64,
                }));
            }
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

/// A call under way: to be asked how many of this rank's elements are not what was promised.
type Pending<'a> = Box<dyn FnOnce() -> Result<usize> + 'a>;

impl Rank {
    /// Makes all calls, some at once.
    pub(super) fn check(&self, cases: &[Case]) -> Result<Found> {
        let mut found = Found::default();
        let mut wrong_calls = 0;
        for batch in cases.chunks(BATCH) {
            let pending: Result<Vec<_>> = batch.iter().map(|case| self.start(case)).collect();
            for (case, pending) in batch.iter().zip(pending?) {
                found.calls += 1;
                let wrong = pending()?;
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

    fn start(&self, case: &Case) -> Result<Pending<'_>> {
        match case.dtype {
            Dtype::I8 => self.start_as::<i8>(case),
            Dtype::U8 => self.start_as::<u8>(case),
            Dtype::I16 => self.start_as::<i16>(case),
            Dtype::U16 => self.start_as::<u16>(case),
            Dtype::I32 => self.start_as::<i32>(case),
            Dtype::U32 => self.start_as::<u32>(case),
            Dtype::I64 => self.start_as::<i64>(case),
            Dtype::U64 => self.start_as::<u64>(case),
            Dtype::F16 => self.start_as::<f16>(case),
            Dtype::Bf16 => self.start_as::<bf16>(case),
            Dtype::F32 => self.start_as::<f32>(case),
            Dtype::F64 => self.start_as::<f64>(case),
        }
    }

    fn start_as<T: Element>(&self, case: &Case) -> Result<Pending<'_>> {
        let Case {
            op, root, dtype, ..
        } = *case;
        let comm = &self.comm;
        let (rank, world_size) = (comm.rank(), comm.world_size());
        let inputs = Inputs::new(dtype, op, world_size, case.seed);
        let count = case.length.count(dtype, world_size);
        let mut content = vec![T::zeroed(); count];
        inputs.fill(rank, 0, bytemuck::cast_slice_mut(&mut content));
        let mut buffer = DeviceBuffer::new(&self.device, &self.stream, &content)?;
        comm.use_algorithm(Some(case.algorithm))?;
        match case.collective {
            Collective::AllReduce => comm.all_reduce(&mut buffer, op)?,
            Collective::Broadcast => comm.broadcast(&mut buffer, root)?,
            Collective::Reduce => comm.reduce(&mut buffer, op, root)?,
            Collective::ReduceScatter => comm.reduce_scatter(&mut buffer, op)?,
            Collective::AllGather => comm.all_gather(&mut buffer)?,
            Collective::Barrier => comm.barrier()?,
        }
        let collective = case.collective;
        Ok(Box::new(move || {
            // The stream alone makes this wait for the result.
            let result = buffer.read()?;
            Ok(Promise {
                collective,
                root,
                inputs,
                rank,
                world_size,
            }
            .count_wrong(&result[..count]))
        }))
    }
}
