//! A rank as the others see it, and which ranks can share memory.
//!
//! All ranks have the same table of peers, so all of them conclude the same. Two ranks share memory
//! if they have the same [`SharingKey`]: the host id that was set or found, the same boot of the
//! same kernel, the same network namespace (abstract sockets, which pass descriptors, live there),
//! and the same user. A rank that was refused sealed memory or such a socket shares with no rank.

use crate::error::{told_line, told_name};
use crate::protocol::hand_over::Token;
use crate::protocol::handshake::Secret;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// A rank as the others see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Peer {
    /// Where it takes data connections.
    pub address: SocketAddr,
    /// Its host's name, for messages to people; never resolved.
    #[serde(deserialize_with = "told_name")]
    pub host_name: String,
    /// Ranks with different host ids share no memory.
    #[serde(deserialize_with = "told_name")]
    pub host_id: String,
    /// The name of its host's site; empty where none was given.
    #[serde(deserialize_with = "told_name")]
    pub site: String,
    /// Where it can share memory, or why it shares with no rank.
    #[serde(deserialize_with = "told_line")]
    pub place: Offer,
    /// Its process id on its host.
    pub pid: u32,
    /// What else tells its process from others; `None` where that cannot be found out.
    pub process: Option<Process>,
}

impl Peer {
    /// What must be the same for two ranks to share memory; `None` for one that shares with
    /// no rank.
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

/// What tells a process from all others, together with its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    /// The kernel's boot and the process namespace, in which the number means something.
    #[serde(deserialize_with = "told_name")]
    pub space: String,
    /// When it started, in clock ticks since the boot: numbers are used again.
    pub started: u64,
}

/// Where a rank can share memory, or why it shares with no rank.
pub(crate) type Offer = Result<Place, String>;

/// Where a rank can share memory, and how it is reached there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The kernel's boot.
    #[serde(deserialize_with = "told_name")]
    pub boot_id: String,
    /// The inode of the network namespace.
    pub network: u64,
    /// The inode of the user namespace, which gives the user's number its meaning.
    pub users: u64,
    /// The user's number.
    pub user: u32,
    /// The name of the rank's abstract socket.
    #[serde(deserialize_with = "told_name")]
    pub socket: String,
    /// The rank's share of the nonce of its local ranks.
    pub token: Token,
}

/// What must be the same for two ranks to share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SharingKey<'a> {
    /// `RINGTREE_HOST_ID`, or what was found.
    pub host_id: &'a str,
    /// The kernel's boot.
    pub boot_id: &'a str,
    /// The inode of the network namespace.
    pub network: u64,
    /// The inode of the user namespace.
    pub users: u64,
    /// The user's number.
    pub user: u32,
}

/// What all ranks of `peers` know and no process of another user, in a job without a secret. Each
/// rank of the join was asked for its user; with this, its later connections need not be. `None`
/// if no rank has drawn random bytes.
pub(crate) fn joint_secret(peers: &[Peer]) -> Option<Secret> {
    let mut hash = Sha256::new();
    let mut is_random = false;
    for place in peers.iter().filter_map(|peer| peer.place.as_ref().ok()) {
        hash.update(place.token.0);
        is_random = true;
    }
    is_random.then(|| Secret::new(hash.finalize().into()))
}

/// The ranks that can share memory with `rank`, itself included, ascending.
pub(crate) fn local_ranks(peers: &[Peer], rank: usize) -> Vec<usize> {
    let Some(key) = peers[rank].sharing_key() else {
        return vec![rank];
    };
    (0..peers.len())
        .filter(|other| peers[*other].sharing_key() == Some(key))
        .collect()
}

/// By rank, the lowest rank that it can share memory with.
pub(super) fn hosts(peers: &[Peer]) -> Vec<usize> {
    let mut first_of = BTreeMap::new();
    let keys = peers.iter().map(Peer::sharing_key).enumerate();
    keys.map(|(rank, key)| match key {
        Some(key) => *first_of.entry(key).or_insert(rank),
        None => rank,
    })
    .collect()
}

/// By rank, the lowest rank whose host is at the same site.
///
/// # Errors
/// A sentence: the ranks of one host are given several sites.
pub(super) fn sites(peers: &[Peer]) -> Result<Vec<usize>, String> {
    let mut first_of = BTreeMap::new();
    for (rank, (peer, host)) in peers.iter().zip(hosts(peers)).enumerate() {
        let first = &peers[host].site;
        if peer.site != *first {
            return Err(format!(
                "RINGTREE_SITE is {first:?} on rank {host} and {:?} on rank {rank}, which share \
                 host {}; give all ranks of a host the same",
                peer.site, peer.host_name
            ));
        }
        first_of.entry(first).or_insert(rank);
    }
    Ok(peers.iter().map(|peer| first_of[&peer.site]).collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A rank at a place with these marks: host, boot, network, user.
    pub(crate) fn peer(marks: [u32; 4]) -> Peer {
        Peer {
            address: ([127, 0, 0, 1], 1).into(),
            host_name: format!("h{}", marks[0]),
            host_id: format!("id{}", marks[0]),
            site: String::new(),
            place: Ok(Place {
                boot_id: format!("boot{}", marks[1]),
                network: u64::from(marks[2]),
                users: 1,
                user: marks[3],
                socket: "s".into(),
                token: Token([0; 16]),
            }),
            pid: 1,
            process: None,
        }
    }

    pub(crate) fn refused() -> Peer {
        Peer {
            place: Err("memfd_create: no".into()),
            ..peer([0; 4])
        }
    }

    /// Ranks on these hosts; on host 9 no rank can share.
    pub(crate) fn hosts(hosts: &[u32]) -> Vec<Peer> {
        let one = |host: &u32| match host {
            9 => refused(),
            host => peer([*host, *host, 0, 0]),
        };
        hosts.iter().map(one).collect()
    }

    #[test]
    fn only_ranks_with_all_marks_in_common_share() {
        assert_eq!(local_ranks(&[peer([1; 4]), peer([1; 4])], 1), [0, 1]);
        for mark in 0..4 {
            let mut other = [1; 4];
            other[mark] = 2;
            let peers = [peer([1; 4]), peer(other), peer([1; 4])];
            assert_eq!(local_ranks(&peers, 0), [0, 2], "mark {mark}");
            assert_eq!(local_ranks(&peers, 1), [1], "mark {mark}");
            assert_eq!(super::hosts(&peers), [0, 1, 0], "mark {mark}");
        }
    }

    #[test]
    fn a_host_is_at_one_site() {
        let mut peers = hosts(&[1, 2, 1, 3]);
        assert_eq!(super::sites(&peers), Ok(vec![0; 4]));
        for (rank, site) in ["a", "", "a", ""].into_iter().enumerate() {
            peers[rank].site = site.into();
        }
        assert_eq!(super::sites(&peers), Ok(vec![0, 1, 0, 1]));
        peers[2].site = "b".into();
        let line = super::sites(&peers).unwrap_err();
        let words = "RINGTREE_SITE is \"a\" on rank 0 and \"b\" on rank 2, which share host h1";
        assert!(line.starts_with(words), "{line}");
    }

    #[test]
    fn who_cannot_share_is_alone_even_among_its_like() {
        let peers = [refused(), refused(), peer([0; 4])];
        for rank in 0..3 {
            assert_eq!(local_ranks(&peers, rank), [rank]);
        }
        assert_eq!(super::hosts(&peers), [0, 1, 2]);
    }
}
