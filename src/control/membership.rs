//! Describes this process and the other ranks of its job.

use super::handle::ControlHandle;
use super::local::LocalPeers;
use super::peer::{self, Peer};
use super::process;
use crate::error::{Error, Result};
use std::sync::Arc;

/// This process's membership in its job, after the join.
#[derive(Clone, Debug)]
pub(crate) struct Membership {
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub world_size: usize,
    /// All ranks, including this rank, indexed by rank.
    pub peers: Arc<Vec<Peer>>,
    /// Connection to the other ranks that share memory with this rank; `None` if there are no such
    /// ranks.
    pub local: Option<Arc<LocalPeers>>,
    /// Handle to the control thread. The handle accepts messages immediately, and the thread
    /// delivers them once it has started.
    pub control: ControlHandle,
}

impl Membership {
    /// Returns the ranks that can share memory with this rank, including itself, in ascending
    /// order.
    #[must_use]
    pub(crate) fn local_ranks(&self) -> Vec<usize> {
        peer::local_ranks(&self.peers, self.rank)
    }

    /// Returns the number of cores on which the ranks of this host may run, if they are bound to
    /// different cores.
    pub(crate) fn cores_if_bound(&self) -> Option<usize> {
        let local = self.local_ranks();
        let peers = local.iter().map(|rank| &self.peers[*rank]);
        process::cores_if_bound(&self.peers[self.rank], peers)
    }

    /// Returns the host of each rank, indexed by rank. The host of a rank is identified by the
    /// lowest rank that it can share memory with, which may be the rank itself. All ranks get the
    /// same result.
    #[must_use]
    pub(crate) fn hosts(&self) -> Vec<usize> {
        peer::hosts(&self.peers)
    }

    /// Returns the site of each rank, indexed by rank. A site is identified by the lowest rank
    /// whose host is at that site. All ranks get the same result.
    ///
    /// # Errors
    /// Returns `ErrorKind::Configuration` if ranks on the same host have different sites.
    pub(crate) fn sites(&self) -> Result<Vec<usize>> {
        peer::sites(&self.peers).map_err(Error::configuration)
    }

    /// Returns `true` if all ranks run on the same machine. This is the case if all have the same
    /// host id and accept connections at the same address, or at loopback addresses. All ranks get
    /// the same result.
    #[must_use]
    pub(crate) fn are_of_one_machine(&self) -> bool {
        let first = &self.peers[0];
        self.peers.iter().all(|peer| {
            let (ip, is_near) = (peer.address.ip(), peer.address.ip().is_loopback());
            let is_same = ip == first.address.ip();
            peer.host_id == first.host_id
                && (is_same || is_near && first.address.ip().is_loopback())
        })
    }

    /// Returns this rank's index among the ranks that have its host id, and the number of such
    /// ranks.
    #[must_use]
    pub(crate) fn place_on_host(&self) -> (usize, usize) {
        let host_id = &self.peers[self.rank].host_id;
        let count = |of: &[Peer]| of.iter().filter(|peer| peer.host_id == *host_id).count();
        (count(&self.peers[..self.rank]), count(&self.peers))
    }

    /// Returns `true` if this is the lowest rank with its host id. That rank performs the tasks
    /// that are done once per host.
    #[must_use]
    pub(crate) fn is_first_of_host(&self) -> bool {
        self.place_on_host().0 == 0
    }
}
