//! What to train and how: a TOML file, and flags that go before it.

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// How gradients travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Wire {
    /// As they are.
    F32,
    /// Rounded to 16 bits, summed in 32.
    Bf16,
}

/// Declares all settings once: as flags, as keys of the file, and as the values to train with.
macro_rules! settings {
    (
        values { $($(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:expr,)* }
        switches { $($(#[doc = $switch_doc:literal])+ $switch:ident,)* }
        files { $($(#[doc = $file_doc:literal])+ $file:ident,)* }
    ) => {
        /// The settings that somebody has made.
        #[derive(Args, Clone, Debug, Default, Deserialize)]
        #[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
        pub(crate) struct Settings {
            $(
                #[arg(long, help = concat!($($doc,)+ " [default: ", stringify!($default), "]"))]
                $name: Option<$type>,
            )*
            $(
                #[arg(
                    long,
                    value_name = "true|false",
                    num_args = 0..=1,
                    require_equals = true,
                    default_missing_value = "true",
                    help = concat!($($switch_doc,)+ " [default: false]")
                )]
                $switch: Option<bool>,
            )*
            $(
                #[arg(long, value_name = "PATH", help = concat!($($file_doc,)+))]
                $file: Option<PathBuf>,
            )*
        }

        /// The settings to train with.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub(crate) struct Config {
            $($(#[doc = $doc])+ pub(crate) $name: $type,)*
            $(
                $(#[doc = $switch_doc])+
                #[serde(default)]
                pub(crate) $switch: bool,
            )*
            $(
                $(#[doc = $file_doc])+
                #[serde(skip)]
                pub(crate) $file: Option<PathBuf>,
            )*
        }

        impl Settings {
            /// These settings, and for what they leave open those of `file`, then the defaults.
            fn over(self, file: Self) -> Config {
                Config {
                    $($name: self.$name.or(file.$name).unwrap_or($default),)*
                    $($switch: self.$switch.or(file.$switch).unwrap_or_default(),)*
                    $($file: self.$file.or(file.$file),)*
                }
            }
        }
    };
}

settings! {
    values {
        /// Optimizer steps
        steps: u64 = 300,
        /// Sequences a step, over all ranks
        batch: usize = 16,
        /// Parts of a step's batch that go through the model one after another
        accumulate: usize = 1,
        /// Where all randomness comes from
        seed: u64 = 1,
        /// Blocks of the model
        layers: usize = 4,
        /// Attention heads of a block
        heads: usize = 4,
        /// Numbers that stand for a character inside the model
        width: usize = 128,
        /// Characters that the model sees
        block: usize = 64,
        /// The highest learning rate
        learning_rate: f64 = 2e-3,
        /// Steps in which the learning rate rises
        warmup: u64 = 20,
        /// Weight decay of matrices
        weight_decay: f64 = 0.1,
        /// The longest gradient that is not shortened, 0 for no limit
        clip: f64 = 1.0,
        /// Steps from one checkpoint to the next
        every: u64 = 100,
        /// Checkpoints that are kept
        keep: usize = 3,
        /// Steps from one validation to the next, 0 for none but the last
        validate_every: u64 = 100,
        /// Sequences of a validation
        validation_sequences: usize = 64,
        /// How gradients travel
        wire: Wire = Wire::F32,
        /// Steps that a rank takes alone before all ranks meet, 0 to average every gradient
        local_steps: u64 = 0,
    }
    switches {
        /// Each rank keeps its share of the optimizer's state alone
        shard_optimizer,
    }
    files {
        /// The text to train on [default: this project's sources]
        text,
        /// The directory of the checkpoints, from which training goes on
        checkpoint,
        /// Where rank 0 writes its metrics [default: metrics.jsonl beside the checkpoints]
        metrics,
        /// Where rank 0 draws the loss [default: loss.svg beside the checkpoints]
        plot,
        /// Where rank 0 writes a timeline of all ranks, of the first 20 steps
        trace,
    }
}

/// A character-level GPT, trained on as many ranks as it is started on.
///
/// Start it with `ringtree run --nproc-per-node N -- mingpt ...`, or alone.
#[derive(Parser)]
#[command(name = "mingpt", version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Subcommands>,
    /// A TOML file of settings; flags go before it
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Evaluate the latest checkpoint, again whenever there is a new one, beside the training
    Validate {
        /// Evaluate the one there is, and end
        #[arg(long)]
        once: bool,
        /// A TOML file of settings; flags go before it
        #[arg(long, value_name = "PATH")]
        config: Option<PathBuf>,
        #[command(flatten)]
        settings: Box<Settings>,
    },
}

/// What to do.
pub(crate) enum Task {
    /// Train, on all ranks.
    Train,
    /// Evaluate checkpoints, alone.
    Validate {
        /// Only one.
        once: bool,
    },
}

/// Reads the command line, and the file that it names.
pub(crate) fn read() -> Result<(Task, Config), String> {
    let Arguments {
        command,
        config,
        settings,
    } = Arguments::parse();
    let (task, config, settings) = match command {
        None => (Task::Train, config, settings),
        Some(Subcommands::Validate {
            once,
            config,
            settings,
        }) => (Task::Validate { once }, config, *settings),
    };
    let file = config.as_deref().map(read_file).transpose()?;
    let config = settings.over(file.unwrap_or_default());
    config.check()?;
    Ok((task, config))
}

fn read_file(path: &Path) -> Result<Settings, String> {
    let text = fs::read_to_string(path)
        .map_err(|error| format!("cannot read the settings {}: {error}", path.display()))?;
    parse_file(&text).map_err(|error| format!("{}: {error}", path.display()))
}

fn parse_file(text: &str) -> Result<Settings, String> {
    // The parser's message goes over several lines, to point at the place.
    toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(0, |span| {
            text[..span.start.min(text.len())].matches('\n').count() + 1
        });
        format!("line {line}: {}", error.message())
    })
}

impl Config {
    fn check(&self) -> Result<(), String> {
        let positive = [
            ("steps", self.steps),
            ("batch", self.batch as u64),
            ("accumulate", self.accumulate as u64),
            ("layers", self.layers as u64),
            ("heads", self.heads as u64),
            ("width", self.width as u64),
            ("block", self.block as u64),
            ("every", self.every),
            ("keep", self.keep as u64),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(format!("--{name} must be at least 1"));
        }
        if !self.width.is_multiple_of(self.heads) {
            return Err(format!(
                "--width {} must be a multiple of --heads {}",
                self.width, self.heads
            ));
        }
        let factors = [
            ("learning-rate", self.learning_rate),
            ("weight-decay", self.weight_decay),
            ("clip", self.clip),
        ];
        if self.shard_optimizer && (self.wire != Wire::F32 || self.local_steps > 0) {
            return Err("--shard-optimizer goes with --wire f32, without --local-steps".to_owned());
        }
        self.check_meetings()?;
        match factors
            .iter()
            .find(|(_, value)| !(value.is_finite() && *value >= 0.0))
        {
            Some((name, value)) => Err(format!("--{name} {value} must be a number from 0")),
            None => Ok(()),
        }
    }

    /// Ranks that train apart validate, save and end when they meet.
    fn check_meetings(&self) -> Result<(), String> {
        let local = self.local_steps;
        let meetings = [
            ("steps", self.steps),
            ("every", self.every),
            ("validate-every", self.validate_every),
        ];
        match meetings
            .iter()
            .find(|(_, each)| local > 0 && !each.is_multiple_of(local))
        {
            Some((name, each)) => Err(format!(
                "--{name} {each} must be a multiple of --local-steps {local}: weights are \
                 compared, validated and saved when the ranks have met"
            )),
            None => Ok(()),
        }
    }

    /// Makes sure that the ranks can share a batch evenly.
    pub(crate) fn check_ranks(&self, ranks: usize) -> Result<(), String> {
        let parts = ranks * self.accumulate;
        if self.batch.is_multiple_of(parts) {
            return Ok(());
        }
        Err(format!(
            "--batch {} must be a multiple of {parts}: {ranks} ranks, each with --accumulate {}",
            self.batch, self.accumulate
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_go_before_the_file_and_the_file_before_defaults() {
        let file = parse_file("batch = 32\nlearning-rate = 0.5\nwire = \"bf16\"").unwrap();
        let flags = Settings {
            batch: Some(64),
            ..Settings::default()
        };
        let config = flags.over(file);
        assert_eq!((config.batch, config.learning_rate), (64, 0.5));
        assert_eq!((config.wire, config.layers), (Wire::Bf16, 4));
    }

    #[test]
    fn a_wrong_key_is_named_with_its_line() {
        let message = parse_file("batch = 32\nbatchsize = 3").unwrap_err();
        assert!(message.starts_with("line 2: "), "{message}");
        assert!(message.contains("batchsize"), "{message}");
    }

    #[test]
    fn a_batch_that_ranks_cannot_share_is_refused() {
        let config = Settings {
            batch: Some(12),
            accumulate: Some(2),
            ..Settings::default()
        }
        .over(Settings::default());
        assert_eq!(config.check_ranks(3), Ok(()));
        let message = config.check_ranks(4).unwrap_err();
        assert!(
            message.contains("--batch 12 must be a multiple of 8"),
            "{message}"
        );
    }
}
