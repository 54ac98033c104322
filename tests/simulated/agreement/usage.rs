//! Tests that wrong calls are rejected before they send anything, and that the communicator still
//! works afterwards.

use ringtree::comm::{Memory, MemoryMut};
use ringtree::plan::Collective;
use ringtree::{
    Buffer, BufferMut, Communicator, Dtype, Element, Error, ErrorKind, Layout, ReduceOp, Result,
    simulate,
};

/// A buffer whose two methods contradict each other.
struct Inconsistent([f32; 4]);

impl Buffer for Inconsistent {
    type Element = f32;

    fn memory(&self) -> Memory<'_, f32> {
        Memory::Host(&self.0)
    }

    fn layout(&self) -> Layout<'_> {
        Layout::Even
    }
}

impl BufferMut for Inconsistent {
    fn memory_mut(&mut self) -> MemoryMut<'_, f32> {
        MemoryMut::Host(&mut self.0[1..])
    }
}

/// Asserts that a call returned a usage error that contains `expected`.
fn assert_usage_error(end: Result<()>, expected: &str) {
    let Err(error) = end else {
        panic!("not an error: {end:?}");
    };
    assert!(error.kind() == ErrorKind::Usage, "{error:?}");
    let text = error.to_string();
    assert!(text.contains(expected), "'{expected}' in: {text}");
}

#[test]
fn count_that_exceeds_memory_is_rejected() {
    for end in simulate(2, |comm| {
        comm.plan_for(Collective::AllReduce, usize::MAX / 2, Dtype::F64, 0)
    }) {
        assert_usage_error(end.map(|_| ()), "memory");
    }
}

/// Asserts that every form of call rejects the `counts` of two ranks, which exceed any memory.
fn assert_counts_rejected<T: Element>(comm: &Communicator, counts: &[usize; 2]) {
    let (layout, sum, one) = (Layout::Counts(counts), ReduceOp::Sum, &[T::zeroed()]);
    let (many, own) = (|| vec![T::zeroed(); 2], &mut [T::zeroed()]);
    let (whole, even) = (&mut layout.of(many()), Layout::Counts(&[1, 1]));
    let started = || layout.of(many()).into_owned();
    let [mut first, mut second, mut third, mut fourth] = [(); 4].map(|()| layout.of(many()));
    let scopes = [
        comm.scope(|scope| scope.all_gather(&mut first).map(drop)),
        comm.scope(|scope| scope.reduce_scatter(&mut second, sum).map(drop)),
        comm.scope(|scope| scope.gather(&mut third, 0).map(drop)),
        comm.scope(|scope| scope.scatter(&mut fourth, 0).map(drop)),
    ];
    let works = [
        comm.start_all_gather(started()),
        comm.start_reduce_scatter(started(), sum),
        comm.start_gather(started(), 0),
        comm.start_scatter(started(), 0),
    ];
    let calls = [
        comm.all_gather_into(one, whole),
        comm.reduce_scatter_into(whole, own, sum),
        comm.gather_into(one, whole, 0),
        comm.scatter_into(whole, own, 0),
        comm.all_to_all_into(&layout.of(one), &mut even.of(&mut *own)),
        comm.all_to_all_into(&Layout::Counts(&[1, 0]).of(one), &mut layout.of(&mut *own)),
        comm.all_gather(whole),
        comm.reduce_scatter(whole, sum),
        comm.gather(whole, 0),
        comm.scatter(whole, 0),
    ];
    let works = works.map(|work| work.map(drop).map_err(Error::from));
    for end in calls.into_iter().chain(works).chain(scopes) {
        assert_usage_error(end, "memory");
    }
}

#[test]
fn every_form_of_call_rejects_counts_that_exceed_memory() {
    let half = usize::MAX / 2 + 1;
    for counts in [[usize::MAX, 2], [half, half], [half, 1], [1, half - 1]] {
        let ends = simulate(2, |comm| {
            assert_counts_rejected::<u8>(comm, &counts);
            comm.barrier()
        });
        assert_eq!(ends, [Ok(()), Ok(())]);
    }
    // The number of elements fits in a `usize`, but the number of bytes does not.
    for counts in [
        [usize::MAX / 8, 2],
        [1, usize::MAX / 16],
        [half / 8, half / 8],
    ] {
        let ends = simulate(2, |comm| {
            assert_counts_rejected::<f64>(comm, &counts);
            comm.barrier()
        });
        assert_eq!(ends, [Ok(()), Ok(())]);
    }
}

