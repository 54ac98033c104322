//! Runs the command line from a Python interpreter.

use pyo3::prelude::*;
use ringtree_cli::{Invocation, Program, execute};
use std::ffi::OsString;
use std::path::PathBuf;

/// Run the `ringtree` command with the given arguments and return its exit code.
///
/// `program` consists of the executable file that the command uses to start itself again and the
/// arguments that precede the command's own arguments.
#[pyfunction]
pub(crate) fn command(
    py: Python<'_>,
    program: (PathBuf, Vec<OsString>),
    arguments: Vec<OsString>,
) -> u8 {
    let (file, before) = program;
    let program = Program {
        file,
        arguments: before,
    };
    py.detach(|| execute(Invocation { program, arguments }))
}
