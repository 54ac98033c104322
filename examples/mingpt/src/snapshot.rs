//! What training goes on from after a failure: everything that the next step depends on.

use crate::failure::Failure;
use crate::optimizer::{Parameter, with_slice};
use crate::options::Config;
use crate::text::{Identity, Text};
use candle_core::{Device, Tensor, Var};
use ringtree::Communicator;
use ringtree::ddp::checkpoint::{Checkpoint, Checkpoints, Directory, State};
use ringtree_candle::Replica;
use serde::{Deserialize, Serialize};

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
    pub(crate) fn of(checkpoint: &Checkpoint) -> Result<Self, Failure> {
        serde_json::from_value(checkpoint.state.user.clone()).map_err(|error| {
            Failure::work(format!(
                "the checkpoint of step {} is not mingpt's: {error}",
                checkpoint.state.step
            ))
        })
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
    Some(Checkpoints::new(Directory::new(directory), config.keep))
}

/// Saves all there is; every rank calls it, with the numbers in `state`.
pub(crate) fn save(
    checkpoints: &Checkpoints,
    comm: &Communicator,
    state: State,
    parameters: &[Parameter],
    replica: &Replica,
) -> Result<(), Failure> {
    let parallel = replica.parallel()?;
    let order = parallel
        .order()
        .map(|(order, since)| (order.to_vec(), since));
    let mut checkpoint = Checkpoint::new(State { order, ..state });
    if comm.rank() == 0 {
        for parameter in parameters {
            let (name, shape) = (&parameter.name, parameter.var.dims());
            with_slice(&parameter.var, |weights| {
                checkpoint.insert(format!("model/{name}"), shape, weights)
            })??;
            checkpoint.insert(format!("optimizer/{name}/mean"), shape, &parameter.mean)?;
            checkpoint.insert(format!("optimizer/{name}/square"), shape, &parameter.square)?;
        }
    }
    checkpoint.insert_hook_state(comm.rank(), &parallel.hook_state());
    Ok(checkpoints.save_from(comm, &checkpoint)?)
}

/// Takes up everything of `checkpoint` but the numbers that are the caller's.
pub(crate) fn restore(
    checkpoint: &Checkpoint,
    comm: &Communicator,
    parameters: &mut [Parameter],
    replica: &mut Replica,
) -> Result<(), Failure> {
    for parameter in parameters {
        let name = &parameter.name;
        load_weights(checkpoint, name, &parameter.var)?;
        parameter.mean = checkpoint.values(&format!("optimizer/{name}/mean"))?;
        parameter.square = checkpoint.values(&format!("optimizer/{name}/square"))?;
    }
    replica.refresh()?;
    let parallel = replica.parallel_mut()?;
    parallel.restore(checkpoint.state.step, checkpoint.state.order.clone())?;
    Ok(parallel.restore_hook(checkpoint.hook_state(comm.rank())?)?)
}

/// Sets the variable `name` to its weights in `checkpoint`.
pub(crate) fn load_weights(
    checkpoint: &Checkpoint,
    name: &str,
    variable: &Var,
) -> Result<(), Failure> {
    let weights = checkpoint.values::<f32>(&format!("model/{name}"))?;
    let weights = Tensor::from_vec(weights, variable.shape(), &Device::Cpu)?;
    Ok(variable.set(&weights)?)
}
