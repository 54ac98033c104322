//! Detects when the processes of other ranks on this host end, independently of connections.
//!
//! A closed connection reveals a death only to its other end. So a rank also watches the processes
//! of the other ranks on its host, and learns immediately when they end. This matters if a
//! connection stays open after a death because a child of the process holds it open. It also
//! matters if the only rank with a connection to the dead rank is rank 0, and cannot report the
//! death because it is stopped.

use super::peer::Peer;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::fs;
use std::os::fd::OwnedFd;

/// Returns the time at which the process `pid` on this host started, in clock ticks since boot.
pub(crate) fn started(pid: u32) -> Option<u64> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in parentheses, which may hold spaces. The start time is field 22.
    let (_, fields) = line.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

/// Returns the number of cores on which the processes of `peers` may run, if they are bound to
/// different cores and this process can see all of them.
pub(super) fn cores_if_bound<'a>(
    own: &Peer,
    peers: impl Iterator<Item = &'a Peer>,
) -> Option<usize> {
    let own_cores = sched_getaffinity(None).ok()?;
    let mut all = own_cores;
    for peer in peers.filter(|peer| peer.pid != own.pid) {
        let (ours, theirs) = (own.process.as_ref()?, peer.process.as_ref()?);
        let pid = i32::try_from(peer.pid).ok().and_then(Pid::from_raw)?;
        if ours.space != theirs.space {
            return None;
        }
        let cores = sched_getaffinity(Some(pid)).ok()?;
        (0..CpuSet::MAX_CPU)
            .filter(|core| cores.is_set(*core))
            .for_each(|core| all.set(core));
    }
    (all.count() > own_cores.count()).then_some(all.count() as usize)
}

/// The state of another rank's process.
pub(super) enum Life {
    /// The process is running. The descriptor becomes readable when the process ends.
    Watched(OwnedFd),
    Ended,
    /// The process is running elsewhere, or the system does not report its state.
    Unknown,
}

/// Returns the state of `peer`'s process, as seen from `own`'s process.
pub(super) fn life(own: &Peer, peer: &Peer) -> Life {
    let (Some(ours), Some(theirs)) = (&own.process, &peer.process) else {
        return Life::Unknown;
    };
    let pid = i32::try_from(peer.pid).ok().and_then(Pid::from_raw);
    let Some(pid) = pid.filter(|_| ours.space == theirs.space && own.pid != peer.pid) else {
        return Life::Unknown;
    };
    // Read the start time only after opening the descriptor. If it were read before, the ID could
    // be reused in between.
    match (pidfd_open(pid, PidfdFlags::NONBLOCK), started(peer.pid)) {
        (Ok(descriptor), Some(started)) if started == theirs.started => Life::Watched(descriptor),
        (Ok(_), Some(_)) | (Err(rustix::io::Errno::SRCH), _) => Life::Ended,
        _ => Life::Unknown,
    }
}
