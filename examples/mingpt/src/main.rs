//! `mingpt`: a character-level GPT, trained data-parallel on candle and ringtree.
//!
//! ```text
//! ringtree run --nproc-per-node 2 --max-restarts 3 -- mingpt --checkpoint run1
//! mingpt validate --checkpoint run1
//! mingpt generate --checkpoint run1 --prompt 'fn main'
//! ```
//!
//! Every rank starts from rank 0's weights, trains on its own sequences, and takes the optimizer
//! step that the gradients averaged over all ranks ask for, so that the replicas stay equal to the
//! bit; the last line has the hash of the weights, compared over all ranks.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod command;
mod evaluate;
mod failure;
mod files;
mod generate;
mod model;
mod optimizer;
mod options;
mod plot;
#[path = "../../progress/mod.rs"]
mod progress;
mod random;
mod replicas;
mod report;
mod sample;
mod snapshot;
mod text;
mod train;
mod trainer;
mod validate;
mod watch;

use command::Task;
use failure::Failure;
use ringtree::Communicator;
use std::env;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use text::Text;

/// The variable by which candle knows how many threads to compute with.
const THREADS: &str = "RAYON_NUM_THREADS";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("mingpt: {}", failure.message);
            ExitCode::from(failure.exit_code)
        }
    }
}

fn run() -> Result<(), Failure> {
    let task = command::read().map_err(Failure::usage)?;
    if env::var_os(THREADS).is_none() {
        return Err(restart_with_one_thread());
    }
    match task {
        Task::Train(config) => {
            let text = Text::load(config.text.as_deref(), config.block).map_err(Failure::usage)?;
            let comm = Communicator::from_env_or_alone()?;
            let ranks = comm.world_size();
            config.check_ranks(ranks).map_err(Failure::usage)?;
            train::train(&comm, &config, &text)
        }
        Task::Validate { config, once } => validate::validate(&config, once),
        Task::Generate(generate) => generate::generate(&generate),
    }
}

/// The ranks of a host share its cores, so each computes with one thread unless somebody says
/// otherwise. The variable is read once and early: this program starts itself again with it.
fn restart_with_one_thread() -> Failure {
    let program = match env::current_exe() {
        Ok(program) => program,
        Err(error) => return Failure::work(format!("cannot find this program's file: {error}")),
    };
    let error = Command::new(program)
        .args(env::args_os().skip(1))
        .env(THREADS, "1")
        .exec();
    Failure::work(format!("cannot start with {THREADS}=1: {error}"))
}
