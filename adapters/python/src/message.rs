//! Exchanges messages between two ranks, on Python's memory.

use crate::arguments::{Buffers, Number};
use crate::communicator::Communicator;
use crate::end::{End, Sender};
use crate::error;
use crate::sys::Memory;
use crate::timeout::timed;
use crate::work::Work;
use pyo3::prelude::*;
use ringtree::internal::calls;
use ringtree::{Dtype, with_element};
use ringtree_foreign::Operation;
use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A receive from any rank.
struct AnyReceive<B> {
    work: ringtree::Work<B>,
    sender: Sender,
}

impl<B: Send + 'static> Operation for AnyReceive<B> {
    fn is_finished(&self) -> bool {
        self.work.is_finished()
    }

    fn wait(self: Box<Self>) -> ringtree::Result<()> {
        let (_, sender) = calls::wait_with_sender(self.work).map_err(ringtree::Error::from)?;
        // A receive completes only once.
        let _ = self.sender.set(sender);
        Ok(())
    }
}

impl Communicator {
    /// Starts a send from `buffer` or a receive into it.
    fn buffer_message(
        &self,
        buffer: &Bound<'_, PyAny>,
        end: End,
        tag: u32,
        dtype: Option<&str>,
    ) -> PyResult<Work> {
        let memory = memory_of(buffer, dtype, matches!(end, End::To(_)))?;
        self.message(buffer.py(), memory, end, tag)
    }

    /// Starts a send from `memory` or a receive into it.
    pub(crate) fn message(
        &self,
        py: Python<'_>,
        (dtype, memory): (Dtype, Memory),
        end: End,
        tag: u32,
    ) -> PyResult<Work> {
        let sender = match &end {
            End::FromAny(sender) => Some(Arc::clone(sender)),
            _ => None,
        };
        let work = self.detached(py, None, |lane, timeout| {
            lane.post(timeout, |comm| {
                let comm = comm.with_tag(tag);
                with_element!(dtype, T => {
                    let held = memory.held::<T>()?;
                    let started: Box<dyn Operation> = match end {
                        End::To(peer) => Box::new(comm.start_send(held, peer)?),
                        End::From(peer) => Box::new(comm.start_recv(held, peer)?),
                        End::FromAny(sender) => {
                            let work = calls::start_recv_any(&comm, held)?;
                            Box::new(AnyReceive { work, sender })
                        }
                    };
                    Ok(started)
                })
            })
        })?;
        Ok(work.received_from(sender))
    }
}

#[pymethods]
impl Communicator {
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
        self.buffer_message(buffer, End::To(peer.0), tag.0, dtype)
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
        self.buffer_message(buffer, End::From(peer.0), tag.0, dtype)
    }

    /// Start receiving from any rank and return a Work. After `wait()` returns, `buffer` contains
    /// the message, and `source` of the Work is the rank that sent it.
    #[pyo3(signature = (buffer, *, tag=Number(0), dtype=None))]
    #[pyo3(text_signature = "($self, buffer, *, tag=0, dtype=None)")]
    fn start_recv_any(
        &self,
        buffer: &Bound<'_, PyAny>,
        tag: Number<u32>,
        dtype: Option<&str>,
    ) -> PyResult<Work> {
        self.buffer_message(buffer, End::FromAny(Sender::default()), tag.0, dtype)
    }

    /// Receive a message from any rank into `buffer` and return the rank that sent it.
    ///
    /// The message is the next one from that rank. It must have the length of `buffer`, its type
    /// and this tag.
    #[pyo3(signature = (buffer, *, tag=Number(0), dtype=None))]
    #[pyo3(text_signature = "($self, buffer, *, tag=0, dtype=None)")]
    fn recv_any(
        &self,
        buffer: &Bound<'_, PyAny>,
        tag: Number<u32>,
        dtype: Option<&str>,
    ) -> PyResult<usize> {
        let mut buffers = Buffers::of(buffer.py(), dtype)?;
        let mut memory = buffers.take(buffer, true)?;
        self.detached(buffer.py(), None, |lane, timeout| {
            let comm = timed(lane.comm(), timeout).with_tag(tag.0);
            let mut source = 0;
            with_element!(buffers.dtype(), T => memory.write_whole::<T>(|all| {
                source = comm.recv_any(all)?;
                Ok(())
            }))?;
            Ok(source)
        })
    }

    /// Send `input` to rank `to` and receive `output` from rank `source` at the same time.
    ///
    /// All ranks of a ring, or both ranks of a pair, can make this call at the same time. The
    /// buffers have the same type but can have different lengths. If `to` and `source` are this
    /// rank itself, the call copies `input` to `output`.
    #[pyo3(signature = (input, to, output, source, *, tag=Number(0), dtype=None))]
    #[pyo3(text_signature = "($self, input, to, output, source, *, tag=0, dtype=None)")]
    fn sendrecv(
        &self,
        input: &Bound<'_, PyAny>,
        to: Number<usize>,
        output: &Bound<'_, PyAny>,
        source: Number<usize>,
        tag: Number<u32>,
        dtype: Option<&str>,
    ) -> PyResult<()> {
        let mut buffers = Buffers::of(input.py(), dtype)?;
        let (read, mut written) = (buffers.take(input, false)?, buffers.take(output, true)?);
        self.detached(input.py(), None, |lane, timeout| {
            let comm = timed(lane.comm(), timeout).with_tag(tag.0);
            with_element!(buffers.dtype(), T => {
                let read: Cow<'_, [T]> = match read.overlaps::<T>(&written) {
                    true => Cow::Owned(read.whole::<T>()?.into_owned()),
                    false => read.whole::<T>()?,
                };
                written.write_whole::<T>(|all| comm.sendrecv(&*read, to.0, all, source.0))
            })
        })
    }

    /// Return a batch of messages, for use in a `with` statement. The messages start when the
    /// statement ends, and have completed after it. If the body of the statement raises an
    /// exception, no message of the batch starts.
    ///
    /// The order of sends and receives in a batch does not matter, except for messages between the
    /// same two ranks.
    fn batch(this: Bound<'_, Self>) -> MessageBatch {
        MessageBatch {
            comm: this.unbind(),
            messages: Mutex::default(),
        }
    }
}

