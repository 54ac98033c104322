//! `mingpt`: a character-level GPT, trained data-parallel on candle and ringtree.
//!
//! ```text
//! ringtree run --nproc-per-node 2 --max-restarts 3 -- mingpt --checkpoint run1
//! mingpt validate --checkpoint run1
//! mingpt generate --checkpoint run1 --prompt 'fn main'
//! ```
//!
//! Every rank starts with rank 0's weights and trains on its own sequences. The gradients are
//! averaged over all ranks before the optimizer step, so the replicas stay equal to the bit. At the
//! end, the hashes of the ranks' weights are compared, and the last line of output shows the hash.

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

/// Environment variable with the number of threads that candle uses for computing.
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

/// Restarts this program with one compute thread, because the ranks on a host share its cores. The
/// restart is necessary because the variable is read only once, early in the process. Returns only
/// on failure.
fn restart_with_one_thread() -> Failure {
    let program = match env::current_exe() {
        Ok(program) => program,
        Err(error) => return Failure::work(format!("cannot find the program file: {error}")),
    };
    let error = Command::new(program)
        .args(env::args_os().skip(1))
        .env(THREADS, "1")
        .exec();
    Failure::work(format!("cannot start with {THREADS}=1: {error}"))
}
