//! What training goes on from after a failure: everything that the next step depends on.

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

/// What the job is called in a checkpoint.
const JOB: &str = "job";

/// What a checkpoint holds besides what the library gives a meaning to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The settings it was made with.
    pub(crate) config: Config,
    /// The bytes that stand for the model's tokens.
    pub(crate) vocabulary: Vec<u8>,
    /// The text it was made on.
    text: Identity,
    /// How its validations went.
    #[serde(default)]
    pub(crate) watch: Watch,
}

impl Job {
    /// Training with `config` on `text`.
    pub(crate) fn new(config: &Config, text: &Text) -> Self {
        Self {
            config: config.clone(),
            vocabulary: text.vocabulary().to_vec(),
            text: text.identity().clone(),
            watch: Watch::default(),
        }
    }

    /// The job of a checkpoint.
    pub(crate) fn of(state: &State) -> Result<Self, Failure> {
        let job = state.value(JOB);
        job.map_err(|error| Failure::work(format!("the checkpoint is not mingpt's: {error}")))
    }

    /// Whether the training has ended with `step`.
    pub(crate) fn has_ended(&self, step: u64) -> bool {
        step >= self.config.steps || self.watch.is_exhausted(self.config.patience)
    }

    /// The model of a checkpoint of this job.
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

    /// Makes sure that training as `wanted` can go on from a checkpoint of this job. The place in
    /// the text that it goes on from means something only for the same text, cut into the same
    /// sequences, in the same order.
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
                "the checkpoint was made with {}: use its settings, or another --checkpoint",
                differing.join("; ")
            )));
        }
        if self.text != wanted.text || self.vocabulary != wanted.vocabulary {
            return Err(Failure::usage(format!(
                "the checkpoint was made on a text of {}, not {}: name its --text, or another \
                 --checkpoint",
                self.text, wanted.text
            )));
        }
        Ok(())
    }
}

/// The checkpoints in `directory`, of which a training keeps the latest `keep` and the best.
pub(crate) fn checkpoints(directory: &Path, keep: usize) -> Checkpoints {
    Checkpoints::new(Directory::new(directory), keep).keep_best()
}

/// Names all that a checkpoint holds of the training, for saving and loading.
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

/// What the weights of the variable `name` are called in a checkpoint.
fn weights_of(name: &str) -> String {
    format!("model/{name}")
}
