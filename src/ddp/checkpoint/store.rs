//! Where the files of checkpoints go.

use crate::error::Result;

/// A place for files: a folder, or a bucket of an object store.
///
/// An implementation names the place and the file in its errors.
pub trait Store: Send + Sync {
    /// The place, for messages.
    fn location(&self) -> String;

    /// The names of the files that are there whole, in any order; none if the place does not exist
    /// yet.
    ///
    /// # Errors
    /// The place cannot be looked at.
    fn list(&self) -> Result<Vec<String>>;

    /// The bytes of the file `name`; none if there is no such file.
    ///
    /// # Errors
    /// It cannot be read.
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>>;

    /// Writes the file `name`, whose bytes are `parts` one after another, so that a reader,
    /// also after a crash at any moment, sees the whole file or what was there before. When this
    /// returns, the file survives a crash.
    ///
    /// # Errors
    /// It cannot be written, or it is not certain that it was: what was there before is still
    /// there, or the whole new file is, now or later.
    fn write_atomically(&self, name: &str, parts: &[&[u8]]) -> Result<()>;

    /// Removes the file `name`, if it is there.
    ///
    /// # Errors
    /// It is there and cannot be removed.
    fn remove(&self, name: &str) -> Result<()>;

    /// Keeps other writers out until the value is dropped, or this process ends in any way. A store
    /// that knows no such thing returns any value: a second writer is then noticed when it saves.
    ///
    /// # Errors
    /// Another process holds the lock, or the place cannot be written.
    fn lock(&self) -> Result<Box<dyn Send + Sync>> {
        Ok(Box::new(()))
    }

    /// Removes what writers that were killed left half-written. If this fails, or
    /// [`Store::remove`], the save goes on all the same.
    ///
    /// # Errors
    /// It cannot be removed.
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
