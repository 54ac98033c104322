//! Implements the extension module of the `ringtree` Python package.
//!
//! | file | contents |
//! |---|---|
//! | `start` | the creation of communicators |
//! | `communicator` | the class `Communicator`: handles, groups, and calls on a tensor's address |
//! | `collective` | collectives on buffers, which wait or return a `Work` |
//! | `arguments` | conversion of a call's arguments |
//! | `call` | a collective as a value, for any element type |
//! | `lane` | the order of calls, and the thread for calls that their caller does not wait for |
//! | `queue` | the queue of that thread |
//! | `message` | messages between two ranks |
//! | `end` | the two ends of a message |
//! | `values` | Python objects as pickled bytes |
//! | `info` | the description of a communicator, and the counts of its calls |
//! | `work` | calls in flight |
//! | `timeout` | timeouts in seconds |
//! | `interrupt` | Ctrl-C while a call waits |
//! | `log` | events for `logging` |
//! | `command` | the command `ringtree` |
//! | `fork` | detection of forked children |
//! | `error` | exceptions |
//! | `sys` | access to Python's memory as slices: the only unsafe code |
//!
//! *Invariants.* No thread holds the interpreter's lock while it waits for another rank or for one
//! of ringtree's locks. This module's threads do not run Python code, with two exceptions: the
//! thread that joins the world calls the program's store while the caller waits for that thread,
//! and threads that no call waits for pass events to `logging`. A call in flight keeps the memory
//! that it uses alive, even if the program releases that memory.

#![deny(unsafe_code)]

mod arguments;
mod call;
mod collective;
mod command;
mod communicator;
mod end;
mod error;
mod fork;
mod info;
mod interrupt;
mod lane;
mod log;
mod message;
mod queue;
mod start;
mod sys;
mod timeout;
mod values;
mod work;

#[pyo3::pymodule]
mod _ringtree {
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::log::forward();
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }

    #[pymodule_export]
    use crate::command::command;
    #[pymodule_export]
    use crate::communicator::Communicator;
    #[pymodule_export]
    use crate::communicator::{connect, connect_from_env};
    #[pymodule_export]
    use crate::fork::forked;
    #[pymodule_export]
    use crate::info::{CallStats, Info};
    #[pymodule_export]
    use crate::log::stop_log;
    #[pymodule_export]
    use crate::message::MessageBatch;
    #[pymodule_export]
    use crate::work::Work;
}
