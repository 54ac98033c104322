//! The command line, and its help.

use crate::options::{Config, Settings};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::path::PathBuf;

/// What to type, under the help.
const EXAMPLES: &str = "\
Examples:
  mingpt --steps 100                                        train alone, on one core
  ringtree run --nproc-per-node 2 -- mingpt --checkpoint run1 --text book.txt
  mingpt --checkpoint run1 --text book.txt                  go on after an interruption
  mingpt validate --checkpoint run1 --text book.txt         beside the training
  mingpt generate --checkpoint run1 --prompt 'Once upon'    let the model write";

/// The options that mean the same for a validation.
const OF_VALIDATION: &[&str] = &["once", "config", "text", "validation-sequences"];
/// What `--metrics` means there.
const METRICS_OF_VALIDATION: &str =
    "File for the losses, JSON lines [default: validation.jsonl in the checkpoint folder]";

/// Train a small GPT on a text, character by character, on one process or many.
///
/// Started alone it trains on one core; `ringtree run --nproc-per-node N -- mingpt ...` starts N
/// ranks, which share each batch and end with equal weights. Exit code 2 says that a setting or
/// the training itself must be changed: a launcher does not try that again.
#[derive(Parser)]
#[command(
    name = "mingpt",
    version,
    args_conflicts_with_subcommands = true,
    allow_negative_numbers = true,
    after_help = EXAMPLES
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Subcommands>,
    /// TOML file with settings, named as the options are; an option goes before the file
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Evaluate each new checkpoint while the training goes on
    ///
    /// It prints the validation loss of the latest checkpoint, then waits for newer ones, until the
    /// training has ended.
    Validate {
        /// Evaluate the latest checkpoint, and end
        #[arg(long)]
        once: bool,
        /// TOML file with settings
        #[arg(long, value_name = "PATH")]
        config: Option<PathBuf>,
        #[command(flatten)]
        settings: Box<Settings>,
    },
    /// Let a trained model write text
    Generate(Generate),
}

/// What to write, and by which model.
#[derive(Args, Clone, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Generate {
    /// Folder of the checkpoints
    #[arg(long, value_name = "PATH")]
    pub(crate) checkpoint: PathBuf,
    /// Step of the checkpoint to use [default: the best by validation loss, else the latest]
    #[arg(long)]
    pub(crate) step: Option<u64>,
    /// The beginning, which the model continues
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) prompt: String,
    /// 0 takes the likeliest character each time, 1 draws as likely as the model finds them
    #[arg(long, default_value_t = 0.7)]
    pub(crate) temperature: f64,
    /// Characters to write after the prompt
    #[arg(long, default_value_t = 300)]
    pub(crate) length: usize,
    /// Another seed writes another text
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// What to do.
pub(crate) enum Task {
    /// Train, on all ranks.
    Train(Config),
    /// Evaluate checkpoints, alone.
    Validate {
        config: Config,
        /// Only one.
        once: bool,
    },
    /// Write, alone.
    Generate(Generate),
}

/// Reads the command line, and the file that it names.
pub(crate) fn read() -> Result<Task, String> {
    let matches = command().get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match arguments.command {
        None => {
            let config = arguments.settings.over_file(arguments.config.as_deref())?;
            Ok(Task::Train(config))
        }
        Some(Subcommands::Validate {
            once,
            config,
            settings,
        }) => {
            let config = settings.over_file(config.as_deref())?;
            Ok(Task::Validate { config, once })
        }
        Some(Subcommands::Generate(generate)) => {
            let temperature = generate.temperature;
            if temperature.is_finite() && temperature >= 0.0 {
                return Ok(Task::Generate(generate));
            }
            Err(format!(
                "--temperature {temperature} must be a number from 0"
            ))
        }
    }
}

/// The command line, with defaults in its help. What does not concern a validation is accepted
/// there, so that it can be started with the training's options, but not explained.
fn command() -> clap::Command {
    let defaults = serde_json::to_value(Config::default());
    let defaults = defaults.expect("invariant: settings are plain data");
    let with_default = move |argument: clap::Arg| {
        let Some(help) = argument.get_help().map(ToString::to_string) else {
            return argument;
        };
        let help = help.trim();
        match argument.get_long().and_then(|name| defaults.get(name)) {
            Some(default) => {
                let help = format!("{help} [default: {default}]").replace('"', "");
                match default.is_number() {
                    true => argument.value_name("N").help(help),
                    false => argument.help(help),
                }
            }
            None => {
                let help = help.to_owned();
                argument.help(help)
            }
        }
    };
    let of_validation = |argument: clap::Arg| {
        let name = argument.get_long().unwrap_or_default().to_owned();
        match name.as_str() {
            "metrics" => argument.help(METRICS_OF_VALIDATION),
            "checkpoint" => argument.help("Folder of the training's checkpoints"),
            name => argument.hide(!OF_VALIDATION.contains(&name)),
        }
    };
    Arguments::command()
        .mut_args(with_default.clone())
        .mut_subcommand("validate", |validate| {
            validate.mut_args(with_default).mut_args(of_validation)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_has_defaults_and_that_of_validation_what_concerns_it() {
        let mut command = command();
        command.build();
        let help = command.render_help().to_string();
        for words in ["[default: 300]", "[default: f32]", "[default: 0.002]"] {
            assert!(help.contains(words), "{words}: {help}");
        }
        let validate = command.find_subcommand_mut("validate").unwrap();
        let help = validate.render_help().to_string();
        assert!(
            help.contains("validation.jsonl") && help.contains("--once"),
            "{help}"
        );
        assert!(!help.contains("learning"), "{help}");
    }

    #[test]
    fn a_validation_may_be_started_with_the_options_of_its_training() {
        let words = ["mingpt", "validate", "--steps", "8", "--checkpoint", "run1"];
        assert!(command().try_get_matches_from(words).is_ok());
    }
}
