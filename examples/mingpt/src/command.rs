//! Defines the command line and its help.

use crate::options::{Config, Settings};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::path::PathBuf;

/// Examples that are shown below the help.
const EXAMPLES: &str = "\
Examples:
  mingpt --steps 100                                        train on one core
  ringtree run --nproc-per-node 2 -- mingpt --checkpoint run1 --text book.txt
  mingpt --checkpoint run1 --text book.txt                  resume after an interruption
  mingpt validate --checkpoint run1 --text book.txt         validate during the training
  mingpt generate --checkpoint run1 --prompt 'Once upon'    write text with the model";

/// Options that mean the same for a validation as for the training.
const OF_VALIDATION: &[&str] = &["once", "config", "text", "validation-sequences"];
/// Help text of `--metrics` for a validation.
const METRICS_OF_VALIDATION: &str =
    "File for the losses, JSON lines [default: validation.jsonl in the checkpoint directory]";

/// Train a small GPT on a text, character by character, on one process or many.
///
/// Without a launcher, it trains on one core. `ringtree run --nproc-per-node N -- mingpt ...`
/// starts N ranks, which share each batch and end with equal weights. Exit code 2 means that the
/// settings or the training must be changed; launchers do not restart it then.
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
    /// TOML file with settings, named like the options, which take precedence
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Evaluate each new checkpoint during the training
    ///
    /// Prints the validation loss of the latest checkpoint, then waits for newer ones until the
    /// training has ended.
    Validate {
        /// Evaluate only the latest checkpoint
        #[arg(long)]
        once: bool,
        /// TOML file with settings
        #[arg(long, value_name = "PATH")]
        config: Option<PathBuf>,
        #[command(flatten)]
        settings: Box<Settings>,
    },
    /// Write text with a trained model
    Generate(Generate),
}

/// The model to use, and the text to write.
#[derive(Args, Clone, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Generate {
    /// Directory of the checkpoints
    #[arg(long, value_name = "PATH")]
    pub(crate) checkpoint: PathBuf,
    /// Step of the checkpoint [default: the best by validation loss, otherwise the latest]
    #[arg(long)]
    pub(crate) step: Option<u64>,
    /// Beginning of the text, which the model continues
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) prompt: String,
    /// 0 always takes the likeliest character, 1 draws by the model's probabilities
    #[arg(long, default_value_t = 0.7)]
    pub(crate) temperature: f64,
    /// Characters to write after the prompt
    #[arg(long, default_value_t = 300)]
    pub(crate) length: usize,
    /// Seed of the text
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// The task of this process.
pub(crate) enum Task {
    /// Train the model as one of the ranks.
    Train(Config),
    /// Evaluate checkpoints, without other ranks.
    Validate {
        config: Config,
        /// Evaluate only the latest checkpoint.
        once: bool,
    },
    /// Write text, without other ranks.
    Generate(Generate),
}

/// Reads the command line and the settings file.
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
            Err(format!("--temperature {temperature} must be 0 or larger"))
        }
    }
}

/// Returns the command line, whose help shows the defaults. A validation accepts all options of a
/// training, but its help omits those that it ignores.
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
            "checkpoint" => argument.help("Directory of the training's checkpoints"),
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
    fn help_shows_defaults_and_only_relevant_options() {
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
    fn validate_accepts_options_of_training() {
        let words = ["mingpt", "validate", "--steps", "8", "--checkpoint", "run1"];
        assert!(command().try_get_matches_from(words).is_ok());
    }
}
