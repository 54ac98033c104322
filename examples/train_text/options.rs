//! The command line.

use clap::Parser;
use std::path::PathBuf;

/// Train a small character-level model on text, data-parallel over processes.
///
/// Started alone, spawns the ranks itself; started as one rank of several (RANK and WORLD_SIZE
/// set, as `ringtree run` and torchrun do), joins the others.
#[derive(Parser, Clone, Debug)]
#[command(name = "train_text")]
pub(crate) struct Options {
    /// Processes to train on [default: 4, or the ranks it was launched among]
    #[arg(long, value_name = "N")]
    pub(crate) ranks: Option<usize>,

    /// The text to learn [default: this project's own sources]
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,

    /// Steps of the optimizer
    #[arg(long, value_name = "N", default_value_t = 4000)]
    pub(crate) steps: usize,

    /// Samples of a step, over all ranks
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) batch: usize,

    /// Micro-batches of a step on each rank; gradients travel after the last
    #[arg(long, value_name = "K", default_value_t = 1)]
    pub(crate) accumulate: usize,

    /// The highest learning rate of the schedule
    #[arg(
        long,
        value_name = "RATE",
        default_value_t = 0.003,
        allow_negative_numbers = true
    )]
    pub(crate) learning_rate: f32,

    /// What the initial weights, the order of the samples and the sample text depend on
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Change one weight on this rank before the replicas are compared
    #[arg(long, value_name = "R", hide = true)]
    pub(crate) corrupt_rank: Option<usize>,
}

impl Options {
    /// The options of this process's command line, or one line that says what is wrong with it.
    /// Answers `--help` and ends the process.
    pub(crate) fn read() -> Result<Self, String> {
        Options::try_parse().map_err(|error| {
            if !error.use_stderr() {
                error.exit();
            }
            let message = error.to_string();
            let first_line = message.lines().next().unwrap_or_default();
            let reason = first_line.strip_prefix("error: ").unwrap_or(first_line);
            format!("{reason} (--help lists the options)")
        })
    }

    /// Whether the options make sense for a job of `world_size` ranks.
    pub(crate) fn check(&self, world_size: usize) -> Result<(), String> {
        if let Some(ranks) = self.ranks
            && ranks != world_size
        {
            return Err(format!(
                "--ranks {ranks} disagrees with the {world_size} ranks of this job"
            ));
        }
        for (name, value) in [
            ("ranks", world_size),
            ("steps", self.steps),
            ("batch", self.batch),
            ("accumulate", self.accumulate),
        ] {
            if value == 0 {
                return Err(format!("--{name} must be at least 1"));
            }
        }
        let shares = world_size.saturating_mul(self.accumulate);
        if !self.batch.is_multiple_of(shares) {
            return Err(format!(
                "--batch {} does not split into equal parts for {world_size} ranks of {} \
                 micro-batches: choose a multiple of {shares}",
                self.batch, self.accumulate
            ));
        }
        if !(self.learning_rate.is_finite() && self.learning_rate > 0.0) {
            return Err(format!(
                "--learning-rate {} is not a positive number",
                self.learning_rate
            ));
        }
        match self.corrupt_rank {
            Some(rank) if rank >= world_size => {
                Err(format!("--corrupt-rank {rank} is no rank of {world_size}"))
            }
            _ => Ok(()),
        }
    }
}
