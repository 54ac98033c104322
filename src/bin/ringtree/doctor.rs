//! `ringtree doctor`.

use std::process::ExitCode;

/// Answers `ringtree doctor`.
pub(crate) fn execute(_arguments: &[std::ffi::OsString]) -> ExitCode {
    eprintln!("ringtree doctor: not built yet");
    ExitCode::from(2)
}
