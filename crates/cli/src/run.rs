//! Implements `ringtree run`, which starts a program as several ranks on one or several hosts.

pub(crate) mod binding;

use crate::{FAILED, exit_code};
use binding::{BindTo, cpus, written};
use clap::{Args, ValueEnum};
use ringtree::internal::bootstrap::host_and_port;
use ringtree::internal::launch::{node, tell};
use ringtree::launch::{self, Job, Output, Rendezvous};
use ringtree::{Error, ErrorKind};
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// The port at which the launchers connect if only an address is given. torchrun uses the same
/// default.
const MASTER_PORT: u16 = 29_500;

const ON_EACH_HOST: &str =
    "start the same command on every host, with --nnodes and --rdzv-endpoint";

/// Options of torchrun and mpirun that are not supported, and what to use instead.
const UNSUPPORTED_OPTIONS: &[(&str, &str)] = &[
    (
        "--rdzv-conf",
        "set RINGTREE_TIMEOUT_MS to limit the startup time",
    ),
    ("--local-addr", "set RINGTREE_INTERFACE"),
    (
        "--monitor-interval",
        "omit it, because the launcher notices immediately when a rank exits",
    ),
    (
        "--start-method",
        "omit it, because every rank is a separate process",
    ),
    ("--role", "omit it, because all ranks have the same role"),
    ("--tee", "use --log-dir or --output prefixed"),
    ("-t", "use --log-dir or --output prefixed"),
    (
        "--redirects",
        "use --log-dir, and add --output rank0 to reduce terminal output",
    ),
    (
        "-r",
        "use --log-dir, and add --output rank0 to reduce terminal output",
    ),
    ("--local-ranks-filter", "use --output rank0"),
    ("--logs-specs", "use --log-dir"),
    (
        "--event-log-handler",
        "omit it, because events go to standard error",
    ),
    ("--numa-binding", "use --bind-to numa"),
    (
        "--run-path",
        "name the interpreter: `-- python3 -m runpy PATH`",
    ),
    ("--module", "name the interpreter: `-- python3 -m MODULE`"),
    ("-m", "name the interpreter: `-- python3 -m MODULE`"),
    ("--nproc", "use -n or --nproc-per-node"),
    ("--hostfile", ON_EACH_HOST),
    ("--machinefile", ON_EACH_HOST),
    ("--host", ON_EACH_HOST),
    ("-H", ON_EACH_HOST),
    (
        "-x",
        "export the variable, because the ranks inherit the launcher's environment",
    ),
    ("--map-by", "use --bind-to core or --bind-to numa"),
    (
        "--oversubscribe",
        "omit it, because a host can have any number of ranks",
    ),
    ("--timeout", "set RINGTREE_TIMEOUT_MS"),
];

