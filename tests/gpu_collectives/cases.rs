//! One collective on device buffers whose result is known exactly.

use crate::ranks::Rank;
use half::{bf16, f16};
use ringtree::comm::device_buffer::DeviceBuffer;
use ringtree::plan::layout::part_start;
use ringtree::plan::{Algorithm, Collective};
use ringtree::reduce::exact::Inputs;
use ringtree::{Dtype, Element, ReduceOp, Result};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) collective: Collective,
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) dtype: Dtype,
    pub(crate) op: ReduceOp,
    pub(crate) count: usize,
    pub(crate) root: usize,
    pub(crate) seed: u64,
}

impl Rank {
    /// Makes the call; how many elements of this rank are not what was promised.
    pub(crate) fn check(&self, case: &Case) -> Result<usize> {
        match case.dtype {
            Dtype::I8 => self.check_as::<i8>(case),
            Dtype::U8 => self.check_as::<u8>(case),
            Dtype::I16 => self.check_as::<i16>(case),
            Dtype::U16 => self.check_as::<u16>(case),
            Dtype::I32 => self.check_as::<i32>(case),
            Dtype::U32 => self.check_as::<u32>(case),
            Dtype::I64 => self.check_as::<i64>(case),
            Dtype::U64 => self.check_as::<u64>(case),
            Dtype::F16 => self.check_as::<f16>(case),
            Dtype::Bf16 => self.check_as::<bf16>(case),
            Dtype::F32 => self.check_as::<f32>(case),
            Dtype::F64 => self.check_as::<f64>(case),
        }
    }

    fn check_as<T: Element>(&self, case: &Case) -> Result<usize> {
        let (rank, world_size) = (self.comm.rank(), self.comm.world_size());
        let inputs = Inputs::new(case.dtype, case.op, world_size, case.seed);
        let mut content = vec![T::zeroed(); case.count];
        inputs.fill(rank, 0, bytemuck::cast_slice_mut(&mut content));
        let mut buffer = DeviceBuffer::new(&self.device, &self.stream, &content)?;
        self.comm.use_algorithm(case.algorithm)?;
        match case.collective {
            Collective::AllReduce => self.comm.all_reduce(&mut buffer, case.op)?,
            Collective::Broadcast => self.comm.broadcast(&mut buffer, case.root)?,
            Collective::Reduce => self.comm.reduce(&mut buffer, case.op, case.root)?,
            Collective::ReduceScatter => self.comm.reduce_scatter(&mut buffer, case.op)?,
            Collective::AllGather => self.comm.all_gather(&mut buffer)?,
            Collective::Barrier => self.comm.barrier()?,
        }
        // The stream alone makes this wait for the result.
        let result = buffer.read()?;
        let result: &[u8] = bytemuck::cast_slice(&result[..case.count]);
        let part = |rank| part_start(case.count, world_size, rank);
        let size = size_of::<T>();
        let block = |rank| &result[part(rank) * size..part(rank + 1) * size];
        Ok(match case.collective {
            Collective::AllReduce => inputs.count_wrong(0, result),
            Collective::Reduce if rank == case.root => inputs.count_wrong(0, result),
            Collective::Reduce | Collective::Barrier => 0,
            Collective::Broadcast => inputs.count_wrong_input(case.root, 0, result),
            Collective::ReduceScatter => inputs.count_wrong(part(rank), block(rank)),
            Collective::AllGather => (0..world_size)
                .map(|from| inputs.count_wrong_input(from, part(from), block(from)))
                .sum(),
        })
    }
}
