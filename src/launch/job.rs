//! Describes a job: the program, its ranks and hosts, and the number of restarts.

use std::ffi::OsString;
use std::path::PathBuf;

/// How the launcher shows the ranks' output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Every line is shown with the rank that wrote it in front, as in `[3]: hello`.
    Prefixed,
    /// The output of each host's first rank is shown unchanged. If the launcher writes to a
    /// terminal, this rank gets a pseudo terminal, so that progress bars work. The output of the
    /// other ranks is not shown. However, if one of these ranks fails, the last 16 KiB of its
    /// output are shown, unless [`Job::log_folder`] saves the output.
    Rank0,
    /// The ranks write directly to the launcher's standard output and standard error. The launcher
    /// does not see their output, so it cannot quote it.
    Inherit,
    /// The ranks write directly to the launcher's standard output. The launcher forwards their
    /// standard error unchanged.
    Plain,
}

/// The meeting point for the launchers of a job that runs on several hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendezvous {
    /// The number of launchers. There is one per host.
    pub nodes: usize,
    /// The meeting point in the form `HOST:PORT`. The launcher on that host becomes node 0 and
    /// listens at this address.
    pub endpoint: String,
    /// The node rank of this launcher, counted from 0. If `None`, launchers are numbered in the
    /// order in which they connect.
    pub node_rank: Option<usize>,
}

/// A description of a job: the program to run on this host and, if there are other hosts, the
/// address at which to meet their launchers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The program to run. If the name does not contain a slash, the program is searched for in
    /// `PATH`.
    pub program: OsString,
    /// The program's arguments.
    pub arguments: Vec<OsString>,
    /// The number of ranks on this host.
    pub ranks: usize,
    /// The job's name, which must be the same on every host. The ranks can read it from
    /// `TORCHELASTIC_RUN_ID`. If `None`, the job gets a random name.
    pub id: Option<String>,
    /// The maximum number of times that all ranks are restarted after a failure.
    pub max_restarts: u16,
    /// How the launcher shows the ranks' output.
    pub output: Output,
    /// The directory for log files. The launcher appends everything that rank K writes to the file
    /// `rank-K.log` in this directory, even across restarts and jobs. If the directory does not
    /// exist, the launcher creates it. Setting this field requires [`Output::Prefixed`] or
    /// [`Output::Rank0`].
    pub log_folder: Option<PathBuf>,
    /// The meeting point for the launchers, or `None` if the job runs only on this host. The ranks
    /// join at a different address.
    pub rendezvous: Option<Rendezvous>,
    /// The CPUs on which each rank of this host may run, indexed by local rank. A rank whose list
    /// is empty or missing may run on all CPUs that the launcher may use.
    pub cpus: Vec<Vec<usize>>,
    /// If `true`, each rank is started in its own session, as is done by torchrun, containers and
    /// services. Linux then schedules the ranks like unrelated programs.
    pub sessions: bool,
}
