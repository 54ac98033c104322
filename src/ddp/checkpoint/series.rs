//! Manages the checkpoints of one run: saves new checkpoints, finds the newest valid one, and
//! removes old ones.

use super::claim::Claim;
use super::cleanup::CleanUp;
use super::directory::Directory;
use super::manifest::{FORMAT, Manifest, TensorFile, sha256};
use super::store::Store;
use super::tensor::Tensor;
use super::{Checkpoint, State, names, tensor_file};
use crate::error::{Error, Result};
use crate::limits::CHECKPOINT_LOOKS_MAX;
use crate::lock::lock;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;

/// The checkpoints of one run in one store.
///
/// Files in the store with names of the form `step-N.json` or `step-N.safetensors` are treated as
/// checkpoints, so old ones are removed. Other files are kept. Only one process can write at a
/// time, and a second writer gets an error (see [`Store::lock`] and [`Checkpoints::save`]). Any
/// number of processes can read at the same time.
///
/// [`Run`](super::Run) uses this type to manage a complete training run. You can also use it
/// directly:
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
    /// Warnings about files that the last save could not remove.
    warnings: Mutex<Vec<String>>,
}

/// A checkpoint that was found, together with any warnings from the search.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The valid checkpoint.
    pub checkpoint: Checkpoint,
    /// Warnings to show to the user, for example about damaged files or about per-rank state that
    /// does not match the number of ranks.
    pub warnings: Vec<String>,
}

/// Manages the checkpoints in the directory at this path, and keeps the newest two of them and the
/// one with the lowest loss.
impl<P: AsRef<Path> + ?Sized> From<&P> for Checkpoints {
    fn from(folder: &P) -> Self {
        Self::new(Directory::new(folder.as_ref()), 2).keep_best()
    }
}

impl Checkpoints {
    /// Creates a `Checkpoints` that manages the checkpoints in `store` and keeps the newest `keep`
    /// of them (at least one).
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

    /// Also keeps the checkpoint with the lowest [`State::loss`], however old it is.
    #[must_use]
    pub fn keep_best(mut self) -> Self {
        self.keeps_best = true;
        self
    }

    /// Takes the store's lock. If this method is not called, the first [`Checkpoints::save`] takes
    /// the lock.
    pub(super) fn claim(&self) -> Result<()> {
        lock(&self.claim).acquire(&*self.store)
    }

    /// Records that training resumes from `step`. The next save removes the later checkpoints.
    pub(super) fn rewind_to(&self, step: u64) {
        lock(&self.claim).rewind_to(step);
    }

    /// Returns the location of the checkpoints, for use in messages.
    #[must_use]
    pub fn location(&self) -> String {
        self.store.location()
    }

