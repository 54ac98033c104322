//! Prevents two training runs that use the same store from overwriting each other's checkpoints.
//!
//! A writer holds the store's lock, which keeps other processes from writing to a directory. Object
//! stores and some file systems do not support locks. In that case, a writer detects another
//! training run when it saves, because it finds a checkpoint that it neither loaded nor wrote.

use super::store::Store;
use super::{manifest, names};
use crate::error::{Error, Result};
use std::collections::BTreeSet;

/// The store's lock, and the checkpoints that this writer knows about.
#[derive(Default)]
pub(super) struct Claim {
    /// The lock that keeps other writers out until it is dropped.
    lock: Option<Box<dyn Send + Sync>>,
    /// Steps of the checkpoints that this writer has found in the store while loading, or has
    /// written.
    steps: BTreeSet<u64>,
    /// The newest of these steps, with the hash of its manifest if the manifest is valid.
    newest: Option<(u64, Option<String>)>,
    /// Steps of existing checkpoints that are later than the step from which the user chose to
    /// resume.
    left_behind: BTreeSet<u64>,
    /// Step and hash of each manifest whose write was reported as failed. The manifest may
    /// nevertheless exist or appear later, because the response may have been lost or the directory
    /// may not have been synced.
    in_doubt: BTreeSet<(u64, String)>,
}

impl Claim {
    /// Takes the store's lock unless this writer already holds it.
    pub(super) fn acquire(&mut self, store: &dyn Store) -> Result<()> {
        if self.lock.is_none() {
            self.lock = Some(store.lock()?);
        }
        Ok(())
    }

    /// Replaces the known steps with `steps`, which this writer has just listed.
    pub(super) fn note_listed(&mut self, steps: &BTreeSet<u64>, store: &dyn Store) {
        self.steps.clone_from(steps);
        let newest = steps.last().copied();
        self.newest = newest.map(|step| (step, fingerprint(store, step)));
    }

    /// Records that training resumes from `step` even though later checkpoints exist.
    pub(super) fn rewind_to(&mut self, step: u64) {
        self.left_behind = self
            .steps
            .range(step.saturating_add(1)..)
            .copied()
            .collect();
    }

    /// Returns an error if any of the `present` checkpoints was neither loaded nor written by this
    /// writer. A checkpoint whose write was reported as failed counts as written.
    pub(super) fn check_all_known(
        &mut self,
        present: &BTreeSet<u64>,
        store: &dyn Store,
    ) -> Result<()> {
        let newest = self.newest.clone();
        for step in present.iter().rev() {
            let newest = newest.as_ref().filter(|(newest, _)| newest == step);
            let known = newest.and_then(|(_, known)| known.as_ref());
            // Only the newest checkpoint is compared by content, if its manifest was valid.
            if known.is_none() && self.steps.contains(step) {
                continue;
            }
            match (known, read_fingerprint(store, *step)) {
                (Some(known), Ok(Some(found))) if found == *known => {}
                (_, Ok(Some(found))) if self.in_doubt.contains(&(*step, found.clone())) => {
                    self.note(*step, found);
                }
                (Some(_), Ok(None) | Err(_)) => {}
                (None, Err(error)) => return Err(error),
                (_, Ok(_)) => return Err(stranger(*step, store)),
            }
        }
        Ok(())
    }

    /// Writes the manifest for `step`. Its tensor file must already exist.
    pub(super) fn write(&mut self, step: u64, manifest: &[u8], store: &dyn Store) -> Result<()> {
        let fingerprint = manifest::sha256([manifest]);
        self.in_doubt.insert((step, fingerprint.clone()));
        store.write_atomically(&names::manifest(step), &[manifest])?;
        self.in_doubt.remove(&(step, fingerprint.clone()));
        self.note(step, fingerprint);
        Ok(())
    }

    /// Records that this writer's manifest for `step` exists.
    fn note(&mut self, step: u64, fingerprint: String) {
        self.steps.insert(step);
        self.left_behind.remove(&step);
        let newest = self.newest.as_ref();
        if newest.is_none_or(|(newest, _)| *newest <= step) {
            self.newest = Some((step, Some(fingerprint)));
        }
    }

    /// Returns the steps of checkpoints that are later than the step from which training resumed.
    /// The next save removes these checkpoints.
    pub(super) fn left_behind(&self) -> &BTreeSet<u64> {
        &self.left_behind
    }

    /// Records that the checkpoint for `step` was removed.
    pub(super) fn forget(&mut self, step: u64, store: &dyn Store) {
        self.left_behind.remove(&step);
        self.steps.remove(&step);
        let newest = self.steps.last().copied();
        self.newest = newest.map(|step| (step, fingerprint(store, step)));
    }
}

/// Returns the hash of the manifest for `step`, or `None` if the manifest is missing, invalid or
/// unreadable.
fn fingerprint(store: &dyn Store, step: u64) -> Option<String> {
    read_fingerprint(store, step).ok().flatten()
}

/// Returns the hash of the manifest for `step`, or `None` if the manifest is missing or invalid.
fn read_fingerprint(store: &dyn Store, step: u64) -> Result<Option<String>> {
    let bytes = store.read(&names::manifest(step))?;
    let whole = bytes.filter(|bytes| manifest::Manifest::decode(bytes).is_ok());
    Ok(whole.map(|bytes| manifest::sha256([&bytes[..]])))
}

fn stranger(step: u64, store: &dyn Store) -> Error {
    Error::usage(format!(
        "cannot save to {}: it contains a checkpoint of step {step} that this training run neither \
         loaded nor wrote, so another training run is saving there or this run did not resume; \
         stop the other run, resume from the checkpoint, or pass a different location",
        store.location()
    ))
}
