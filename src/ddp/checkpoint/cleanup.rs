//! Clearing away, which may fail without anything being lost.

use super::store::Store;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long one save goes on clearing away once something has failed. The other ranks wait
/// meanwhile, so a server that answers each request late must not use up their timeout; one that
/// refuses at once is still asked about every file, as one that stays should not keep the rest.
const PATIENCE: Duration = Duration::from_secs(5);

/// Failures that are reported in full.
const TOLD: usize = 3;

/// What one save clears away, and what it could not.
pub(super) struct CleanUp<'a> {
    store: &'a dyn Store,
    /// Time spent on it.
    spent: Duration,
    failures: Vec<String>,
    /// Failures that are only counted.
    untold: usize,
    /// The files that stay.
    kept: BTreeSet<String>,
}

impl<'a> CleanUp<'a> {
    pub(super) fn new(store: &'a dyn Store) -> Self {
        Self {
            store,
            spent: Duration::ZERO,
            failures: Vec::new(),
            untold: 0,
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

    /// Removes the file `name`; says whether it is gone.
    pub(super) fn remove(&mut self, name: &str) -> bool {
        if self.kept.contains(name) {
            return false;
        }
        if !self.failures.is_empty() && self.spent >= PATIENCE {
            self.kept.insert(name.to_owned());
            self.untold += 1;
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
        if self.failures.len() == TOLD {
            self.untold += 1;
            return;
        }
        self.failures.push(format!(
            "the checkpoint is saved, but {} is not cleared up, which the next save tries again: \
             {what}",
            self.store.location()
        ));
    }

    pub(super) fn warnings(self) -> Vec<String> {
        let Self {
            mut failures,
            untold,
            ..
        } = self;
        if untold > 0 {
            failures.push(format!("{untold} more files could not be removed"));
        }
        failures
    }
}
