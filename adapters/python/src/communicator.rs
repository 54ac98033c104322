//! The class that Python sees.

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
use ringtree::{Collective, Error};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A group of ranks that work together. All ranks issue its calls in the same order.
///
/// Buffers are objects with contiguous memory: NumPy arrays, array.array, bytearray, memoryview.
/// The type of their elements is one of i8 u8 i16 u16 i32 u32 i64 u64 f16 f32 f64; with
/// dtype="bf16" (or another name) a buffer of bytes is taken as that.
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
    /// None once it is closed.
    lane: Option<Arc<Lane>>,
    timeout: Duration,
}

impl Communicator {
    /// For Python: it is left when the program ends, at the latest.
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

    /// The order of calls, and the time that a call may take.
    fn lane_and_timeout(&self, py: Python<'_>) -> PyResult<(Arc<Lane>, Duration)> {
        self.home.check(py)?;
        let closed = || error::raised(py, &Error::usage("the communicator is closed"));
        let state = self.state();
        let (lane, timeout) = (state.lane.clone(), state.timeout);
        // Making an exception runs Python code, in which another thread may ask for the state.
        drop(state);
        Ok((lane.ok_or_else(closed)?, timeout))
    }

    /// What is to be left. A forked child leaves nothing: that is its parent's to do.
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

    /// Runs `act` without the interpreter's lock, and raises its error, or what Ctrl-C has raised.
    /// Calls may take `timeout`, or the communicator's.
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

    /// The same in the order of calls: after what is queued.
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
                Ok(result.expect("invariant: a job that has ended well has left its result"))
            }
        }
    }
}

/// Starts as `told`.
#[pyfunction]
pub(crate) fn connect(py: Python<'_>, told: Told) -> PyResult<Py<Communicator>> {
    Communicator::made(py, start::connect(py, told)?)
}