/// The arguments of `ringtree run`. torchrun's spellings with underscores also work.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Number of ranks on this host; `auto` starts one per available core [default: from Kubeflow]
    #[arg(short = 'n', long, aliases = ["nproc_per_node", "ranks", "np"], value_name = "N|auto")]
    #[arg(value_parser = parse_ranks)]
    nproc_per_node: Option<NonZeroUsize>,

    /// Number of hosts; run the same command on each [default: from Slurm or Kubernetes, else 1]
    #[arg(long, value_name = "M", value_parser = parse_nodes)]
    nnodes: Option<NonZeroUsize>,

    /// Address of one of the hosts, which becomes node 0, and a free port on that host; required if
    /// there are several hosts [default: from Slurm or Kubernetes]
    #[arg(long, alias = "rdzv_endpoint", value_name = "HOST:PORT")]
    rdzv_endpoint: Option<String>,

    /// Name of the job, which must be the same on every host [default: a random name]
    #[arg(long, alias = "rdzv_id", value_name = "ID")]
    rdzv_id: Option<String>,

    /// Number of this host, from 0; the host at the endpoint is number 0 [default: from Slurm or
    /// Kubernetes, else assigned in the order in which the hosts connect]
    #[arg(long, alias = "node_rank", value_name = "K")]
    node_rank: Option<usize>,

    /// Host of the endpoint, as an alternative to --rdzv-endpoint
    #[arg(
        long,
        alias = "master_addr",
        value_name = "HOST",
        conflicts_with = "rdzv_endpoint"
    )]
    master_addr: Option<String>,

    /// Port at --master-addr [default: 29500]
    #[arg(
        long,
        alias = "master_port",
        value_name = "PORT",
        conflicts_with = "rdzv_endpoint"
    )]
    master_port: Option<u16>,

    /// Run on this host only (the default)
    #[arg(long)]
    standalone: bool,

    /// Accept torchrun's c10d and static, which have no effect
    #[arg(long, alias = "rdzv_backend", hide = true, value_parser = parse_backend)]
    rdzv_backend: Option<String>,

    /// Accepted for compatibility with torchrun; has no effect, as programs are started directly
    #[arg(long, alias = "no_python", hide = true)]
    no_python: bool,

    /// Maximum number of times that all ranks on all hosts are restarted after a failure; exit code
    /// 2 (a usage error) never triggers a restart
    #[arg(long, alias = "max_restarts", value_name = "R", default_value_t = 0)]
    max_restarts: u16,

    /// Start each rank in its own session, as torchrun, containers and services do
    #[arg(long)]
    sessions: bool,

    /// Bind each rank to a share of the CPUs, and print which
    #[arg(long, value_name = "WHAT", value_enum, default_value = "none")]
    bind_to: BindTo,

    /// How to show the ranks' output
    #[arg(long, value_name = "WHAT", value_enum, default_value = "prefixed")]
    output: OutputMode,

    /// Append everything that rank K writes to DIR/rank-K.log, including after restarts; not
    /// available with --output inherit
    #[arg(long, alias = "log_dir", value_name = "DIR")]
    log_dir: Option<PathBuf>,

    /// Program and its arguments
    #[arg(trailing_var_arg = true, required = true)]
    #[arg(value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// How to show the ranks' output.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum OutputMode {
    /// Every line, prefixed with its rank, such as `[3]: loss 1.3`
    Prefixed,
    /// The unmodified output of each host's first rank, so that progress bars work in a terminal.
    /// If another rank fails, the last 16 KiB of its output are also shown, unless --log-dir saves
    /// that output
    #[value(name = "rank0")]
    Rank0,
    /// All output, written directly by the ranks. The launcher cannot quote it and, if several
    /// ranks fail, may not name the one that failed first
    Inherit,
}

impl From<OutputMode> for Output {
    fn from(shown: OutputMode) -> Self {
        match shown {
            OutputMode::Prefixed => Output::Prefixed,
            OutputMode::Rank0 => Output::Rank0,
            OutputMode::Inherit => Output::Inherit,
        }
    }
}

/// Runs the job and returns its exit code.
pub(crate) fn execute(arguments: Arguments) -> u8 {
    let environment = |name: &str| std::env::var(name).ok();
    match job(arguments, environment).and_then(|job| launch::run(&job)) {
        Ok(code) => u8::try_from(code).unwrap_or(FAILED),
        Err(error) => {
            tell(&error.to_string());
            exit_code(&error)
        }
    }
}

fn parse_ranks(text: &str) -> Result<NonZeroUsize, String> {
    if text == "gpu" {
        return Err("to start one rank per GPU, pass the number of GPUs".to_owned());
    }
    if text == "auto" || text == "cpu" {
        return std::thread::available_parallelism().map_err(|error| error.to_string());
    }
    text.parse()
        .map_err(|_| "expected auto or a number that is at least 1".to_owned())
}

fn parse_nodes(text: &str) -> Result<NonZeroUsize, String> {
    // torchrun accepts MIN:MAX.
    let (least, most) = text.split_once(':').unwrap_or((text, text));
    if least != most {
        return Err("the number of hosts cannot change during a job; pass one number".to_owned());
    }
    most.parse()
        .map_err(|_| "expected a number that is at least 1".to_owned())
}

