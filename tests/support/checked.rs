//! One collective on inputs whose result is known exactly, in place and `_into`. A count that the
//! collective does not take is rounded down.

use half::{bf16, f16};
use ringtree::plan::Collective;
use ringtree::reduce::exact::Inputs;
use ringtree::sim::promise::Promise;
use ringtree::{Communicator, Dtype, Element, Layout, ReduceOp, Result};

/// What to call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) collective: Collective,
    pub(crate) dtype: Dtype,
    pub(crate) op: ReduceOp,
    pub(crate) root: usize,
    pub(crate) count: usize,
    pub(crate) seed: u64,
}

/// Makes the call in place, and then from one buffer into another where there is such a form.
/// Returns how many elements of this rank are wrong, changed ones of the input included.
pub(crate) fn check(comm: &Communicator, case: &Case) -> Result<usize> {
    match case.dtype {
        Dtype::I8 => check_as::<i8>(comm, case),
        Dtype::U8 => check_as::<u8>(comm, case),
        Dtype::I16 => check_as::<i16>(comm, case),
        Dtype::U16 => check_as::<u16>(comm, case),
        Dtype::I32 => check_as::<i32>(comm, case),
        Dtype::U32 => check_as::<u32>(comm, case),
        Dtype::I64 => check_as::<i64>(comm, case),
        Dtype::U64 => check_as::<u64>(comm, case),
        Dtype::F16 => check_as::<f16>(comm, case),
        Dtype::Bf16 => check_as::<bf16>(comm, case),
        Dtype::F32 => check_as::<f32>(comm, case),
        Dtype::F64 => check_as::<f64>(comm, case),
    }
}

fn check_as<T: Element>(comm: &Communicator, case: &Case) -> Result<usize> {
    let Case {
        collective,
        op,
        root,
        count,
        ..
    } = *case;
    let count = collective.whole_count(count, comm.world_size());
    let rank = comm.rank();
    let inputs = Inputs::new(case.dtype, op, comm.world_size(), case.seed);
    // Some calls are on memory that peers read where it lies, if they can.
    let exposes = |one: u64| (case.seed.is_multiple_of(one)).then(|| comm.alloc::<T>(count));
    let (mut shared, mut other) = (exposes(2).transpose()?, exposes(3).transpose()?);
    let (mut private, mut other_private) = (vec![T::zeroed(); count], vec![T::zeroed(); count]);
    let data: &mut [T] = shared.as_deref_mut().unwrap_or(&mut private);
    let input: &mut [T] = other.as_deref_mut().unwrap_or(&mut other_private);
    inputs.fill(rank, 0, bytemuck::cast_slice_mut(input));
    let input = &*input;
    data.copy_from_slice(input);
    comm.collective(collective, data, op, root)?;
    let promise = Promise {
        collective,
        root,
        inputs,
        rank,
        world_size: comm.world_size(),
        layout: Layout::Even,
    };
    let mut wrong = promise.count_wrong(bytemuck::cast_slice(data));
    data.fill(T::zeroed());
    let block = comm.block(count);
    match collective {
        Collective::AllReduce => comm.all_reduce_into(input, data, op)?,
        Collective::Reduce => comm.reduce_into(input, data, op, root)?,
        Collective::ReduceScatter => comm.reduce_scatter_into(input, &mut data[block], op)?,
        Collective::AllGather => comm.all_gather_into(&input[block], data)?,
        Collective::Gather => comm.gather_into(&input[block], data, root)?,
        Collective::Scatter => comm.scatter_into(input, &mut data[block], root)?,
        Collective::AllToAll => comm.all_to_all_into(input, Layout::Even, data, Layout::Even)?,
        Collective::Broadcast | Collective::Barrier => return Ok(wrong),
    }
    wrong += promise.count_wrong(bytemuck::cast_slice(data));
    Ok(wrong + inputs.count_wrong_input(rank, 0, bytemuck::cast_slice(input)))
}
