//! `ringtree run`: starts a program as several ranks, on one host or on several.

use crate::{FAILED, MISUSED};
use clap::{Args, ValueEnum};
use ringtree::Error;
use ringtree::launch::{self, Job, Meeting, Output};
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// The port at which the launchers meet if only an address is given, as torchrun has it.
const MASTER_PORT: u16 = 29_500;

/// torchrun's options that have no meaning here, and what to do instead.
const TORCHRUN_ALONE: &[(&str, &str)] = &[
    (
        "--rdzv-conf",
        "set RINGTREE_TIMEOUT_MS for how long the start may take",
    ),
    ("--local-addr", "set RINGTREE_INTERFACE"),
    (
        "--monitor-interval",
        "leave it out: the end of a rank is noticed at once",
    ),
    (
        "--start-method",
        "leave it out: a rank is a process of its own",
    ),
    ("--role", "leave it out: all ranks are of one kind"),
    ("--tee", "take --log-dir, or --output prefixed"),
    ("-t", "take --log-dir, or --output prefixed"),
    (
        "--redirects",
        "take --log-dir, with --output rank0 for less on the terminal",
    ),
    (
        "-r",
        "take --log-dir, with --output rank0 for less on the terminal",
    ),
    ("--local-ranks-filter", "take --output rank0"),
    ("--logs-specs", "take --log-dir"),
    (
        "--event-log-handler",
        "leave it out: events are told on standard error",
    ),
    ("--numa-binding", "start the program with numactl"),
    (
        "--run-path",
        "name the interpreter: `-- python3 -m runpy PATH`",
    ),
    ("--module", "name the interpreter: `-- python3 -m MODULE`"),
    ("-m", "name the interpreter: `-- python3 -m MODULE`"),
];

/// The command's arguments. torchrun's spellings with underscores work too.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Ranks on this host; `auto` is one for each core this process may use
    #[arg(long, alias = "nproc_per_node", value_name = "N|auto", value_parser = parse_ranks)]
    nproc_per_node: NonZeroUsize,

    /// Hosts of the job; the same command runs on each
    #[arg(long, value_name = "M", default_value = "1", value_parser = parse_nodes)]
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

    /// The same as --rdzv-endpoint, in two parts: an address of the host with --node-rank 0
    #[arg(
        long,
        alias = "master_addr",
        value_name = "HOST",
        conflicts_with = "rdzv_endpoint"
    )]
    master_addr: Option<String>,

    /// The port at --master-addr [default: 29500]
    #[arg(
        long,
        alias = "master_port",
        value_name = "PORT",
        conflicts_with = "rdzv_endpoint"
    )]
    master_port: Option<u16>,

    /// One host alone, which is what a job is without --nnodes
    #[arg(long)]
    standalone: bool,

    /// torchrun's: c10d or static, for the launchers meet by themselves
    #[arg(long, alias = "rdzv_backend", hide = true, value_parser = parse_backend)]
    rdzv_backend: Option<String>,

    /// torchrun's: a program is always started as it is
    #[arg(long, alias = "no_python", hide = true)]
    no_python: bool,

    /// How often all ranks, on all hosts, start again after one failed; not after exit code 2
    #[arg(long, alias = "max_restarts", value_name = "R", default_value_t = 0)]
    max_restarts: u16,

    /// Start each rank in a session of its own, as torchrun, containers and services do
    #[arg(long)]
    sessions: bool,

    /// What is shown of what the ranks write
    #[arg(long, value_name = "WHAT", value_enum, default_value = "prefixed")]
    output: Shown,

    /// Keep all that rank K writes in DIR/rank-K.log, restarts included; a file that is there is
    /// continued
    #[arg(long, alias = "log_dir", value_name = "DIR")]
    log_dir: Option<PathBuf>,

    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    #[arg(value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// What is shown of what the ranks write.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shown {
    /// Every line, after its rank's number
    Prefixed,
    /// What each host's first rank writes, as it is, and on a terminal if this is one, so that a
    /// progress bar moves; of another rank that fails, the last of it
    #[value(name = "rank0")]
    Rank0,
    /// The ranks write here themselves; of several that fail, the one named may not be the first
    Inherit,
}

