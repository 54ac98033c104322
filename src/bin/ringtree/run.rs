//! `ringtree run`: starts a program as several ranks, on one host or on several.

use clap::Args;
use ringtree::Error;
use ringtree::launch::{self, Job, Meeting, Output};
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::process::ExitCode;

/// The command's arguments. torchrun's spellings with underscores work too.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Ranks on this host; `auto` is one for each core this process may use
    #[arg(long, alias = "nproc_per_node", value_name = "N|auto", value_parser = parse_ranks)]
    nproc_per_node: NonZeroUsize,

    /// Hosts of the job; the same command runs on each
    #[arg(long, value_name = "M", default_value = "1")]
    nnodes: NonZeroUsize,

    /// Where the launchers meet: an address of one of the hosts
    #[arg(long, alias = "rdzv_endpoint", value_name = "HOST:PORT")]
    rdzv_endpoint: Option<String>,

    /// The job's name, the same on every host; without it one is made up
    #[arg(long, alias = "rdzv_id", value_name = "ID")]
    rdzv_id: Option<String>,

    /// This host's place; without it places are given out
    #[arg(long, alias = "node_rank", value_name = "K")]
    node_rank: Option<usize>,

    /// How often all ranks, on all hosts, start again after one failed; not after exit code 2
    #[arg(long, alias = "max_restarts", value_name = "R", default_value_t = 0)]
    max_restarts: u16,

    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    #[arg(value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Runs the job; the exit code is the job's.
pub(crate) fn execute(arguments: Arguments) -> ExitCode {
    let code = match job(arguments).and_then(|job| launch::run(&job)) {
        Ok(code) => u8::try_from(code).unwrap_or(1),
        Err(error) => {
            launch::tell(&error.to_string());
            match error.is_usage() || error.is_configuration() {
                true => 2,
                false => 1,
            }
        }
    };
    ExitCode::from(code)
}

fn parse_ranks(text: &str) -> Result<NonZeroUsize, String> {
    if text == "auto" {
        return std::thread::available_parallelism().map_err(|error| error.to_string());
    }
    text.parse()
        .map_err(|_| "a number from 1, or auto".to_owned())
}

/// The job that the arguments describe, or what is wrong with them.
fn job(arguments: Arguments) -> Result<Job, Error> {
    let wrong = |text: String| Err(Error::usage(text));
    let nodes = arguments.nnodes.get();
    if let Some(node_rank) = arguments.node_rank.filter(|node_rank| *node_rank >= nodes) {
        return wrong(format!(
            "--node-rank {node_rank} does not exist among --nnodes {nodes}"
        ));
    }
    if nodes > 1 && arguments.rdzv_endpoint.is_none() {
        return wrong(format!(
            "--nnodes {nodes} needs --rdzv-endpoint HOST:PORT to meet at"
        ));
    }
    let mut words = arguments.command.into_iter();
    let Some(program) = words.next() else {
        return wrong("no program to run".to_owned());
    };
    if program.to_string_lossy().starts_with('-') {
        let program = program.to_string_lossy();
        return wrong(format!(
            "run has no option {program}, and no program is called so"
        ));
    }
    Ok(Job {
        program,
        arguments: words.collect(),
        ranks: arguments.nproc_per_node.get(),
        id: arguments.rdzv_id,
        max_restarts: arguments.max_restarts,
        output: Output::Prefixed,
        meeting: arguments.rdzv_endpoint.map(|endpoint| Meeting {
            nodes,
            endpoint,
            node_rank: arguments.node_rank,
        }),
    })
}