/// Starts as the environment says; alone, if it `may_be_alone` and the environment says nothing.
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
    /// The communicator of all ranks, by the variables that `ringtree run` and torchrun set. Waits
    /// until all ranks have come.
    #[staticmethod]
    fn from_env(py: Python<'_>) -> PyResult<Py<Self>> {
        connect_from_env(py, false, None)
    }

    /// The same; or, in a program that no launcher has started, one rank alone.
    #[staticmethod]
    fn from_env_or_alone(py: Python<'_>) -> PyResult<Py<Self>> {
        connect_from_env(py, true, None)
    }

    /// This process's number in the group, from 0.
    #[getter]
    fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    #[getter]
    fn world_size(&self) -> usize {
        self.world_size
    }

    /// What the bytes travel over: shm, tcp, or both.
    #[getter]
    fn transport(&self, py: Python<'_>) -> PyResult<&'static str> {
        self.detached(py, None, |lane, _| Ok(lane.comm().transport()))
    }

    /// How long a call may take, in seconds, before it ends with a DeadlineError.
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

    /// The elements of a buffer of `count` that are this rank's own block, as a range.
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

    /// Every rank's `buffer` becomes the reduction of all of them. `op` is sum, prod, min, max,
    /// avg, band, bor or bxor; with `factor`, this rank's contribution is multiplied by it first.
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

    /// `output` becomes the reduction of all `input`s, which stay as they are.
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

    /// Every rank's `buffer` becomes the root's.
    #[pyo3(signature = (buffer, root, *, dtype=None))]
    fn broadcast(
        &self,
        buffer: &Bound<'_, PyAny>,
        root: Number<usize>,
        dtype: Option<&str>,
    ) -> PyResult<()> {
        self.in_place(buffer, Collective::Broadcast, Operator::NONE, root.0, dtype)
    }

    /// The root's `buffer` becomes the reduction of all; the others' are unspecified afterwards.
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

    /// This rank's own block of `buffer` becomes that block of the reduction of all buffers; the
    /// rest is unspecified.
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

    /// `output` becomes this rank's block of the reduction of all `input`s, which are split evenly,
    /// or by `counts`, one a rank and the same on all ranks.
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

    /// Every rank's `buffer` becomes all ranks' own blocks; before, only the own block counts.
    #[pyo3(signature = (buffer, *, dtype=None))]
    fn all_gather(&self, buffer: &Bound<'_, PyAny>, dtype: Option<&str>) -> PyResult<()> {
        self.in_place(buffer, Collective::AllGather, Operator::NONE, 0, dtype)
    }

    /// `output` becomes all ranks' `input`s, in rank order: evenly split, or by `counts`, one a
    /// rank and the same on all ranks.
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

    /// The root's `output` becomes all ranks' `input`s, in rank order; the others give None.
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

    /// Every rank's `output` becomes its block of the root's `input`; the others give None.
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

    /// Block j of rank i's `input` becomes block i of rank j's `output`. All blocks are equally
    /// long; or the one for rank j has send[j] elements, and the one from rank i receive[i].
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
            let line = "all_to_all_into takes counts for both sides, or for neither";
            return Err(error::usage(input.py(), line));
        }
        let what = (Collective::AllToAll, Operator::NONE, 0);
        let buffers = (Some(input), Some(output));
        self.into(input.py(), buffers, what, (send, receive), dtype)
    }

    /// Returns on no rank before every rank has called it.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        self.in_order(py, None, ringtree::Communicator::barrier)
    }

    /// Sends `buffer` to `peer`, which receives as many elements of the same type, under the same
    /// tag. Messages are received in the order in which they were sent.
    #[pyo3(signature = (buffer, peer, *, tag=Number(0), dtype=None))]
    #[pyo3(text_signature = "($self, buffer, peer, *, tag=0, dtype=None)")]
    fn send(
        &self,
        buffer: &Bound<'_, PyAny>,
        peer: Number<usize>,
        tag: Number<u32>,
        dtype: Option<&str>,
    ) -> PyResult<()> {
        let work = self.send_async(buffer, peer, tag, dtype)?;
        work.finish(buffer.py())
    }

    /// Receives into `buffer` what `peer` sends under this tag.
    #[pyo3(signature = (buffer, peer, *, tag=Number(0), dtype=None))]
    #[pyo3(text_signature = "($self, buffer, peer, *, tag=0, dtype=None)")]
    fn recv(
        &self,
        buffer: &Bound<'_, PyAny>,
        peer: Number<usize>,
        tag: Number<u32>,
        dtype: Option<&str>,
    ) -> PyResult<()> {
        let work = self.recv_async(buffer, peer, tag, dtype)?;
        work.finish(buffer.py())
    }

    /// Starts sending; `wait()` of what it returns says that the buffer can be used again.
    #[pyo3(signature = (buffer, peer, *, tag=Number(0), dtype=None))]
    #[pyo3(text_signature = "($self, buffer, peer, *, tag=0, dtype=None)")]
    fn send_async(
        &self,
        buffer: &Bound<'_, PyAny>,
        peer: Number<usize>,
        tag: Number<u32>,
        dtype: Option<&str>,
    ) -> PyResult<Work> {
        self.buffer_message(buffer, (peer.0, tag.0), dtype, true)
    }

    /// Starts receiving; `wait()` of what it returns says that the message is there.
    #[pyo3(signature = (buffer, peer, *, tag=Number(0), dtype=None))]
    #[pyo3(text_signature = "($self, buffer, peer, *, tag=0, dtype=None)")]
    fn recv_async(
        &self,
        buffer: &Bound<'_, PyAny>,
        peer: Number<usize>,
        tag: Number<u32>,
        dtype: Option<&str>,
    ) -> PyResult<Work> {
        self.buffer_message(buffer, (peer.0, tag.0), dtype, false)
    }

    /// A communicator of the ranks that give the same `color`, numbered by `key`; None for a rank
    /// whose colour is None. All ranks call it.
    #[pyo3(signature = (color, key=Number(0)), text_signature = "($self, color, key=0)")]
    fn split(
        &self,
        py: Python<'_>,
        color: Option<Number<usize>>,
        key: Number<usize>,
    ) -> PyResult<Option<Py<Self>>> {
        let color = color.map(|color| color.0);
        let made = self.in_order(py, None, move |comm| comm.split(color, key.0))?;
        made.map(|comm| Self::made(py, comm)).transpose()
    }

    /// A communicator of these ranks, in the order of the list; its members alone call this.
    fn subgroup(&self, py: Python<'_>, ranks: Number<Vec<usize>>) -> PyResult<Py<Self>> {
        let made = self.detached(py, None, |lane, timeout| {
            lane.comm().with_timeout(timeout).subgroup(&ranks.0)
        });
        Self::made(py, made?)
    }

    /// Ends every call under way and every later one, on all ranks, with this line.
    fn fail(&self, py: Python<'_>, line: &str) -> PyResult<()> {
        let cause = Error::peer_lost(self.rank, line).with_rank(self.rank);
        self.detached(py, None, |lane, _| {
            lane.comm().fail(&cause);
            Ok(())
        })
    }

    /// The first error, with which every call ends from now on; None while there is none.
    fn failure(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let failure = self.detached(py, None, |lane, _| Ok(lane.comm().failure()))?;
        let exception = failure.map(|error| error::raised(py, &error).into_value(py));
        Ok(exception.map(Py::into_any))
    }

    /// Leaves: what is under way is finished, then the others are told. Nothing can be called
    /// afterwards. It is done at the end of the program, too.
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

    /// For the package's own modules: calls on memory by address, which `keeper` keeps alive.
    /// None when they have ended.
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

    /// For the package's own modules: an all-reduce of a tensor in place, which its caller waits
    /// for. False, and nothing is done, if the tensor is not plain memory, or if calls are queued:
    /// a caller that Ctrl-C takes out of the queue may let the tensor's storage go.
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

    /// For the package's own modules: what `_all_reduce` takes are tensors of this class.
    #[staticmethod]
    fn _tensors_are(class: &Bound<'_, PyType>) -> PyResult<()> {
        Tensors::are(class)
    }

    /// For the package's own modules: a message by address.
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
    /// Leaving waits for others, and other threads of Python may have to go on meanwhile.
    fn drop(&mut self) {
        let lane = self.take_lane();
        if lane.is_some() {
            // Without an interpreter this drops the lane all the same.
            let _ = Python::try_attach(|py| py.detach(|| drop(lane)));
        }
    }
}
