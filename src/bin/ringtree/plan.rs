//! `ringtree plan`.

use std::process::ExitCode;

/// Answers `ringtree plan`.
pub(crate) fn execute(_arguments: &[std::ffi::OsString]) -> ExitCode {
    eprintln!("ringtree plan: not built yet");
    ExitCode::from(2)
}