impl From<Shown> for Output {
    fn from(shown: Shown) -> Self {
        match shown {
            Shown::Prefixed => Output::Prefixed,
            Shown::Rank0 => Output::Rank0,
            Shown::Inherit => Output::Inherit,
        }
    }
}

/// Runs the job; the exit code is the job's.
pub(crate) fn execute(arguments: Arguments) -> u8 {
    match job(arguments).and_then(|job| launch::run(&job)) {
        Ok(code) => u8::try_from(code).unwrap_or(FAILED),
        Err(error) => {
            launch::tell(&error.to_string());
            match error.is_usage() || error.is_configuration() {
                true => MISUSED,
                false => FAILED,
            }
        }
    }
}

fn parse_ranks(text: &str) -> Result<NonZeroUsize, String> {
    if text == "gpu" {
        return Err("one rank a GPU: give the number of GPUs".to_owned());
    }
    if text == "auto" || text == "cpu" {
        return std::thread::available_parallelism().map_err(|error| error.to_string());
    }
    text.parse()
        .map_err(|_| "a number from 1, or auto".to_owned())
}

fn parse_nodes(text: &str) -> Result<NonZeroUsize, String> {
    // torchrun's least and most.
    let (least, most) = text.split_once(':').unwrap_or((text, text));
    if least != most {
        return Err(
            "a job has as many hosts from its start to its end: give one number".to_owned(),
        );
    }
    most.parse().map_err(|_| "a number from 1".to_owned())
}

fn parse_backend(text: &str) -> Result<String, String> {
    match text {
        "c10d" | "static" => Ok(text.to_owned()),
        _ => Err("the launchers meet by themselves at --rdzv-endpoint: leave it out".to_owned()),
    }
}

/// Where the launchers meet, by either way to say so.
fn endpoint(arguments: &Arguments) -> Option<String> {
    let (address, port) = (&arguments.master_addr, arguments.master_port);
    if address.is_none() && port.is_none() {
        return arguments.rdzv_endpoint.clone();
    }
    let address = address.as_deref().unwrap_or("127.0.0.1");
    let port = port.unwrap_or(MASTER_PORT);
    Some(match address.contains(':') && !address.starts_with('[') {
        true => format!("[{address}]:{port}"),
        false => format!("{address}:{port}"),
    })
}

/// Why `word`, which stands in the program's place, cannot be one.
fn no_program(word: &str) -> String {
    let (name, _) = word.split_once('=').unwrap_or((word, ""));
    let name = match name.strip_prefix("--") {
        Some(long) => format!("--{}", long.replace('_', "-")),
        None => name.to_owned(),
    };
    match TORCHRUN_ALONE.iter().find(|(known, _)| *known == name) {
        Some((_, instead)) => format!("run has no option {name}: {instead}"),
        None => format!("run has no option {word}, and no program is called so"),
    }
}

/// The job that the arguments describe, or what is wrong with them.
fn job(arguments: Arguments) -> Result<Job, Error> {
    let wrong = |text: String| Err(Error::usage(text));
    let nodes = arguments.nnodes.get();
    let endpoint = endpoint(&arguments);
    let mut words = arguments.command.into_iter();
    let Some(program) = words.next() else {
        return wrong("no program to run".to_owned());
    };
    if program.to_string_lossy().starts_with('-') {
        return wrong(no_program(&program.to_string_lossy()));
    }
    if arguments.standalone && nodes > 1 {
        return wrong(format!(
            "--standalone is one host alone and --nnodes {nodes} is not: leave one of them out"
        ));
    }
    if let Some(node_rank) = arguments.node_rank.filter(|node_rank| *node_rank >= nodes) {
        return wrong(format!(
            "--node-rank {node_rank} does not exist among --nnodes {nodes}"
        ));
    }
    if nodes > 1 && endpoint.is_none() {
        return wrong(format!(
            "--nnodes {nodes} needs --rdzv-endpoint HOST:PORT to meet at"
        ));
    }
    Ok(Job {
        program,
        arguments: words.collect(),
        ranks: arguments.nproc_per_node.get(),
        id: arguments.rdzv_id,
        max_restarts: arguments.max_restarts,
        output: arguments.output.into(),
        log_folder: arguments.log_dir,
        meeting: endpoint.map(|endpoint| Meeting {
            nodes,
            endpoint,
            node_rank: arguments.node_rank,
        }),
        sessions: arguments.sessions,
    })
}
