//! Maps the handles that C holds to communicators and work.
//!
//! A handle is a number that is assigned once and looked up in a table. It has a pointer type but
//! is never dereferenced, so using a stale or invented handle only causes an error. A call keeps
//! its object alive until the call has completed, even if another thread destroys the handle in the
//! meantime.
//!
//! *Forks.* A forked child inherits the tables. It may add its own entries, but it does not touch
//! the inherited ones.

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

/// The objects by handle, each with the process that added it.
type Entries<T> = BTreeMap<usize, (u32, Arc<T>)>;

pub(crate) struct Table<T> {
    entries: RwLock<Entries<T>>,
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
        let process = std::process::id();
        self.process.store(process, Ordering::Relaxed);
        self.write().insert(handle, (process, Arc::new(one)));
        handle
    }

    /// Returns `true` if this process has inherited all entries. In the parent, another thread may
    /// have been holding the lock at the time of the fork.
    fn is_inherited(&self) -> bool {
        let process = self.process.load(Ordering::Relaxed);
        process != 0 && process != std::process::id()
    }

    /// Returns the object that a handle refers to, even if it was inherited through a fork. An
    /// inherited communicator still returns its rank, but refuses calls.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Usage`] if the handle is not in the table.
    pub(crate) fn get(&self, handle: usize) -> Result<Arc<T>> {
        let entries = match self.entries.try_read() {
            Ok(entries) => entries,
            Err(_) if self.is_inherited() => return Err(refusal()),
            Err(_) => self.read(),
        };
        let found = entries.get(&handle).map(|(_, object)| object.clone());
        found.ok_or_else(|| self.missing(handle))
    }

    /// Returns the object that a handle refers to if this process added it.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Usage`] if the handle is not in the table or was inherited through a
    /// fork.
    pub(crate) fn own(&self, handle: usize) -> Result<Arc<T>> {
        if self.is_inherited() {
            return Err(refusal());
        }
        match self.read().get(&handle) {
            Some((process, object)) if *process == std::process::id() => Ok(object.clone()),
            Some(_) => Err(refusal()),
            None => Err(self.missing(handle)),
        }
    }

    /// Removes the object that a handle refers to if `may_go` returns `Ok`. Returns `None` if the
    /// handle was inherited through a fork.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Usage`] if the handle is not in the table. Also returns the same errors
    /// as `may_go`.
    pub(crate) fn take(
        &self,
        handle: usize,
        may_go: impl FnOnce(&T) -> Result<()>,
    ) -> Result<Option<Arc<T>>> {
        if self.is_inherited() {
            return Ok(None);
        }
        let mut entries = self.write();
        let found = entries.get(&handle);
        let (process, object) = found.ok_or_else(|| self.missing(handle))?;
        if *process != std::process::id() {
            return Ok(None);
        }
        may_go(object)?;
        Ok(entries.remove(&handle).map(|(_, object)| object))
    }

    /// Replaces the object that a handle refers to.
    ///
    /// # Errors
    /// Returns the same errors as [`Table::own`].
    pub(crate) fn replace(&self, handle: usize, by: impl FnOnce(&T) -> T) -> Result<()> {
        let one = by(&*self.own(handle)?);
        if let Some((_, object)) = self.write().get_mut(&handle) {
            *object = Arc::new(one);
        }
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

    fn read(&self) -> RwLockReadGuard<'_, Entries<T>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Entries<T>> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the error for a forked child that uses a handle of its parent.
pub(crate) fn refusal() -> Error {
    Error::new(
        ErrorKind::Usage,
        "a forked child cannot use its parent's handles; make the calls in the parent, or execute \
         a new program in the child",
    )
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
        assert_eq!(*numbers.take(one, |_| Ok(())).unwrap().unwrap(), 11);
        for stale in [one, 0, 1, usize::MAX] {
            assert!(numbers.get(stale).unwrap_err().kind() == ErrorKind::Usage);
            assert!(numbers.take(stale, |_| Ok(())).is_err());
            assert!(numbers.replace(stale, |one| *one).is_err());
        }
        assert!(numbers.insert(3) != one);
    }
}
