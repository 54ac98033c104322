//! Memory that ranks in one process have exported: a process cannot import its own, so those find
//! it here.

use super::{Exported, HANDLE_BYTES, Memory};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

type Key = ([u8; HANDLE_BYTES], u64);

static PUBLISHED: Mutex<BTreeMap<Key, Memory>> = Mutex::new(BTreeMap::new());

fn published() -> MutexGuard<'static, BTreeMap<Key, Memory>> {
    // Whole between any two statements.
    PUBLISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key(exported: &Exported) -> Key {
    (exported.handle, exported.offset)
}

/// Holds a memory where the ranks of this process find it, until it is dropped.
#[derive(Debug)]
pub struct Published(Key);

impl Published {
    /// Publishes what `exported` stands for.
    #[must_use]
    pub fn new(exported: &Exported, memory: &Memory) -> Self {
        published().insert(key(exported), memory.clone());
        Self(key(exported))
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        published().remove(&self.0);
    }
}

/// The memory that this process has exported so, if it has.
#[must_use]
pub fn find(exported: &Exported) -> Option<Memory> {
    published().get(&key(exported)).cloned()
}
