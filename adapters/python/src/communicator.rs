//! Defines the `Communicator` class of the Python package.

use crate::arguments::{Counts, Number, Operator, Raw, call_of, named, plain_tensor};
use crate::call::Call;
use crate::error;
use crate::fork::Home;
use crate::interrupt;
use crate::lane::{Lane, Ran};
use crate::start::{self, Told};
use crate::sys::{Memory, Tensors};
use crate::work::{Work, duration};
use pyo3::prelude::*;
use pyo3::types::PyType;
use ringtree::{Collective, Error, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A group of ranks that exchange data. All ranks must make their calls on it in the same order.
///
/// A buffer is an object with contiguous memory, such as a NumPy array, array.array, bytearray or
/// memoryview. Its elements have one of the types i8 u8 i16 u16 i32 u32 i64 u64 f16 f32 f64. If you
/// pass `dtype`, such as dtype="bf16", the bytes of a buffer are treated as elements of that type.
///
/// A call that fails raises ringtree.Error or one of its subclasses: UsageError if the call is
/// invalid, MismatchError if different ranks made different calls, PeerLostError if a rank is lost,
/// and DeadlineError if the call takes longer than `timeout` seconds. After any error except
/// UsageError, the communicator is unusable.
///
/// >>> import array, ringtree
/// >>> comm = ringtree.Communicator.from_env_or_alone()
/// >>> numbers = array.array("f", [1.0, 2.0])
/// >>> comm.all_reduce(numbers, "sum")
/// >>> numbers[0] == comm.world_size
/// True
/// >>> comm.close()
#[pyclass(frozen, weakref, module = "ringtree")]
pub(crate) struct Communicator {
    state: Mutex<State>,
    rank: usize,
    world_size: usize,
    home: Home,
}

struct State {
    /// `None` after the communicator has been closed.
    lane: Option<Arc<Lane>>,
    timeout: Duration,
}

impl Communicator {
    /// Creates the Python object. The package closes it when the program exits at the latest.
    pub(crate) fn made(py: Python<'_>, comm: ringtree::Communicator) -> PyResult<Py<Self>> {
        let made = Py::new(py, Self::new(comm))?;
        let package = py.import("ringtree")?;
        package.call_method1("_leave_at_exit", (&made,))?;
        Ok(made)
    }

    fn new(comm: ringtree::Communicator) -> Self {
        Self {
            rank: comm.rank(),
            world_size: comm.world_size(),
            home: Home::here(),
            state: Mutex::new(State {
                timeout: comm.timeout(),
                lane: Some(Arc::new(Lane::new(comm))),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the lane, which keeps the calls in order, and the timeout for calls.
    ///
    /// # Errors
    /// Returns a `UsageError` in a forked child, or if the communicator is closed.
    fn lane_and_timeout(&self, py: Python<'_>) -> PyResult<(Arc<Lane>, Duration)> {
        self.home.check(py)?;
        let closed = || {
            error::raised(
                py,
                &Error::new(ErrorKind::Usage, "the communicator is closed"),
            )
        };
        let state = self.state();
        let (lane, timeout) = (state.lane.clone(), state.timeout);
        // Creating an exception runs Python code. Another thread may lock the state in the
        // meantime.
        drop(state);
        Ok((lane.ok_or_else(closed)?, timeout))
    }

    /// Takes the lane, which leaves the group when the caller drops it. Returns `None` in a forked
    /// child because only the parent leaves the group.
    fn take_lane(&self) -> Option<Arc<Lane>> {
        let lane = self.state().lane.take();
        match self.home.is_here() {
            true => lane,
            false => {
                std::mem::forget(lane);
                None
            }
        }
    }

    /// Runs `act` without holding the interpreter's lock. `act` receives `timeout`, or the
    /// communicator's timeout if `timeout` is `None`.
    ///
    /// # Errors
    /// Returns the error from `act`, or the exception that a signal handler raised in the meantime.
    pub(crate) fn detached<R: Send>(
        &self,
        py: Python<'_>,
        timeout: Option<Duration>,
        act: impl FnOnce(&Lane, Duration) -> ringtree::Result<R> + Send,
    ) -> PyResult<R> {
        let (lane, usual) = self.lane_and_timeout(py)?;
        let timeout = timeout.unwrap_or(usual);
        let end = py.detach(|| {
            let end = act(&lane, timeout);
            drop(lane);
            end
        });
        interrupt::raise()?;
        end.map_err(|error| error::raised(py, &error))
    }

    /// Like [`Communicator::detached`], but runs `act` after all queued calls.
    pub(crate) fn in_order<R: Send + 'static>(
        &self,
        py: Python<'_>,
        timeout: Option<Duration>,
        act: impl FnOnce(&ringtree::Communicator) -> ringtree::Result<R> + Send + 'static,
    ) -> PyResult<R> {
        match self.detached(py, timeout, |lane, timeout| lane.run(act, timeout))? {
            Ran::Ended(result) => Ok(result),
            Ran::Queued(work, result) => {
                work.finish(py)?;
                let result = result.lock().unwrap_or_else(PoisonError::into_inner).take();
                Ok(result.expect("invariant: a job that has succeeded has set its result"))
            }
        }
    }
}

/// Create a communicator from the arguments of `init`. Internal to the package.
#[pyfunction]
pub(crate) fn connect(py: Python<'_>, told: Told) -> PyResult<Py<Communicator>> {
    Communicator::made(py, start::connect(py, told)?)
}

/// Create a communicator from the environment. It consists of a single rank if `may_be_alone` is
/// true and the program was not started by a launcher. Internal to the package.
#[pyfunction]
pub(crate) fn connect_from_env(
    py: Python<'_>,
    may_be_alone: bool,
    timeout: Option<f64>,
) -> PyResult<Py<Communicator>> {
    Communicator::made(py, start::connect_from_env(py, may_be_alone, timeout)?)
}

#[pymethods]
impl Communicator {
    /// Return the communicator that contains all ranks, using variables set by `ringtree run` or
    /// torchrun.
    ///
    /// Wait until all ranks have joined. Raise ConfigurationError if a variable is missing or
    /// malformed, and JoinError if the ranks cannot be connected.
    #[staticmethod]
    fn from_env(py: Python<'_>) -> PyResult<Py<Self>> {
        connect_from_env(py, false, None)
    }

    /// Like from_env, but with only a single rank if the program was not started by a launcher.
    #[staticmethod]
    fn from_env_or_alone(py: Python<'_>) -> PyResult<Py<Self>> {
        connect_from_env(py, true, None)
    }

    /// The rank of this process in the group, counted from 0.
    #[getter]
    fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks in the group.
    #[getter]
    fn world_size(&self) -> usize {
        self.world_size
    }

    /// The name of the transport, which is shm, tcp or shm+tcp.
    #[getter]
    fn transport(&self, py: Python<'_>) -> PyResult<&'static str> {
        self.detached(py, None, |lane, _| Ok(lane.comm().info().transport))
    }

    /// The timeout for each call, in seconds. A call that takes longer raises DeadlineError.
    #[getter]
    fn timeout(&self) -> f64 {
        self.state().timeout.as_secs_f64()
    }

    #[setter]
    fn set_timeout(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let timeout = duration(py, seconds)?;
        self.state().timeout = timeout;
        Ok(())
    }

    /// Return the indices (start, end) of this rank's own block in a buffer of `count` elements.
    ///
    /// >>> import ringtree
    /// >>> with ringtree.Communicator.from_env_or_alone() as comm:
    /// ...     start, end = comm.block(6)
    /// >>> 0 <= start < end <= 6
    /// True
    fn block(&self, py: Python<'_>, count: Number<usize>) -> PyResult<(usize, usize)> {
        let block = self.detached(py, None, |lane, _| Ok(lane.comm().block(count.0)))?;
        Ok((block.start, block.end))
    }

    /// Replace `buffer` on every rank with the reduction of all ranks' buffers.
    ///
    /// `op` is sum, prod, min, max, avg, band, bor or bxor. If `op` is sum and `factor` is not
    /// None, this rank's contribution is multiplied by `factor` first.
    #[pyo3(signature = (buffer, op="sum", *, factor=None, dtype=None))]
    fn all_reduce(
        &self,
        buffer: &Bound<'_, PyAny>,
        op: &str,
        factor: Option<f64>,
        dtype: Option<&str>,
    ) -> PyResult<()> {
        let op = Operator::new(buffer.py(), op, factor)?;
        self.in_place(buffer, Collective::AllReduce, op, 0, dtype)
    }

    /// Write the reduction of all ranks' `input` to `output` on every rank. `input` is not changed.
    #[pyo3(signature = (input, output, op="sum", *, factor=None, dtype=None))]
    fn all_reduce_into(
        &self,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        op: &str,
        factor: Option<f64>,
        dtype: Option<&str>,
    ) -> PyResult<()> {
        let what = (
            Collective::AllReduce,
            Operator::new(input.py(), op, factor)?,
            0,
        );
        self.into(
            input.py(),
            (Some(input), Some(output)),
            what,
            (None, None),
            dtype,
        )
    }

    /// Replace the contents of `buffer` on every rank with the contents of `buffer` on rank `root`.
    #[pyo3(signature = (buffer, root, *, dtype=None))]
    fn broadcast(
        &self,
        buffer: &Bound<'_, PyAny>,
        root: Number<usize>,
        dtype: Option<&str>,
    ) -> PyResult<()> {
        self.in_place(buffer, Collective::Broadcast, Operator::NONE, root.0, dtype)
    }

    /// Replace `buffer` on rank `root` with the reduction of all ranks' buffers. Afterward, the
    /// contents of `buffer` are unspecified on all ranks except `root`.
    #[pyo3(signature = (buffer, op, root, *, factor=None, dtype=None))]
    fn reduce(
        &self,
        buffer: &Bound<'_, PyAny>,
        op: &str,
        root: Number<usize>,
        factor: Option<f64>,
        dtype: Option<&str>,
    ) -> PyResult<()> {
        let op = Operator::new(buffer.py(), op, factor)?;
        self.in_place(buffer, Collective::Reduce, op, root.0, dtype)
    }

    /// Replace this rank's own block of `buffer` (see `block`) with the reduction of that block
    /// across all ranks. Afterward, the contents of the rest of `buffer` are unspecified.
    #[pyo3(signature = (buffer, op="sum", *, factor=None, dtype=None))]
    fn reduce_scatter(
        &self,
        buffer: &Bound<'_, PyAny>,
        op: &str,
        factor: Option<f64>,
        dtype: Option<&str>,
    ) -> PyResult<()> {
        let op = Operator::new(buffer.py(), op, factor)?;
        self.in_place(buffer, Collective::ReduceScatter, op, 0, dtype)
    }

    /// Reduce all ranks' `input` and write this rank's block of the result to `output`. The inputs
    /// are split evenly, or according to `counts`, a list that contains one number per rank and
    /// must be the same on all ranks.
    #[pyo3(signature = (input, output, op="sum", *, counts=None, factor=None, dtype=None))]
    fn reduce_scatter_into(
        &self,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        op: &str,
        counts: Counts,
        factor: Option<f64>,
        dtype: Option<&str>,
    ) -> PyResult<()> {
        let what = (
            Collective::ReduceScatter,
            Operator::new(input.py(), op, factor)?,
            0,
        );
        let buffers = (Some(input), Some(output));
        self.into(input.py(), buffers, what, (counts, None), dtype)
    }

    /// Replace `buffer` on every rank with all ranks' own blocks, in rank order. Each rank
    /// contributes only its own block of `buffer` (see `block`).
    #[pyo3(signature = (buffer, *, dtype=None))]
    fn all_gather(&self, buffer: &Bound<'_, PyAny>, dtype: Option<&str>) -> PyResult<()> {
        self.in_place(buffer, Collective::AllGather, Operator::NONE, 0, dtype)
    }

    /// Gather all ranks' `input` into `output` on every rank, in rank order. `output` is split
    /// evenly, or according to `counts`, a list that contains one number per rank and must be the
    /// same on all ranks.
    #[pyo3(signature = (input, output, *, counts=None, dtype=None))]
    fn all_gather_into(
        &self,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        counts: Counts,
        dtype: Option<&str>,
    ) -> PyResult<()> {
        let what = (Collective::AllGather, Operator::NONE, 0);
        let buffers = (Some(input), Some(output));
        self.into(input.py(), buffers, what, (None, counts), dtype)
    }

    /// Gather all ranks' `input` into `output` on rank `root`, in rank order. Other ranks pass None
    /// instead of `output`.
    #[pyo3(signature = (input, output, root, *, dtype=None))]
    fn gather_into(
        &self,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
        root: Number<usize>,
        dtype: Option<&str>,
    ) -> PyResult<()> {
        let what = (Collective::Gather, Operator::NONE, root.0);
        self.into(input.py(), (Some(input), output), what, (None, None), dtype)
    }

    /// Copy block i of `input` on rank `root` to `output` on rank i. Other ranks pass None as
    /// `input`.
    #[pyo3(signature = (input, output, root, *, dtype=None))]
    fn scatter_into(
        &self,
        input: Option<&Bound<'_, PyAny>>,
        output: &Bound<'_, PyAny>,
        root: Number<usize>,
        dtype: Option<&str>,
    ) -> PyResult<()> {
        let what = (Collective::Scatter, Operator::NONE, root.0);
        self.into(
            output.py(),
            (input, Some(output)),
            what,
            (None, None),
            dtype,
        )
    }

    /// Copy block j of rank i's `input` to block i of rank j's `output`. All blocks have the same
    /// length unless you pass `send` and `receive`. If you do, the block for rank j has send[j]
    /// elements, and the block from rank i has receive[i] elements.
    #[pyo3(signature = (input, output, *, send=None, receive=None, dtype=None))]
    fn all_to_all_into(
        &self,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        send: Counts,
        receive: Counts,
        dtype: Option<&str>,
    ) -> PyResult<()> {
        if send.is_some() != receive.is_some() {
            let line = "all_to_all_into requires counts for both sides; pass both send and receive";
            return Err(error::usage(input.py(), line));
        }
        let what = (Collective::AllToAll, Operator::NONE, 0);
        let buffers = (Some(input), Some(output));
        self.into(input.py(), buffers, what, (send, receive), dtype)
    }

    /// Wait until every rank has called this method.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        self.in_order(py, None, ringtree::Communicator::barrier)
    }

    /// Send `buffer` to rank `peer`, which must receive the same number of elements of the same
    /// type with the same tag. Messages are received in the order in which they were sent.
    #[pyo3(signature = (buffer, peer, *, tag=Number(0), dtype=None))]
    #[pyo3(text_signature = "($self, buffer, peer, *, tag=0, dtype=None)")]
    fn send(
        &self,
        buffer: &Bound<'_, PyAny>,
        peer: Number<usize>,
        tag: Number<u32>,
        dtype: Option<&str>,
    ) -> PyResult<()> {
        let work = self.start_send(buffer, peer, tag, dtype)?;
        work.finish(buffer.py())
    }

    /// Receive the message that rank `peer` sends with this tag, and store it in `buffer`.
    #[pyo3(signature = (buffer, peer, *, tag=Number(0), dtype=None))]
    #[pyo3(text_signature = "($self, buffer, peer, *, tag=0, dtype=None)")]
    fn recv(
        &self,
        buffer: &Bound<'_, PyAny>,
        peer: Number<usize>,
        tag: Number<u32>,
        dtype: Option<&str>,
    ) -> PyResult<()> {
        let work = self.start_recv(buffer, peer, tag, dtype)?;
        work.finish(buffer.py())
    }

    /// Start sending `buffer` and return a Work. `buffer` can be used again after `wait()` returns.
    #[pyo3(signature = (buffer, peer, *, tag=Number(0), dtype=None))]
    #[pyo3(text_signature = "($self, buffer, peer, *, tag=0, dtype=None)")]
    fn start_send(
        &self,
        buffer: &Bound<'_, PyAny>,
        peer: Number<usize>,
        tag: Number<u32>,
        dtype: Option<&str>,
    ) -> PyResult<Work> {
        self.buffer_message(buffer, (peer.0, tag.0), dtype, true)
    }

    /// Start receiving and return a Work. `buffer` contains the message after `wait()` returns.
    #[pyo3(signature = (buffer, peer, *, tag=Number(0), dtype=None))]
    #[pyo3(text_signature = "($self, buffer, peer, *, tag=0, dtype=None)")]
    fn start_recv(
        &self,
        buffer: &Bound<'_, PyAny>,
        peer: Number<usize>,
        tag: Number<u32>,
        dtype: Option<&str>,
    ) -> PyResult<Work> {
        self.buffer_message(buffer, (peer.0, tag.0), dtype, false)
    }

    /// Return a communicator for the ranks that pass the same `color`, ordered by `key`. Return
    /// None if `color` is None. All ranks must call this method.
    #[pyo3(signature = (color, key=Number(0)), text_signature = "($self, color, key=0)")]
    fn split(
        &self,
        py: Python<'_>,
        color: Option<Number<usize>>,
        key: Number<usize>,
    ) -> PyResult<Option<Py<Self>>> {
        let color = color.map(|color| color.0);
        let made = self.in_order(py, None, move |comm| comm.split_optional(color, key.0))?;
        made.map(|comm| Self::made(py, comm)).transpose()
    }

    /// Return a communicator for the given ranks, in the order of the list. Only these ranks call
    /// this method.
    fn subgroup(&self, py: Python<'_>, ranks: Number<Vec<usize>>) -> PyResult<Py<Self>> {
        let made = self.detached(py, None, |lane, timeout| {
            lane.comm().with_timeout(timeout).subgroup(&ranks.0)
        });
        Self::made(py, made?)
    }

    /// Make all calls in flight and all subsequent calls fail on all ranks with the message `line`.
    fn fail(&self, py: Python<'_>, line: &str) -> PyResult<()> {
        let cause = ringtree::internal::errors::lost(self.rank, line);
        self.detached(py, None, |lane, _| {
            lane.comm().abort(&cause);
            Ok(())
        })
    }

    /// Return the first error, which all subsequent calls raise, or None if no call has failed.
    fn failure(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let failure = self.detached(py, None, |lane, _| Ok(lane.comm().error()))?;
        let exception = failure.map(|error| error::raised(py, &error).into_value(py));
        Ok(exception.map(Py::into_any))
    }

    /// Complete the calls in flight, leave the group, and notify the other ranks. Subsequent calls
    /// raise UsageError. A communicator is closed automatically when the program ends.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let lane = self.take_lane();
        py.detach(|| drop(lane));
        interrupt::raise()
    }

    fn __enter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!("Communicator(rank {} of {})", self.rank, self.world_size)
    }

    /// Run calls on the memory at the given addresses, which `keeper` keeps alive, and return None.
    /// If `is_async` is true, just start the calls and return a Work. Internal to the package.
    fn _calls(
        &self,
        calls: Vec<Raw>,
        keeper: &Bound<'_, PyAny>,
        is_async: bool,
        timeout: Option<f64>,
    ) -> PyResult<Option<Work>> {
        let timeout = timeout
            .map(|seconds| duration(keeper.py(), seconds))
            .transpose()?;
        let calls = calls.into_iter().map(|raw| call_of(raw, keeper));
        let calls = calls.collect::<PyResult<Vec<Call>>>()?;
        if !is_async {
            return self.run(keeper.py(), calls, timeout).map(|()| None);
        }
        self.detached(keeper.py(), timeout, |lane, timeout| {
            lane.start(calls, timeout).map(Some)
        })
    }

    /// Run an all-reduce of a tensor in place and return True. Internal to the package.
    ///
    /// Do nothing and return False if the tensor's memory cannot be used directly, or if calls are
    /// queued. If Ctrl-C interrupts a caller whose call is queued, the caller may release the
    /// tensor's storage.
    fn _all_reduce(&self, tensor: &Bound<'_, PyAny>, op: &str) -> PyResult<bool> {
        let py = tensor.py();
        let op = Operator::new(py, op, None)?.0;
        let Some((dtype, memory)) = plain_tensor(tensor)? else {
            return Ok(false);
        };
        let mut call = Call::in_place(Collective::AllReduce, dtype, op, 0, memory);
        self.detached(py, None, |lane, timeout| match lane.is_idle() {
            true => call
                .carry_out(&lane.comm().with_timeout(timeout))
                .map(|()| true),
            false => Ok(false),
        })
    }

    /// Make `_all_reduce` accept tensors of this class. Internal to the package.
    #[staticmethod]
    fn _tensors_are(class: &Bound<'_, PyType>) -> PyResult<()> {
        Tensors::are(class)
    }

    /// Start a message from or into memory at an address. Internal to the package.
    fn _message(
        &self,
        dtype: &str,
        part: (usize, usize),
        end: (usize, u32),
        is_sent: bool,
        keeper: &Bound<'_, PyAny>,
    ) -> PyResult<Work> {
        let dtype = named(keeper.py(), dtype)?;
        let memory = Memory::of_addresses(vec![part], keeper.clone().unbind());
        self.message(keeper.py(), (dtype, memory), end, is_sent)
    }
}

impl Drop for Communicator {
    /// Leaves the group without holding the interpreter's lock. Leaving involves waiting for other
    /// ranks, and other Python threads may have to run in the meantime.
    fn drop(&mut self) {
        let lane = self.take_lane();
        if lane.is_some() {
            // Without an interpreter, this drops the closure and, with it, the lane.
            let _ = Python::try_attach(|py| py.detach(|| drop(lane)));
        }
    }
}
