//! Tests that every form of the calls on blocks uses the layout of its buffer, with every kind of
//! buffer.

use super::over_processes;
use ringtree::comm::{Memory, MemoryMut};
use ringtree::plan::Collective;
use ringtree::plan::internal::spec::is_blocked;
use ringtree::{Buffer, BufferMut, Communicator, Dtype, Layout, ReduceOp, Result};
use ringtree_kit::expected::exact::Inputs;
use ringtree_kit::expected::result::ExpectedResult;

pub(crate) type Any = Box<dyn BufferMut<Element = f32> + Send>;

const OP: ReduceOp = ReduceOp::Sum;
const ROOT: usize = 1;

/// Runs the call on a buffer that is filled with this rank's input.
pub(crate) type Call = fn(&Communicator, Collective, Any) -> Result<Any>;

/// The forms of a call, each with the suffix that it adds to the collective's name.
pub(crate) const FORMS: [(&str, Call); 6] = [
    ("", blocking),
    ("_into", into),
    (" started", started),
    ("_into started", started_into),
    (" in a scope", in_a_scope),
    ("_into in a scope", into_in_a_scope),
];

type Kind = fn(Layout<'static>, Vec<f32>) -> Any;

/// The kinds of buffers that have a layout.
const KINDS: [(&str, Kind); 7] = [
    ("plain", |layout, data| Box::new(layout.of(data))),
    ("slice", |layout, data| Box::new(layout.of(data.leak()))),
    ("with owned counts", |layout, data| {
        Box::new(layout.of(data).into_owned())
    }),
    ("reference", |layout, data| Box::new(leak(layout.of(data)))),
    ("box", |layout, data| {
        Box::new(Box::new(Box::new(layout.of(data))))
    }),
    ("nested", |layout, data| {
        Box::new(Box::new(leak(leak(Box::new(layout.of(data))))))
    }),
    ("custom type", of_custom_type),
];

pub(crate) fn of_custom_type(layout: Layout<'static>, data: Vec<f32>) -> Any {
    Box::new(Custom(layout, data))
}

/// A custom buffer type that implements everything that the documentation requires.
struct Custom(Layout<'static>, Vec<f32>);

impl Buffer for Custom {
    type Element = f32;

    fn memory(&self) -> Memory<'_, f32> {
        Memory::Host(&self.1)
    }

    fn layout(&self) -> Layout<'_> {
        self.0
    }
}

impl BufferMut for Custom {
    fn memory_mut(&mut self) -> MemoryMut<'_, f32> {
        MemoryMut::Host(&mut self.1)
    }
}

fn leak<T>(value: T) -> &'static mut T {
    Box::leak(Box::new(value))
}

fn read(buffer: &Any) -> Vec<f32> {
    match buffer.memory() {
        Memory::Host(slice) => slice.to_vec(),
        _ => unreachable!("all buffers are in host memory"),
    }
}

fn write(buffer: &mut Any, change: impl FnOnce(&mut [f32])) {
    match buffer.memory_mut() {
        MemoryMut::Host(slice) => change(slice),
        _ => unreachable!("all buffers are in host memory"),
    }
}

fn blocking(comm: &Communicator, collective: Collective, mut all: Any) -> Result<Any> {
    match collective {
        Collective::AllGather => comm.all_gather(&mut *all)?,
        Collective::ReduceScatter => comm.reduce_scatter(&mut *all, OP)?,
        Collective::Gather => comm.gather(&mut *all, ROOT)?,
        Collective::Scatter => comm.scatter(&mut *all, ROOT)?,
        _ => comm.all_to_all(&mut *all)?,
    }
    Ok(all)
}

/// Returns the input and the output of an `_into` form, in the memory of `all`. One of them is this
/// rank's block.
fn input_and_output(comm: &Communicator, collective: Collective, mut all: Any) -> (Any, Any) {
    let input = read(&all);
    let own = all
        .layout()
        .block(comm.rank(), comm.world_size(), input.len());
    match collective {
        Collective::ReduceScatter | Collective::Scatter => (all, Box::new(vec![0.0f32; own.len()])),
        _ => {
            write(&mut all, |slice| slice.fill(0.0));
            let input = match collective {
                Collective::AllToAll => input,
                _ => input[own].to_vec(),
            };
            (Box::new(input), all)
        }
    }
}

/// Returns a buffer of full length that contains the result. If the output is only this rank's
/// block, copies it into the input.
fn whole(comm: &Communicator, collective: Collective, (input, output): (Any, Any)) -> Any {
    match collective {
        Collective::ReduceScatter | Collective::Scatter => {
            let (mut all, block) = (input, read(&output));
            let count = read(&all).len();
            let own = all.layout().block(comm.rank(), comm.world_size(), count);
            write(&mut all, |slice| slice[own].copy_from_slice(&block));
            all
        }
        _ => output,
    }
}

fn into(comm: &Communicator, collective: Collective, all: Any) -> Result<Any> {
    let (input, mut output) = input_and_output(comm, collective, all);
    match collective {
        Collective::AllGather => comm.all_gather_into(&*input, &mut *output)?,
        Collective::Gather => comm.gather_into(&*input, &mut *output, ROOT)?,
        Collective::ReduceScatter => comm.reduce_scatter_into(&*input, &mut *output, OP)?,
        Collective::Scatter => comm.scatter_into(&*input, &mut *output, ROOT)?,
        _ => comm.all_to_all_into(&*input, &mut *output)?,
    }
    Ok(whole(comm, collective, (input, output)))
}

