//! Describes a rank to the other ranks, and determines which ranks can share memory.
//!
//! All ranks have the same table of peers, so all of them reach the same conclusions. Two ranks
//! share memory if they have the same [`SharingKey`]: the same host id (whether set or detected),
//! the same boot of the same kernel, the same network namespace (which contains the abstract
//! sockets that pass descriptors), and the same user. If the system refuses to give a rank sealed
//! memory or such a socket, the rank does not share memory with any other rank.

use crate::error::{decode_line, decode_name};
use crate::protocol::fd_passing::Token;
use crate::protocol::handshake::Secret;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// A description of a rank. All ranks have the same descriptions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Peer {
    /// Address at which the rank accepts data connections.
    pub address: SocketAddr,
    /// Name of the host, for human-readable messages; never resolved.
    #[serde(deserialize_with = "decode_name")]
    pub host_name: String,
    /// ID of the host. Ranks with different host ids do not share memory.
    #[serde(deserialize_with = "decode_name")]
    pub host_id: String,
    /// Name of the host's site; empty if none was set.
    #[serde(deserialize_with = "decode_name")]
    pub site: String,
    /// The environment in which the rank can share memory, or the reason why it cannot.
    #[serde(deserialize_with = "decode_line")]
    pub place: Offer,
    /// Process ID on the host.
    pub pid: u32,
    /// Properties that distinguish the process from others with the same ID; `None` if they cannot
    /// be determined.
    pub process: Option<Process>,
}

impl Peer {
    /// Returns the properties that must be equal for two ranks to share memory, or `None` if this
    /// rank does not share memory with any rank.
    #[must_use]
    pub(crate) fn sharing_key(&self) -> Option<SharingKey<'_>> {
        let place = self.place.as_ref().ok()?;
        Some(SharingKey {
            host_id: &self.host_id,
            boot_id: &place.boot_id,
            network: place.network,
            users: place.users,
            user: place.user,
        })
    }
}

/// The properties that, together with its process ID, identify a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    /// Identifies the boot of the kernel and the process namespace in which the process ID is
    /// valid.
    #[serde(deserialize_with = "decode_name")]
    pub space: String,
    /// Start time in clock ticks since boot. It is needed because process IDs are reused.
    pub started: u64,
}

/// The environment in which a rank can share memory, or the reason why it cannot.
pub(crate) type Offer = Result<Place, String>;

/// The environment in which a rank can share memory, and the name of its socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// ID of the kernel's current boot.
    #[serde(deserialize_with = "decode_name")]
    pub boot_id: String,
    /// Inode of the network namespace.
    pub network: u64,
    /// Inode of the user namespace in which the user ID is valid.
    pub users: u64,
    /// User ID.
    pub user: u32,
    /// Name of the rank's abstract socket.
    #[serde(deserialize_with = "decode_name")]
    pub socket: String,
    /// The rank's contribution to the nonce that its local ranks share.
    pub token: Token,
}

/// The properties that must be equal for two ranks to share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SharingKey<'a> {
    /// `RINGTREE_HOST_ID` if it is set, or else the detected host ID.
    pub host_id: &'a str,
    /// ID of the kernel's current boot.
    pub boot_id: &'a str,
    /// Inode of the network namespace.
    pub network: u64,
    /// Inode of the user namespace.
    pub users: u64,
    /// User ID.
    pub user: u32,
}

/// Returns a secret for a job that has none. All ranks in `peers` know this secret, and no process
/// of any other user knows it. The user of each rank was checked during the join, so with this
/// secret, the users of later connections need no check. Returns `None` if no rank has contributed
/// random bytes.
pub(crate) fn joint_secret(peers: &[Peer]) -> Option<Secret> {
    let mut hash = Sha256::new();
    let mut is_random = false;
    for place in peers.iter().filter_map(|peer| peer.place.as_ref().ok()) {
        hash.update(place.token.0);
        is_random = true;
    }
    is_random.then(|| Secret::new(hash.finalize().into()))
}

/// Returns the ranks that can share memory with `rank`, including itself, in ascending order.
pub(crate) fn local_ranks(peers: &[Peer], rank: usize) -> Vec<usize> {
    let Some(key) = peers[rank].sharing_key() else {
        return vec![rank];
    };
    (0..peers.len())
        .filter(|other| peers[*other].sharing_key() == Some(key))
        .collect()
}

/// Returns the host of each rank, indexed by rank. The host of a rank is identified by the lowest
/// rank that it can share memory with, which may be the rank itself.
pub(super) fn hosts(peers: &[Peer]) -> Vec<usize> {
    let mut first_of = BTreeMap::new();
    let keys = peers.iter().map(Peer::sharing_key).enumerate();
    keys.map(|(rank, key)| match key {
        Some(key) => *first_of.entry(key).or_insert(rank),
        None => rank,
    })
    .collect()
}

/// Returns the site of each rank, indexed by rank. A site is identified by the lowest rank whose
/// host is at that site.
///
/// # Errors
/// Returns a message if ranks on the same host have different sites.
pub(super) fn sites(peers: &[Peer]) -> Result<Vec<usize>, String> {
    let mut first_of = BTreeMap::new();
    for (rank, (peer, host)) in peers.iter().zip(hosts(peers)).enumerate() {
        let first = &peers[host].site;
        if peer.site != *first {
            return Err(format!(
                "RINGTREE_SITE is {first:?} on rank {host} but {:?} on rank {rank}, although both \
                 are on host {}; set the same value on all ranks on a host",
                peer.site, peer.host_name
            ));
        }
        first_of.entry(first).or_insert(rank);
    }
    Ok(peers.iter().map(|peer| first_of[&peer.site]).collect())
}

#[cfg(test)]
pub(crate) mod tests;
