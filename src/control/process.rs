//! Whether the process of another rank of this host lives, whatever becomes of its connections.
//!
//! A connection tells of a death only to its other end. So a rank also watches the processes of its
//! host: their ends reach every one of their neighbours at once. That counts where a connection
//! stays open after a death (a child of the process holds it), and where the only rank that has a
//! connection to the dead one cannot tell of it (rank 0 is stopped).

use super::peer::Peer;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs;
use std::os::fd::OwnedFd;

/// When the process `pid` of this host started, in clock ticks since the boot.
pub(crate) fn started(pid: u32) -> Option<u64> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in parentheses, which may hold spaces. This is field 22.
    let (_, fields) = line.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

/// What is known of another rank's process.
pub(super) enum Life {
    /// It becomes readable when the process ends.
    Watched(OwnedFd),
    Ended,
    /// It runs elsewhere, or the system does not say.
    Unknown,
}

/// The process of `peer`, as the process of `own` sees it.
pub(super) fn life(own: &Peer, peer: &Peer) -> Life {
    let (Some(ours), Some(theirs)) = (&own.process, &peer.process) else {
        return Life::Unknown;
    };
    let pid = i32::try_from(peer.pid).ok().and_then(Pid::from_raw);
    let Some(pid) = pid.filter(|_| ours.space == theirs.space && own.pid != peer.pid) else {
        return Life::Unknown;
    };
    // What was found under the number before the descriptor was there may be another process.
    match (pidfd_open(pid, PidfdFlags::NONBLOCK), started(peer.pid)) {
        (Ok(descriptor), Some(started)) if started == theirs.started => Life::Watched(descriptor),
        (Ok(_), Some(_)) | (Err(rustix::io::Errno::SRCH), _) => Life::Ended,
        _ => Life::Unknown,
    }
}
