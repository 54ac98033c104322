//! The command line as a program; all of it is in the library's room `command`, for the package
//! for Python offers the same.

use ringtree::command::{Invocation, execute};
use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(execute(Invocation::of_this_process()))
}
