//! Saves the complete output of each rank in a log file.
//!
//! The launcher appends to existing files, so their contents survive restarts and later jobs. If a
//! file is not empty, a line from the launcher marks the beginning of each further attempt. If a
//! file cannot be written, the job continues.

use super::attempt::Placement;
use super::streams;
use crate::error::{Error, Printable, Result};
use crate::lock::lock;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The log file of one rank.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    /// The open file, or `None` after a write has failed.
    file: Mutex<Option<File>>,
    /// Maximum file size, in bytes. A write beyond this size would kill the process with SIGXFSZ.
    limit: u64,
}

/// Creates the directory `folder` if it does not exist.
///
/// # Errors
/// Returns `ErrorKind::Configuration` if the path is not a directory or cannot be created.
pub(super) fn make(folder: &Path) -> Result<()> {
    let shown = folder.display();
    match fs::create_dir_all(folder) {
        Ok(()) => Ok(()),
        Err(_) if folder.exists() => Err(Error::configuration(format!(
            "cannot keep logs in {shown}: it is not a directory; pass a directory (it need not \
             exist)"
        ))),
        Err(error) => Err(Error::configuration(format!(
            "cannot create the log directory {shown}: {error}"
        ))),
    }
}

impl Log {
    /// Opens the log files of all ranks on this host.
    ///
    /// # Errors
    /// Returns `ErrorKind::Configuration` if a file cannot be opened.
    pub(super) fn open_all(
        folder: Option<&Path>,
        placement: &Placement,
        ranks: usize,
    ) -> Result<Vec<Arc<Self>>> {
        let Some(folder) = folder else {
            return Ok(Vec::new());
        };
        let of = |rank| Self::open(folder.join(format!("rank-{rank}.log")));
        (placement.first_rank..placement.first_rank + ranks)
            .map(|rank| of(rank).map(Arc::new))
            .collect()
    }

    fn open(path: PathBuf) -> Result<Self> {
        let mut how = File::options();
        // Without O_NONBLOCK, opening a FIFO would block until a reader opens it.
        how.append(true).create(true).custom_flags(libc::O_NONBLOCK);
        let file = how.open(&path).map_err(|error| {
            Error::configuration(format!("cannot open the log {}: {error}", path.display()))
        })?;
        Ok(Log {
            path,
            file: Mutex::new(Some(file)),
            limit: getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX),
        })
    }

    /// Returns the path of the file, without control characters.
    pub(super) fn path(&self) -> String {
        Printable(&self.path.display().to_string()).to_string()
    }

    /// Writes a line that marks the start of an attempt, unless the file is empty.
    pub(super) fn begin(&self, job: &str, attempt: u16) {
        if self.path.metadata().is_ok_and(|data| data.len() > 0) {
            let again = match attempt {
                0 => String::new(),
                number => format!(", restart {number}"),
            };
            self.write(format!("\nringtree: job {job}{again}\n").as_bytes());
        }
    }

    /// Appends `bytes`. If that fails, prints a warning and stops logging this rank.
    pub(super) fn write(&self, bytes: &[u8]) {
        let mut file = lock(&self.file);
        let Some(open) = &mut *file else {
            return;
        };
        if let Err(error) = self.append(open, bytes) {
            *file = None;
            let path = self.path();
            streams::print_line(&format!(
                "cannot write to {path}: {error}; the job continues without this log"
            ));
        }
    }

    fn append(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        if self.limit < u64::MAX {
            let length = file.metadata()?.len().saturating_add(bytes.len() as u64);
            if length > self.limit {
                return Err(Errno::FBIG.into());
            }
        }
        file.write_all(bytes)
    }
}
