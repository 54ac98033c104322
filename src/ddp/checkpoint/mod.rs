//! Saves the training state in checkpoints and resumes from them.
//!
//! - A training program uses [`Run`], which opens the checkpoints in a store, resumes training with
//!   a single call, and saves in the background.
//! - A program that only reads checkpoints, for example to validate or serve the model, uses the
//!   [`latest`](Checkpoints::latest), [`best`](Checkpoints::best), [`list`](Checkpoints::list) and
//!   [`load`](Checkpoints::load) methods of [`Checkpoints`]. [`Checkpoint::load_parts`] restores a
//!   model's weights by name, shape and type.
//! - A program that does not use [`DataParallel`](crate::ddp::DataParallel) saves its own
//!   [`Checkpoint`]s with [`Checkpoints::save_from`].
//!
//! *Stores.* A [`Store`] holds the files that make up checkpoints. [`Directory`] is a store in a
//! local or shared directory.
//!
//! *Files.* The checkpoint for step 120, for example, consists of two files.
//! `step-00000120.safetensors` contains the tensors and can be opened by any program that reads the
//! safetensors format. `step-00000120.json` is the manifest. It contains the state, the length and
//! the SHA-256 hash of the tensor file, and a checksum of the manifest itself. The tensor file is
//! written first.
//!
//! *Invariants.* A checkpoint exists if and only if its manifest is valid. No byte of a checkpoint
//! is used before the checkpoint's checksums have been verified. An existing checkpoint is not
//! changed until the next one exists. A damaged file is reported and skipped, never loaded. Two
//! training runs never save to the same store.
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

/// The component that follows `rank-N/` in the names of a communication hook's state.
const HOOK: &str = "hook";

/// Everything that is needed to resume training: named tensors and a state.
///
/// The name of a tensor shows which ranks it belongs to. Tensors named `model/…` or `optimizer/…`
/// are the same on all ranks. A tensor named `rank-3/…`, such as the error feedback of a lossy
/// compression method, belongs only to rank 3.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Checkpoint {
    /// The step, settings and other values.
    pub state: State,
    /// The tensors, by name.
    pub tensors: BTreeMap<String, Tensor>,
}

/// The values of a checkpoint other than its tensors. All fields except `user` are interpreted by
/// ringtree.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct State {
    /// ID of the run. A run keeps its ID when it is resumed, so its metrics continue under the same
    /// ID.
    pub run_id: String,
    /// Number of ranks that wrote the checkpoint.
    pub world_size: usize,
    /// Number of completed steps, as returned by
    /// [`DataParallel::steps`](crate::ddp::DataParallel::steps).
    pub step: u64,
    /// The current epoch, counted from 0.
    pub epoch: u64,
    /// Number of samples in the data set, if the training run uses a sampler. The saved sampler
    /// position is not valid for a different data set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Number of samples in the current epoch that have been used by all ranks together, as
    /// returned by [`DistributedSampler::position`](crate::ddp::DistributedSampler::position).
    pub sampler_position: u64,
    /// The seed from which, together with the step and the rank,
    /// [`stream_seed`](crate::ddp::stream_seed) derives every rank's random numbers.
    pub seed: u64,
    /// Indices of the parameters in the order in which the gradient buckets use them, and the first
    /// step that uses this order.
    pub order: Option<(Vec<usize>, u64)>,
    /// The tuning table, in the text form of a [`TuningRecord`](crate::tuning::TuningRecord). The
    /// same table selects the same algorithms and therefore produces the same bits.
    pub tuning: Option<String>,
    /// The loss on validation data. [`Checkpoints::best`] compares these losses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Other values that the program saves, as JSON. [`Parts::value`] stores values here by name.
    /// Finite numbers are restored exactly. JSON cannot represent NaN or infinity, so store such
    /// values in a tensor.
    pub user: serde_json::Value,
}

impl State {
    /// Returns the value that [`Parts::value`] saved as `name`.
    ///
    /// # Errors
    /// Returns an [`Error`] of kind [`ErrorKind::Usage`](crate::ErrorKind::Usage) if there is no
    /// such value or if the value has a different type.
    pub fn value<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let step = self.step;
        let lacks = || format!("the checkpoint of step {step} has no value '{name}'");
        let json = self.user.get(name).ok_or_else(lacks);
        let value = json.and_then(|json| {
            T::deserialize(json).map_err(|error| {
                format!("cannot decode value '{name}' of the checkpoint of step {step}: {error}")
            })
        });
        value.map_err(Error::usage)
    }
}

impl Checkpoint {
    /// Creates a checkpoint without tensors.
    #[must_use]
    pub fn new(state: State) -> Self {
        let tensors = BTreeMap::new();
        Self { state, tensors }
    }

    /// Inserts a copy of `values` as the tensor `name`, replacing any existing tensor with that
    /// name. The last dimension varies fastest.
    ///
    /// # Errors
    /// Returns an [`Error`] of kind [`ErrorKind::Usage`](crate::ErrorKind::Usage) if `shape` does
    /// not match the number of elements in `values`.
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

    /// Returns a copy of the elements of the tensor `name`.
    ///
    /// # Errors
    /// Returns an [`Error`] of kind [`ErrorKind::Usage`](crate::ErrorKind::Usage) if there is no
    /// such tensor or if the tensor has a different element type.
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

    /// Returns the state to pass to
    /// [`restore_hook`](crate::ddp::state::restore_hook) on `rank`, as
    /// name-value pairs. The state is empty if the checkpoint was written by too few ranks to
    /// include `rank`.
    fn hook_state(&self, rank: usize) -> Result<Vec<(String, Vec<f32>)>> {
        let prefix = format!("rank-{rank}/{HOOK}/");
        let names = self.tensors.keys();
        let state = names.filter_map(|name| Some((name, name.strip_prefix(&prefix)?)));
        let state = state.map(|(name, rest)| Ok((rest.to_owned(), self.values(name)?)));
        state.collect()
    }
}
