//! Defines the interface to stores, which hold checkpoint files.

use crate::error::Result;

/// A store for checkpoint files, such as a directory or a bucket in an object store.
///
/// Errors returned by an implementation must name the store and the file.
pub trait Store: Send + Sync {
    /// Returns the location of the store, for use in messages.
    fn location(&self) -> String;

    /// Returns the names of all complete files in any order, or an empty list if the store does not
    /// exist yet.
    ///
    /// # Errors
    /// Returns an error if the files cannot be listed.
    fn list(&self) -> Result<Vec<String>>;

    /// Returns the bytes of the file `name`, or `None` if there is no such file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>>;

    /// Writes the concatenated `parts` to the file `name`. Readers see either the complete new file
    /// or the previous state, even if a crash occurs at any moment. Once this method has returned,
    /// the new file survives a crash.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written, or if it is uncertain whether the file was
    /// written. In that case, the store either remains in its previous state or contains the
    /// complete new file, which may appear only later.
    fn write_atomically(&self, name: &str, parts: &[&[u8]]) -> Result<()>;

    /// Removes the file `name` if it exists.
    ///
    /// # Errors
    /// Returns an error if the file exists and cannot be removed.
    fn remove(&self, name: &str) -> Result<()>;

    /// Keeps other writers out until the returned value is dropped or this process ends in any way.
    /// A store that does not support locks can return any value, as the default implementation
    /// does. A second writer is then detected when it saves.
    ///
    /// # Errors
    /// Returns an error if another process holds the lock or if the store cannot be written to.
    fn lock(&self) -> Result<Box<dyn Send + Sync>> {
        Ok(Box::new(()))
    }

    /// Removes incomplete files left behind by writers that were killed. A save continues even if
    /// this method or [`Store::remove`] fails.
    ///
    /// # Errors
    /// Returns an error if a file cannot be removed.
    fn clear_leftovers(&self) -> Result<()> {
        Ok(())
    }
}

impl<S: Store + ?Sized> Store for Box<S> {
    fn location(&self) -> String {
        (**self).location()
    }

    fn list(&self) -> Result<Vec<String>> {
        (**self).list()
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        (**self).read(name)
    }

    fn write_atomically(&self, name: &str, parts: &[&[u8]]) -> Result<()> {
        (**self).write_atomically(name, parts)
    }

    fn remove(&self, name: &str) -> Result<()> {
        (**self).remove(name)
    }

    fn lock(&self) -> Result<Box<dyn Send + Sync>> {
        (**self).lock()
    }

    fn clear_leftovers(&self) -> Result<()> {
        (**self).clear_leftovers()
    }
}
