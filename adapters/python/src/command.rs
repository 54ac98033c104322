//! The command line, carried out by an interpreter.

use pyo3::prelude::*;
use ringtree_cli::{Invocation, Program, execute};
use std::ffi::OsString;
use std::path::PathBuf;

/// Carries out `ringtree` with these arguments; its exit code. `program` starts it again, with
/// what it is told before the arguments.
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
