//! The checkpoints of one run: saving the next, finding the newest whole one, dropping old ones.

use super::claim::Claim;
use super::cleanup::CleanUp;
use super::manifest::{Manifest, TensorFile, sha256};
use super::store::Store;
use super::tensor::Tensor;
use super::{Checkpoint, State, names, tensor_file};
use crate::error::{Error, Result};
use crate::limits::CHECKPOINT_LOOKS_MAX;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The checkpoints of one run in one place.
///
/// Files there that are called `step-N.json` or `step-N.safetensors` are taken for checkpoints, so
/// they are removed when they are old; others are left alone. One process writes at a time, and a
/// second one is refused ([`Store::lock`], [`Checkpoints::save`]); any number may read beside it.
///
/// [`Run`](super::Run) uses it for a whole training. By itself it serves who reads checkpoints:
///
/// ```
/// use ringtree::ddp::checkpoint::{Checkpoint, Checkpoints, Directory, State};
/// # fn main() -> ringtree::Result<()> {
/// # let scratch = tempfile::tempdir().expect("a scratch folder");
/// # let folder = scratch.path();
/// let checkpoints = Checkpoints::new(Directory::new(folder), 2).keep_best();
/// for (step, loss) in [(100, 0.5), (200, 0.3), (300, 0.4), (400, 0.6)] {
///     let state = State { step, loss: Some(loss), ..State::default() };
///     checkpoints.save(&Checkpoint::new(state))?;
/// }
/// let steps: Vec<_> = checkpoints.list()?.iter().map(|state| state.step).collect();
/// assert_eq!(steps, [200, 300, 400]); // the last two, and the best
/// let best = checkpoints.best()?.expect("there are some");
/// assert_eq!(checkpoints.load(best.step)?.state.loss, Some(0.3));
/// # Ok(()) }
/// ```
pub struct Checkpoints {
    store: Box<dyn Store>,
    keep: usize,
    keeps_best: bool,
    claim: Mutex<Claim>,
    /// What the last save could not clear away.
    warnings: Mutex<Vec<String>>,
}

/// A checkpoint that was found, and what was seen on the way to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The newest whole checkpoint.
    pub checkpoint: Checkpoint,
    /// What the user should hear of: files that are damaged, state that fits no rank any more.
    pub warnings: Vec<String>,
}

impl Checkpoints {
    /// The checkpoints in `store`, of which the newest `keep` stay (at least one).
    #[must_use]
    pub fn new(store: impl Store + 'static, keep: usize) -> Self {
        Self {
            store: Box::new(store),
            keep: keep.max(1),
            keeps_best: false,
            claim: Mutex::default(),
            warnings: Mutex::default(),
        }
    }

    /// The checkpoint with the lowest [`State::loss`] stays too, however old it is.
    #[must_use]
    pub fn keep_best(mut self) -> Self {
        self.keeps_best = true;
        self
    }

    /// Keeps other writers out from now on; [`Checkpoints::save`] does it otherwise.
    pub(super) fn claim(&self) -> Result<()> {
        self.lock_claim().lock(&*self.store)
    }

    /// The training goes on from `step`; the next save removes the later ones that there are.
    pub(super) fn go_behind(&self, step: u64) {
        self.lock_claim().go_behind(step);
    }

    fn lock_claim(&self) -> MutexGuard<'_, Claim> {
        self.claim.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where they are, for messages.
    #[must_use]
    pub fn location(&self) -> String {
        self.store.location()
    }

