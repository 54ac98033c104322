//! ringtree for Python: the extension module behind the package `ringtree`.
//!
//! | file | what it is |
//! |---|---|
//! | `start` | the ways to get a communicator |
//! | `communicator` | the class that Python sees: calls on buffers, and on tensors' addresses |
//! | `collective` | collectives on memory of Python's |
//! | `arguments` | what Python passes to a call, as values |
//! | `call` | one collective as a value, for any element type |
//! | `lane` | the order of calls, and the thread for those that the caller does not wait for |
//! | `message` | messages between two ranks |
//! | `work` | calls under way |
//! | `interrupt` | Ctrl-C while a call waits |
//! | `command` | the command `ringtree` |
//! | `fork` | forked children |
//! | `error` | exceptions |
//! | `sys` | memory that Python owns, as slices: the only unsafe code |
//!
//! *Invariants.* The interpreter's lock is not held while anything waits for another rank, or for a
//! lock of the library's. No thread of this module runs Python code, but that of a start, through a
//! store of the program's, while the caller of that start waits for it. What a call under way works
//! on is kept alive by the call itself, whatever the program lets go.

#![deny(unsafe_code)]

mod arguments;
mod call;
mod collective;
mod command;
mod communicator;
mod error;
mod fork;
mod interrupt;
mod lane;
mod message;
mod queue;
mod start;
mod sys;
mod work;

#[pyo3::pymodule]
mod _ringtree {
    #[pymodule_export]
    use crate::command::command;
    #[pymodule_export]
    use crate::communicator::Communicator;
    #[pymodule_export]
    use crate::communicator::{connect, connect_from_env};
    #[pymodule_export]
    use crate::fork::forked;
    #[pymodule_export]
    use crate::work::Work;
}
