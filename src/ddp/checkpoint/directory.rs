//! A folder of the file system, local or shared.

use super::store::Store;
use crate::error::{Error, Result};
use crate::whole_file::{self, PARTIAL_SUFFIX};
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

/// A folder, made when the first file is written. Files in it, and the folder itself, are brought
/// to the disk before a write counts as done.
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
        whole_file::make_folder(&self.path)
            .map_err(|error| Error::io(self.cannot("make"), &error))?;
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

    fn clear_leftovers(&self) -> Result<()> {
        for name in self.names()? {
            if name.starts_with("step-") && name.ends_with(PARTIAL_SUFFIX) {
                self.remove(&name)?;
            }
        }
        Ok(())
    }
}
