//! Implements [`Store`] for a directory in a local or shared file system.

use super::store::Store;
use crate::error::{Error, Result};
use crate::sys::fork::close_in_children;
use crate::whole_file::{self, PARTIAL_SUFFIX};
use rustix::fs::OFlags;
use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// The file that the writer locks. It is never removed because otherwise two writers could lock two
/// different files.
const LOCK_FILE: &str = "checkpoints.lock";
/// Maximum time that a new writer waits for the lock. It must wait because a previous writer that
/// was killed may still be exiting.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(2);
const LOCK_LOOK_EVERY: Duration = Duration::from_millis(20);
/// Maximum number of bytes of the lock file that are shown in an error message.
const HOLDER_BYTES_MAX: u64 = 100;

/// A store in a directory. The directory is created when the first file is written. A write returns
/// only after the file and the directory have been synced to disk.
///
/// The process that saves holds an operating system lock on the file `checkpoints.lock` in the
/// directory. The lock is released when the process ends, no matter how it exits. Forked children
/// do not inherit the lock.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Creates a store in the directory `path`, which need not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Returns the names of the files in the directory, excluding subdirectories.
    fn names(&self) -> Result<Vec<String>> {
        let cannot_list = |error| Error::io(self.cannot("list"), &error);
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) if error.kind() == ErrorKind::NotADirectory => return Err(self.no_folder()),
            Err(error) => return Err(cannot_list(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(cannot_list)?;
            // Skip names that are not UTF-8, because this library does not write such files.
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if let (false, Ok(name)) = (is_folder, entry.file_name().into_string()) {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn no_folder(&self) -> Error {
        Error::configuration(format!(
            "checkpoint path {} is not a directory, or one of its parents is a file; pass a \
             directory (it need not exist)",
            self.path.display()
        ))
    }

    fn make(&self) -> Result<()> {
        whole_file::create_directory(&self.path).map_err(|error| match error.kind() {
            ErrorKind::NotADirectory | ErrorKind::AlreadyExists => self.no_folder(),
            _ => Error::io(self.cannot("create"), &error),
        })
    }

    fn cannot(&self, what: &str) -> String {
        format!(
            "cannot {what} the checkpoint directory {}",
            self.path.display()
        )
    }
}

impl Store for Directory {
    fn location(&self) -> String {
        self.path.display().to_string()
    }

    fn list(&self) -> Result<Vec<String>> {
        let mut names = self.names()?;
        names.retain(|name| !name.ends_with(PARTIAL_SUFFIX));
        Ok(names)
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.path.join(name);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", &path, &error)),
        }
    }

    fn write_atomically(&self, name: &str, parts: &[&[u8]]) -> Result<()> {
        self.make()?;
        let path = self.path.join(name);
        whole_file::replace(&path, parts).map_err(|error| {
            let what = format!(
                "cannot write {} (earlier checkpoints are intact)",
                path.display()
            );
            Error::io(what, &error)
        })
    }

    fn remove(&self, name: &str) -> Result<()> {
        let path = self.path.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(failed("remove", &path, &error))
            }
            _ => Ok(()),
        }
    }

    fn lock(&self) -> Result<Box<dyn Send + Sync>> {
        self.make()?;
        let path = self.path.join(LOCK_FILE);
        let failed = |error| failed("lock", &path, &error);
        // Do not follow a symbolic link, because its target could be a file that must not be
        // overwritten.
        let no_link = OFlags::NOFOLLOW.bits().cast_signed();
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.custom_flags(no_link).open(&path).map_err(failed)?;
        // If this fails, a forked child that outlives this process keeps holding the lock.
        let _ = close_in_children(&file);
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if start.elapsed() < LOCK_WAIT_MAX => {
                    thread::sleep(LOCK_LOOK_EVERY);
                }
                Err(TryLockError::WouldBlock) => return Err(held(&self.path, &mut file)),
                Err(TryLockError::Error(error)) if is_lock_unsupported(&error) => {
                    return Ok(Box::new(()));
                }
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
        let written = file.set_len(0).and_then(|()| file.rewind());
        let written = written.and_then(|()| file.write_all(own_name().as_bytes()));
        written.map_err(failed)?;
        Ok(Box::new(file))
    }

    fn clear_leftovers(&self) -> Result<()> {
        for name in self.names()? {
            if name.starts_with("step-") && name.ends_with(PARTIAL_SUFFIX) {
                self.remove(&name)?;
            }
        }
        Ok(())
    }
}

fn failed(what: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::io(format_args!("cannot {what} {}", path.display()), error)
}

/// Returns a description of this process, which other processes show in their error messages.
fn own_name() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match host.trim() {
        "" => format!("process {}", std::process::id()),
        host => format!("process {} on host {host}", std::process::id()),
    }
}

fn held(folder: &Path, file: &mut File) -> Error {
    let mut name = String::new();
    let read = file.take(HOLDER_BYTES_MAX).read_to_string(&mut name);
    let is_clean = read.is_ok() && !name.is_empty() && !name.contains(char::is_control);
    let holder = match is_clean {
        true => format!(" ({name}, according to {LOCK_FILE})"),
        false => String::new(),
    };
    Error::configuration(format!(
        "cannot lock {}: another training run is saving there{holder}; stop that run or pass a \
         different directory",
        folder.display()
    ))
}

/// Returns `true` if `error` means that the file system does not support locks, as is the case for
/// some network file systems.
fn is_lock_unsupported(error: &std::io::Error) -> bool {
    let no_locks = rustix::io::Errno::NOLCK.raw_os_error();
    error.kind() == ErrorKind::Unsupported || error.raw_os_error() == Some(no_locks)
}

#[cfg(test)]
mod tests;
