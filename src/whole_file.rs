//! Writes files that appear either completely or not at all, even if the machine crashes.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Suffix of a temporary file's name while the file is being written.
pub(crate) const PARTIAL_SUFFIX: &str = ".partial";

/// Writes the concatenated `parts` to the file `path`, replacing any existing file.
///
/// The bytes are written to a temporary file in the same directory and synced to disk. Then the
/// file is renamed, and the directory is also synced. Renaming replaces a file in a single step,
/// even on NFS. Other users cannot guess the temporary name, and a link with that name would not be
/// followed.
///
/// # Errors
/// Returns the operating system's error. In that case, either the file is unchanged, or the new
/// file is complete but may not be on disk yet.
pub(crate) fn replace(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    // There should be only one writer, but two writers must not write to the same temporary file.
    let mark = crate::random::number()?;
    let mut partial: OsString = path.into();
    partial.push(format!(".{mark:016x}{PARTIAL_SUFFIX}"));
    let partial = PathBuf::from(partial);
    // This fails if the name already exists, even if it is a link.
    let file = File::create_new(&partial)?;
    let written = write(file, parts).and_then(|()| fs::rename(&partial, path));
    if written.is_err() {
        // Ignore this result, because the first error is the one to report.
        let _ = fs::remove_file(&partial);
    }
    written.and_then(|()| sync_directory(parent(path)))
}

/// Creates the directory `path` and any missing parents, and syncs them to disk. Without the sync,
/// a crash could lose the directory's entry in its parent and, with it, all files in the directory.
///
/// # Errors
/// Returns the operating system's error.
pub(crate) fn create_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let above = parent(path);
    create_directory(above)?;
    match fs::create_dir(path) {
        // Another process may have created the directory in the meantime.
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        Err(error) if !path.is_dir() => Err(error),
        _ => sync_directory(above),
    }
}

fn write(mut file: File, parts: &[&[u8]]) -> io::Result<()> {
    for part in parts {
        file.write_all(part)?;
    }
    file.sync_all()
}

/// Returns the directory that contains `path`.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) => Path::new("."),
        None => Path::new("/"),
    }
}

/// Syncs the entries of a directory to disk.
fn sync_directory(path: &Path) -> io::Result<()> {
    match File::open(path)?.sync_all() {
        // Some network file systems do not support this call for directories, and do not need it.
        Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests;
