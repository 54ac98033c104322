//! A job: what to run, on how many hosts, and how often to try.

use std::ffi::OsString;

/// How the ranks' output reaches the launcher's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Line by line, each line opened by its rank: `[3]: hello`.
    Prefixed,
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
    /// The other hosts; nothing for a job of this host alone.
    pub meeting: Option<Meeting>,
}
