//! A job: what to run, on how many hosts, and how often to try.

use std::ffi::OsString;
use std::path::PathBuf;

/// How the ranks' output reaches the launcher's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Line by line, each line opened by its rank: `[3]: hello`.
    Prefixed,
    /// What the first rank of each host writes, as it writes it, on a pseudo terminal where the
    /// launcher writes to a terminal, so that a progress bar moves on every host. What the other
    /// ranks write is kept back; of a rank that ends an attempt the last of it is shown.
    Rank0,
    /// All ranks have the launcher's own streams. The launcher reads nothing of what they write, so
    /// it quotes no last words.
    Inherit,
    /// Standard output is the launcher's own; standard error is passed on unchanged.
    Plain,
}

/// Where the launchers of a job find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// How many launchers, one a host.
    pub nodes: usize,
    /// `host:port`; the launcher that owns the host's address answers there.
    pub endpoint: String,
    /// This launcher's place, if it is not to be given out.
    pub node_rank: Option<usize>,
}

/// What to run on this host, and with whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The program; found in `PATH` if it has no slash.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Ranks on this host.
    pub ranks: usize,
    /// The job's name, the same on every host. The ranks find it in `TORCHELASTIC_RUN_ID`; without
    /// a name, a random one.
    pub id: Option<String>,
    /// How often all ranks are started again after one has failed.
    pub max_restarts: u16,
    /// How the ranks' output is passed on.
    pub output: Output,
    /// A folder in which all that a rank writes is kept, in a file of its own (`rank-3.log`), also
    /// across restarts and across jobs: a file that is there is continued. It is made if missing.
    /// For [`Output::Prefixed`] and [`Output::Rank0`], where the launcher sees all of it.
    pub log_folder: Option<PathBuf>,
    /// The other hosts; nothing for a job of this host alone.
    pub meeting: Option<Meeting>,
    /// Whether each rank has a session of its own, as torchrun, containers and services start them:
    /// Linux then shares the cores among ranks as among strangers.
    pub sessions: bool,
}
