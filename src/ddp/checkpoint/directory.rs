//! A folder of the file system, local or shared.

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

/// The file that the writer locks. It stays: to remove it would let two writers lock two files.
const LOCK_FILE: &str = "checkpoints.lock";
/// How long a new writer waits for the lock: a writer that was killed may still be ending.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const LOCK_LOOK_EVERY: Duration = Duration::from_millis(20);
/// Bytes of the lock file that are shown.
const HOLDER_BYTES_MAX: u64 = 100;

/// A folder, made when the first file is written. Files in it, and the folder itself, are brought
/// to the disk before a write counts as done.
///
/// The process that saves locks the file `checkpoints.lock` in it, by the operating system's file
/// lock, which ends with the process, however that ends, and is not inherited by children that it
/// forks.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// The folder `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The names of the plain files in the folder.
    fn names(&self) -> Result<Vec<String>> {
        let cannot_list = |error| Error::io(self.cannot("look into"), &error);
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) if error.kind() == ErrorKind::NotADirectory => return Err(self.no_folder()),
            Err(error) => return Err(cannot_list(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(cannot_list)?;
            // A file that is gone by now, or has a name that is no text, is not one of ours.
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if let (false, Ok(name)) = (is_folder, entry.file_name().into_string()) {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn no_folder(&self) -> Error {
        Error::configuration(format!(
            "the checkpoint folder {} is no folder, or lies in a file; name a folder, which may be \
             one that does not exist yet",
            self.path.display()
        ))
    }

    fn make(&self) -> Result<()> {
        whole_file::make_folder(&self.path).map_err(|error| match error.kind() {
            ErrorKind::NotADirectory | ErrorKind::AlreadyExists => self.no_folder(),
            _ => Error::io(self.cannot("make"), &error),
        })
    }

    fn cannot(&self, what: &str) -> String {
        format!(
            "cannot {what} the checkpoint folder {}",
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
            Err(error) => Err(Error::io(
                format_args!("cannot read {}", path.display()),
                &error,
            )),
        }
    }

    fn write_atomically(&self, name: &str, parts: &[&[u8]]) -> Result<()> {
        self.make()?;
        let path = self.path.join(name);
        whole_file::replace(&path, parts).map_err(|error| {
            let what = format!(
                "cannot write {}; the checkpoints before it are untouched",
                path.display()
            );
            Error::io(what, &error)
        })
    }

    fn remove(&self, name: &str) -> Result<()> {
        let path = self.path.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(
                format_args!("cannot remove {}", path.display()),
                &error,
            )),
            _ => Ok(()),
        }
    }

    fn lock(&self) -> Result<Box<dyn Send + Sync>> {
        self.make()?;
        let path = self.path.join(LOCK_FILE);
        let failed = |error| Error::io(format_args!("cannot lock {}", path.display()), &error);
        // No link is followed: it could lead to a file that is not ours to write.
        let no_link = OFlags::NOFOLLOW.bits().cast_signed();
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.custom_flags(no_link).open(&path).map_err(failed)?;
        // If the system refuses, a child that outlives this process keeps others out.
        let _ = close_in_children(&file);
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if start.elapsed() < LOCK_PATIENCE => {
                    thread::sleep(LOCK_LOOK_EVERY);
                }
                Err(TryLockError::WouldBlock) => return Err(held(&self.path, &mut file)),
                Err(TryLockError::Error(error)) if knows_no_locks(&error) => {
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

/// This process, for others' messages.
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
        true => format!(" ({name}, as {LOCK_FILE} there says)"),
        false => String::new(),
    };
    Error::configuration(format!(
        "another training saves its checkpoints in {}{holder}; end it, or name another folder",
        folder.display()
    ))
}

/// Some network file systems have no locks.
fn knows_no_locks(error: &std::io::Error) -> bool {
    let no_locks = rustix::io::Errno::NOLCK.raw_os_error();
    error.kind() == ErrorKind::Unsupported || error.raw_os_error() == Some(no_locks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fork::tests::beside_a_child;

    #[test]
    fn a_forked_child_does_not_keep_the_lock_of_a_training_that_has_ended() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = Directory::new(scratch.path());
        let lock = folder.lock().unwrap();
        beside_a_child(|| {
            assert!(
                folder.lock().is_err(),
                "the training has the lock, forked or not"
            );
            drop(lock);
            folder.lock().unwrap();
        });
    }
}
