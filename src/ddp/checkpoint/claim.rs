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

    /// Makes sure that the checkpoints of `present` steps are the ones that this writer knows.
    pub(super) fn check(&self, present: &BTreeSet<u64>, store: &dyn Store) -> Result<()> {
        let mut stranger = present.iter().rev().find(|step| !self.steps.contains(step));
        if let (None, Some((newest, Some(known)))) = (stranger, &self.newest)
            && present.contains(newest)
            && fingerprint(store, *newest).is_some_and(|found| found != *known)
        {
            stranger = Some(newest);
        }
        let Some(step) = stranger else {
            return Ok(());
        };
        Err(Error::usage(format!(
            "{} holds a checkpoint of step {step} that this training neither loaded nor wrote, so \
             another one saves there too, or this one did not resume; nothing was saved: end the \
             other one, resume, or name another place",
            store.location()
        )))
    }

    /// The writer has written `step`, with this manifest.
    pub(super) fn wrote(&mut self, step: u64, manifest: &[u8]) {
        self.steps.insert(step);
        self.left_behind.remove(&step);
        if self
            .newest
            .as_ref()
            .is_none_or(|(newest, _)| *newest <= step)
        {
            self.newest = Some((step, Some(manifest::sha256([manifest]))));
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

/// The hash of the manifest of `step`, if it is whole.
fn fingerprint(store: &dyn Store, step: u64) -> Option<String> {
    let bytes = store.read(&names::manifest(step)).ok().flatten()?;
    manifest::Manifest::decode(&bytes).ok()?;
    Some(manifest::sha256([&bytes[..]]))
}
