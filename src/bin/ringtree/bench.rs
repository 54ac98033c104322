//! `ringtree bench`.

use std::process::ExitCode;

/// Answers `ringtree bench`.
pub(crate) fn execute(_arguments: &[std::ffi::OsString]) -> ExitCode {
    eprintln!("ringtree bench: not built yet");
    ExitCode::from(2)
}
