//! Saves and loads everything that the next step depends on, so that a training can resume after a
//! failure.

use crate::failure::Failure;
use crate::model::{Gpt, Shape};
use crate::options::Config;
use crate::text::{Identity, Text};
use crate::watch::Watch;
use candle_core::{DType, Device, Var};
use candle_nn::{VarBuilder, VarMap};
use ringtree::ddp::checkpoint::{Checkpoint, Checkpoints, Directory, Parts, State};
use ringtree::ddp::{AdamW, LocalSteps, Optimizer};
use ringtree_candle::part;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The name under which a checkpoint contains the job.
const JOB: &str = "job";

/// The part of a checkpoint that only mingpt uses.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The settings of the training.
    pub(crate) config: Config,
    /// The byte that each token of the model represents, indexed by token.
    pub(crate) vocabulary: Vec<u8>,
    /// The identity of the training text.
    text: Identity,
    /// The results of the validations so far.
    #[serde(default)]
    pub(crate) watch: Watch,
}

impl Job {
    /// Creates the job of a training with `config` on `text`.
    pub(crate) fn new(config: &Config, text: &Text) -> Self {
        Self {
            config: config.clone(),
            vocabulary: text.vocabulary().to_vec(),
            text: text.identity().clone(),
            watch: Watch::default(),
        }
    }

    /// Returns the job that is stored in a checkpoint.
    pub(crate) fn of(state: &State) -> Result<Self, Failure> {
        let job = state.value(JOB);
        job.map_err(|error| Failure::work(format!("the checkpoint is not of mingpt: {error}")))
    }

    /// Returns `true` if the training ends after `step`.
    pub(crate) fn has_ended(&self, step: u64) -> bool {
        step >= self.config.steps || self.watch.is_exhausted(self.config.patience)
    }

    /// Loads the model from a checkpoint of this job.
    pub(crate) fn model(&self, checkpoint: &Checkpoint) -> Result<Gpt, Failure> {
        let varmap = VarMap::new();
        let builder = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
        let model = Gpt::new(Shape::of(&self.config, &self.vocabulary), &builder)?;
        let variables = varmap.data().lock();
        let variables = variables.expect("invariant: nothing panics with it");
        checkpoint.load_parts("model", |parts| {
            let mut variables = variables.iter();
            variables.try_for_each(|(name, var)| part(parts, &weights_of(name), var))
        })?;
        Ok(model)
    }

    /// Checks that a training with the job `wanted` can resume from a checkpoint of this job. The
    /// position in the text is valid only for the same text, split into the same sequences in the
    /// same order.
    pub(crate) fn check_fits(&self, wanted: &Self) -> Result<(), Failure> {
        let (had, want) = (&self.config, &wanted.config);
        let pairs = [
            ("layers", had.layers as u64, want.layers as u64),
            ("heads", had.heads as u64, want.heads as u64),
            ("width", had.width as u64, want.width as u64),
            ("block", had.block as u64, want.block as u64),
            ("batch", had.batch as u64, want.batch as u64),
            ("seed", had.seed, want.seed),
        ];
        let differing = pairs.iter().filter(|(_, had, want)| had != want);
        let differing = differing.map(|(name, had, want)| format!("--{name} {had}, not {want}"));
        let differing: Vec<_> = differing.collect();
        if !differing.is_empty() {
            return Err(Failure::usage(format!(
                "the checkpoint was made with {}; use its settings, or another --checkpoint",
                differing.join("; ")
            )));
        }
        if self.text != wanted.text || self.vocabulary != wanted.vocabulary {
            return Err(Failure::usage(format!(
                "the checkpoint was made on a text of {}, not {}; use its --text, or another \
                 --checkpoint",
                self.text, wanted.text
            )));
        }
        Ok(())
    }
}

/// Returns the checkpoints in `directory`. A training keeps the latest `keep` checkpoints and the
/// best one.
pub(crate) fn checkpoints(directory: &Path, keep: usize) -> Checkpoints {
    Checkpoints::new(Directory::new(directory), keep).keep_best()
}

/// Visits all parts of the training's state, to save them to a checkpoint or to load them from one.
pub(crate) fn name_all(
    parts: &mut Parts<'_>,
    variables: &[(String, Var)],
    (optimizer, local): (&mut Optimizer<AdamW>, Option<&mut LocalSteps>),
    job: &mut Job,
) -> ringtree::Result<()> {
    for (name, var) in variables {
        part(parts, &weights_of(name), var)?;
    }
    match local {
        None => optimizer.parts(parts)?,
        Some(local) => {
            optimizer.own_parts(parts)?;
            local.parts(parts)?;
        }
    }
    parts.value(JOB, job)
}

/// Returns the name under which a checkpoint contains a variable's weights.
fn weights_of(name: &str) -> String {
    format!("model/{name}")
}
