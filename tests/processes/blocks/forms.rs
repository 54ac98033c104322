//! Every form of the calls on blocks, on every kind of buffer, has the layout of the buffer.

use super::over_processes;
use ringtree::comm::buffer::{Memory, MemoryMut};
use ringtree::plan::Collective;
use ringtree::{Buffer, BufferMut, Communicator, Dtype, Layout, ReduceOp, Result};
use ringtree_kit::expected::exact::Inputs;
use ringtree_kit::expected::promise::Promise;
use std::collections::BTreeSet;

pub(crate) type Any = Box<dyn BufferMut<Element = f32> + Send>;

const OP: ReduceOp = ReduceOp::Sum;
const ROOT: usize = 1;

/// Makes the call on the buffer, which has this rank's input all over.
pub(crate) type Call = fn(&Communicator, Collective, Any) -> Result<Any>;

/// The forms, by what they add to the collective's name and whether they are the communicator's.
pub(crate) const FORMS: [(&str, bool, Call); 4] = [
    ("", true, blocking),
    ("_into", true, into),
    ("_async", true, asynchronous),
    ("", false, in_a_scope),
];

type Kind = fn(Layout<'static>, Vec<f32>) -> Any;

/// The kinds of buffers that have a layout.
const KINDS: [(&str, Kind); 7] = [
    ("plain", |layout, data| Box::new(layout.of(data))),
    ("of a slice", |layout, data| {
        Box::new(layout.of(data.leak()))
    }),
    ("with counts of its own", |layout, data| {
        Box::new(layout.of(data).into_owned())
    }),
    ("reference", |layout, data| Box::new(leak(layout.of(data)))),
    ("box", |layout, data| {
        Box::new(Box::new(Box::new(layout.of(data))))
    }),
    ("nested", |layout, data| {
        Box::new(Box::new(leak(leak(Box::new(layout.of(data))))))
    }),
    ("own type", of_own_type),
];

pub(crate) fn of_own_type(layout: Layout<'static>, data: Vec<f32>) -> Any {
    Box::new(Own(layout, data))
}

/// A user's type: all that the documentation asks for.
struct Own(Layout<'static>, Vec<f32>);

impl Buffer for Own {
    type Element = f32;

    fn memory(&self) -> Memory<'_, f32> {
        Memory::Host(&self.1)
    }

    fn layout(&self) -> Layout<'_> {
        self.0
    }
}

impl BufferMut for Own {
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
        _ => unreachable!("all of them are the host's"),
    }
}

fn write(buffer: &mut Any, change: impl FnOnce(&mut [f32])) {
    match buffer.memory_mut() {
        MemoryMut::Host(slice) => change(slice),
        _ => unreachable!("all of them are the host's"),
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

fn into(comm: &Communicator, collective: Collective, mut all: Any) -> Result<Any> {
    let input = read(&all);
    let own = all
        .layout()
        .block(comm.rank(), comm.world_size(), input.len());
    let mut block = vec![0.0; own.len()];
    match collective {
        Collective::AllGather | Collective::Gather | Collective::AllToAll => {
            write(&mut all, |slice| slice.fill(0.0));
        }
        _ => {}
    }
    match collective {
        Collective::AllGather => comm.all_gather_into(&input[own], &mut *all)?,
        Collective::Gather => comm.gather_into(&input[own], &mut *all, ROOT)?,
        Collective::ReduceScatter => {
            comm.reduce_scatter_into(&*all, &mut block, OP)?;
            write(&mut all, |slice| slice[own].copy_from_slice(&block));
        }
        Collective::Scatter => {
            comm.scatter_into(&*all, &mut block, ROOT)?;
            write(&mut all, |slice| slice[own].copy_from_slice(&block));
        }
        _ => comm.all_to_all_into(&input, Layout::Even, &mut *all, Layout::Even)?,
    }
    Ok(all)
}

fn asynchronous(comm: &Communicator, collective: Collective, all: Any) -> Result<Any> {
    let work = match collective {
        Collective::AllGather => comm.all_gather_async(all),
        Collective::ReduceScatter => comm.reduce_scatter_async(all, OP),
        Collective::Gather => comm.gather_async(all, ROOT),
        Collective::Scatter => comm.scatter_async(all, ROOT),
        _ => comm.all_to_all_async(all),
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

/// Layouts of buffers of so many elements; the even ones divide them and do not.
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
        // More than a segment of shared memory.
        counts(&|rank| [7, 40_000, 0][rank % 3]),
    ]
}

/// Whether there is such a call.
fn is_taken(collective: Collective, suffix: &str, layout: Layout, count: usize, n: usize) -> bool {
    let is_whole = layout == Layout::Even && count.is_multiple_of(n);
    match collective {
        Collective::AllToAll => is_whole,
        // One block says how long the others are only if all are equally long.
        Collective::Gather | Collective::Scatter if suffix == "_into" => {
            is_whole || matches!(layout, Layout::Counts(_))
        }
        _ => true,
    }
}

/// Makes all calls; says which of them went wrong on this rank.
pub(crate) fn wrong(comm: &Communicator) -> Result<String> {
    let (rank, world_size) = (comm.rank(), comm.world_size());
    let mut wrong = String::new();
    let blocked = Collective::ALL.iter().filter(|one| one.is_blocked());
    for &collective in blocked {
        for (layout, count) in layouts(world_size) {
            let inputs = Inputs::new(Dtype::F32, OP, world_size, count as u64);
            let mut input = vec![0.0; count];
            inputs.fill(rank, 0, bytemuck::cast_slice_mut(&mut input));
            for (suffix, _, call) in FORMS {
                if !is_taken(collective, suffix, layout, count, world_size) {
                    continue;
                }
                for (kind, wrap) in KINDS {
                    let end = call(comm, collective, wrap(layout, input.clone()))?;
                    let promise = Promise {
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
fn no_form_loses_the_layout_of_any_buffer() {
    for world_size in [2, 3, 5] {
        let ends = ringtree::simulate(world_size, wrong);
        assert_eq!(ends, vec![Ok(String::new()); world_size]);
    }
}

#[test]
fn no_form_loses_the_layout_of_any_buffer_over_processes() {
    over_processes("forms", 4, |said| assert_eq!(said, [""; 4]));
}

/// A form that is new is missing above.
#[test]
fn the_table_has_every_form_that_there_is() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/comm");
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_scope = path.ends_with("scope.rs");
        let Ok(text) = std::fs::read_to_string(&path) else {
            continue;
        };
        for line in text.lines() {
            let Some(rest) = line.trim_start().strip_prefix("pub fn all_gather") else {
                continue;
            };
            let suffix: String = rest.chars().take_while(|c| !"(<".contains(*c)).collect();
            // Values have no layout.
            if !suffix.starts_with("_value") {
                found.insert((suffix, !is_scope));
            }
        }
    }
    let table = FORMS.map(|(suffix, is_of_communicator, _)| (suffix.into(), is_of_communicator));
    assert_eq!(found, BTreeSet::from(table));
}
