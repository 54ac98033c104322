//! What the writer holds of its place, so that two trainings in one place do not overwrite each
//! other: the store's lock, and which checkpoints it knows.
//!
//! The lock keeps other processes out of a folder. Object stores have none, and some file systems
//! neither: there a checkpoint that appears without the writer's knowledge gives the other training
//! away when the writer saves.

use super::store::Store;
use super::{manifest, names};
use crate::error::{Error, Result};
use std::collections::BTreeSet;

/// What a writer holds and knows of its place.
#[derive(Default)]
pub(super) struct Claim {
    /// Keeps others out until it is dropped.
    lock: Option<Box<dyn Send + Sync>>,
    /// The steps that this writer has seen when it loaded, or written.
    steps: BTreeSet<u64>,
    /// The newest of them, and the hash of its manifest if that was whole.
    newest: Option<(u64, Option<String>)>,
    /// Steps later than the one that the training chose to go on from.
    left_behind: BTreeSet<u64>,
    /// Step and hash of the manifests whose writing did not succeed. They may be there all the
    /// same, or come later: an answer may be lost, or a folder not brought to the disk.
    in_doubt: BTreeSet<(u64, String)>,
}

impl Claim {
    /// Takes the store's lock, unless it is held already.
    pub(super) fn lock(&mut self, store: &dyn Store) -> Result<()> {
        if self.lock.is_none() {
            self.lock = Some(store.lock()?);
        }
        Ok(())
    }

    /// The writer has looked and seen checkpoints of `steps`.
    pub(super) fn seen(&mut self, steps: &BTreeSet<u64>, store: &dyn Store) {
        self.steps.clone_from(steps);
        let newest = steps.last().copied();
        self.newest = newest.map(|step| (step, fingerprint(store, step)));
    }

    /// The training goes on from `step`, although there are later ones.
    pub(super) fn go_behind(&mut self, step: u64) {
        self.left_behind = self
            .steps
            .range(step.saturating_add(1)..)
            .copied()
            .collect();
    }

    /// Makes sure that the checkpoints of `present` steps are the ones that this writer knows, or
    /// has tried to write.
    pub(super) fn check(&mut self, present: &BTreeSet<u64>, store: &dyn Store) -> Result<()> {
        let newest = self.newest.clone();
        for step in present.iter().rev() {
            let newest = newest.as_ref().filter(|(newest, _)| newest == step);
            let known = newest.and_then(|(_, known)| known.as_ref());
            // Of an older one it is enough that it was known.
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

    /// Writes the manifest of `step`, whose tensors are there.
    pub(super) fn write(&mut self, step: u64, manifest: &[u8], store: &dyn Store) -> Result<()> {
        let fingerprint = manifest::sha256([manifest]);
        self.in_doubt.insert((step, fingerprint.clone()));
        store.write_atomically(&names::manifest(step), &[manifest])?;
        self.in_doubt.remove(&(step, fingerprint.clone()));
        self.note(step, fingerprint);
        Ok(())
    }

    /// A manifest of `step` that this writer wrote is there.
    fn note(&mut self, step: u64, fingerprint: String) {
        self.steps.insert(step);
        self.left_behind.remove(&step);
        let newest = self.newest.as_ref();
        if newest.is_none_or(|(newest, _)| *newest <= step) {
            self.newest = Some((step, Some(fingerprint)));
        }
    }

    /// The steps that the training went behind, which the one it has saved now replaces.
    pub(super) fn left_behind(&self) -> &BTreeSet<u64> {
        &self.left_behind
    }

    /// They are removed.
    pub(super) fn forget(&mut self, step: u64, store: &dyn Store) {
        self.left_behind.remove(&step);
        self.steps.remove(&step);
        let newest = self.steps.last().copied();
        self.newest = newest.map(|step| (step, fingerprint(store, step)));
    }
}

/// The hash of the manifest of `step`, if it can be read and is whole.
fn fingerprint(store: &dyn Store, step: u64) -> Option<String> {
    read_fingerprint(store, step).ok().flatten()
}

/// The hash of the manifest of `step`, if it is whole.
fn read_fingerprint(store: &dyn Store, step: u64) -> Result<Option<String>> {
    let bytes = store.read(&names::manifest(step))?;
    let whole = bytes.filter(|bytes| manifest::Manifest::decode(bytes).is_ok());
    Ok(whole.map(|bytes| manifest::sha256([&bytes[..]])))
}

fn stranger(step: u64, store: &dyn Store) -> Error {
    Error::usage(format!(
        "{} holds a checkpoint of step {step} that this training neither loaded nor wrote, so \
         another one saves there too, or this one did not resume; nothing was saved: end the \
         other one, resume, or name another place",
        store.location()
    ))
}
