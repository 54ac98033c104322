//! A key-value store in a directory of a launcher, for jobs on a single host.

use super::store::{Store, StoreError};
use crate::hash::fnv_1a;
use rustix::fs::{FileType, Mode, OFlags, fstat, openat, renameat};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

/// The bits of a file's mode that give access to other users.
const OTHERS: u32 = 0o077;

/// A store whose keys are files in a directory that only this user can access. The directory stays
/// open, so that nobody can replace it.
pub(super) struct LauncherDirectory {
    directory: OwnedFd,
    /// The beginning of the names of this job's files.
    prefix: String,
}

impl LauncherDirectory {
    /// Opens the directory for the job that the launcher calls `job`. Several jobs may share it.
    ///
    /// # Errors
    /// Returns an error if other users can access the directory, or the operating system's error.
    pub(super) fn open(path: &Path, job: &str) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty())?;
        let found = fstat(&directory)?;
        let is_own = found.st_uid == rustix::process::geteuid().as_raw();
        if !is_own || found.st_mode & OTHERS != 0 {
            return Err(io::Error::other("other users can access it"));
        }
        let job = fnv_1a(job.bytes());
        Ok(Self {
            directory,
            prefix: format!("ringtree-{job:016x}"),
        })
    }

    fn name(&self, key: &str) -> String {
        format!("{}-{}", self.prefix, key.replace('/', "-"))
    }

    fn open_file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.directory, name, flags, Mode::RUSR | Mode::WUSR)?;
        match FileType::from_raw_mode(fstat(&file)?.st_mode) {
            FileType::RegularFile => Ok(file.into()),
            _ => Err(io::Error::other("it is not a regular file")),
        }
    }
}

impl Store for LauncherDirectory {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let draft = format!("{}.{}", self.name(key), std::process::id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        self.open_file(&draft, flags)?.write_all(value)?;
        Ok(renameat(
            &self.directory,
            &*draft,
            &self.directory,
            self.name(key),
        )?)
    }

    fn get(&self, key: &str, _: Duration) -> Result<Option<Vec<u8>>, StoreError> {
        let mut value = Vec::new();
        match self.open_file(&self.name(key), OFlags::RDONLY) {
            Ok(mut file) => file.read_to_end(&mut value)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Ok(Some(value))
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64, StoreError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND;
        // The file is a list of the amounts. Appending a line is atomic, so no lock is needed,
        // which a stopped process could hold.
        let mut file = self.open_file(&self.name(key), flags)?;
        if amount != 0 {
            file.write_all(format!("{amount}\n").as_bytes())?;
        }
        let mut amounts = String::new();
        self.open_file(&self.name(key), OFlags::RDONLY)?
            .read_to_string(&mut amounts)?;
        let amounts = amounts.lines().map(str::parse::<i64>);
        Ok(amounts.sum::<std::result::Result<i64, _>>()?)
    }
}

#[cfg(test)]
mod tests;
