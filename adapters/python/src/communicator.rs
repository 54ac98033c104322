//! Defines the `Communicator` class of the Python package.

use crate::arguments::{Number, Operator, Raw, call_of, named, plain_tensor};
use crate::call::Call;
use crate::end::{End, Sender};
use crate::error;
use crate::fork::Home;
use crate::info::{CallStats, Info};
use crate::interrupt;
use crate::lane::{Lane, Ran};
use crate::start::{self, Arguments};
use crate::sys::{Memory, Tensors};
use crate::timeout::{NO_TIMEOUT, duration, timed, timeout_of};
use crate::work::Work;
use pyo3::prelude::*;
use pyo3::types::PyType;
use ringtree::plan::Collective;
use ringtree::{Error, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A group of ranks that exchange data. All ranks must make their calls on it in the same order.
///
/// A buffer is an object with contiguous memory, such as a NumPy array, array.array, bytearray or
/// memoryview. Its elements have one of the types i8 u8 i16 u16 i32 u32 i64 u64 f16 f32 f64. If you
/// pass `dtype`, such as dtype="bf16", the bytes of a buffer are treated as elements of that type.
/// Elements can also be bool. Their sum is then "any", and their product is "all".
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
    /// The group, which all handles to the communicator share.
    membership: Arc<Membership>,
    timeout: Mutex<Duration>,
    rank: usize,
    world_size: usize,
    local_rank: usize,
}

/// This process's part in a group.
struct Membership {
    /// `None` after the communicator has been closed.
    lane: Mutex<Option<Arc<Lane>>>,
    home: Home,
}

impl Membership {
    fn lane(&self) -> MutexGuard<'_, Option<Arc<Lane>>> {
        self.lane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lane, which leaves the group when the caller drops it. Returns `None` in a forked
    /// child because only the parent leaves the group.
    fn take_lane(&self) -> Option<Arc<Lane>> {
        let lane = self.lane().take();
        match self.home.is_here() {
            true => lane,
            false => {
                std::mem::forget(lane);
                None
            }
        }
    }
}

impl Communicator {
    /// Creates the Python object. The package closes it when the program exits, unless the program
    /// has already closed it.
    pub(crate) fn made(py: Python<'_>, comm: ringtree::Communicator) -> PyResult<Py<Self>> {
        let made = Self {
            rank: comm.rank(),
            world_size: comm.world_size(),
            local_rank: comm.local_rank(),
            timeout: Mutex::new(comm.timeout()),
            membership: Arc::new(Membership {
                lane: Mutex::new(Some(Arc::new(Lane::new(comm)))),
                home: Home::here(),
            }),
        };
        made.registered(py)
    }

    /// Creates another handle to the same communicator.
    fn handle(&self, py: Python<'_>, timeout: Duration) -> PyResult<Py<Self>> {
        let handle = Self {
            membership: Arc::clone(&self.membership),
            timeout: Mutex::new(timeout),
            rank: self.rank,
            world_size: self.world_size,
            local_rank: self.local_rank,
        };
        handle.registered(py)
    }

    /// Makes the package close the communicator when the program exits. This applies to every
    /// handle, because any of them may be the last one.
    fn registered(self, py: Python<'_>) -> PyResult<Py<Self>> {
        let handle = Py::new(py, self)?;
        let package = py.import("ringtree")?;
        package.call_method1("_leave_at_exit", (&handle,))?;
        Ok(handle)
    }

    fn timeout(&self) -> MutexGuard<'_, Duration> {
        self.timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the lane, which keeps the calls in order, and the timeout for calls.
    ///
    /// # Errors
    /// Returns a `UsageError` in a forked child, or if the communicator is closed.
    fn lane_and_timeout(&self, py: Python<'_>) -> PyResult<(Arc<Lane>, Duration)> {
        self.membership.home.check(py)?;
        let closed = || {
            error::raised(
                py,
                &Error::new(ErrorKind::Usage, "the communicator is closed"),
            )
        };
        // Creating an exception runs Python code. Another thread may lock the lane in the meantime,
        // so the lock ends with this statement.
        let lane = self.membership.lane().clone();
        Ok((lane.ok_or_else(closed)?, *self.timeout()))
    }

    /// Checks that `peer` is a rank of the group.
    ///
    /// # Errors
    /// Returns a `UsageError` if it is not.
    pub(crate) fn check_peer(&self, py: Python<'_>, peer: usize) -> PyResult<()> {
        match peer < self.world_size {
            true => Ok(()),
            false => Err(error::usage(
                py,
                format!(
                    "peer {peer} is out of range: valid ranks are 0 to {}",
                    self.world_size - 1
                ),
            )),
        }
    }

    /// Returns `true` if this is rank `rank`.
    pub(crate) fn is_rank(&self, rank: usize) -> bool {
        self.rank == rank
    }