fn started_into(comm: &Communicator, collective: Collective, all: Any) -> Result<Any> {
    let (input, output) = input_and_output(comm, collective, all);
    let work = match collective {
        Collective::AllGather => comm.start_all_gather_into(input, output),
        Collective::Gather => comm.start_gather_into(input, output, ROOT),
        Collective::ReduceScatter => comm.start_reduce_scatter_into(input, output, OP),
        Collective::Scatter => comm.start_scatter_into(input, output, ROOT),
        _ => comm.start_all_to_all_into(input, output),
    };
    Ok(whole(comm, collective, work?.wait()?))
}

fn into_in_a_scope(comm: &Communicator, collective: Collective, all: Any) -> Result<Any> {
    let (input, mut output) = input_and_output(comm, collective, all);
    comm.scope(|scope| {
        let (input, output) = (&*input, &mut *output);
        let work = match collective {
            Collective::AllGather => scope.all_gather_into(input, output),
            Collective::Gather => scope.gather_into(input, output, ROOT),
            Collective::ReduceScatter => scope.reduce_scatter_into(input, output, OP),
            Collective::Scatter => scope.scatter_into(input, output, ROOT),
            _ => scope.all_to_all_into(input, output),
        };
        work?.wait().map(drop)
    })?;
    Ok(whole(comm, collective, (input, output)))
}

fn started(comm: &Communicator, collective: Collective, all: Any) -> Result<Any> {
    let work = match collective {
        Collective::AllGather => comm.start_all_gather(all),
        Collective::ReduceScatter => comm.start_reduce_scatter(all, OP),
        Collective::Gather => comm.start_gather(all, ROOT),
        Collective::Scatter => comm.start_scatter(all, ROOT),
        _ => comm.start_all_to_all(all),
    };
    Ok(work?.wait()?)
}

fn in_a_scope(comm: &Communicator, collective: Collective, mut all: Any) -> Result<Any> {
    comm.scope(|scope| {
        let buffer = &mut *all;
        let work = match collective {
            Collective::AllGather => scope.all_gather(buffer),
            Collective::ReduceScatter => scope.reduce_scatter(buffer, OP),
            Collective::Gather => scope.gather(buffer, ROOT),
            Collective::Scatter => scope.scatter(buffer, ROOT),
            _ => scope.all_to_all(buffer),
        };
        work?.wait().map(drop)
    })?;
    Ok(all)
}

/// Returns layouts, each with the number of elements in its buffer. One of the even layouts has
/// blocks of equal length, and the other does not.
fn layouts(ranks: usize) -> Vec<(Layout<'static>, usize)> {
    let counts = |of: &dyn Fn(usize) -> usize| -> (Layout<'static>, usize) {
        let counts: Vec<_> = (0..ranks).map(of).collect();
        let count = counts.iter().sum();
        (Layout::Counts(counts.leak()), count)
    };
    vec![
        (Layout::Even, 4 * ranks),
        (Layout::Even, 2 * ranks + 1),
        (Layout::Ceil, 2 * ranks + 1),
        counts(&|rank| [0, 3, 0, 1][rank % 4]),
        counts(&|rank| rank + 1),
        // Some of these blocks are longer than a segment of shared memory.
        counts(&|rank| [7, 40_000, 0][rank % 3]),
    ]
}

/// Returns `true` if the form of the collective supports this layout.
fn is_supported(
    collective: Collective,
    suffix: &str,
    layout: Layout,
    count: usize,
    n: usize,
) -> bool {
    let is_whole = layout == Layout::Even && count.is_multiple_of(n);
    match collective {
        Collective::AllToAll => is_whole,
        // A block reveals the lengths of the other blocks only if all blocks have the same length.
        Collective::Gather | Collective::Scatter if suffix.starts_with("_into") => {
            is_whole || matches!(layout, Layout::Counts(_))
        }
        _ => true,
    }
}

/// Runs all calls. Returns a description of those with wrong results on this rank.
pub(crate) fn wrong(comm: &Communicator) -> Result<String> {
    let (rank, world_size) = (comm.rank(), comm.world_size());
    let mut wrong = String::new();
    let blocked = Collective::ALL.iter().filter(|one| is_blocked(**one));
    for &collective in blocked {
        for (layout, count) in layouts(world_size) {
            let inputs = Inputs::new(Dtype::F32, OP, world_size, count as u64);
            let mut input = vec![0.0; count];
            inputs.fill(rank, 0, bytemuck::cast_slice_mut(&mut input));
            for (suffix, call) in FORMS {
                if !is_supported(collective, suffix, layout, count, world_size) {
                    continue;
                }
                for (kind, wrap) in KINDS {
                    let end = call(comm, collective, wrap(layout, input.clone()))?;
                    let promise = ExpectedResult {
                        collective,
                        root: ROOT,
                        inputs,
                        rank,
                        world_size,
                        layout,
                    };
                    if promise.count_wrong(bytemuck::cast_slice(&read(&end))) > 0 {
                        wrong += &format!("{collective}{suffix} of {count}, {layout:?}, {kind}; ");
                    }
                }
            }
        }
    }
    Ok(wrong)
}

#[test]
fn all_forms_use_layout_of_buffer() {
    for world_size in [2, 3, 5] {
        let ends = ringtree::simulate(world_size, wrong);
        assert_eq!(ends, vec![Ok(String::new()); world_size]);
    }
}

#[test]
fn all_forms_use_layout_of_buffer_over_processes() {
    over_processes("forms", 4, |said| assert_eq!(said, [""; 4]));
}
