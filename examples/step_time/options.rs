//! The command line.

use clap::{Args, Parser, Subcommand};
use ringtree::Algorithm;
use ringtree::ddp::BucketSize;
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
    /// Steps whose backward sleeps to a timetable; prints a line of CSV
    Measure(Measure),
    /// The data-parallel layer beside bare all-reduces of the same bytes, without any backward
    Compare(Job),
    /// Steps whose backward computes, with gradients reported as it makes them and at its end
    Overlap {
        #[command(flatten)]
        job: Job,
        /// How long backward takes where the rank has a core to itself
        #[arg(long, value_name = "MS", default_value_t = 40.0)]
        backward_ms: f64,
    },
    /// Prints the header of those lines
    Header,
    /// Prints medians of such lines, as a table
    Summary {
        /// Lines that `measure` printed, under their header
        table: PathBuf,
    },
    /// Draws step time against bucket size
    Plot {
        /// Lines that `measure` printed, under their header
        table: PathBuf,
        /// The SVG to write
        picture: PathBuf,
        /// The line under the title, which says what was measured
        #[arg(long, default_value = "")]
        note: String,
    },
    /// Draw how long trainings took to a validation loss
    Losses {
        /// Lines of way, step, seconds and validation loss, under their header
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

    /// How long backward takes [default: what communication takes at least, at 1 Gbit/s]
    #[arg(long, value_name = "MS")]
    pub(crate) backward_ms: Option<f64>,

    /// How long forward takes [default: a third of backward]
    #[arg(long, value_name = "MS")]
    pub(crate) forward_ms: Option<f64>,

    /// On ranks simulated in virtual time, over links of 1 Gbit/s and 0.25 ms
    #[arg(long)]
    pub(crate) simulated: bool,

    /// Leave out the bare all-reduces between the steps
    #[arg(long)]
    pub(crate) steps_only: bool,

    /// The first field of the line
    #[arg(long, value_name = "NAME", default_value = "ringtree")]
    pub(crate) label: String,

    /// Print where the time of the last step went, by bucket, on standard error
    #[arg(long)]
    pub(crate) verbose: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Job {
    /// Ranks to spawn where this is not one of several already [default: 2]
    #[arg(long, value_name = "N")]
    pub(crate) ranks: Option<usize>,

    /// Elements of all gradients, f32
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    pub(crate) parameters: usize,

    /// Layers of equal backward time
    #[arg(long, value_name = "N", default_value_t = 12)]
    pub(crate) layers: usize,

    /// Weights of a layer, each with a bias; all gradients of a layer come at once
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(crate) weights: usize,

    /// Bytes of a bucket, or auto
    #[arg(long, value_name = "BYTES", default_value = "auto", value_parser = bucket_size)]
    pub(crate) bucket: BucketSize,

    /// The all-reduce's algorithm [default: the choice of each call]
    #[arg(long, value_name = "NAME")]
    pub(crate) algorithm: Option<Algorithm>,

    /// Steps that count
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) steps: usize,

    /// Steps before them, in which links open and buckets are laid out anew
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) warm_up: usize,
}

fn bucket_size(text: &str) -> Result<BucketSize, String> {
    match text {
        "auto" => Ok(BucketSize::Auto),
        number => number
            .parse()
            .map(BucketSize::Bytes)
            .map_err(|_| "give a number of bytes, or auto".into()),
    }
}

impl Job {
    /// Whether there is something to measure.
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
                "--parameters {} are too few for {} layers of {} weights; give {least} or more",
                self.parameters, self.layers, self.weights
            ));
        }
        Ok(())
    }
}