/// Returns the element type and the memory of the buffer of a message.
fn memory_of(
    buffer: &Bound<'_, PyAny>,
    dtype: Option<&str>,
    is_sent: bool,
) -> PyResult<(Dtype, Memory)> {
    let mut buffers = Buffers::of(buffer.py(), dtype)?;
    let memory = buffers.take(buffer, !is_sent)?;
    Ok((buffers.dtype(), memory))
}

/// A message of a batch.
struct Message {
    memory: (Dtype, Memory),
    end: End,
    tag: u32,
}

/// A batch of messages, which `Communicator.batch` returns.
#[pyclass(frozen, module = "ringtree")]
pub(crate) struct MessageBatch {
    comm: Py<Communicator>,
    /// The messages so far. `None` outside of the `with` statement.
    messages: Mutex<Option<Vec<Message>>>,
}

impl MessageBatch {
    fn messages(&self) -> MutexGuard<'_, Option<Vec<Message>>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(
        &self,
        buffer: &Bound<'_, PyAny>,
        end: End,
        tag: u32,
        dtype: Option<&str>,
    ) -> PyResult<()> {
        let py = buffer.py();
        if let End::To(peer) | End::From(peer) = end {
            self.comm.get().check_peer(py, peer)?;
        }
        let message = Message {
            memory: memory_of(buffer, dtype, matches!(end, End::To(_)))?,
            end,
            tag,
        };
        // Creating an exception runs Python code, so the lock ends before that.
        let is_added = match &mut *self.messages() {
            Some(messages) => {
                messages.push(message);
                true
            }
            None => false,
        };
        match is_added {
            true => Ok(()),
            false => Err(error::usage(
                py,
                "a message can be added to a batch only inside the batch's `with` statement",
            )),
        }
    }
}

#[pymethods]
impl MessageBatch {
    /// Send `buffer` to rank `peer` as part of the batch.
    #[pyo3(signature = (buffer, peer, *, tag=Number(0), dtype=None))]
    #[pyo3(text_signature = "($self, buffer, peer, *, tag=0, dtype=None)")]
    fn send(
        &self,
        buffer: &Bound<'_, PyAny>,
        peer: Number<usize>,
        tag: Number<u32>,
        dtype: Option<&str>,
    ) -> PyResult<()> {
        self.add(buffer, End::To(peer.0), tag.0, dtype)
    }

    /// Receive a message from rank `peer` into `buffer` as part of the batch.
    #[pyo3(signature = (buffer, peer, *, tag=Number(0), dtype=None))]
    #[pyo3(text_signature = "($self, buffer, peer, *, tag=0, dtype=None)")]
    fn recv(
        &self,
        buffer: &Bound<'_, PyAny>,
        peer: Number<usize>,
        tag: Number<u32>,
        dtype: Option<&str>,
    ) -> PyResult<()> {
        self.add(buffer, End::From(peer.0), tag.0, dtype)
    }

    fn __enter__(this: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        let is_new = {
            let mut messages = this.get().messages();
            let is_new = messages.is_none();
            messages.get_or_insert_default();
            is_new
        };
        match is_new {
            true => Ok(this),
            false => Err(error::usage(this.py(), "this batch is already in use")),
        }
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let messages = self.messages().take().unwrap_or_default();
        if !kind.is_none() {
            return Ok(());
        }
        let comm = self.comm.get();
        let mut started = Vec::with_capacity(messages.len());
        let mut end = Ok(());
        for Message {
            memory,
            end: peer,
            tag,
        } in messages
        {
            match comm.message(py, memory, peer, tag) {
                Ok(work) => started.push(work),
                Err(error) => {
                    end = Err(error);
                    break;
                }
            }
        }
        for work in started {
            if let Err(error) = work.finish(py) {
                // The first error counts, unless the user interrupts the program later.
                let replaces = end.is_ok() || !error::is_own(py, &error);
                end = if replaces { Err(error) } else { end };
            }
        }
        end
    }
}
