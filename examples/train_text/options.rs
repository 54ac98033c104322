//! Defines the command line.

use clap::Parser;
use std::path::PathBuf;

/// Train a small character-level model on text, data-parallel over processes.
///
/// Without a launcher, the program spawns the ranks. If RANK and WORLD_SIZE are set, as by
/// `ringtree run` and torchrun, it joins the other ranks.
#[derive(Parser, Clone, Debug)]
#[command(name = "train_text")]
pub(crate) struct Options {
    /// Number of ranks [default: 4, or the launcher's number]
    #[arg(long, value_name = "N")]
    pub(crate) ranks: Option<usize>,

    /// Text to learn [default: the sources of this project]
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,

    /// Optimizer steps
    #[arg(long, value_name = "N", default_value_t = 4000)]
    pub(crate) steps: usize,

    /// Samples per step, over all ranks
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) batch: usize,

    /// Micro-batches per step on each rank; gradients are averaged after the last
    #[arg(long, value_name = "K", default_value_t = 1)]
    pub(crate) accumulate: usize,

    /// Peak of the learning rate
    #[arg(
        long,
        value_name = "RATE",
        default_value_t = 0.003,
        allow_negative_numbers = true
    )]
    pub(crate) learning_rate: f32,

    /// Seed of the initial weights, the order of samples and the sample text
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Change one weight of this rank before the replicas are compared
    #[arg(long, value_name = "R", hide = true)]
    pub(crate) corrupt_rank: Option<usize>,
}

impl Options {
    /// Parses the command line. Returns a message if it is invalid. For `--help`, prints the help
    /// and exits.
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

    /// Checks the options for a job of `world_size` ranks.
    pub(crate) fn check(&self, world_size: usize) -> Result<(), String> {
        if let Some(ranks) = self.ranks
            && ranks != world_size
        {
            return Err(format!(
                "--ranks {ranks} differs from the {world_size} ranks of this job"
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
                 micro-batches; use a multiple of {shares}",
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
                Err(format!("--corrupt-rank {rank} is not below {world_size}"))
            }
            _ => Ok(()),
        }
    }
}
