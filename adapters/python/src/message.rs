//! Starts messages between two ranks on Python's memory.

use crate::arguments::Buffers;
use crate::communicator::Communicator;
use crate::sys::Memory;
use crate::work::Work;
use pyo3::prelude::*;
use ringtree::{Dtype, with_element};
use ringtree_foreign::Operation;

impl Communicator {
    /// Starts a send from `buffer` or a receive into it.
    pub(crate) fn buffer_message(
        &self,
        buffer: &Bound<'_, PyAny>,
        end: (usize, u32),
        dtype: Option<&str>,
        is_sent: bool,
    ) -> PyResult<Work> {
        let mut buffers = Buffers::of(buffer.py(), dtype)?;
        let memory = buffers.take(buffer, !is_sent)?;
        self.message(buffer.py(), (buffers.dtype(), memory), end, is_sent)
    }

    /// Starts a send from `memory` or a receive into it.
    pub(crate) fn message(
        &self,
        py: Python<'_>,
        (dtype, memory): (Dtype, Memory),
        (peer, tag): (usize, u32),
        is_sent: bool,
    ) -> PyResult<Work> {
        self.detached(py, None, |lane, timeout| {
            lane.post(timeout, |comm| {
                let comm = comm.with_tag(tag);
                with_element!(dtype, T => {
                    let held = memory.held::<T>()?;
                    let started: Box<dyn Operation> = match is_sent {
                        true => Box::new(comm.start_send(held, peer)?),
                        false => Box::new(comm.start_recv(held, peer)?),
                    };
                    Ok(started)
                })
            })
        })
    }
}
