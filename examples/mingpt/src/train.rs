//! Training from the first step, or the last checkpoint, to the end, as one of the ranks.

use crate::failure::Failure;
use crate::options::Config;
use crate::plot;
use crate::progress::Progress;
use crate::replicas;
use crate::sample;
use crate::snapshot;
use crate::text::Text;
use crate::trainer::{Taken, Trainer};
use ringtree::Communicator;
use ringtree::ddp::checkpoint::Run;
use ringtree::ddp::{Line, Measured, Metrics, Trace};
use std::path::PathBuf;

/// Lines of loss that a run of any length prints.
const LOSS_LINES: u64 = 20;
/// The name of the validation loss among the metrics.
pub(crate) const VALIDATION: &str = "validation_loss";
const NORM: &str = "gradient_norm";
/// Steps that a timeline shows.
const TRACED_STEPS: u64 = 20;

/// The whole job of one rank.
pub(crate) fn train(comm: &Communicator, config: &Config, text: &Text) -> Result<(), Failure> {
    agree_on_the_job(comm, config, text)?;
    let run = Run::open(comm, snapshot::checkpoints(config))?;
    let mut trainer = Trainer::new(run, config, text)?;
    let mut metrics = trainer.run.metrics(metrics_file(config))?;
    let progress = Progress::new(config.steps, trainer.step, comm.local_rank());
    if comm.rank() == 0 {
        if trainer.run.state().is_some() {
            progress.print(&format!("resumed at step {}", trainer.step));
        }
        progress.print(&described_job(&trainer));
    }
    let traced_until = trainer.step + TRACED_STEPS;
    if config.trace.is_some() {
        trainer.trace = Trace::new(trainer.comm())?;
    }
    while trainer.step < config.steps {
        let taken = trainer.take_step()?;
        let done = trainer.step;
        let is_last = done == config.steps;
        let is_due = |every: u64| every > 0 && done.is_multiple_of(every);
        let validation_loss = match is_last || is_due(config.validate_every) {
            true => Some(trainer.validate()?),
            false => None,
        };
        progress.advance(done);
        let line = metrics.write(
            trainer.parallel()?,
            measured(&trainer, &taken, validation_loss),
        )?;
        let is_shown = validation_loss.is_some() || is_due(config.steps.div_ceil(LOSS_LINES));
        if let Some(line) = line.filter(|_| is_shown) {
            progress.print(&described_step(&line));
        }
        if is_last || done == traced_until {
            write_trace(&mut trainer)?;
        }
        if is_last || is_due(config.every) {
            trainer.save(validation_loss)?;
        }
    }
    progress.finish();
    trainer.run.finish()?;
    finish(&trainer)
}

/// Writes the timeline once; every rank calls it.
fn write_trace(trainer: &mut Trainer) -> Result<(), Failure> {
    let trace = std::mem::replace(&mut trainer.trace, Trace::off());
    if let Some(path) = &trainer.config.trace {
        trace.write(path)?;
    }
    Ok(())
}

/// Compares the replicas, and says and draws how it went.
fn finish(trainer: &Trainer) -> Result<(), Failure> {
    let fingerprint = trainer.compare_replicas()?;
    let loss = trainer.validate()?;
    let config = trainer.config;
    if trainer.comm().rank() == 0 {
        if let Some(path) = beside(config, config.plot.as_ref(), "loss.svg") {
            let lines = match metrics_file(config) {
                Some(file) => Metrics::read(file, trainer.run.id())?,
                None => Vec::new(),
            };
            plot::draw(&path, &lines).map_err(Failure::work)?;
        }
        println!("--- the model writes:");
        println!(
            "{}",
            sample::write(&trainer.model, trainer.text, config.seed)?
        );
        println!("---");
        let hash = replicas::short(&fingerprint);
        println!("step {} loss {loss:.4} weights {hash}", trainer.step);
    }
    // No rank leaves while rank 0 might still fail.
    trainer.comm().barrier()?;
    Ok(())
}

fn measured(trainer: &Trainer, taken: &Taken, validation_loss: Option<f64>) -> Measured {
    let samples = trainer.config.batch as u64;
    let measured = Measured::new(taken.loss, taken.learning_rate, samples)
        .tokens(samples * trainer.config.block as u64)
        .with("epoch", trainer.sampler.epoch() as f64)
        .with(NORM, taken.gradient_norm);
    match validation_loss {
        Some(loss) => measured.with(VALIDATION, loss),
        None => measured,
    }
}

/// One line: what is trained, on what, by how many.
fn described_job(trainer: &Trainer) -> String {
    format!(
        "run {}: {} weights, {} sequences of {} characters, {} a step over {} ranks",
        trainer.run.id(),
        trainer.weight_count(),
        trainer.text.sequences(),
        trainer.config.block,
        trainer.config.batch,
        trainer.comm().world_size(),
    )
}

fn described_step(line: &Line) -> String {
    let validation = line.more.get(VALIDATION);
    let validation = validation.map(|loss| format!("  validation {loss:.4}"));
    format!(
        "step {:5}  loss {:.4}  gradient {:.3}  rate {:.1e}  {:.0} tokens/s, {:.1} ms exposed{}",
        line.step,
        line.loss,
        line.more.get(NORM).unwrap_or(&f64::NAN),
        line.learning_rate,
        line.tokens_per_s.unwrap_or_default(),
        line.exposed_ms,
        validation.unwrap_or_default()
    )
}

/// The file that was asked for, or `name` beside the checkpoints.
fn beside(config: &Config, asked: Option<&PathBuf>, name: &str) -> Option<PathBuf> {
    let directory = config.checkpoint.as_ref();
    asked.cloned().or_else(|| Some(directory?.join(name)))
}

/// Where rank 0 writes its metrics, if anywhere.
fn metrics_file(config: &Config) -> Option<PathBuf> {
    beside(config, config.metrics.as_ref(), "metrics.jsonl")
}

/// Makes sure that all ranks have the same text and settings before they train on them.
fn agree_on_the_job(comm: &Communicator, config: &Config, text: &Text) -> Result<(), Failure> {
    let settings = serde_json::to_string(config).expect("invariant: settings are plain data");
    // Where files are may differ, but whether there are any decides what the ranks do together.
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
            "the text or the settings of {ranks} are not those of rank 0: start all ranks alike"
        ))),
    }
}
