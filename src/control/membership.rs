//! A process among the other ranks of its job.

use super::handle::ControlHandle;
use super::local::LocalPeers;
use super::peer::{self, Peer};
use crate::error::{Error, Result};
use std::sync::Arc;

/// This process among the others, after the join.
#[derive(Clone, Debug)]
pub(crate) struct Membership {
    /// This rank.
    pub rank: usize,
    /// How many ranks there are.
    pub world_size: usize,
    /// All ranks, this one included, by rank.
    pub peers: Arc<Vec<Peer>>,
    /// Speaks to the other ranks that share memory with this one, if there are any.
    pub local: Option<Arc<LocalPeers>>,
    /// Speaks to the control thread. It can send at once; the thread delivers once it has started.
    pub control: ControlHandle,
}

impl Membership {
    /// The ranks that can share memory with this one, itself included, ascending.
    #[must_use]
    pub(crate) fn local_ranks(&self) -> Vec<usize> {
        peer::local_ranks(&self.peers, self.rank)
    }

    /// By rank, the lowest rank that it can share memory with. The same on every rank.
    #[must_use]
    pub(crate) fn hosts(&self) -> Vec<usize> {
        peer::hosts(&self.peers)
    }

    /// By rank, the lowest rank whose host is at the same site. The same on every rank.
    ///
    /// # Errors
    /// [`Error::configuration`]: the ranks of one host are given several sites.
    pub(crate) fn sites(&self) -> Result<Vec<usize>> {
        peer::sites(&self.peers).map_err(Error::configuration)
    }

    /// Whether nothing but one machine is between the ranks: all have one host id, and take
    /// connections at one address, or at addresses of loopback. The same on every rank.
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

    /// This rank's number among those with its host id, from 0, and how many those are.
    #[must_use]
    pub(crate) fn place_on_host(&self) -> (usize, usize) {
        let host_id = &self.peers[self.rank].host_id;
        let count = |of: &[Peer]| of.iter().filter(|peer| peer.host_id == *host_id).count();
        (count(&self.peers[..self.rank]), count(&self.peers))
    }

    /// Whether this is the lowest rank with its host id, which does what is done once per host.
    #[must_use]
    pub(crate) fn is_first_of_host(&self) -> bool {
        self.place_on_host().0 == 0
    }
}
