//! Defines the settings of a training. They are flags, which take precedence over a TOML file.

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// The format in which gradients are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Wire {
    /// 32 bits, unchanged.
    F32,
    /// Rounded to 16 bits, summed in 32 bits.
    Bf16,
}

/// Defines all settings as flags, as keys in the file, and as the values to train with.
macro_rules! settings {
    (
        values { $($heading:literal {
            $($(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:expr,)*
        })* }
        switches { $($switch_heading:literal {
            $($(#[doc = $switch_doc:literal])+ $switch:ident,)*
        })* }
        files { $($file_heading:literal {
            $($(#[doc = $file_doc:literal])+ $file:ident,)*
        })* }
    ) => {
        /// The settings that the user has made.
        #[derive(Args, Clone, Debug, Default, Deserialize)]
        #[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
        pub(crate) struct Settings {
            $($(
                #[arg(long, help_heading = $heading, help = concat!($($doc,)+))]
                $name: Option<$type>,
            )*)*
            $($(
                #[arg(
                    long,
                    help_heading = $switch_heading,
                    value_name = "true|false",
                    num_args = 0..=1,
                    require_equals = true,
                    default_missing_value = "true",
                    help = concat!($($switch_doc,)+)
                )]
                $switch: Option<bool>,
            )*)*
            $($(
                #[arg(
                    long,
                    help_heading = $file_heading,
                    value_name = "PATH",
                    help = concat!($($file_doc,)+)
                )]
                $file: Option<PathBuf>,
            )*)*
        }

        /// The settings to train with.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default, rename_all = "kebab-case")]
        pub(crate) struct Config {
            $($($(#[doc = $doc])+ pub(crate) $name: $type,)*)*
            $($($(#[doc = $switch_doc])+ pub(crate) $switch: bool,)*)*
            $($(
                $(#[doc = $file_doc])+
                #[serde(skip)]
                pub(crate) $file: Option<PathBuf>,
            )*)*
        }

        impl Default for Config {
            fn default() -> Self {
                Settings::default().over(Settings::default())
            }
        }

        impl Settings {
            /// Fills in settings that are missing here from `file`, and then from the defaults.
            fn over(self, file: Self) -> Config {
                Config {
                    $($($name: self.$name.or(file.$name).unwrap_or($default),)*)*
                    $($($switch: self.$switch.or(file.$switch).unwrap_or_default(),)*)*
                    $($($file: self.$file.or(file.$file),)*)*
                }
            }
        }
    };
}

settings! {
    values {
        "Training" {
            /// Number of optimizer steps
            steps: u64 = 300,
            /// Sequences per step, over all ranks
            batch: usize = 16,
            /// Number of parts into which each rank splits its share of the batch, to save memory
            accumulate: usize = 1,
            /// Seed of the initial weights, the order of the data and the dropout
            seed: u64 = 1,
            /// Stop after this many validations without a new best loss; 0 trains to the end
            patience: u64 = 0,
        }
        "Model" {
            /// Transformer blocks
            layers: usize = 4,
            /// Attention heads per block
            heads: usize = 4,
            /// Size of the embedding, a multiple of --heads
            width: usize = 128,
            /// Number of characters that the model sees
            block: usize = 64,
            /// Share of activations that are dropped in training
            dropout: f64 = 0.0,
        }
        "Optimizer" {
            /// Peak of the learning rate
            learning_rate: f64 = 0.002,
            /// Steps in which the learning rate rises to its peak, before it falls to a tenth
            warmup: u64 = 20,
            /// Weight decay, only of matrices
            weight_decay: f64 = 0.1,
            /// Clip gradients to this norm; 0 does not clip
            clip: f64 = 1.0,
        }
        "Communication" {
            /// Send gradients unchanged (f32) or in half the bytes (bf16)
            wire: Wire = Wire::F32,
            /// For slow links: average weights only every N steps (DiLoCo); 0 averages every
            /// gradient
            local_steps: u64 = 0,
        }
        "Checkpoints and validation" {
            /// Steps between checkpoints
            every: u64 = 100,
            /// Number of latest checkpoints to keep, in addition to the best by validation loss
            keep: usize = 3,
            /// Steps between validations; 0 validates only at the end
            validate_every: u64 = 100,
            /// Sequences per validation
            validation_sequences: usize = 64,
        }
    }
    switches {
        "Communication" {
            /// Shard the optimizer's state among the ranks to save memory (ZeRO, stage 1)
            shard_optimizer,
        }
    }
    files {
        "Checkpoints and validation" {
            /// Directory for checkpoints; if it has some, training resumes from the latest
            checkpoint,
        }
        "Input and output" {
            /// Text file to train on [default: the sources of this project]
            text,
            /// File for the metrics, JSON lines [default: metrics.jsonl in the checkpoint
            /// directory]
            metrics,
            /// Picture of the losses, redrawn during training [default: loss.svg in the checkpoint
            /// directory]
            plot,
            /// Timeline of the first 20 steps of all ranks, for Perfetto
            trace,
        }
    }
}

impl Settings {
    /// Fills in settings that are missing here from the file `path`, and then from the defaults.
    pub(crate) fn over_file(self, path: Option<&Path>) -> Result<Config, String> {
        let file = path.map(read_file).transpose()?;
        let config = self.over(file.unwrap_or_default());
        config.check()?;
        Ok(config)
    }
}

fn read_file(path: &Path) -> Result<Settings, String> {
    let text = fs::read_to_string(path)
        .map_err(|error| format!("cannot read the settings {}: {error}", path.display()))?;
    parse_file(&text).map_err(|error| format!("{}: {error}", path.display()))
}

fn parse_file(text: &str) -> Result<Settings, String> {
    // The parser's message has several lines, which point at the error in the file. Report it in
    // one line.
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
            ("validation-sequences", self.validation_sequences as u64),
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
            return Err("--shard-optimizer requires --wire f32 and no --local-steps".to_owned());
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(format!(
                "--dropout {} must be at least 0 and below 1",
                self.dropout
            ));
        }
        if self.patience > 0 && self.validate_every == 0 {
            return Err("--patience counts validations, so --validate-every must not be 0".into());
        }
        self.check_meetings()?;
        match factors
            .iter()
            .find(|(_, value)| !(value.is_finite() && *value >= 0.0))
        {
            Some((name, value)) => Err(format!("--{name} {value} must be 0 or larger")),
            None => Ok(()),
        }
    }

    /// Checks that validations, checkpoints and the end of the training come only after steps that
    /// average the weights.
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
                 compared, validated and saved only when they are averaged"
            )),
            None => Ok(()),
        }
    }

    /// Checks that the batch can be divided evenly among the ranks.
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
    fn flags_override_file_and_file_overrides_defaults() {
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
    fn default_file_contains_all_settings() {
        let text = include_str!("../mingpt.toml");
        let file = parse_file(text).unwrap();
        assert_eq!(
            Settings::default().over(file.clone()),
            Config::default(),
            "{file:?}"
        );
        let defaults = serde_json::to_value(Config::default()).unwrap();
        for name in defaults.as_object().unwrap().keys() {
            assert!(text.contains(&format!("\n{name} = ")), "{name}");
        }
    }

    #[test]
    fn unknown_key_is_named_with_its_line() {
        let message = parse_file("batch = 32\nbatchsize = 3").unwrap_err();
        assert!(message.starts_with("line 2: "), "{message}");
        assert!(message.contains("batchsize"), "{message}");
    }

    #[test]
    fn indivisible_batch_is_rejected() {
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
