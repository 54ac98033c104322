//! Runs collectives on Python's memory.

use crate::arguments::{Buffers, Counts, Number, Operator};
use crate::call::Call;
use crate::communicator::Communicator;
use crate::error;
use crate::lane::carry_out;
use crate::sys::Memory;
use pyo3::prelude::*;
use ringtree::Collective;
use std::time::Duration;

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

    /// Runs a collective on one buffer, in place.
    pub(crate) fn in_place(
        &self,
        buffer: &Bound<'_, PyAny>,
        collective: Collective,
        op: Operator,
        root: usize,
        name: Option<&str>,
    ) -> PyResult<()> {
        let mut buffers = Buffers::of(buffer.py(), name)?;
        let output = buffers.take(buffer, true)?;
        let call = Call::in_place(collective, buffers.dtype(), op.0, root, output);
        self.run(buffer.py(), [call], None)
    }

    /// Runs a collective from one buffer into another. A buffer is `None` if this rank does not use
    /// it.
    pub(crate) fn into(
        &self,
        py: Python<'_>,
        (input, output): (Option<&Bound<'_, PyAny>>, Option<&Bound<'_, PyAny>>),
        (collective, op, root): (Collective, Operator, usize),
        (split_input, split_output): (Counts, Counts),
        name: Option<&str>,
    ) -> PyResult<()> {
        let mut buffers = Buffers::of(py, name)?;
        let mut take = |object: Option<&Bound<'_, PyAny>>, split: &Counts, is_written| {
            let Some(object) = object else {
                return Ok(Memory::none());
            };
            let memory = buffers.take(object, is_written)?;
            let Some(Number(lengths)) = split else {
                return Ok(memory);
            };
            let parts = memory.split(lengths, buffers.dtype().size());
            parts.map_err(|error| error::raised(py, &error))
        };
        let input = take(input, &split_input, false)?;
        let output = take(output, &split_output, true)?;
        let counts = match (split_input, split_output) {
            (Some(send), Some(receive)) => Some((send.0, receive.0)),
            _ => None,
        };
        let call = Call {
            collective,
            dtype: buffers.dtype(),
            op: op.0,
            root,
            is_in_place: false,
            input,
            output,
            counts,
        };
        self.run(py, [call], None)
    }
}