fn parse_backend(text: &str) -> Result<String, String> {
    match text {
        "c10d" | "static" => Ok(text.to_owned()),
        _ => Err("launchers connect directly at --rdzv-endpoint; omit the option".to_owned()),
    }
}

/// Returns the endpoint from `--rdzv-endpoint`, or from `--master-addr` and `--master-port`.
fn endpoint(arguments: &Arguments) -> Option<String> {
    let (address, port) = (&arguments.master_addr, arguments.master_port);
    if address.is_none() && port.is_none() {
        return arguments.rdzv_endpoint.clone();
    }
    let address = address.as_deref().unwrap_or("127.0.0.1");
    let port = port.unwrap_or(MASTER_PORT);
    Some(host_and_port(address, port))
}

/// Returns what to use instead of `option`, if it is an unsupported option of torchrun or mpirun.
pub(crate) fn instead_of(option: &str) -> Option<&'static str> {
    let name = match option.strip_prefix("--") {
        Some(long) => format!("--{}", long.replace('_', "-")),
        None => option.to_owned(),
    };
    let found = UNSUPPORTED_OPTIONS.iter().find(|(known, _)| *known == name);
    found.map(|(_, instead)| *instead)
}

/// Returns the job that the arguments describe. If they do not describe the hosts, the environment
/// does, unless the arguments contradict it.
fn job(arguments: Arguments, environment: impl Fn(&str) -> Option<String>) -> Result<Job, Error> {
    let wrong = |text: String| Err(Error::new(ErrorKind::Usage, text));
    let asked = arguments.nnodes.map(NonZeroUsize::get);
    let found = match arguments.standalone {
        true => None,
        false => node(environment)?,
    };
    // A different number of hosts describes a different job.
    let found = found.filter(|found| asked.is_none() || [None, asked].contains(&found.nodes));
    let found = found.unwrap_or_default();
    let nodes = asked.or(found.nodes).unwrap_or(1);
    let endpoint = endpoint(&arguments).or(found.endpoint.filter(|_| nodes > 1));
    let node_rank = arguments
        .node_rank
        .or(found.node_rank.filter(|_| nodes > 1));
    let ranks = match (arguments.nproc_per_node, &found.ranks) {
        (Some(ranks), _) => ranks.get(),
        (None, Some(text)) => match parse_ranks(text.trim()) {
            Ok(ranks) => ranks.get(),
            Err(why) => return wrong(format!("PET_NPROC_PER_NODE={text}: {why}; or pass -n")),
        },
        (None, None) => {
            return wrong(
                "pass the number of ranks on this host with --nproc-per-node (-n)".to_owned(),
            );
        }
    };
    let mut words = arguments.command.into_iter();
    let Some(program) = words.next() else {
        return wrong("missing program; pass it after --".to_owned());
    };
    if arguments.standalone && nodes > 1 {
        return wrong(format!(
            "--standalone means a single host, which contradicts --nnodes {nodes}; omit one of them"
        ));
    }
    if let Some(node_rank) = node_rank.filter(|node_rank| *node_rank >= nodes) {
        return wrong(format!(
            "--node-rank {node_rank} is out of range: it must be less than --nnodes {nodes}"
        ));
    }
    if nodes > 1 && endpoint.is_none() {
        return wrong(format!(
            "--nnodes {nodes} requires --rdzv-endpoint HOST:PORT"
        ));
    }
    let cpus = cpus(arguments.bind_to, ranks);
    for (local_rank, cpus) in cpus.iter().enumerate() {
        let cpus = written(cpus);
        tell(&format!(
            "local rank {local_rank} is bound to the CPUs {cpus}"
        ));
    }
    Ok(Job {
        program,
        arguments: words.collect(),
        ranks,
        id: arguments.rdzv_id,
        max_restarts: arguments.max_restarts,
        output: arguments.output.into(),
        log_folder: arguments.log_dir,
        rendezvous: endpoint.map(|endpoint| Rendezvous {
            nodes,
            endpoint,
            node_rank,
        }),
        cpus,
        sessions: arguments.sessions,
    })
}