/// If a machine lacks the memory, every rank must get an error, and no process may abort.
#[test]
fn allocation_that_exceeds_memory_is_an_error() {
    let bytes = isize::MAX as usize / 2;
    for end in simulate(2, |comm| comm.alloc::<u8>(bytes).map(|_| ())) {
        let Err(error) = end else {
            panic!("{end:?}");
        };
        assert!(error.kind() == ErrorKind::System, "{error:?}");
        let text = error.to_string();
        assert!(text.contains("memory for a buffer"), "{text}");
    }
}

fn wrong_calls(comm: &Communicator) {
    let (rank, world_size) = (comm.rank(), comm.world_size());
    let mut floats = [1.5f32; 4];
    assert_usage_error(
        comm.all_reduce(&mut floats, ReduceOp::Bxor),
        "bxor is not defined for f32",
    );
    assert_usage_error(
        comm.broadcast(&mut floats, world_size),
        "root 3 is out of range: valid ranks are 0 to 2",
    );
    assert_usage_error(
        comm.reduce(&mut floats, ReduceOp::Sum, usize::MAX),
        "is out of range",
    );
    assert_usage_error(
        comm.send(&floats, rank),
        "from itself; copy the data instead",
    );
    assert_usage_error(comm.recv(&mut floats, rank), "to or receive from itself");
    assert_usage_error(comm.send(&floats, 7), "peer 7 is out of range");
    assert_eq!(floats, [1.5; 4]);
    let mut short = [0.0f32; 3];
    assert_usage_error(
        comm.all_reduce_into(&floats, &mut short, ReduceOp::Sum),
        "output has 3 elements, but must have 4",
    );
    assert_usage_error(
        comm.reduce_into(&floats, &mut short, ReduceOp::Sum, 0),
        "must have 4",
    );
    assert_usage_error(
        comm.reduce_scatter_into(&floats, &mut short, ReduceOp::Sum),
        "must have",
    );
    assert_usage_error(
        comm.all_gather_into(&floats, &mut short),
        "input has 4 elements",
    );
    assert_eq!(short, [0.0; 3]);
    let work = comm.start_all_reduce(vec![0.5f64], ReduceOp::Band);
    let work = work.map(drop).map_err(Error::from);
    assert_usage_error(work, "band is not defined for f64");
    inconsistent_calls(comm, &floats);
}

/// Asserts that every form of call rejects a buffer whose methods contradict each other.
fn inconsistent_calls(comm: &Communicator, floats: &[f32; 4]) {
    let (sum, inconsistent) = (ReduceOp::Sum, &mut Inconsistent([1.5; 4]));
    let started = comm.start_all_reduce(Inconsistent([1.5; 4]), sum);
    let mut lent = Inconsistent([1.5; 4]);
    let scope = comm.scope(|scope| scope.all_reduce(&mut lent, sum).map(drop));
    for end in [
        comm.all_reduce(inconsistent, sum),
        comm.all_reduce_into(floats, inconsistent, sum),
        comm.all_gather_into(&floats[..1], inconsistent),
        comm.gather_into(&floats[..1], inconsistent, 0),
        comm.recv(inconsistent, 0),
        started.map(drop).map_err(Error::from),
        scope,
    ] {
        assert_usage_error(
            end,
            "4 elements in host memory, but BufferMut::memory_mut returns 3 elements",
        );
    }
}

#[test]
fn wrong_calls_on_one_rank_do_not_affect_later_calls() {
    let ends = simulate(3, |comm| {
        comm.barrier()?;
        if comm.rank() == 1 {
            wrong_calls(comm);
        }
        let mut sum = [1u8];
        comm.all_reduce(&mut sum, ReduceOp::Sum)?;
        match comm.rank() {
            1 => comm.send(&[9u8], 2)?,
            2 => comm.recv(&mut sum, 1)?,
            _ => {}
        }
        Ok::<_, Error>(sum[0])
    });
    assert_eq!(ends, [Ok(3), Ok(3), Ok(9)]);
}
