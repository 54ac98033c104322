//! Raises the limit on open files (`ulimit -n`) and checks that enough descriptors are left.

use crate::error::Error;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::io;

/// Number of descriptors that a rank needs after it has sent its record, not counting the
/// descriptors for its peers. They are used by the control thread, by handshakes and by the rank's
/// own memory.
const OWN_MAX: u64 = 8;
/// Number of data connections to other hosts that every plan for several hosts needs.
const REMOTE_LINKS_MIN: u64 = 2;

/// Raises this process's soft limit on open files to its hard limit, which requires no privileges.
/// The default soft limit is low only because of programs that use `select`. Children of this
/// process inherit the new limit.
pub(crate) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // This fails only if the system imposes another limit; the soft limit then remains unchanged.
    let _ = setrlimit(Resource::Nofile, raised);
}

/// Returns `true` if `error` means that this process or the system has too many open files.
pub(crate) fn are_exhausted(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    errno == Some(Errno::MFILE.raw_os_error()) || errno == Some(Errno::NFILE.raw_os_error())
}

/// Returns the number of descriptors that a rank needs if there are `local` other ranks on its host
/// and `remote` ranks on other hosts. All local ranks can share their memory at the same time, for
/// at most two channels each.
pub(crate) fn needed(local: usize, remote: usize) -> u64 {
    let remote = (remote as u64).min(REMOTE_LINKS_MIN);
    OWN_MAX + 2 * local as u64 + remote
}

/// The number of files that a process has open, and its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DescriptorUsage {
    open: u64,
    /// `None` means unlimited.
    soft: Option<u64>,
    hard: Option<u64>,
}

impl DescriptorUsage {
    /// Returns the current values for this process.
    pub(crate) fn here() -> Self {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let open = match fs::read_dir("/proc/self/fd") {
            // The directory itself is open while it is read.
            Ok(entries) => (entries.count() as u64).saturating_sub(1),
            Err(error) if are_exhausted(&error) => current.unwrap_or(0),
            // Without /proc, files cannot be counted; assume that the limit suffices.
            Err(_) => 0,
        };
        DescriptorUsage {
            open,
            soft: current,
            hard: maximum,
        }
    }

    /// Returns the error for `rank`, which is this process's rank and could not open a connection
    /// because of `error`.
    pub(crate) fn exhausted(self, rank: usize, error: &io::Error) -> Error {
        Error::system(format!(
            "rank {rank} cannot open a connection that it needs: {error}; {self}"
        ))
    }

    /// Returns `true` if the process may open `more` additional files.
    pub(crate) fn holds(self, more: u64) -> bool {
        self.soft
            .is_none_or(|soft| soft >= self.open.saturating_add(more))
    }
}

impl fmt::Display for DescriptorUsage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [soft, hard] = [self.soft, self.hard]
            .map(|limit| limit.map_or("unlimited".to_owned(), |limit| limit.to_string()));
        let open = self.open;
        write!(
            formatter,
            "its `ulimit -n` is {soft} (hard limit {hard}), and {open} files are open; raise the \
             limit"
        )
    }
}

#[cfg(test)]
mod tests;
