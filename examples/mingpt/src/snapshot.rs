//! What training goes on from after a failure: everything that the next step depends on.

use crate::failure::Failure;
use crate::optimizer::Parameter;
use crate::options::Config;
use crate::text::{Identity, Text};
use ringtree::ddp::checkpoint::{Checkpoints, Directory, Parts, State};
use ringtree_candle::part;
use serde::{Deserialize, Serialize};

/// What the job is called in a checkpoint.
const JOB: &str = "job";

/// What a checkpoint holds besides what the library gives a meaning to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The settings it was made with.
    pub(crate) config: Config,
    /// The bytes that stand for the model's tokens.
    vocabulary: Vec<u8>,
    /// The text it was made on.
    text: Identity,
}

impl Job {
    /// Training with `config` on `text`.
    pub(crate) fn new(config: &Config, text: &Text) -> Self {
        Self {
            config: config.clone(),
            vocabulary: text.vocabulary().to_vec(),
            text: text.identity().clone(),
        }
    }

    /// The job of a checkpoint.
    pub(crate) fn of(state: &State) -> Result<Self, Failure> {
        let job = state.value(JOB);
        job.map_err(|error| Failure::work(format!("the checkpoint is not mingpt's: {error}")))
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
        if let Some((name, had, want)) = pairs.iter().find(|(_, had, want)| had != want) {
            return Err(Failure::usage(format!(
                "the checkpoint was made with --{name} {had}, not {want}: use its settings, or \
                 another --checkpoint"
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

/// The checkpoints that the settings name.
pub(crate) fn checkpoints(config: &Config) -> Option<Checkpoints> {
    let directory = config.checkpoint.as_ref()?;
    let checkpoints = Checkpoints::new(Directory::new(directory), config.keep);
    Some(checkpoints.keep_best())
}

/// Names all that a checkpoint holds of the training, for saving and loading.
pub(crate) fn name_all(
    parts: &mut Parts<'_>,
    parameters: &mut [Parameter],
    job: &mut Job,
) -> ringtree::Result<()> {
    for Parameter {
        name,
        var,
        mean,
        square,
    } in parameters
    {
        part(parts, &weights_of(name), var)?;
        parts.tensor(&format!("optimizer/{name}/mean"), var.dims(), mean)?;
        parts.tensor(&format!("optimizer/{name}/square"), var.dims(), square)?;
    }
    parts.value(JOB, job)
}

/// What the weights of the variable `name` are called in a checkpoint.
pub(crate) fn weights_of(name: &str) -> String {
    format!("model/{name}")
}
