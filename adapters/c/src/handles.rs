//! Maps the handles that C holds to communicators and work.
//!
//! A handle is a number that is assigned once and looked up in a table. It has a pointer type but
//! is never dereferenced, so using a stale or invented handle only causes an error. A call keeps
//! its object alive until the call has completed, even if another thread destroys the handle in the
//! meantime.
//!
//! *Forks.* A forked child inherits the tables, but another thread of the parent may have held a
//! lock at the time of the fork. Therefore each process adds its entries to a separate table and
//! waits only for that table's lock. A child never removes an inherited entry.

use ringtree::{Communicator, Error, ErrorKind, Result};
use ringtree_foreign::Pending;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{
    Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};

/// Upper bits of every handle. The upper bits of a memory address are all equal, but these are not,
/// so a handle is never a memory address.
const MARK: usize = 0x5254 << 48;

/// Number of handles assigned so far in all tables.
static GIVEN: AtomicUsize = AtomicUsize::new(0);

pub(crate) static COMMUNICATORS: Table<Communicator> =
    Table::new("ringtree_comm_t", "destroyed or aborted");
pub(crate) static WORK: Table<Pending> = Table::new("ringtree_work_t", "freed");

type Entries<T> = BTreeMap<usize, Arc<T>>;

pub(crate) struct Table<T> {
    entries: RwLock<Entries<T>>,
    /// The process that added the entries, or 0 if there are none yet.
    process: AtomicU32,
    /// The table for a forked child of that process.
    in_child: OnceLock<Box<Self>>,
    what: &'static str,
    ended: &'static str,
}

/// The result of a lookup.
enum Found<T> {
    Own(Arc<T>),
    /// A handle that was inherited through a fork. `None` if the object is inaccessible because the
    /// parent's table was locked.
    Inherited(Option<Arc<T>>),
    Nowhere,
}

impl<T> Table<T> {
    const fn new(what: &'static str, ended: &'static str) -> Self {
        Self {
            entries: RwLock::new(BTreeMap::new()),
            process: AtomicU32::new(0),
            in_child: OnceLock::new(),
            what,
            ended,
        }
    }

    /// Adds an object and returns its handle.
    pub(crate) fn insert(&self, one: T) -> usize {
        let handle = MARK | (GIVEN.fetch_add(1, Ordering::Relaxed) + 1);
        self.of_this_process().write().insert(handle, Arc::new(one));
        handle
    }

    fn of_this_process(&self) -> &Self {
        let own = std::process::id();
        let set = self
            .process
            .compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire);
        match set {
            Err(other) if other != own => self
                .in_child
                .get_or_init(|| Box::new(Self::new(self.what, self.ended)))
                .of_this_process(),
            _ => self,
        }
    }

    fn find(&self, handle: usize) -> Found<T> {
        let process = self.process.load(Ordering::Acquire);
        if process == 0 {
            return Found::Nowhere;
        }
        if process == std::process::id() {
            let found = self.read().get(&handle).cloned();
            return found.map_or(Found::Nowhere, Found::Own);
        }
        let own = self.in_child.get().map(|child| child.find(handle));
        match (own, self.entries.try_read()) {
            (Some(found @ (Found::Own(_) | Found::Inherited(_))), _) => found,
            (_, Err(TryLockError::WouldBlock)) => Found::Inherited(None),
            (_, Ok(entries)) => inherited(&entries, handle),
            (_, Err(TryLockError::Poisoned(entries))) => inherited(&entries.into_inner(), handle),
        }
    }

    /// Returns the object that a handle refers to, even if it was inherited through a fork. An
    /// inherited communicator still returns its rank, but refuses calls.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Usage`] if the handle is not in the table.
    pub(crate) fn get(&self, handle: usize) -> Result<Arc<T>> {
        match self.find(handle) {
            Found::Own(object) | Found::Inherited(Some(object)) => Ok(object),
            Found::Inherited(None) => Err(refusal()),
            Found::Nowhere => Err(self.missing(handle)),
        }
    }

    /// Returns the object that a handle refers to if this process added it.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Usage`] if the handle is not in the table or was inherited through a
    /// fork.
    pub(crate) fn own(&self, handle: usize) -> Result<Arc<T>> {
        match self.find(handle) {
            Found::Own(object) => Ok(object),
            Found::Inherited(_) => Err(refusal()),
            Found::Nowhere => Err(self.missing(handle)),
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
        if let Found::Inherited(_) = self.find(handle) {
            return Ok(None);
        }
        let mut entries = self.of_this_process().write();
        may_go(entries.get(&handle).ok_or_else(|| self.missing(handle))?)?;
        Ok(entries.remove(&handle))
    }

    /// Replaces the object that a handle refers to.
    ///
    /// # Errors
    /// Returns the same errors as [`Table::own`].
    pub(crate) fn replace(&self, handle: usize, by: impl FnOnce(&T) -> T) -> Result<()> {
        let one = by(&*self.own(handle)?);
        if let Some(object) = self.of_this_process().write().get_mut(&handle) {
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

fn inherited<T>(entries: &Entries<T>, handle: usize) -> Found<T> {
    match entries.get(&handle) {
        Some(object) => Found::Inherited(Some(object.clone())),
        None => Found::Nowhere,
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
    fn handle_refers_to_its_object_until_it_is_taken() {
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
