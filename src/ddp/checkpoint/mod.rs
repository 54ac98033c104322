//! Checkpoints: what a training holds, kept so that any rank can go on from it.
//!
//! A training uses [`Run`]: it opens the checkpoints of a place, resumes in one call, and saves
//! beside the training. A program that reads checkpoints, for validation or to serve the model,
//! uses [`Checkpoints`]: [`latest`](Checkpoints::latest), [`best`](Checkpoints::best),
//! [`list`](Checkpoints::list), [`load`](Checkpoints::load); and [`Checkpoint::load_parts`] brings
//! a model's weights back by name, shape and type. A program that is not built on
//! [`DataParallel`](crate::ddp::DataParallel) saves its own [`Checkpoint`]s by
//! [`Checkpoints::save_from`].
//!
//! *Where.* A [`Store`] is where files go; [`Directory`] is a local or shared folder.
//!
//! *Files.* A checkpoint of step 120 is `step-00000120.safetensors`, which any reader of that
//! format opens, and `step-00000120.json`, the manifest: the state, and length and SHA-256 of the
//! tensor file, under a checksum of its own. The tensors are written first.
//!
//! *Invariants.* A checkpoint exists exactly when its manifest is whole. No byte of one is trusted
//! before the checksums agree. The one that exists is never touched before the next one does. What
//! is damaged is named and passed over, and never loaded. Two trainings do not save in one place.
//!
//! ```
//! use ringtree::ddp::checkpoint::{Checkpoint, Checkpoints, Directory, State};
//!
//! # fn main() -> ringtree::Result<()> {
//! # let scratch = tempfile::tempdir().expect("a scratch folder");
//! # let folder = scratch.path().join("run");
//! let checkpoints = Checkpoints::new(Directory::new(&folder), 3); // keeps the last three
//! assert!(checkpoints.latest()?.is_none());
//!
//! let mut checkpoint = Checkpoint::new(State {
//!     run_id: "first-try".to_owned(),
//!     world_size: 1,
//!     step: 120,
//!     user: serde_json::json!({ "learning_rate": 3e-4 }),
//!     ..State::default()
//! });
//! checkpoint.insert("model/weights", &[2, 2], &[0.5f32, 1.5, -2.0, 0.25])?;
//! checkpoints.save(&checkpoint)?;
//!
//! let found = checkpoints.latest()?.expect("what was just saved");
//! assert_eq!(found.checkpoint, checkpoint);
//! assert!(found.warnings.is_empty());
//! # Ok(()) }
//! ```

mod claim;
mod cleanup;
mod directory;
mod exchange;
pub(crate) mod manifest;
pub(crate) mod names;
mod parts;
mod ranks;
mod run;
mod series;
mod store;
mod tensor;
pub(crate) mod tensor_file;

pub use directory::Directory;
pub use parts::Parts;
pub use run::Run;
pub use series::{Checkpoints, Found};
pub use store::Store;
pub use tensor::Tensor;

use crate::dtype::Element;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;

/// A rank's tensors of this name are its communication hook's.
const HOOK: &str = "hook";

/// Everything a training needs to go on: tensors by name, and the numbers beside them.
///
/// Names say whose a tensor is: `model/…` and `optimizer/…` are the same on every rank;
/// `rank-3/…` is rank 3's alone, such as the error that a lossy compression feeds back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Checkpoint {
    /// The numbers.
    pub state: State,
    /// The tensors, by name.
    pub tensors: BTreeMap<String, Tensor>,
}

