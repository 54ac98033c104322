//! A folder of the file system, local or shared.

use super::store::Store;
use crate::error::{Error, Result};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The end of a file's name while it is being written.
const PARTIAL_SUFFIX: &str = ".partial";

/// A folder, made when the first file is written.
///
/// A file is written under another name, brought to the disk, renamed, and the folder brought to
/// the disk too: rename replaces a file in one step, also on NFS.
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
        let cannot_list = |error| Error::system(self.cannot("look into"), &error);
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
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

    fn cannot(&self, what: &str) -> String {
        format!(
            "cannot {what} the checkpoint folder {}",
            self.path.display()
        )
    }

    fn write_partial(&self, path: &Path, parts: &[&[u8]]) -> std::io::Result<()> {
        let mut file = File::create_new(path)?;
        for part in parts {
            file.write_all(part)?;
        }
        file.sync_all()
    }

    /// Brings the folder's own entries to the disk.
    fn sync(&self) -> std::io::Result<()> {
        match File::open(&self.path)?.sync_all() {
            // Some network file systems know no such call for folders, and need none.
            Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(()),
            result => result,
        }
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
            Err(error) => Err(Error::system(
                format_args!("cannot read {}", path.display()),
                &error,
            )),
        }
    }

    fn write_atomically(&self, name: &str, parts: &[&[u8]]) -> Result<()> {
        fs::create_dir_all(&self.path)
            .map_err(|error| Error::system(self.cannot("make"), &error))?;
        // Two writers, though there should be one, must not write into one file.
        let mark =
            getrandom::u64().map_err(|error| Error::System(format!("no entropy: {error}")))?;
        let partial = self
            .path
            .join(format!("{name}.{mark:016x}{PARTIAL_SUFFIX}"));
        let path = self.path.join(name);
        let written = self
            .write_partial(&partial, parts)
            .and_then(|()| fs::rename(&partial, &path))
            .and_then(|()| self.sync());
        written.map_err(|error| {
            // Best effort: the next save clears it otherwise.
            let _ = fs::remove_file(&partial);
            let what = format!(
                "cannot write {}; the checkpoints before it are untouched",
                path.display()
            );
            Error::system(what, &error)
        })
    }

    fn remove(&self, name: &str) -> Result<()> {
        let path = self.path.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::system(
                format_args!("cannot remove {}", path.display()),
                &error,
            )),
            _ => Ok(()),
        }
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
