//! Maps the handles that C holds to communicators and work.
//!
//! A handle is a number that is assigned once and looked up in a table. It has a pointer type but
//! is never dereferenced, so using a stale or invented handle only causes an error. A call keeps
//! its object alive until the call has completed, even if another thread destroys the handle in the
//! meantime.

use ringtree::{Communicator, Error, ErrorKind, Result};
use ringtree_foreign::Pending;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Upper bits of every handle. The upper bits of a memory address are all equal, but these are not,
/// so a handle is never a memory address.
const MARK: usize = 0x5254 << 48;

/// Number of handles assigned so far in all tables.
static GIVEN: AtomicUsize = AtomicUsize::new(0);

pub(crate) static COMMUNICATORS: Table<Communicator> =
    Table::new("ringtree_comm_t", "destroyed or aborted");
pub(crate) static WORK: Table<Pending> = Table::new("ringtree_work_t", "freed");

pub(crate) struct Table<T> {
    entries: RwLock<BTreeMap<usize, Arc<T>>>,
    /// The process that added the newest entry, or 0 if no entry has been added yet.
    process: AtomicU32,
    what: &'static str,
    ended: &'static str,
}

impl<T> Table<T> {
    const fn new(what: &'static str, ended: &'static str) -> Self {
        Self {
            entries: RwLock::new(BTreeMap::new()),
            process: AtomicU32::new(0),
            what,
            ended,
        }
    }

    /// Adds an object and returns its handle.
    pub(crate) fn insert(&self, one: T) -> usize {
        let handle = MARK | (GIVEN.fetch_add(1, Ordering::Relaxed) + 1);
        self.process.store(std::process::id(), Ordering::Relaxed);
        self.write().insert(handle, Arc::new(one));
        handle
    }

    /// Returns `true` if the entries were inherited through a fork. In the parent, another thread
    /// may have been holding the lock at the time of the fork.
    pub(crate) fn is_of_parent(&self) -> bool {
        let process = self.process.load(Ordering::Relaxed);
        process != 0 && process != std::process::id()
    }

    /// Checks that this process created the entries.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Usage`] in a forked child.
    pub(crate) fn refuse_children(&self) -> Result<()> {
        match self.is_of_parent() {
            false => Ok(()),
            true => Err(Error::new(
                ErrorKind::Usage,
                "a forked child cannot use its parent's handles; make the calls in the parent, or \
                 execute a new program in the child",
            )),
        }
    }

    /// Returns the object that a handle refers to.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Usage`] if the handle is not in the table.
    pub(crate) fn get(&self, handle: usize) -> Result<Arc<T>> {
        let found = self.read()?.get(&handle).cloned();
        found.ok_or_else(|| self.missing(handle))
    }

    /// Removes the object that a handle refers to if `may_go` returns `Ok`.
    ///
    /// # Errors
    /// Returns the same errors as [`Table::get`] and `may_go`. Also returns
    /// [`ErrorKind::Usage`] in a forked child.
    pub(crate) fn take(
        &self,
        handle: usize,
        may_go: impl FnOnce(&T) -> Result<()>,
    ) -> Result<Arc<T>> {
        self.refuse_children()?;
        let mut entries = self.write();
        let found = entries.get(&handle).ok_or_else(|| self.missing(handle))?;
        may_go(found)?;
        entries.remove(&handle).ok_or_else(|| self.missing(handle))
    }

    /// Replaces the object that a handle refers to.
    ///
    /// # Errors
    /// Returns the same errors as [`Table::get`]. Also returns [`ErrorKind::Usage`] in a forked
    /// child.
    pub(crate) fn replace(&self, handle: usize, by: impl FnOnce(&T) -> T) -> Result<()> {
        self.refuse_children()?;
        let mut entries = self.write();
        let place = entries.get_mut(&handle);
        let place = place.ok_or_else(|| self.missing(handle))?;
        *place = Arc::new(by(place));
        Ok(())
    }

    fn missing(&self, handle: usize) -> Error {
        let (what, ended) = (self.what, self.ended);
        Error::new(
            ErrorKind::Usage,
            match handle {
                0 => format!("the {what} is NULL; pass a valid handle"),
                _ => {
                    format!("the {what} is not a valid handle: it was {ended} or was never created")
                }
            },
        )
    }

    fn read(&self) -> Result<RwLockReadGuard<'_, BTreeMap<usize, Arc<T>>>> {
        if let Ok(entries) = self.entries.try_read() {
            return Ok(entries);
        }
        self.refuse_children()?;
        Ok(self.entries.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<usize, Arc<T>>> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_leads_to_what_it_was_given_for_until_that_is_taken() {
        let numbers = Table::new("number", "taken");
        let names = Table::new("name", "taken");
        let (one, two) = (numbers.insert(1), numbers.insert(2));
        let name = names.insert("x");
        assert!(*numbers.get(two).unwrap() == 2 && *names.get(name).unwrap() == "x");
        assert!(numbers.get(name).is_err() && names.get(one).is_err());
        numbers.replace(one, |one| one + 10).unwrap();
        let refusal = numbers.take(one, |_| Err(Error::new(ErrorKind::Usage, "busy")));
        assert_eq!(refusal.unwrap_err().to_string(), "busy");
        assert_eq!(*numbers.take(one, |_| Ok(())).unwrap(), 11);
        for stale in [one, 0, 1, usize::MAX] {
            assert!(numbers.get(stale).unwrap_err().kind() == ErrorKind::Usage);
            assert!(numbers.take(stale, |_| Ok(())).is_err());
            assert!(numbers.replace(stale, |one| *one).is_err());
        }
        assert!(numbers.insert(3) != one);
    }
}
