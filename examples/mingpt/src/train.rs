//! Trains as one of the ranks, from the first step or the last checkpoint to the end.

use crate::failure::Failure;
use crate::options::Config;
use crate::replicas;
use crate::report::Report;
use crate::sample::Sampler;
use crate::snapshot;
use crate::text::Text;
use crate::trainer::Trainer;
use ringtree::ddp::Trace;
use ringtree::ddp::checkpoint::Run;
use ringtree::{Communicator, ErrorKind};

/// Number of steps that a timeline shows.
const TRACED_STEPS: u64 = 20;
/// Length and temperature of the text that the model writes at the end.
const LENGTH: usize = 300;
const TEMPERATURE: f64 = 0.7;

/// Runs the job of one rank, from start to end.
pub(crate) fn train(comm: &Communicator, config: &Config, text: &Text) -> Result<(), Failure> {
    agree_on_the_job(comm, config, text)?;
    let checkpoints = config.checkpoint.as_ref();
    let checkpoints = checkpoints.map(|folder| snapshot::checkpoints(folder, config.keep));
    let run = match checkpoints {
        Some(checkpoints) => Run::open(comm, checkpoints),
        None => Run::without_checkpoints(comm),
    };
    let run = run.map_err(|error| {
        match error.kind() == ErrorKind::Configuration {
            // A restart would not fix the configuration.
            true => Failure::usage(error.to_string()),
            false => error.into(),
        }
    })?;
    let mut trainer = Trainer::new(run, config, text)?;
    let mut report = Report::new(&trainer)?;
    let traced_until = trainer.step + TRACED_STEPS;
    if config.trace.is_some() {
        trainer.trace = Trace::new(trainer.comm())?;
    }
    let mut validated = None;
    while !has_ended(&trainer) {
        let taken = trainer.take_step()?;
        let done = trainer.step;
        let is_due = |every: u64| every > 0 && done.is_multiple_of(every);
        validated = match done == config.steps || is_due(config.validate_every) {
            true => Some(trainer.validate()?),
            false => None,
        };
        let is_best = validated.is_some_and(|loss| trainer.watch.note(done, loss));
        report.add(&trainer, &taken, validated)?;
        if has_ended(&trainer) || done == traced_until {
            write_trace(&mut trainer)?;
        }
        if has_ended(&trainer) || is_best || is_due(config.every) {
            trainer.save(validated)?;
        }
    }
    trainer.run.finish()?;
    report.finish(&trainer);
    finish(&trainer, validated)
}

/// Returns `true` if no step is left. All ranks return the same value.
fn has_ended(trainer: &Trainer) -> bool {
    let Config {
        steps, patience, ..
    } = *trainer.config;
    trainer.step >= steps || trainer.watch.is_exhausted(patience)
}

/// Writes the timeline once. Every rank must call this.
fn write_trace(trainer: &mut Trainer) -> Result<(), Failure> {
    let trace = std::mem::replace(&mut trainer.trace, Trace::off());
    if let Some(path) = &trainer.config.trace {
        trace.write(path)?;
    }
    Ok(())
}

/// Compares the replicas and prints the result of the training.
fn finish(trainer: &Trainer, validated: Option<f64>) -> Result<(), Failure> {
    let fingerprint = trainer.compare_replicas()?;
    let loss = match validated {
        Some(loss) => loss,
        None => trainer.validate()?,
    };
    if trainer.comm().rank() == 0 {
        let vocabulary = trainer.text.vocabulary();
        let mut sampler = Sampler::new(&trainer.model, vocabulary, "", TEMPERATURE)?;
        let written = sampler.write(LENGTH, trainer.config.seed)?;
        println!("--- the model writes:\n{written}\n---");
        let hash = replicas::short(&fingerprint);
        println!("step {} loss {loss:.4} weights {hash}", trainer.step);
    }
    // No rank may exit while rank 0 can still fail.
    trainer.comm().barrier()?;
    Ok(())
}

/// Checks that all ranks have the same text and settings before they train.
fn agree_on_the_job(comm: &Communicator, config: &Config, text: &Text) -> Result<(), Failure> {
    let settings = serde_json::to_string(config).expect("invariant: settings are plain data");
    // The paths may differ between ranks, but either all ranks or none must have each file.
    let files = [&config.checkpoint, &config.trace].map(|file| u8::from(file.is_some()));
    let parts = [
        settings.as_bytes(),
        &files,
        text.vocabulary(),
        text.tokens(),
    ];
    let own = replicas::fingerprint_of_bytes(&parts);
    match replicas::differing(&replicas::gather(comm, &own)?) {
        None => Ok(()),
        Some(ranks) => Err(Failure::work(format!(
            "the text or the settings of {ranks} differ from those of rank 0; start all ranks with \
             the same ones"
        ))),
    }
}
