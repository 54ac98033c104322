//! Training from the first step, or the last checkpoint, to the end, as one of the ranks.

use crate::failure::Failure;
use crate::metrics::{Line, Metrics};
use crate::options::Config;
use crate::plot;
use crate::progress::Progress;
use crate::replicas;
use crate::sample;
use crate::snapshot;
use crate::text::Text;
use crate::trainer::{Taken, Trainer};
use ringtree::Communicator;
use ringtree::ddp::Trace;
use ringtree::ddp::checkpoint::Checkpoints;
use std::path::PathBuf;

/// Lines of loss that a run of any length prints.
const LOSS_LINES: u64 = 20;
/// Steps that a timeline shows.
const TRACED_STEPS: u64 = 20;

/// The whole job of one rank.
pub(crate) fn train(comm: &Communicator, config: &Config, text: &Text) -> Result<(), Failure> {
    agree_on_the_job(comm, config, text)?;
    let checkpoints = snapshot::checkpoints(config);
    let mut trainer = Trainer::new(comm, config, text)?;
    if let Some(checkpoints) = &checkpoints {
        resume_or_begin(&mut trainer, checkpoints)?;
    }
    let mut metrics = open_metrics(&trainer)?;
    let progress = Progress::new(config.steps, trainer.step, comm.local_rank());
    if comm.rank() == 0 {
        progress.print(&described_job(&trainer));
    }
    let traced_until = trainer.step + TRACED_STEPS;
    if config.trace.is_some() {
        trainer.trace = Trace::new(comm)?;
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
        let line = line(&trainer, &taken, validation_loss);
        if let Some(metrics) = &mut metrics {
            metrics.write(&line).map_err(Failure::work)?;
        }
        let is_shown = validation_loss.is_some() || is_due(config.steps.div_ceil(LOSS_LINES));
        if comm.rank() == 0 && is_shown {
            progress.print(&described_step(&line));
        }
        if is_last || done == traced_until {
            write_trace(&mut trainer)?;
        }
        if let Some(checkpoints) = checkpoints
            .as_ref()
            .filter(|_| is_last || is_due(config.every))
        {
            trainer.save(checkpoints)?;
        }
    }
    progress.finish();
    finish(&trainer, metrics.as_ref())
}

/// Goes on from the newest checkpoint. If there is none, the first is of step 0, so that the run
/// has its id from the beginning.
fn resume_or_begin(trainer: &mut Trainer, checkpoints: &Checkpoints) -> Result<(), Failure> {
    let Some(found) = checkpoints.load_and_broadcast(trainer.comm)? else {
        return trainer.save(checkpoints);
    };
    trainer.resume(&found.checkpoint)?;
    if trainer.comm.rank() == 0 {
        for warning in &found.warnings {
            eprintln!("mingpt: {warning}");
        }
        println!("resumed at step {}", trainer.step);
    }
    Ok(())
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
fn finish(trainer: &Trainer, metrics: Option<&Metrics>) -> Result<(), Failure> {
    let fingerprint = trainer.compare_replicas()?;
    let loss = trainer.validate()?;
    let config = trainer.config;
    if trainer.comm.rank() == 0 {
        if let Some(path) = beside(config, config.plot.as_ref(), "loss.svg") {
            let lines = metrics.map(Metrics::lines).unwrap_or_default();
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
    trainer.comm.barrier()?;
    Ok(())
}

fn line(trainer: &Trainer, taken: &Taken, validation_loss: Option<f64>) -> Line {
    Line {
        run: trainer.run.clone(),
        step: trainer.step,
        epoch: trainer.sampler.epoch(),
        loss: taken.loss,
        validation_loss,
        gradient_norm: taken.gradient_norm,
        learning_rate: taken.learning_rate,
        step_ms: taken.step_ms,
        exposed_ms: taken.exposed_ms,
        ranks: trainer.comm.world_size(),
    }
}

/// One line: what is trained, on what, by how many.
fn described_job(trainer: &Trainer) -> String {
    format!(
        "run {}: {} weights, {} sequences of {} characters, {} a step over {} ranks",
        trainer.run,
        trainer.weight_count(),
        trainer.text.sequences(),
        trainer.config.block,
        trainer.config.batch,
        trainer.comm.world_size(),
    )
}

fn described_step(line: &Line) -> String {
    let validation = line.validation_loss;
    let validation = validation.map(|loss| format!("  validation {loss:.4}"));
    format!(
        "step {:5}  loss {:.4}  gradient {:.3}  {:.0} ms, {:.1} exposed{}",
        line.step,
        line.loss,
        line.gradient_norm,
        line.step_ms,
        line.exposed_ms,
        validation.unwrap_or_default()
    )
}

/// The file that was asked for, or `name` beside the checkpoints.
fn beside(config: &Config, asked: Option<&PathBuf>, name: &str) -> Option<PathBuf> {
    let directory = config.checkpoint.as_ref();
    asked.cloned().or_else(|| Some(directory?.join(name)))
}

/// Rank 0's file of metrics.
fn open_metrics(trainer: &Trainer) -> Result<Option<Metrics>, Failure> {
    let config = trainer.config;
    match beside(config, config.metrics.as_ref(), "metrics.jsonl") {
        Some(path) if trainer.comm.rank() == 0 => {
            let metrics = Metrics::open(&path, &trainer.run, trainer.step);
            metrics.map(Some).map_err(Failure::work)
        }
        _ => Ok(None),
    }
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
