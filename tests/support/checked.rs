//! Runs one collective on inputs with exactly known results, in place and in its `_into` form. If
//! the collective does not support a count, the count is rounded down.

use ringtree::plan::Collective;
use ringtree::plan::internal::spec::whole_count;
use ringtree::{Communicator, Dtype, Element, Layout, ReduceOp, Result, with_element};
use ringtree_kit::expected::exact::Inputs;
use ringtree_kit::expected::result::ExpectedResult;

/// The call to check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) collective: Collective,
    pub(crate) dtype: Dtype,
    pub(crate) op: ReduceOp,
    pub(crate) root: usize,
    pub(crate) count: usize,
    pub(crate) seed: u64,
}

/// Runs the call in place, and then in its form with separate input and output if it has one.
/// Returns the number of wrong elements of this rank, including elements of the input that have
/// changed.
pub(crate) fn check(comm: &Communicator, case: &Case) -> Result<usize> {
    with_element!(case.dtype, T => check_as::<T>(comm, case))
}

fn check_as<T: Element>(comm: &Communicator, case: &Case) -> Result<usize> {
    let Case {
        collective,
        op,
        root,
        count,
        ..
    } = *case;
    let count = whole_count(collective, count, comm.world_size());
    let rank = comm.rank();
    let inputs = Inputs::new(case.dtype, op, comm.world_size(), case.seed);
    // Some calls use memory that peers may read in place.
    let exposes = |one: u64| (case.seed.is_multiple_of(one)).then(|| comm.alloc::<T>(count));
    let (mut shared, mut other) = (exposes(2).transpose()?, exposes(3).transpose()?);
    let (mut private, mut other_private) = (vec![T::zeroed(); count], vec![T::zeroed(); count]);
    let data: &mut [T] = shared.as_deref_mut().unwrap_or(&mut private);
    let input: &mut [T] = other.as_deref_mut().unwrap_or(&mut other_private);
    inputs.fill(rank, 0, bytemuck::cast_slice_mut(input));
    let input = &*input;
    data.copy_from_slice(input);
    ringtree::internal::calls::collective(comm, collective, data, op, root)?;
    let promise = ExpectedResult {
        collective,
        root,
        inputs,
        rank,
        world_size: comm.world_size(),
        layout: Layout::Even,
    };
    let mut wrong = promise.count_wrong(bytemuck::cast_slice(data));
    data.fill(T::zeroed());
    match collective {
        Collective::Broadcast | Collective::Barrier => return Ok(wrong),
        Collective::AllReduce => comm.all_reduce_into(input, data, op)?,
        Collective::Reduce => comm.reduce_into(input, data, op, root)?,
        Collective::AllToAll => comm.all_to_all_into(input, data)?,
        _ => {
            let counts = counts(case.seed, comm.world_size(), count);
            for layout in [Layout::Counts(&counts), Layout::Ceil] {
                let promise = ExpectedResult { layout, ..promise };
                data.copy_from_slice(input);
                ringtree::internal::calls::collective(
                    comm,
                    collective,
                    &mut layout.of(&mut *data),
                    op,
                    root,
                )?;
                wrong += promise.count_wrong(bytemuck::cast_slice(data));
            }
            let layout = match case.seed % 2 {
                0 if count.is_multiple_of(comm.world_size()) => Layout::Even,
                _ => Layout::Counts(&counts),
            };
            data.fill(T::zeroed());
            blocks_into(comm, case, (input, data), layout)?;
            let promise = ExpectedResult { layout, ..promise };
            wrong += promise.count_wrong(bytemuck::cast_slice(data));
            return Ok(wrong + inputs.count_wrong_input(rank, 0, bytemuck::cast_slice(input)));
        }
    }
    wrong += promise.count_wrong(bytemuck::cast_slice(data));
    if collective == Collective::AllToAll {
        wrong += by_counts::<T>(comm, &inputs, case.seed, count)?;
    }
    Ok(wrong + inputs.count_wrong_input(rank, 0, bytemuck::cast_slice(input)))
}

/// Runs the form of a block collective that has separate input and output.
fn blocks_into<T: Element>(
    comm: &Communicator,
    case: &Case,
    (input, data): (&[T], &mut [T]),
    layout: Layout,
) -> Result<()> {
    let Case { op, root, .. } = *case;
    let block = layout.block(comm.rank(), comm.world_size(), input.len());
    match case.collective {
        Collective::ReduceScatter => {
            comm.reduce_scatter_into(&layout.of(input), &mut data[block], op)
        }
        Collective::AllGather => comm.all_gather_into(&input[block], &mut layout.of(data)),
        Collective::Gather => comm.gather_into(&input[block], &mut layout.of(data), root),
        _ => comm.scatter_into(&layout.of(input), &mut data[block], root),
    }
}

/// Runs an all-to-all in which only the two ranks of a block know its length. Some lengths are 0.
/// Returns the number of wrong elements.
fn by_counts<T: Element>(
    comm: &Communicator,
    inputs: &Inputs,
    seed: u64,
    count: usize,
) -> Result<usize> {
    let (rank, ranks) = (comm.rank(), comm.world_size());
    let length = |from: usize, to: usize| {
        let most = 2 * count / ranks + 2;
        (seed as usize)
            .wrapping_mul(from * 31 + 7)
            .wrapping_add(to * 5 + from)
            % most
    };
    let first = |to: usize| 1000 * to;
    let send: Vec<_> = (0..ranks).map(|to| length(rank, to)).collect();
    let receive: Vec<_> = (0..ranks).map(|from| length(from, rank)).collect();
    let mut input = vec![T::zeroed(); send.iter().sum()];
    for to in 0..ranks {
        let block = Layout::Counts(&send).block(to, ranks, 0);
        inputs.fill(rank, first(to), bytemuck::cast_slice_mut(&mut input[block]));
    }
    let mut output = vec![T::zeroed(); receive.iter().sum()];
    let layouts = [Layout::Counts(&send), Layout::Counts(&receive)];
    comm.all_to_all_into(&layouts[0].of(&input), &mut layouts[1].of(&mut output))?;
    let wrong = |from: usize| {
        let block = Layout::Counts(&receive).block(from, ranks, 0);
        inputs.count_wrong_input(from, first(rank), bytemuck::cast_slice(&output[block]))
    };
    Ok((0..ranks).map(wrong).sum())
}

/// Returns irregular block lengths that add up to `count`. All ranks compute the same lengths.
fn counts(seed: u64, ranks: usize, count: usize) -> Vec<usize> {
    let mut left = count;
    let mut counts: Vec<usize> = (1..ranks)
        .map(|rank| {
            let share = (seed as usize).wrapping_mul(rank * 17 + 3) % (2 * count / ranks + 1);
            let share = share.min(left);
            left -= share;
            share
        })
        .collect();
    counts.push(left);
    counts
}
