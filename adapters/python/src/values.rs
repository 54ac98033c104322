//! Exchanges Python objects, which travel as pickled bytes.

use crate::arguments::Number;
use crate::communicator::Communicator;
use crate::timeout::timed;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ringtree::internal::values;
use ringtree::{Error, ErrorKind};

/// Returns the bytes of a pickled object, or an error if the object cannot be pickled. The caller
/// issues the call in both cases, because the other ranks must learn of the error.
fn pickled(value: &Bound<'_, PyAny>) -> (ringtree::Result<Vec<u8>>, Option<PyErr>) {
    let pickle = || {
        let module = value.py().import("pickle")?;
        module.call_method1("dumps", (value,))?.extract::<Vec<u8>>()
    };
    match pickle() {
        Ok(bytes) => (Ok(bytes), None),
        Err(error) => {
            let line = format!("cannot pickle the value: {}", error.value(value.py()));
            (Err(Error::new(ErrorKind::Usage, line)), Some(error))
        }
    }
}

fn unpickled<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let bytes = PyBytes::new(py, bytes);
    py.import("pickle")?.call_method1("loads", (bytes,))
}

/// Returns the result of a call, or the exception of this rank's pickle, which is more specific.
fn end_of<R>(end: PyResult<R>, unpicklable: Option<PyErr>) -> PyResult<R> {
    match unpicklable {
        Some(error) => Err(error),
        None => end,
    }
}

#[pymethods]
impl Communicator {
    /// Send the object that rank `root` passes to all ranks, and return it on each of them. The
    /// objects that other ranks pass are ignored.
    ///
    /// Use this for settings and other small objects, whose pickles have at most 100 MB. Tensors
    /// travel faster with `broadcast`. No other thread may use the communicator meanwhile.
    ///
    /// Warning: objects are pickled, and unpickling can run any code that the sender chooses. The
    /// ranks of a job must trust each other.
    fn broadcast_value<'py>(
        &self,
        value: Bound<'py, PyAny>,
        root: Number<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, root) = (value.py(), root.0);
        let is_root = self.is_rank(root);
        let (own, unpicklable) = match is_root {
            true => pickled(&value),
            false => (Ok(Vec::new()), None),
        };
        let end = self.in_order(py, None, move |comm| values::broadcast(comm, own, root));
        let bytes = end_of(end, unpicklable)?;
        match is_root {
            true => Ok(value),
            false => unpickled(py, &bytes),
        }
    }

    /// Gather the objects of all ranks on every rank, and return a list of them in rank order.
    ///
    /// The limit, the rules and the warning of `broadcast_value` apply.
    fn all_gather_value<'py>(&self, value: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let (own, unpicklable) = pickled(value);
        let end = self.in_order(value.py(), None, |comm| values::all_gather(comm, own));
        let parts = end_of(end, unpicklable)?;
        parts
            .iter()
            .map(|part| unpickled(value.py(), part))
            .collect()
    }

    /// Gather the objects of all ranks on rank `root`, and return a list of them in rank order.
    /// Return None on the other ranks.
    ///
    /// The limit, the rules and the warning of `broadcast_value` apply.
    fn gather_value<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        root: Number<usize>,
    ) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        let (own, unpicklable) = pickled(value);
        let end = self.in_order(value.py(), None, move |comm| {
            values::gather(comm, own, root.0)
        });
        let unpickle = |parts: Vec<Vec<u8>>| -> PyResult<Vec<_>> {
            parts
                .iter()
                .map(|part| unpickled(value.py(), part))
                .collect()
        };
        end_of(end, unpicklable)?.map(unpickle).transpose()
    }

    /// Send an object to rank `peer`, which must call `recv_value` with the same tag.
    ///
    /// Like `send`, this may wait until `peer` receives the object. The limit, the rules and the
    /// warning of `broadcast_value` apply.
    #[pyo3(signature = (value, peer, *, tag=Number(0)))]
    #[pyo3(text_signature = "($self, value, peer, *, tag=0)")]
    fn send_value(
        &self,
        value: &Bound<'_, PyAny>,
        peer: Number<usize>,
        tag: Number<u32>,
    ) -> PyResult<()> {
        let (own, unpicklable) = pickled(value);
        if let Some(error) = unpicklable {
            return Err(error);
        }
        self.detached(value.py(), None, |lane, timeout| {
            let comm = timed(lane.comm(), timeout).with_tag(tag.0);
            values::send(&comm, own?, peer.0)
        })
    }

    /// Receive the object that rank `peer` sends with `send_value` and this tag, and return it.
    ///
    /// Warning: objects are pickled, and unpickling can run any code that the sender chooses. The
    /// ranks of a job must trust each other.
    #[pyo3(signature = (peer, *, tag=Number(0)), text_signature = "($self, peer, *, tag=0)")]
    fn recv_value<'py>(
        &self,
        py: Python<'py>,
        peer: Number<usize>,
        tag: Number<u32>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let bytes = self.detached(py, None, |lane, timeout| {
            let comm = timed(lane.comm(), timeout).with_tag(tag.0);
            values::receive(&comm, peer.0)
        })?;
        unpickled(py, &bytes)
    }
}
