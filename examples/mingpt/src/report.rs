//! Reports on a training while it runs: lines on standard output, metrics, and the picture of the
//! losses. Most of the reporting happens on rank 0.

use crate::failure::Failure;
use crate::files;
use crate::options::Config;
use crate::plot::Picture;
use crate::progress::Progress;
use crate::trainer::{Taken, Trainer};
use ringtree::ddp::{Line, Metrics};
use std::path::PathBuf;

/// Maximum number of losses that are printed.
const LOSS_LINES: u64 = 20;
/// The name under which the metrics contain the validation loss.
pub(crate) const VALIDATION: &str = "validation_loss";
const NORM: &str = "gradient_norm";

/// The reports of one rank.
pub(crate) struct Report {
    progress: Progress,
    metrics: Metrics,
    picture: Picture,
    /// Number of tokens since the last printed line, and the time in seconds that they took.
    since_shown: (f64, f64),
}

impl Report {
    /// Prints a description of the training. On rank 0, returns an error if a file cannot be
    /// written.
    pub(crate) fn new(trainer: &Trainer) -> Result<Self, Failure> {
        let (config, comm) = (trainer.config, trainer.comm());
        let metrics_file = beside(config, config.metrics.as_ref(), "metrics.jsonl");
        let metrics = Metrics::open(
            comm,
            metrics_file.clone(),
            trainer.run.id(),
            trainer.run.step(),
        );
        let metrics = metrics.map_err(|error| Failure::usage(error.to_string()))?;
        let progress = Progress::new(config.steps, trainer.step, comm.local_rank());
        let picture = match comm.rank() {
            0 => {
                if trainer.run.state().is_some() {
                    progress.print(&format!("resumed at step {}", trainer.step));
                }
                progress.print(&described_job(trainer));
                let lines = match metrics_file {
                    Some(file) => Metrics::read(file, trainer.run.id())?,
                    None => Vec::new(),
                };
                if let Some(path) = &config.trace {
                    files::check(path).map_err(|error| {
                        let path = path.display();
                        Failure::usage(format!("cannot write the timeline {path}: {error}"))
                    })?;
                }
                let path = beside(config, config.plot.as_ref(), "loss.svg");
                Picture::new(path, &lines).map_err(Failure::usage)?
            }
            _ => Picture::new(None, &[]).map_err(Failure::work)?,
        };
        Ok(Self {
            progress,
            metrics,
            picture,
            since_shown: (0.0, 0.0),
        })
    }

    /// Reports a step.
    pub(crate) fn add(
        &mut self,
        trainer: &Trainer,
        taken: &Taken,
        validated: Option<f64>,
    ) -> Result<(), Failure> {
        self.progress.advance(trainer.step);
        let samples = trainer.config.batch as f64;
        let tokens = samples * trainer.config.block as f64;
        let mut numbers = vec![
            ("loss", taken.loss),
            ("learning_rate", taken.learning_rate),
            ("samples", samples),
            ("tokens", tokens),
            ("epoch", trainer.sampler.epoch() as f64),
            (NORM, taken.gradient_norm),
        ];
        numbers.extend(validated.map(|loss| (VALIDATION, loss)));
        let Some(line) = self.metrics.write(trainer.parallel()?, numbers)? else {
            return Ok(());
        };
        self.since_shown.0 += tokens;
        self.since_shown.1 += line.seconds;
        let each = trainer.config.steps.div_ceil(LOSS_LINES);
        if validated.is_some() || line.step.is_multiple_of(each) {
            let (tokens, seconds) = std::mem::take(&mut self.since_shown);
            let shown = described_step(&line, tokens / seconds);
            self.progress.print(&shown);
        }
        self.picture.add(&line);
        Ok(())
    }

    /// Reports that the training has ended.
    pub(crate) fn finish(mut self, trainer: &Trainer) {
        self.progress.finish();
        self.picture.redraw();
        let Some(best) = trainer.watch.best.filter(|_| trainer.comm().rank() == 0) else {
            return;
        };
        let Config {
            patience, steps, ..
        } = *trainer.config;
        if trainer.step < steps {
            println!(
                "stopped at step {}, after {patience} validations without a better loss",
                trainer.step
            );
        }
        println!("best validation {:.4} at step {}", best.loss, best.step);
    }
}

/// Describes the training in one line.
fn described_job(trainer: &Trainer) -> String {
    format!(
        "run {}: {} weights, {} sequences of {} characters, {} per step over {} rank{}, {} KiB of \
         optimizer state on rank 0",
        trainer.run.id(),
        trainer.weight_count(),
        trainer.text.sequences(),
        trainer.config.block,
        trainer.config.batch,
        trainer.comm().world_size(),
        if trainer.comm().world_size() == 1 {
            ""
        } else {
            "s"
        },
        trainer.optimizer_bytes() >> 10,
    )
}

/// Describes a step in one line. The throughput is measured since the previous line, including the
/// time for validations.
fn described_step(line: &Line, tokens_per_s: f64) -> String {
    let named = |name| *line.numbers.get(name).unwrap_or(&f64::NAN);
    let validation = line.numbers.get(VALIDATION);
    let validation = validation.map(|loss| format!("  validation {loss:.4}"));
    format!(
        "step {:5}  loss {:.4}  gradient {:.3}  lr {:.1e}  {tokens_per_s:.0} tokens/s, {:.1} ms \
         exposed{}",
        line.step,
        named("loss"),
        named(NORM),
        named("learning_rate"),
        line.exposed_ms,
        validation.unwrap_or_default()
    )
}

/// Returns the requested file, or the file `name` in the checkpoint directory.
fn beside(config: &Config, asked: Option<&PathBuf>, name: &str) -> Option<PathBuf> {
    let directory = config.checkpoint.as_ref();
    asked.cloned().or_else(|| Some(directory?.join(name)))
}
