//! Removes files that are no longer needed. A save succeeds even if its cleanup fails.

use super::store::Store;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Maximum time that a single save may spend on cleanup once part of the cleanup has failed. The
/// other ranks wait during this time, so a slow server must not use up their timeout. A server that
/// rejects requests immediately is still asked to remove every file, because one file that cannot
/// be removed must not keep the other files from being removed.
const FAILED_CLEANUP_MAX: Duration = Duration::from_secs(5);

/// Number of failures that are reported in full.
const FAILURES_LISTED: usize = 3;

/// The cleanup of one save, with its failures.
pub(super) struct CleanUp<'a> {
    store: &'a dyn Store,
    /// Time spent on cleanup.
    spent: Duration,
    failures: Vec<String>,
    /// Number of further failures, which are only counted.
    unlisted: usize,
    /// Files that this cleanup could not remove, or did not try to remove because too much time had
    /// passed.
    kept: BTreeSet<String>,
}

impl<'a> CleanUp<'a> {
    pub(super) fn new(store: &'a dyn Store) -> Self {
        Self {
            store,
            spent: Duration::ZERO,
            failures: Vec::new(),
            unlisted: 0,
            kept: BTreeSet::new(),
        }
    }

    pub(super) fn clear_leftovers(&mut self) {
        let start = Instant::now();
        let ended = self.store.clear_leftovers();
        self.spent += start.elapsed();
        if let Err(error) = ended {
            self.failed(&error.to_string());
        }
    }

    /// Removes the file `name`. Returns `true` if the file no longer exists.
    pub(super) fn remove(&mut self, name: &str) -> bool {
        if self.kept.contains(name) {
            return false;
        }
        if !self.failures.is_empty() && self.spent >= FAILED_CLEANUP_MAX {
            self.kept.insert(name.to_owned());
            self.unlisted += 1;
            return false;
        }
        let start = Instant::now();
        let ended = self.store.remove(name);
        self.spent += start.elapsed();
        match ended {
            Ok(()) => true,
            Err(error) => {
                self.kept.insert(name.to_owned());
                self.failed(&format!("{name}: {error}"));
                false
            }
        }
    }

    pub(super) fn failed(&mut self, what: &str) {
        if self.failures.len() == FAILURES_LISTED {
            self.unlisted += 1;
            return;
        }
        self.failures.push(format!(
            "the checkpoint was saved, but cleaning up {} failed: {what}; the next save tries \
             again",
            self.store.location()
        ));
    }

    pub(super) fn warnings(self) -> Vec<String> {
        let Self {
            mut failures,
            unlisted,
            ..
        } = self;
        if unlisted > 0 {
            failures.push(format!("{unlisted} more files could not be removed"));
        }
        failures
    }
}