/// The numbers of a checkpoint. All but `user` have a meaning to this library.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct State {
    /// What the run is called; a restarted one keeps it, so that its metrics continue.
    pub run_id: String,
    /// How many ranks there were.
    pub world_size: usize,
    /// Optimizer steps done.
    pub step: u64,
    /// The epoch, from 0.
    pub epoch: u64,
    /// Samples of the data set, if a sampler dealt them out. Where the sampler stands means nothing
    /// in another data set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Samples of the current epoch that are used up, over all ranks, as
    /// [`DistributedSampler::position`](crate::ddp::DistributedSampler::position) counts them.
    pub sampler_position: u64,
    /// What every rank's random numbers are derived from, together with step and rank, by
    /// [`stream_seed`](crate::ddp::stream_seed).
    pub seed: u64,
    /// The parameters in the order in which they lie in the gradient buckets, and the step since
    /// which that holds, as [`DataParallel::order`](crate::ddp::DataParallel::order) tells them.
    pub order: Option<(Vec<usize>, u64)>,
    /// The tuning table, as the text of a [`TuningRecord`](crate::TuningRecord): the same table
    /// chooses the same algorithms, so the same bits.
    pub tuning: Option<String>,
    /// How good the model is, as the loss on validation data: [`Checkpoints::best`] finds the
    /// lowest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// What else the program wants back, as JSON; [`Parts::value`] keeps values here, by name.
    /// Numbers come back exactly; NaN and infinities have no JSON, so they belong in a tensor.
    pub user: serde_json::Value,
}

impl State {
    /// The value that was saved as `name` by [`Parts::value`].
    ///
    /// # Errors
    /// [`Error::usage`] if there is none, or it is not of that type.
    pub fn value<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let step = self.step;
        let lacks = || {
            Error::usage(format!(
                "the checkpoint of step {step} has no value '{name}'"
            ))
        };
        let json = self.user.get(name).ok_or_else(lacks)?;
        T::deserialize(json).map_err(|error| {
            Error::usage(format!(
                "the value '{name}' of the checkpoint of step {step}: {error}"
            ))
        })
    }
}

impl Checkpoint {
    /// A checkpoint without tensors.
    #[must_use]
    pub fn new(state: State) -> Self {
        Self {
            state,
            tensors: BTreeMap::new(),
        }
    }

    /// Adds the tensor `name`, or replaces it, with a copy of `values` (the last dimension varies
    /// fastest).
    ///
    /// # Errors
    /// [`Error::usage`] if `shape` does not hold as many elements as there are values.
    pub fn insert<T: Element>(
        &mut self,
        name: impl Into<String>,
        shape: &[usize],
        values: &[T],
    ) -> Result<()> {
        let name = name.into();
        let tensor = Tensor::new(shape, values)
            .map_err(|what| Error::usage(format!("tensor '{name}': {what}")))?;
        self.tensors.insert(name, tensor);
        Ok(())
    }

    /// The elements of the tensor `name`.
    ///
    /// # Errors
    /// [`Error::usage`] if there is none, or it has another element type.
    pub fn values<T: Element>(&self, name: &str) -> Result<Vec<T>> {
        let Some(tensor) = self.tensors.get(name) else {
            return Err(Error::usage(format!(
                "the checkpoint of step {} has no tensor '{name}'",
                self.state.step
            )));
        };
        let values = tensor.values();
        values.map_err(|what| Error::usage(format!("tensor '{name}': {what}")))
    }

    /// What [`DataParallel::restore_hook`](crate::ddp::DataParallel::restore_hook) takes on `rank`,
    /// by name; nothing if the checkpoint was written by fewer ranks.
    fn hook_state(&self, rank: usize) -> Result<Vec<(String, Vec<f32>)>> {
        let prefix = format!("rank-{rank}/{HOOK}");
        let state = self.under(&prefix).map(|(name, _)| {
            let values = self.values(&format!("{prefix}/{name}"))?;
            Ok((name.to_owned(), values))
        });
        state.collect()
    }

    /// The tensors whose names start with `prefix` and a slash, without both: `under("model")`
    /// gives the weights, `under("rank-3")` what is rank 3's alone.
    ///
    /// ```
    /// use ringtree::ddp::checkpoint::{Checkpoint, State};
    /// # fn main() -> ringtree::Result<()> {
    /// let mut checkpoint = Checkpoint::new(State::default());
    /// checkpoint.insert("model/bias", &[1], &[0.5f32])?;
    /// checkpoint.insert("models", &[1], &[0u8])?;
    /// let names: Vec<_> = checkpoint.under("model").map(|(name, _)| name).collect();
    /// assert_eq!(names, ["bias"]);
    /// # Ok(()) }
    /// ```
    pub fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a Tensor)> {
        self.tensors.iter().filter_map(move |(name, tensor)| {
            let rest = name.strip_prefix(prefix)?.strip_prefix('/')?;
            Some((rest, tensor))
        })
    }
}