    /// Returns warnings about files, such as old checkpoints, that the last successful save could
    /// not remove. The next save tries to remove them again. After [`Checkpoints::save_from`], the
    /// warnings are available on every rank.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        lock(&self.warnings).clone()
    }

    pub(super) fn set_warnings(&self, warnings: Vec<String>) {
        *lock(&self.warnings) = warnings;
    }

    /// Saves `checkpoint` and then removes checkpoints that are too old to keep. If a file cannot
    /// be removed, the save still succeeds, and [`Checkpoints::warnings`] returns a warning about
    /// the file.
    ///
    /// # Errors
    /// Returns an [`Error`] of one of these kinds:
    ///
    /// - [`ErrorKind::System`](crate::ErrorKind::System) if the checkpoint cannot be written, or if
    ///   it is uncertain whether it was written. In either case, older checkpoints are intact, and
    ///   you can try to save again.
    /// - [`ErrorKind::Usage`](crate::ErrorKind::Usage) if the checkpoint cannot be encoded, if the
    ///   store contains a checkpoint that was neither loaded nor written through this value, or if
    ///   the store contains later steps from another run
    /// - [`ErrorKind::Configuration`](crate::ErrorKind::Configuration) if another process is saving
    ///   to the store
    pub fn save(&self, checkpoint: &Checkpoint) -> Result<()> {
        let tensors = checkpoint.tensors.iter();
        let tensors = tensors.map(|(name, tensor)| (&**name, tensor));
        self.write(&checkpoint.state, tensors)
    }

    pub(super) fn write<'a>(
        &self,
        state: &State,
        tensors: impl Iterator<Item = (&'a str, &'a Tensor)>,
    ) -> Result<()> {
        self.set_warnings(Vec::new());
        let mut claim = lock(&self.claim);
        claim.acquire(&*self.store)?;
        let present = self.store.list()?;
        self.check_later_steps(state, &present)?;
        claim.check_all_known(&manifest_steps(&present), &*self.store)?;
        // A failed cleanup only causes warnings, because a save must not be reported as failed if
        // the checkpoint exists.
        let mut cleanup = CleanUp::new(&*self.store);
        // Writers that were killed leave incomplete files, and tensor files without a manifest.
        cleanup.clear_leftovers();
        remove_orphans(&present, &mut cleanup);

        let malformed = |what| Error::usage(format!("cannot save the checkpoint: {what}"));
        let (header, order) = tensor_file::header_and_order(tensors).map_err(malformed)?;
        let mut parts = vec![&header[..]];
        parts.extend(order.iter().map(|tensor| tensor.bytes()));
        let manifest = Manifest {
            format: FORMAT,
            state: state.clone(),
            tensors: TensorFile {
                file: names::tensors(state.step, &present),
                bytes: parts.iter().map(|part| part.len() as u64).sum(),
                sha256: sha256(parts.iter().copied()),
            },
        };
        let encoded = manifest.encode().map_err(malformed)?;
        // State that cannot be decoded, such as deeply nested JSON, must cause an error now, not
        // when the checkpoint is loaded.
        if Manifest::decode(&encoded).map_err(malformed)? != manifest {
            return Err(malformed(
                "its state changes when it is encoded and decoded again".into(),
            ));
        }
        let file = &manifest.tensors.file;
        self.store.write_atomically(file, &parts)?;
        claim.write(state.step, &encoded, &*self.store)?;
        self.remove_rewound_steps(&mut claim, &mut cleanup);
        self.remove_old_checkpoints(state.step, file, &mut cleanup);
        self.set_warnings(cleanup.warnings());
        Ok(())
    }

    /// Returns the newest step whose manifest is valid, without reading any tensors. Use this
    /// method to poll for new checkpoints.
    ///
    /// # Errors
    /// Returns the error from the [`Store`] if it cannot list its files.
    pub fn newest_step(&self) -> Result<Option<u64>> {
        let steps = manifest_steps(&self.files()?);
        let mut newest_first = steps.into_iter().rev();
        Ok(newest_first.find(|step| self.manifest(*step).is_ok()))
    }

    /// Loads the newest valid checkpoint, or returns `None` if no checkpoint has been saved. Skips
    /// damaged checkpoints and lists them in [`Found::warnings`].
    ///
    /// # Errors
    /// Returns the error from the [`Store`] if it cannot list its files, and an [`Error`] of kind
    /// [`ErrorKind::System`](crate::ErrorKind::System) in these cases:
    ///
    /// - Checkpoints exist, but none of them is valid. In that case, only the user may decide to
    ///   start from the beginning.
    /// - A writer replaces checkpoints faster than they can be read.
    pub fn latest(&self) -> Result<Option<Found>> {
        let mut files = self.list_and_note()?;
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
            let again = self.list_and_note()?;
            if again == files {
                return no_valid_checkpoint(warnings);
            }
            files = again;
        }
        Err(Error::system(format!(
            "checkpoints in {} are replaced faster than they can be read; keep more checkpoints",
            self.location()
        )))
    }

    /// Returns the states of the checkpoints whose manifests are valid, ordered from oldest to
    /// newest, without reading any tensors.
    ///
    /// # Errors
    /// Returns the error from the [`Store`] if it cannot list its files or read a manifest.
    pub fn list(&self) -> Result<Vec<State>> {
        let mut states = Vec::new();
        for step in manifest_steps(&self.files()?) {
            let name = names::manifest(step);
            let bytes = self.store.read(&name)?;
            let manifest = bytes.and_then(|bytes| self.decode_manifest(step, &bytes).ok());
            states.extend(manifest.map(|manifest| manifest.state));
        }
        Ok(states)
    }

    /// Returns the state of the checkpoint with the lowest [`State::loss`], or `None` if no
    /// checkpoint has a loss.
    ///
    /// # Errors
    /// Returns the same errors as [`Checkpoints::list`].
    pub fn best(&self) -> Result<Option<State>> {
        // If losses are equal, `min_by` returns the first one, which belongs to the latest
        // checkpoint.
        let newest_first = self.list()?.into_iter().rev();
        let with_loss = newest_first.filter_map(|state| Some((state.loss?, state)));
        let best = with_loss.min_by(|(one, _), (other, _)| one.total_cmp(other));
        Ok(best.map(|(_, state)| state))
    }

    /// Loads the checkpoint for `step`.
    ///
    /// # Errors
    /// Returns the error from the [`Store`] if it cannot list its files, and an [`Error`] of kind
    /// [`ErrorKind::System`](crate::ErrorKind::System) if there is no such checkpoint or if it is
    /// damaged.
    pub fn load(&self, step: u64) -> Result<Checkpoint> {
        let steps = self.noted_steps()?;
        if !steps.contains(&step) {
            return Err(self.no_such_step(step));
        }
        self.read(step).map_err(Error::system)
    }

    pub(super) fn no_such_step(&self, step: u64) -> Error {
        let states = self.list().unwrap_or_default();
        let steps: Vec<_> = states.iter().map(|state| state.step.to_string()).collect();
        let there = match &steps[..] {
            [] => "no steps are available".to_owned(),
            steps => format!("available steps: {}", steps.join(", ")),
        };
        Error::system(format!(
            "there is no checkpoint of step {step} in {}; {there}",
            self.location()
        ))
    }

    /// Lists the steps of all manifests. A later save does not take these checkpoints for those of
    /// another run.
    pub(super) fn noted_steps(&self) -> Result<BTreeSet<u64>> {
        Ok(manifest_steps(&self.list_and_note()?))
    }

    /// Lists the files. A later save does not take these checkpoints for those of another run.
    fn list_and_note(&self) -> Result<Vec<String>> {
        let files = self.files()?;
        lock(&self.claim).note_listed(&manifest_steps(&files), &*self.store);
        Ok(files)
    }

    fn files(&self) -> Result<Vec<String>> {
        let mut files = self.store.list()?;
        files.sort();
        Ok(files)
    }

    /// Reads the manifest for `step`. If the file is missing, unreadable or damaged, returns a
    /// message that names the file.
    pub(super) fn manifest(&self, step: u64) -> Result<Manifest, String> {
        self.decode_manifest(step, &self.bytes(&names::manifest(step))?)
    }

    fn decode_manifest(&self, step: u64, bytes: &[u8]) -> Result<Manifest, String> {
        let name = names::manifest(step);
        let manifest = Manifest::decode(bytes).map_err(|what| self.unusable(&name, &what))?;
        let file = &manifest.tensors.file;
        if manifest.state.step != step || names::step_of_tensors(file) != Some(step) {
            let what = format!("it names step {} and file {file}", manifest.state.step);
            return Err(self.unusable(&name, &what));
        }
        Ok(manifest)
    }

    /// Reads the checkpoint for `step`. If one of its files is missing, unreadable or damaged,
    /// returns a message that names the file.
    pub(super) fn read(&self, step: u64) -> Result<Checkpoint, String> {
        let Manifest { state, tensors, .. } = self.manifest(step)?;
        let bytes = self.bytes(&tensors.file)?;
        let damaged = |what: String| self.unusable(&tensors.file, &what);
        if bytes.len() as u64 != tensors.bytes {
            return Err(damaged(format!(
                "it has {} bytes instead of {}",
                bytes.len(),
                tensors.bytes
            )));
        }
        if sha256([&bytes[..]]) != tensors.sha256 {
            return Err(damaged("it is damaged: its checksum does not match".into()));
        }
        let tensors = tensor_file::decode(&bytes).map_err(damaged)?;
        Ok(Checkpoint { state, tensors })
    }

    fn bytes(&self, name: &str) -> Result<Vec<u8>, String> {
        match self.store.read(name) {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err(self.unusable(name, "it is missing")),
            Err(error) => Err(self.unusable(name, &error.to_string())),
        }
    }

    fn unusable(&self, name: &str, what: &str) -> String {
        format!(
            "checkpoint file {name} in {} cannot be used: {what}",
            self.location()
        )
    }

    /// Returns an error if the store contains later checkpoints from another run, because they
    /// would be loaded when this run is restarted.
    fn check_later_steps(&self, state: &State, present: &[String]) -> Result<()> {
        for step in manifest_steps(present).range(state.step.saturating_add(1)..) {
            let Ok(other) = self.manifest(*step) else {
                continue;
            };
            if other.state.run_id != state.run_id {
                return Err(Error::usage(format!(
                    "cannot save to {}: it contains step {step} of run '{}', which is later than \
                     step {} of run '{}'; pass a different location or move the old checkpoints \
                     away",
                    self.location(),
                    other.state.run_id,
                    state.step,
                    state.run_id
                )));
            }
        }
        Ok(())
    }

    /// Removes the checkpoints for steps after the one from which training resumed. Otherwise, a
    /// restart would load the newest of them instead of the checkpoint that was just saved.
    fn remove_rewound_steps(&self, claim: &mut Claim, cleanup: &mut CleanUp<'_>) {
        for step in claim.left_behind().clone() {
            // The next save removes the tensor file, which then has no manifest.
            if cleanup.remove(&names::manifest(step)) {
                claim.forget(step, &*self.store);
            }
        }
    }

    /// Removes checkpoints that are older than the newest `keep` checkpoints up to `saved`, except
    /// the best one if it is to be kept. Also removes the tensor files for step `saved` that `file`
    /// replaces.
    fn remove_old_checkpoints(&self, saved: u64, file: &str, cleanup: &mut CleanUp<'_>) {
        let present = match self.store.list() {
            Ok(present) => present,
            Err(error) => return cleanup.failed(&error.to_string()),
        };
        let steps = manifest_steps(&present);
        let newest_first = steps.range(..=saved).rev().copied();
        let valid = newest_first.filter(|step| *step == saved || self.manifest(*step).is_ok());
        let oldest_kept = valid.take(self.keep).last().unwrap_or(saved);
        let best = match self.keeps_best.then(|| self.best()).transpose() {
            Ok(best) => best.flatten().map(|state| state.step),
            // The best checkpoint might be among the old ones.
            Err(error) => return cleanup.failed(&error.to_string()),
        };
        // Remove manifests first, because a reader must not find a manifest without its tensors.
        let old = steps.range(..oldest_kept).copied();
        let stays: BTreeSet<_> = old
            .filter(|step| Some(*step) == best || !cleanup.remove(&names::manifest(*step)))
            .collect();
        for name in &present {
            let is_stale = match names::step_of_tensors(name) {
                Some(step) if step == saved => name != file,
                Some(step) => step < oldest_kept && !stays.contains(&step),
                None => false,
            };
            if is_stale {
                cleanup.remove(name);
            }
        }
    }
}

/// Removes tensor files left by writers that were killed before they wrote a manifest.
fn remove_orphans(present: &[String], cleanup: &mut CleanUp<'_>) {
    let steps = manifest_steps(present);
    for name in present {
        let step = names::step_of_tensors(name);
        if step.is_some_and(|step| !steps.contains(&step)) {
            cleanup.remove(name);
        }
    }
}

/// Returns `None` if no checkpoint has been saved, or an error that contains `warnings` if no
/// checkpoint is valid.
pub(super) fn no_valid_checkpoint<T>(warnings: Vec<String>) -> Result<Option<T>> {
    if warnings.is_empty() {
        return Ok(None);
    }
    Err(Error::system(format!(
        "no valid checkpoint was found: {}; to start from scratch, move the files away",
        warnings.join("; ")
    )))
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