    /// What the last save, though it succeeded, could not clear away, such as checkpoints that are
    /// too old; the next save tries again. After [`Checkpoints::save_from`] every rank has them.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        self.lock_warnings().clone()
    }

    pub(super) fn set_warnings(&self, warnings: Vec<String>) {
        *self.lock_warnings() = warnings;
    }

    fn lock_warnings(&self) -> MutexGuard<'_, Vec<String>> {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Saves `checkpoint`; only when it is there whole, removes those that are too old to keep.
    /// What cannot be removed is no error, but in [`Checkpoints::warnings`].
    ///
    /// # Errors
    /// [`Error::system`] if it cannot be written, or it is not certain that it was: the older ones
    /// are untouched, and the next save goes on either way.
    /// [`Error::usage`] if there are checkpoints that this value has neither loaded nor written, or
    /// later steps of another run. [`Error::configuration`] if another process saves there.
    pub fn save(&self, checkpoint: &Checkpoint) -> Result<()> {
        let tensors = checkpoint.tensors.iter();
        self.write(
            &checkpoint.state,
            tensors.map(|(name, tensor)| (&**name, tensor)),
        )
    }

    pub(super) fn write<'a>(
        &self,
        state: &State,
        tensors: impl Iterator<Item = (&'a str, &'a Tensor)>,
    ) -> Result<()> {
        // A checkpoint that is there must not be reported as failed: clearing away never fails.
        self.set_warnings(Vec::new());
        let mut claim = self.lock_claim();
        claim.lock(&*self.store)?;
        let present = self.store.list()?;
        self.check_run(state, &present)?;
        claim.check(&manifest_steps(&present), &*self.store)?;
        let mut cleanup = CleanUp::new(&*self.store);
        cleanup.clear_leftovers();
        remove_orphans(&present, &mut cleanup);

        let malformed = |what| Error::usage(format!("the checkpoint cannot be written: {what}"));
        let (header, order) = tensor_file::header_and_order(tensors).map_err(malformed)?;
        let mut parts = vec![&header[..]];
        parts.extend(order.iter().map(|tensor| tensor.bytes()));
        let manifest = Manifest {
            state: state.clone(),
            tensors: TensorFile {
                file: names::tensors(state.step, &present),
                bytes: parts.iter().map(|part| part.len() as u64).sum(),
                sha256: sha256(parts.iter().copied()),
            },
        };
        let encoded = manifest.encode().map_err(malformed)?;
        // What could not be read again (JSON nested too deeply) should fail now, not then.
        if Manifest::decode(&encoded).map_err(malformed)? != manifest {
            return Err(malformed("its state does not come back as it was".into()));
        }
        let file = &manifest.tensors.file;
        self.store.write_atomically(file, &parts)?;
        claim.write(state.step, &encoded, &*self.store)?;
        self.remove_left_behind(&mut claim, &mut cleanup);
        self.remove_old(state.step, file, &mut cleanup);
        self.set_warnings(cleanup.warnings());
        Ok(())
    }

    /// The newest step whose manifest is whole: what a follower asks again and again.
    ///
    /// # Errors
    /// [`Error::system`] if the place cannot be looked at.
    pub fn newest_step(&self) -> Result<Option<u64>> {
        let steps = self.steps()?;
        let mut newest_first = steps.into_iter().rev();
        Ok(newest_first.find(|step| self.manifest(*step).is_ok()))
    }

    /// The newest whole checkpoint, or none if nothing was ever saved. One that is damaged in any
    /// way is named in [`Found::warnings`] and the one before it is taken.
    ///
    /// # Errors
    /// [`Error::system`] if the place cannot be looked at, or if there are checkpoints and not one
    /// of them is whole: to start again from the beginning is the user's decision.
    pub fn latest(&self) -> Result<Option<Found>> {
        let mut files = self.look()?;
        for _ in 0..CHECKPOINT_LOOKS_MAX {
            let mut warnings = Vec::new();
            for step in manifest_steps(&files).into_iter().rev() {
                match self.read(step) {
                    Ok(checkpoint) => {
                        return Ok(Some(Found {
                            checkpoint,
                            warnings,
                        }));
                    }
                    Err(warning) => warnings.push(warning),
                }
            }
            let again = self.look()?;
            if again == files {
                return none_whole(warnings);
            }
            files = again;
        }
        Err(Error::system(format!(
            "the checkpoints in {} are replaced faster than they can be read; keep more of them",
            self.location()
        )))
    }

    /// The states of the checkpoints whose manifests are whole, oldest first. Tensors are not
    /// looked at.
    ///
    /// # Errors
    /// [`Error::system`] if the place cannot be looked at.
    pub fn list(&self) -> Result<Vec<State>> {
        let steps = manifest_steps(&self.files()?).into_iter();
        let whole = steps.filter_map(|step| self.manifest(step).ok());
        Ok(whole.map(|manifest| manifest.state).collect())
    }

    /// Of the checkpoints that were saved with a [`State::loss`], the state of the one with the
    /// lowest.
    ///
    /// # Errors
    /// As [`Checkpoints::list`].
    pub fn best(&self) -> Result<Option<State>> {
        let states = self.list()?;
        let best = best(&states);
        Ok(best.and_then(|step| states.into_iter().find(|state| state.step == step)))
    }

    /// The checkpoint of `step`.
    ///
    /// # Errors
    /// [`Error::system`] if there is none, or it is damaged.
    pub fn load(&self, step: u64) -> Result<Checkpoint> {
        let steps = self.steps()?;
        if !steps.contains(&step) {
            return Err(self.no_such_step(step));
        }
        self.read(step).map_err(Error::system)
    }

    pub(super) fn no_such_step(&self, step: u64) -> Error {
        let states = self.list().unwrap_or_default();
        let steps: Vec<_> = states.iter().map(|state| state.step.to_string()).collect();
        let there = match &steps[..] {
            [] => "there are none".to_owned(),
            steps => format!("there are those of {}", steps.join(", ")),
        };
        Error::system(format!(
            "there is no checkpoint of step {step} in {}; {there}",
            self.location()
        ))
    }

    /// The steps that there are manifests of, which this value knows from now on.
    pub(super) fn steps(&self) -> Result<BTreeSet<u64>> {
        Ok(manifest_steps(&self.look()?))
    }

    /// The files, whose steps this value knows from now on.
    fn look(&self) -> Result<Vec<String>> {
        let files = self.files()?;
        self.lock_claim()
            .seen(&manifest_steps(&files), &*self.store);
        Ok(files)
    }

    fn files(&self) -> Result<Vec<String>> {
        let mut files = self.store.list()?;
        files.sort();
        Ok(files)
    }

    /// The manifest of `step`, or which file is damaged, and how.
    pub(super) fn manifest(&self, step: u64) -> std::result::Result<Manifest, String> {
        let name = names::manifest(step);
        let bytes = self.bytes(&name)?;
        let manifest = Manifest::decode(&bytes).map_err(|what| self.passed_over(&name, &what))?;
        let file = &manifest.tensors.file;
        if manifest.state.step != step || names::step_of_tensors(file) != Some(step) {
            let what = format!("it is of step {} and {file}", manifest.state.step);
            return Err(self.passed_over(&name, &what));
        }
        Ok(manifest)
    }

    /// The checkpoint of `step`, or which file is damaged, and how.
    pub(super) fn read(&self, step: u64) -> std::result::Result<Checkpoint, String> {
        let Manifest { state, tensors } = self.manifest(step)?;
        let bytes = self.bytes(&tensors.file)?;
        let damaged = |what: String| self.passed_over(&tensors.file, &what);
        if bytes.len() as u64 != tensors.bytes {
            return Err(damaged(format!(
                "it has {} bytes instead of {}",
                bytes.len(),
                tensors.bytes
            )));
        }
        if sha256([&bytes[..]]) != tensors.sha256 {
            return Err(damaged("it is damaged: its checksum does not fit".into()));
        }
        let tensors = tensor_file::decode(&bytes).map_err(damaged)?;
        Ok(Checkpoint { state, tensors })
    }

    fn bytes(&self, name: &str) -> std::result::Result<Vec<u8>, String> {
        match self.store.read(name) {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err(self.passed_over(name, "it is missing")),
            Err(error) => Err(self.passed_over(name, &error.to_string())),
        }
    }

    fn passed_over(&self, name: &str, what: &str) -> String {
        format!(
            "checkpoint file {name} in {} is passed over: {what}",
            self.location()
        )
    }

    /// Another run's later checkpoints would be taken for this one's after a restart.
    fn check_run(&self, state: &State, present: &[String]) -> Result<()> {
        for step in manifest_steps(present).range(state.step.saturating_add(1)..) {
            let Ok(other) = self.manifest(*step) else {
                continue;
            };
            if other.state.run_id != state.run_id {
                return Err(Error::usage(format!(
                    "{} holds step {step} of run '{}', later than step {} of run '{}'; save \
                     elsewhere, or move the old checkpoints away",
                    self.location(),
                    other.state.run_id,
                    state.step,
                    state.run_id
                )));
            }
        }
        Ok(())
    }

    /// Removes the checkpoints that the training went behind: a restart would take the newest of
    /// them instead of what was just saved.
    fn remove_left_behind(&self, claim: &mut Claim, cleanup: &mut CleanUp<'_>) {
        for step in claim.left_behind().clone() {
            // Its tensors are an orphan then, which the next save removes.
            if cleanup.remove(&names::manifest(step)) {
                claim.forget(step, &*self.store);
            }
        }
    }

    /// Removes what is older than the newest `keep` up to `saved`, but for the best if that is
    /// kept, and what `saved`, whose tensors are in `file`, replaced.
    fn remove_old(&self, saved: u64, file: &str, cleanup: &mut CleanUp<'_>) {
        let present = match self.store.list() {
            Ok(present) => present,
            Err(error) => return cleanup.failed(&error.to_string()),
        };
        let steps = manifest_steps(&present);
        let newest_first = steps.range(..=saved).rev().copied();
        let whole = newest_first.filter(|step| *step == saved || self.manifest(*step).is_ok());
        let oldest = whole.take(self.keep).last().unwrap_or(saved);
        let best = self
            .keeps_best
            .then(|| best(&self.list().unwrap_or_default()));
        let best = best.flatten();
        // Manifests first: a reader should not find one whose tensors are gone.
        let old = steps.range(..oldest).copied();
        let stays: BTreeSet<_> = old
            .filter(|step| Some(*step) == best || !cleanup.remove(&names::manifest(*step)))
            .collect();
        for name in &present {
            let is_stale = match names::step_of_tensors(name) {
                Some(step) if step == saved => name != file,
                Some(step) => step < oldest && !stays.contains(&step),
                None => false,
            };
            if is_stale {
                cleanup.remove(name);
            }
        }
    }
}