    /// Runs `act` without holding the interpreter's lock. `act` receives `timeout`, or the
    /// communicator's timeout if `timeout` is `None`.
    ///
    /// # Errors
    /// Returns the error from `act`, or the exception that a signal handler raised in the meantime
    /// or before the call.
    pub(crate) fn detached<R: Send>(
        &self,
        py: Python<'_>,
        timeout: Option<Duration>,
        act: impl FnOnce(&Lane, Duration) -> ringtree::Result<R> + Send,
    ) -> PyResult<R> {
        interrupt::raise()?;
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
pub(crate) fn connect(py: Python<'_>, arguments: Arguments) -> PyResult<Py<Communicator>> {
    Communicator::made(py, start::connect(py, arguments)?)
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
    /// Return the communicator that contains all ranks that a launcher has started: `ringtree run`,
    /// torchrun, mpirun or srun.
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

    /// The index of this process among the processes on its host, counted from 0.
    #[getter]
    fn local_rank(&self) -> usize {
        self.local_rank
    }

    /// The timeout for each call, in seconds. A call that takes longer raises DeadlineError. If
    /// calls have no timeout, this is math.inf.
    #[getter]
    fn get_timeout(&self) -> f64 {
        match *self.timeout() {
            NO_TIMEOUT => f64::INFINITY,
            timeout => timeout.as_secs_f64(),
        }
    }

    #[setter]
    fn set_timeout(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let timeout = timeout_of(py, seconds)?;
        *self.timeout() = timeout;
        Ok(())
    }

    /// Return a handle to the same communicator whose calls use this timeout, in seconds.
    ///
    /// All handles share the order of calls. `close` of one handle closes the communicator.
    fn with_timeout(&self, py: Python<'_>, seconds: f64) -> PyResult<Py<Self>> {
        self.handle(py, timeout_of(py, seconds)?)
    }

    /// Return a handle to the same communicator whose calls have no timeout.
    ///
    /// Such calls suit workers that wait for requests. If another rank makes the same call with a
    /// timeout, that timeout applies to all ranks. If a rank dies, the waiting ranks get an error.
    fn without_timeout(&self, py: Python<'_>) -> PyResult<Py<Self>> {
        self.handle(py, NO_TIMEOUT)
    }

    /// Set the name of the communicator and return it. Errors and warnings contain the name.
    ///
    /// Pass the same name on all ranks. The name applies to all handles of the communicator.
    fn with_name<'py>(this: Bound<'py, Self>, name: &str) -> PyResult<Bound<'py, Self>> {
        this.get().detached(this.py(), None, |lane, _| {
            drop(lane.comm().clone().with_name(name));
            Ok(())
        })?;
        Ok(this)
    }

    /// Return how the communicator is set up. This method does not communicate.
    fn info(&self, py: Python<'_>) -> PyResult<Info> {
        self.detached(py, None, |lane, _| Ok(Info::of(&lane.comm().info())))
    }

    /// Return how often this rank has made each kind of call on this communicator. This method does
    /// not communicate.
    fn stats(&self, py: Python<'_>) -> PyResult<Vec<CallStats>> {
        let rows = self.detached(py, None, |lane, _| Ok(lane.comm().stats()))?;
        Ok(rows.into_iter().map(CallStats::of).collect())
    }

    /// Return a new communicator for the same ranks. Its calls and messages are ordered
    /// separately. All ranks must call this method.
    fn duplicate(&self, py: Python<'_>) -> PyResult<Py<Self>> {
        let made = self.in_order(py, None, ringtree::Communicator::duplicate)?;
        Self::made(py, made)
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
            timed(lane.comm(), timeout).subgroup(&ranks.0)
        });
        Self::made(py, made?)
    }

    /// Make all calls in flight and all subsequent calls fail on all ranks with the message `line`.
    fn abort(&self, py: Python<'_>, line: &str) -> PyResult<()> {
        let cause = ringtree::internal::errors::lost(self.rank, line);
        let (lane, _) = self.lane_and_timeout(py)?;
        py.detach(|| {
            lane.comm().abort(&cause);
            drop(lane);
        });
        interrupt::raise()
    }

    /// Return the first error, which all subsequent calls raise, or None if no call has failed.
    fn error(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let failure = self.detached(py, None, |lane, _| Ok(lane.comm().error()))?;
        let exception = failure.map(|error| error::raised(py, &error).into_value(py));
        Ok(exception.map(Py::into_any))
    }

    /// Complete the calls in flight, leave the group, and notify the other ranks. Subsequent calls
    /// raise UsageError, also through other handles. A communicator is closed automatically when
    /// the program ends.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let lane = self.membership.take_lane();
        py.detach(|| drop(lane));
        interrupt::raise()
    }

    /// Return the communicator. When the `with` statement ends, the communicator is closed. If an
    /// exception ends the statement, the communicator is aborted first, and the other ranks get a
    /// PeerLostError that contains the exception. SystemExit does not abort it.
    fn __enter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __exit__(
        this: &Bound<'_, Self>,
        _kind: &Bound<'_, PyAny>,
        error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let py = this.py();
        let package = py.import("ringtree");
        let aborted = package.and_then(|all| all.call_method1("_abort_because_of", (this, error)));
        this.get().close(py)?;
        aborted.map(drop)
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
        self.start(keeper.py(), calls, timeout).map(Some)
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
        let mut call = Call {
            collective: Collective::AllReduce,
            dtype,
            op,
            root: 0,
            is_in_place: true,
            input: Memory::none(),
            output: memory,
            counts: [None, None],
        };
        self.detached(py, None, |lane, timeout| match lane.is_idle() {
            true => call.carry_out(&timed(lane.comm(), timeout)).map(|()| true),
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
        end: (Option<Number<usize>>, Number<u32>),
        is_sent: bool,
        keeper: &Bound<'_, PyAny>,
    ) -> PyResult<Work> {
        let dtype = named(keeper.py(), dtype)?;
        let memory = Memory::of_addresses(vec![part], keeper.clone().unbind());
        let (peer, tag) = end;
        let end = match peer {
            Some(peer) if is_sent => End::To(peer.0),
            Some(peer) => End::From(peer.0),
            None => End::FromAny(Sender::default()),
        };
        self.message(keeper.py(), (dtype, memory), end, tag.0)
    }
}

impl Drop for Membership {
    /// Leaves the group without holding the interpreter's lock. Leaving involves waiting for other
    /// ranks, and other Python threads may have to run in the meantime.
    fn drop(&mut self) {
        let lane = self.take_lane();
        if lane.is_some() {
            interrupt::drop_detached(lane);
        }
    }
}
