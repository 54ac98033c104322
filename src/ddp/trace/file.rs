//! A file that appears whole or not at all.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

/// Writes `content` beside `path`, then gives it the name.
pub(super) fn replace(path: &Path, content: &str) -> Result<(), String> {
    let mut partial: OsString = path.into();
    partial.push(format!(".{}.partial", std::process::id()));
    let written = fs::write(&partial, content).and_then(|()| fs::rename(&partial, path));
    written.map_err(|error| {
        // It may not exist; the first error is the one to report.
        let _ = fs::remove_file(&partial);
        format!(
            "writing {}: {error}; does its directory exist, and may this user write there?",
            path.display()
        )
    })
}