/// Removes the tensors of writers that were killed before they could write a manifest.
fn remove_orphans(present: &[String], cleanup: &mut CleanUp<'_>) {
    let steps = manifest_steps(present);
    for name in present {
        let step = names::step_of_tensors(name);
        if step.is_some_and(|step| !steps.contains(&step)) {
            cleanup.remove(name);
        }
    }
}

/// What it means that no checkpoint was whole.
pub(super) fn none_whole<T>(warnings: Vec<String>) -> Result<Option<T>> {
    if warnings.is_empty() {
        return Ok(None);
    }
    Err(Error::system(format!(
        "there are checkpoints, but none is whole; to start from the beginning, move them away: {}",
        warnings.join("; ")
    )))
}

/// The step with the lowest loss; of equal ones the latest.
fn best(states: &[State]) -> Option<u64> {
    let with_loss = states
        .iter()
        .filter_map(|state| Some((state.loss?, state.step)));
    let best = with_loss.min_by(|one, other| {
        let by_loss = one.0.total_cmp(&other.0);
        by_loss.then(other.1.cmp(&one.1))
    });
    best.map(|(_, step)| step)
}

fn manifest_steps(names: &[String]) -> BTreeSet<u64> {
    let steps = names.iter().map(|name| names::step_of_manifest(name));
    steps.flatten().collect()
}

impl std::fmt::Debug for Checkpoints {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Checkpoints(in {})", self.location())
    }
}
