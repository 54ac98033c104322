//! Evaluates checkpoints beside the training, so that no rank waits for it.

use crate::evaluate;
use crate::failure::Failure;
use crate::model::{Gpt, Shape};
use crate::options::Config;
use crate::snapshot::{self, Job};
use crate::text::Text;
use candle_core::{DType, Device};
use candle_nn::{VarBuilder, VarMap};
use ringtree::ddp::checkpoint::Checkpoint;
use ringtree_candle::part;
use std::thread;
use std::time::Duration;

/// How often somebody looks for a new checkpoint.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Evaluates the newest checkpoint, and unless it is to be only `once`, each newer one, until that
/// of the training's last step.
pub(crate) fn validate(config: &Config, once: bool) -> Result<(), Failure> {
    let Some(checkpoints) = snapshot::checkpoints(config) else {
        return Err(Failure::usage("validate needs --checkpoint".into()));
    };
    let mut evaluated = None;
    let mut warned = Vec::new();
    if !once && checkpoints.newest_step()?.is_none() {
        // The name may be misspelt.
        let place = checkpoints.location();
        eprintln!("mingpt: there is no checkpoint in {place} yet; waiting for the first");
    }
    loop {
        let newest = checkpoints.newest_step()?;
        if newest.is_some()
            && newest != evaluated
            && let Some(found) = checkpoints.latest()?
        {
            // As long as the newest is damaged, the same older one is found each time. It may be
            // written anew under its number, so that there is more than its number to look at.
            if found.warnings != warned {
                for warning in &found.warnings {
                    eprintln!("mingpt: {warning}");
                }
                warned.clone_from(&found.warnings);
            }
            let step = found.checkpoint.state.step;
            if evaluated != Some(step) {
                let job = Job::of(&found.checkpoint.state)?;
                let loss = loss_of(&found.checkpoint, &job, config)?;
                println!("step {step} validation {loss:.4}");
                evaluated = Some(step);
                if step >= job.config.steps {
                    return Ok(());
                }
            }
        }
        match (once, evaluated) {
            (true, Some(_)) => return Ok(()),
            (true, None) => {
                return Err(Failure::work(format!(
                    "there is no checkpoint in {}",
                    checkpoints.location()
                )));
            }
            (false, _) => thread::sleep(LOOK_EVERY),
        }
    }
}

/// The validation loss of the model in `checkpoint`, with the sequences that `config` asks for.
fn loss_of(checkpoint: &Checkpoint, job: &Job, config: &Config) -> Result<f64, Failure> {
    let text = Text::load(config.text.as_deref(), job.config.block).map_err(Failure::work)?;
    // On another text the loss might be of characters that the training has seen.
    job.check_fits(&Job::new(&job.config, &text))?;
    let varmap = VarMap::new();
    let builder = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let model = Gpt::new(Shape::of(&job.config, &text), &builder)?;
    let variables = varmap
        .data()
        .lock()
        .expect("invariant: nothing panics with it");
    checkpoint.load_parts("model", |parts| {
        let mut variables = variables.iter();
        variables.try_for_each(|(name, var)| part(parts, &snapshot::weights_of(name), var))
    })?;
    let [sum, characters] =
        evaluate::loss_of_part(&model, &text, config.validation_sequences, 0, 1)?;
    Ok(sum / characters)
}
