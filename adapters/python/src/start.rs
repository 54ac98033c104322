//! Creates communicators.

use crate::arguments::{Number, named};
use crate::error;
use crate::interrupt;
use crate::timeout::duration;
use pyo3::prelude::*;
use ringtree::start::{Secret, Store, StoreError};
use ringtree::{Builder, Communicator};
use std::time::Duration;

/// Interval between checks of whether joining has finished.
const LOOK: Duration = Duration::from_millis(1);
/// Number of these checks for each check of whether the user has interrupted the program.
const LOOKS_PER_CHECK: u32 = 20;

/// The arguments of `init`. Other settings come from the environment.
pub(crate) struct Arguments {
    rank: Number<usize>,
    world_size: Number<usize>,
    local: Option<Number<(usize, usize)>>,
    store: Option<Py<PyAny>>,
    rendezvous: Option<String>,
    secret: Option<String>,
    interface: Option<String>,
    transport: Option<String>,
    timeout: Option<f64>,
}

impl<'a, 'py> FromPyObject<'a, 'py> for Arguments {
    type Error = PyErr;

    fn extract(all: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self {
            rank: argument(&all, "rank")?,
            world_size: argument(&all, "world_size")?,
            local: argument(&all, "local")?,
            store: argument(&all, "store")?,
            rendezvous: argument(&all, "rendezvous")?,
            secret: argument(&all, "secret")?,
            interface: argument(&all, "interface")?,
            transport: argument(&all, "transport")?,
            timeout: argument(&all, "timeout")?,
        })
    }
}

/// Returns the argument `name` in the dictionary `all`.
///
/// # Errors
/// Returns a `UsageError` that contains the name if the argument is invalid.
fn argument<'py, T>(all: &Bound<'py, PyAny>, name: &str) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error: Into<PyErr>>,
{
    let given = all.get_item(name)?;
    match given.extract::<T>() {
        Ok(argument) => Ok(argument),
        Err(error) => {
            let (py, error): (_, PyErr) = (all.py(), error.into());
            let why = error.value(py);
            let line = format!("init cannot use the argument {name}: {why}");
            Err(error::usage(py, line))
        }
    }
}

/// Converts the time limit of `init` from seconds.
///
/// # Errors
/// Returns a `UsageError` if it is zero, negative, not finite or too large.
fn time_limit(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    match duration(py, seconds)? {
        Duration::ZERO => Err(error::usage(py, "the timeout must be longer than 0 s")),
        limit => Ok(limit),
    }
}

impl Arguments {
    fn builder(self, py: Python<'_>) -> PyResult<Builder> {
        let builder = ringtree::Communicator::builder();
        let mut builder = builder.rank(self.rank.0).world_size(self.world_size.0);
        if let Some(Number((rank, world_size))) = self.local {
            builder = builder.local(rank, world_size);
        }
        if let Some(address) = &self.rendezvous {
            builder = builder.rendezvous(address);
        }
        if let Some(text) = &self.secret {
            let secret = text.parse::<Secret>();
            builder = builder.secret(secret.map_err(|error| error::raised(py, &error))?);
        }
        if let Some(name) = &self.interface {
            builder = builder.interface(name);
        }
        if let Some(name) = &self.transport {
            builder = builder.transport(named(py, name)?);
        }
        if let Some(seconds) = self.timeout {
            builder = builder.timeout(time_limit(py, seconds)?);
        }
        if let Some(store) = self.store {
            builder = builder.store(PythonStore(store));
        }
        Ok(builder)
    }
}

/// A store that Python code implements with the methods `set`, `get` and `add`. The timeout of
/// `get` is in seconds.
struct PythonStore(Py<PyAny>);

impl PythonStore {
    fn call<R>(&self, act: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<R>) -> Result<R, StoreError> {
        let done = Python::try_attach(|py| act(self.0.bind(py)).map_err(|error| error.to_string()));
        match done {
            Some(end) => end.map_err(StoreError::from),
            None => Err(StoreError::from("the Python interpreter has exited")),
        }
    }
}

impl Store for PythonStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.call(|store| store.call_method1("set", (key, value)).map(drop))
    }

    fn get(&self, key: &str, at_most: Duration) -> Result<Option<Vec<u8>>, StoreError> {
        self.call(|store| {
            let got = store.call_method1("get", (key, at_most.as_secs_f64()))?;
            got.extract()
        })
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64, StoreError> {
        self.call(|store| store.call_method1("add", (key, amount))?.extract())
    }
}

/// Creates a communicator from the arguments of `init`.
pub(crate) fn connect(py: Python<'_>, arguments: Arguments) -> PyResult<Communicator> {
    join(py, arguments.builder(py)?)
}

/// Creates a communicator from the environment. If `may_be_alone` is set and the program was not
/// started by a launcher, the communicator has a single rank.
pub(crate) fn connect_from_env(
    py: Python<'_>,
    may_be_alone: bool,
    timeout: Option<f64>,
) -> PyResult<Communicator> {
    let mut builder = match may_be_alone {
        true => ringtree::Communicator::builder(),
        false => Builder::from_env().map_err(|error| error::raised(py, &error))?,
    };
    if let Some(seconds) = timeout {
        builder = builder.timeout(time_limit(py, seconds)?);
    }
    join(py, builder)
}

/// Joins on a separate thread. In the meantime, this thread checks whether the user has interrupted
/// the program.
fn join(py: Python<'_>, builder: Builder) -> PyResult<Communicator> {
    let joining = builder.interrupt(interrupt::is_interrupted).start_connect();
    loop {
        py.detach(|| {
            let mut looks = 0..LOOKS_PER_CHECK;
            while !joining.is_finished() && looks.next().is_some() {
                std::thread::sleep(LOOK);
            }
        });
        if joining.is_finished() {
            return joining.wait().map_err(|error| error::raised(py, &error));
        }
        if let Err(interrupted) = py.check_signals() {
            py.detach(|| drop(joining));
            return Err(interrupted);
        }
    }
}
