//! Defines the command line.

use clap::{Args, Parser, Subcommand};
use ringtree::ddp::BucketSize;
use ringtree::plan::Algorithm;
use std::path::PathBuf;

/// Measure a data-parallel step of a synthetic model.
#[derive(Parser, Debug)]
#[command(name = "step_time")]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Measure steps whose backward sleeps to a timetable; print a row of CSV
    Measure(Measure),
    /// Compare the data-parallel layer, without backward, with bare all-reduces of the same bytes
    Compare(Job),
    /// Measure steps whose backward computes and reports gradients early or at its end
    Overlap {
        #[command(flatten)]
        job: Job,
        /// Time of backward if the rank has a core to itself
        #[arg(long, value_name = "MS", default_value_t = 40.0)]
        backward_ms: f64,
    },
    /// Print the header of the rows
    Header,
    /// Print medians of rows as a table
    Summary {
        /// Rows that `measure` printed, with their header
        table: PathBuf,
    },
    /// Draw step time against bucket size
    Plot {
        /// Rows that `measure` printed, with their header
        table: PathBuf,
        /// The SVG to write
        picture: PathBuf,
        /// The line under the title, which says what was measured
        #[arg(long, default_value = "")]
        note: String,
    },
    /// Draw the time that trainings took to reach a validation loss
    Losses {
        /// Rows of way, step, seconds and validation loss, with their header
        table: PathBuf,
        /// The SVG to write
        picture: PathBuf,
        /// The line under the title, which says what was measured
        #[arg(long, default_value = "")]
        note: String,
    },
}

#[derive(Args, Debug)]
pub(crate) struct Measure {
    #[command(flatten)]
    pub(crate) job: Job,

    /// Time of backward [default: the minimum time of communication at 1 Gbit/s]
    #[arg(long, value_name = "MS")]
    pub(crate) backward_ms: Option<f64>,

    /// Time of forward [default: a third of backward]
    #[arg(long, value_name = "MS")]
    pub(crate) forward_ms: Option<f64>,

    /// Simulate the ranks in virtual time, with links of 1 Gbit/s and 0.25 ms
    #[arg(long)]
    pub(crate) simulated: bool,

    /// Skip the bare all-reduces between the steps
    #[arg(long)]
    pub(crate) steps_only: bool,

    /// First field of the row
    #[arg(long, value_name = "NAME", default_value = "ringtree")]
    pub(crate) label: String,

    /// Print the times of the last step's buckets on standard error
    #[arg(long)]
    pub(crate) verbose: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Job {
    /// Ranks to spawn, unless started as one of several [default: 2]
    #[arg(long, value_name = "N")]
    pub(crate) ranks: Option<usize>,

    /// Total number of gradient elements, f32
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    pub(crate) parameters: usize,

    /// Layers of equal backward time
    #[arg(long, value_name = "N", default_value_t = 12)]
    pub(crate) layers: usize,

    /// Weights per layer, each with a bias; a layer's gradients become ready together
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(crate) weights: usize,

    /// Bytes of a bucket, or auto
    #[arg(long, value_name = "BYTES", default_value = "auto", value_parser = bucket_size)]
    pub(crate) bucket: BucketSize,

    /// Algorithm of the all-reduce [default: chosen for each call]
    #[arg(long, value_name = "NAME")]
    pub(crate) algorithm: Option<Algorithm>,

    /// Measured steps
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) steps: usize,

    /// Warm-up steps, in which links open and buckets are rebuilt
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) warm_up: usize,
}

fn bucket_size(text: &str) -> Result<BucketSize, String> {
    match text {
        "auto" => Ok(BucketSize::Auto),
        number => number
            .parse()
            .map(BucketSize::Bytes)
            .map_err(|_| "expected a number of bytes, or auto".into()),
    }
}

impl Job {
    /// Checks that the options are valid.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (name, value) in [
            ("ranks", self.ranks.unwrap_or(1)),
            ("layers", self.layers),
            ("weights", self.weights),
            ("steps", self.steps),
        ] {
            if value == 0 {
                return Err(format!("--{name} must be at least 1"));
            }
        }
        let least = 4 * self.layers * self.weights;
        if self.parameters < least {
            return Err(format!(
                "--parameters {} is too small for {} layers of {} weights; use at least {least}",
                self.parameters, self.layers, self.weights
            ));
        }
        Ok(())
    }
}
