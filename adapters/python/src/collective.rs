//! Defines the collectives, each as a method that waits and as a method that returns a `Work`.

use crate::arguments::{Buffers, Counts, Number, Operator};
use crate::call::Call;
use crate::communicator::Communicator;
use crate::lane::carry_out;
use crate::sys::Memory;
use crate::work::Work;
use pyo3::prelude::*;
use ringtree::ReduceOp;
use ringtree::plan::Collective;
use std::time::Duration;

/// A buffer that a program passes.
type Object<'a, 'py> = &'a Bound<'py, PyAny>;
/// A buffer, or `None` on a rank that does not use it.
type MaybeObject<'a, 'py> = Option<&'a Bound<'py, PyAny>>;
/// The name of an element type, if the program passes one.
type Name<'a> = Option<&'a str>;

impl Communicator {
    /// Runs calls and waits until all have completed.
    pub(crate) fn run<C>(&self, py: Python<'_>, calls: C, timeout: Option<Duration>) -> PyResult<()>
    where
        C: AsMut<[Call]> + Send + 'static,
    {
        // Drop the calls while this thread holds the interpreter's lock, which makes it cheap to
        // release their Python objects.
        let calls = self.in_order(py, timeout, |comm| carry_out(calls, comm));
        calls.map(drop)
    }

    /// Starts calls without waiting for them.
    pub(crate) fn start(
        &self,
        py: Python<'_>,
        calls: Vec<Call>,
        timeout: Option<Duration>,
    ) -> PyResult<Work> {
        self.detached(py, timeout, |lane, timeout| lane.start(calls, timeout))
    }
}

/// The parts of a call that do not depend on its buffers.
struct What {
    collective: Collective,
    op: Operator,
    root: usize,
    /// The counts of the input and of the output.
    counts: [Counts; 2],
}

impl What {
    fn of(collective: Collective) -> Self {
        Self {
            collective,
            op: Operator::NONE,
            root: 0,
            counts: [None, None],
        }
    }

    fn op(self, py: Python<'_>, name: &str, factor: Option<f64>) -> PyResult<Self> {
        let op = Operator::new(py, name, factor)?;
        Ok(Self { op, ..self })
    }

    fn root(self, root: Number<usize>) -> Self {
        Self {
            root: root.0,
            ..self
        }
    }

    fn counts(self, input: Counts, output: Counts) -> Self {
        let counts = [input, output];
        Self { counts, ..self }
    }

    /// Creates the call on one buffer.
    fn in_place(self, buffer: Object<'_, '_>, name: Name<'_>) -> PyResult<Call> {
        let mut buffers = Buffers::of(buffer.py(), name)?;
        let output = buffers.take(buffer, true)?;
        let op = buffers.operator(buffer.py(), self.op)?;
        Ok(self.call(&buffers, op, (Memory::none(), output), true))
    }

    /// Creates the call from one buffer into another.
    fn into(
        self,
        py: Python<'_>,
        (input, output): (MaybeObject<'_, '_>, MaybeObject<'_, '_>),
        name: Name<'_>,
    ) -> PyResult<Call> {
        let mut buffers = Buffers::of(py, name)?;
        let mut take = |object: MaybeObject<'_, '_>, is_written| match object {
            Some(object) => buffers.take(object, is_written),
            None => Ok(Memory::none()),
        };
        let memory = (take(input, false)?, take(output, true)?);
        let op = buffers.operator(py, self.op)?;
        Ok(self.call(&buffers, op, memory, false))
    }

