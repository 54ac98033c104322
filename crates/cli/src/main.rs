//! The program `ringtree`: all of it is in the library, because the package for Python has it too.

use ringtree_cli::{Invocation, execute};
use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(execute(Invocation::of_this_process()))
}
