//! Runs the `ringtree` program. The implementation is in the library because the Python package
//! uses it too.

use ringtree_cli::{Invocation, execute};
use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(execute(Invocation::of_this_process()))
}