    fn call(
        self,
        buffers: &Buffers,
        op: ReduceOp,
        (input, output): (Memory, Memory),
        is_in_place: bool,
    ) -> Call {
        Call {
            collective: self.collective,
            dtype: buffers.dtype(),
            op,
            root: self.root,
            is_in_place,
            input,
            output,
            counts: self.counts.map(|counts| counts.map(|counts| counts.0)),
        }
    }
}

/// A row is a collective: its documentation, its names, its arguments, and the expression that
/// creates its call.
macro_rules! collectives {
    ($(
        $(#[$about:meta])*
        $name:ident, $start:ident
        ($($signature:tt)*)
        ($($argument:ident: $type:ty),*)
        => $py:expr, $call:expr;
    )*) => {
        #[pymethods]
        impl Communicator {$(
            $(#[$about])*
            #[pyo3(signature = ($($signature)*))]
            fn $name(&self, $($argument: $type),*) -> PyResult<()> {
                let py = $py;
                let call: Call = $call?;
                self.run(py, [call], None)
            }

            #[doc = concat!(
                "Start `", stringify!($name), "` and return a Work. When `wait()` returns, the ",
                "call has completed, and its buffers, if any, can be used again.\n\n",
                "The calls of a communicator run in the order in which they were started."
            )]
            #[pyo3(signature = ($($signature)*))]
            fn $start(&self, $($argument: $type),*) -> PyResult<Work> {
                let py = $py;
                let call: Call = $call?;
                self.start(py, vec![call], None)
            }
        )*}
    };
}

collectives! {
    /// Replace `buffer` on every rank with the reduction of all ranks' buffers.
    ///
    /// `op` is sum, prod, min, max, avg, band, bor or bxor. If `op` is sum and `factor` is not
    /// None, this rank's contribution is multiplied by `factor` first.
    all_reduce, start_all_reduce
    (buffer, op="sum", *, factor=None, dtype=None)
    (buffer: Object<'_, '_>, op: &str, factor: Option<f64>, dtype: Name<'_>)
    => buffer.py(), What::of(Collective::AllReduce).op(buffer.py(), op, factor)?
        .in_place(buffer, dtype);

    /// Write the reduction of all ranks' `input` to `output` on every rank. `input` is not changed.
    all_reduce_into, start_all_reduce_into
    (input, output, op="sum", *, factor=None, dtype=None)
    (input: Object<'_, '_>, output: Object<'_, '_>, op: &str, factor: Option<f64>, dtype: Name<'_>)
    => input.py(), What::of(Collective::AllReduce).op(input.py(), op, factor)?
        .into(input.py(), (Some(input), Some(output)), dtype);

    /// Replace the contents of `buffer` on every rank with the contents of `buffer` on rank `root`.
    broadcast, start_broadcast
    (buffer, root, *, dtype=None)
    (buffer: Object<'_, '_>, root: Number<usize>, dtype: Name<'_>)
    => buffer.py(), What::of(Collective::Broadcast).root(root).in_place(buffer, dtype);

    /// Replace `buffer` on rank `root` with the reduction of all ranks' buffers. Afterward, the
    /// contents of `buffer` are unspecified on all ranks except `root`.
    reduce, start_reduce
    (buffer, op, root, *, factor=None, dtype=None)
    (buffer: Object<'_, '_>, op: &str, root: Number<usize>, factor: Option<f64>, dtype: Name<'_>)
    => buffer.py(), What::of(Collective::Reduce).op(buffer.py(), op, factor)?.root(root)
        .in_place(buffer, dtype);

    /// Write the reduction of all ranks' `input` to `output` on rank `root`. `input` is not
    /// changed. The contents of `output` are unspecified on all ranks except `root`.
    reduce_into, start_reduce_into
    (input, output, op, root, *, factor=None, dtype=None)
    (
        input: Object<'_, '_>, output: Object<'_, '_>, op: &str, root: Number<usize>,
        factor: Option<f64>, dtype: Name<'_>
    )
    => input.py(), What::of(Collective::Reduce).op(input.py(), op, factor)?.root(root)
        .into(input.py(), (Some(input), Some(output)), dtype);

    /// Replace this rank's own block of `buffer` (see `block`) with the reduction of that block
    /// across all ranks. Afterward, the contents of the rest of `buffer` are unspecified.
    ///
    /// `counts` is a list that contains the length of each rank's block and must be the same on all
    /// ranks. By default, the blocks are as even as possible.
    reduce_scatter, start_reduce_scatter
    (buffer, op="sum", *, counts=None, factor=None, dtype=None)
    (buffer: Object<'_, '_>, op: &str, counts: Counts, factor: Option<f64>, dtype: Name<'_>)
    => buffer.py(), What::of(Collective::ReduceScatter).op(buffer.py(), op, factor)?
        .counts(None, counts).in_place(buffer, dtype);

    /// Reduce all ranks' `input` and write this rank's block of the result to `output`. The inputs
    /// are split evenly, or according to `counts`, a list that contains one number per rank and
    /// must be the same on all ranks.
    reduce_scatter_into, start_reduce_scatter_into
    (input, output, op="sum", *, counts=None, factor=None, dtype=None)
    (
        input: Object<'_, '_>, output: Object<'_, '_>, op: &str, counts: Counts,
        factor: Option<f64>, dtype: Name<'_>
    )
    => input.py(), What::of(Collective::ReduceScatter).op(input.py(), op, factor)?
        .counts(counts, None).into(input.py(), (Some(input), Some(output)), dtype);

    /// Replace `buffer` on every rank with all ranks' own blocks, in rank order. Each rank
    /// contributes only its own block of `buffer` (see `block`).
    ///
    /// `counts` is a list that contains the length of each rank's block and must be the same on all
    /// ranks. By default, the blocks are as even as possible.
    all_gather, start_all_gather
    (buffer, *, counts=None, dtype=None)
    (buffer: Object<'_, '_>, counts: Counts, dtype: Name<'_>)
    => buffer.py(), What::of(Collective::AllGather).counts(None, counts).in_place(buffer, dtype);

    /// Gather all ranks' `input` into `output` on every rank, in rank order. `output` is split
    /// evenly, or according to `counts`, a list that contains one number per rank and must be the
    /// same on all ranks.
    all_gather_into, start_all_gather_into
    (input, output, *, counts=None, dtype=None)
    (input: Object<'_, '_>, output: Object<'_, '_>, counts: Counts, dtype: Name<'_>)
    => input.py(), What::of(Collective::AllGather).counts(None, counts)
        .into(input.py(), (Some(input), Some(output)), dtype);

    /// Replace `buffer` on rank `root` with all ranks' own blocks, in rank order. Each rank
    /// contributes only its own block of `buffer` (see `block`). Afterward, the contents of
    /// `buffer` are unspecified on all ranks except `root`.
    ///
    /// `counts` is a list that contains the length of each rank's block and must be the same on all
    /// ranks. By default, the blocks are as even as possible.
    gather, start_gather
    (buffer, root, *, counts=None, dtype=None)
    (buffer: Object<'_, '_>, root: Number<usize>, counts: Counts, dtype: Name<'_>)
    => buffer.py(), What::of(Collective::Gather).root(root).counts(None, counts)
        .in_place(buffer, dtype);

    /// Gather all ranks' `input` into `output` on rank `root`, in rank order. Other ranks pass None
    /// instead of `output`.
    ///
    /// All inputs have the same length, unless you pass `counts`, a list that contains the length
    /// of each rank's input and must be the same on all ranks.
    gather_into, start_gather_into
    (input, output, root, *, counts=None, dtype=None)
    (
        input: Object<'_, '_>, output: MaybeObject<'_, '_>, root: Number<usize>, counts: Counts,
        dtype: Name<'_>
    )
    => input.py(), What::of(Collective::Gather).root(root).counts(None, counts)
        .into(input.py(), (Some(input), output), dtype);

    /// Replace each rank's own block of `buffer` (see `block`) with that block of the buffer on
    /// rank `root`. Afterward, the contents of the rest of `buffer` are unspecified on all ranks
    /// except `root`.
    ///
    /// `counts` is a list that contains the length of each rank's block and must be the same on all
    /// ranks. By default, the blocks are as even as possible.
    scatter, start_scatter
    (buffer, root, *, counts=None, dtype=None)
    (buffer: Object<'_, '_>, root: Number<usize>, counts: Counts, dtype: Name<'_>)
    => buffer.py(), What::of(Collective::Scatter).root(root).counts(None, counts)
        .in_place(buffer, dtype);

    /// Copy block i of `input` on rank `root` to `output` on rank i. Other ranks pass None as
    /// `input`.
    ///
    /// All blocks have the same length, unless you pass `counts`, a list that contains the length
    /// of each rank's block and must be the same on all ranks.
    scatter_into, start_scatter_into
    (input, output, root, *, counts=None, dtype=None)
    (
        input: MaybeObject<'_, '_>, output: Object<'_, '_>, root: Number<usize>, counts: Counts,
        dtype: Name<'_>
    )
    => output.py(), What::of(Collective::Scatter).root(root).counts(counts, None)
        .into(output.py(), (input, Some(output)), dtype);

    /// Exchange blocks between all ranks: block j of rank i becomes block i of rank j. All blocks
    /// have the same length.
    all_to_all, start_all_to_all
    (buffer, *, dtype=None)
    (buffer: Object<'_, '_>, dtype: Name<'_>)
    => buffer.py(), What::of(Collective::AllToAll).in_place(buffer, dtype);

    /// Copy block j of rank i's `input` to block i of rank j's `output`. All blocks have the same
    /// length unless you pass `send` and `receive`. If you do, the block for rank j has send[j]
    /// elements, and the block from rank i has receive[i] elements.
    all_to_all_into, start_all_to_all_into
    (input, output, *, send=None, receive=None, dtype=None)
    (
        input: Object<'_, '_>, output: Object<'_, '_>, send: Counts, receive: Counts,
        dtype: Name<'_>
    )
    => input.py(), What::of(Collective::AllToAll).counts(send, receive)
        .into(input.py(), (Some(input), Some(output)), dtype);

    /// Wait until every rank has called this method.
    barrier, start_barrier
    ()
    (py: Python<'_>)
    => py, What::of(Collective::Barrier).into(py, (None, None), None);
}
