//! A file for each rank, in which all that it writes is kept.
//!
//! A file that is there is continued, so neither a restart nor another job loses anything: each
//! begins with a line of the launcher's. A file that cannot be written to ends no job.

use super::attempt::Placement;
use super::streams;
use crate::error::{Error, Printable, Result};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The file of one rank.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    /// Nothing, once it could not be written to.
    file: Mutex<Option<File>>,
    /// The most bytes that a file of this process may have: a write beyond ends it (SIGXFSZ).
    limit: u64,
}

/// Makes the folder if it is missing.
///
/// # Errors
/// [`Error::configuration`] when it is no folder, or cannot be made.
pub(super) fn make(folder: &Path) -> Result<()> {
    let shown = folder.display();
    match fs::create_dir_all(folder) {
        Ok(()) => Ok(()),
        Err(_) if folder.exists() => Err(Error::configuration(format!(
            "cannot keep logs in {shown}: it is no folder; name one, or a place for one"
        ))),
        Err(error) => Err(Error::configuration(format!(
            "cannot make the folder {shown} for the logs: {error}"
        ))),
    }
}

impl Log {
    /// Opens the files of all ranks of this host.
    ///
    /// # Errors
    /// [`Error::configuration`] names the one that cannot be opened.
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
        // A pipe without a reader is an error then, and not a wait for one.
        how.append(true).create(true).custom_flags(libc::O_NONBLOCK);
        let file = how.open(&path).map_err(|error| {
            Error::configuration(format!("cannot keep a log in {}: {error}", path.display()))
        })?;
        Ok(Log {
            path,
            file: Mutex::new(Some(file)),
            limit: getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX),
        })
    }

    /// Where it is.
    pub(super) fn path(&self) -> String {
        Printable(&self.path.display().to_string()).to_string()
    }

    /// An attempt begins: a line says so, unless it is the first thing in the file.
    pub(super) fn begin(&self, job: &str, attempt: u16) {
        if self.path.metadata().is_ok_and(|data| data.len() > 0) {
            let again = match attempt {
                0 => String::new(),
                number => format!(", restart {number}"),
            };
            self.write(format!("\nringtree: job {job}{again}\n").as_bytes());
        }
    }

    /// Keeps `bytes`. If that fails, a line says so, and nothing more is kept.
    pub(super) fn write(&self, bytes: &[u8]) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = &mut *file else {
            return;
        };
        if let Err(error) = self.append(open, bytes) {
            *file = None;
            let path = self.path();
            streams::say(&format!(
                "cannot write to {path}: {error}; the job goes on, and nothing more is kept there"
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
