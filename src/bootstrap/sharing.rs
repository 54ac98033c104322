//! Which ranks can share memory.
//!
//! Every rank looks at what it has ([`Findings`]) and puts it into its record of the join; from the
//! table that comes back all ranks conclude the same. Two ranks share memory if they have the same
//! [`SharingKey`]: the host id that was set or found, the same boot of the same kernel, the same
//! network namespace (abstract sockets, by which memory is handed over, live there), and the same
//! user. A rank to which the system refuses such memory or such a socket shares with nobody, and
//! says why.

use super::address;
use super::messages::Peer;
use super::near::NearSocket;
use super::settings::{Settings, TransportChoice};
use crate::protocol::hand_over::Token;
use crate::sys::shared::{Division, OwnRegion};
use rustix::fs::{SealFlags, fcntl_get_seals, stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where a rank can share memory, or why with nobody.
pub type Offer = Result<Place, String>;

/// Where a rank can share memory, and how it is reached there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The kernel's boot.
    pub boot_id: String,
    /// The inode of the network namespace.
    pub network: u64,
    /// The inode of the user namespace, which gives the user's number its meaning.
    pub users: u64,
    /// The user's number.
    pub user: u32,
    /// The name of the rank's abstract socket.
    pub socket: String,
    /// What the rank adds to its neighbours' common nonce.
    pub token: Token,
}

/// What must be the same for two ranks to share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharingKey<'a> {
    /// `RINGTREE_HOST_ID`, or what was found.
    pub host_id: &'a str,
    /// As in [`Place`].
    pub boot_id: &'a str,
    /// As in [`Place`].
    pub network: u64,
    /// As in [`Place`].
    pub users: u64,
    /// As in [`Place`].
    pub user: u32,
}

impl SharingKey<'_> {
    /// In which way the host of `other` is another one than this.
    fn difference(&self, other: &Self) -> String {
        if self.boot_id != other.boot_id {
            format!(
                "they run on different kernels (boot ids {} and {})",
                self.boot_id, other.boot_id
            )
        } else if self.host_id != other.host_id {
            format!(
                "their host ids differ ({} and {}; RINGTREE_HOST_ID sets them)",
                self.host_id, other.host_id
            )
        } else if self.network != other.network {
            format!(
                "they are in different network namespaces ({} and {})",
                self.network, other.network
            )
        } else {
            format!(
                "they run as different users ({} of namespace {} and {} of namespace {})",
                self.user, self.users, other.user, other.users
            )
        }
    }
}

/// What this process found out about sharing memory.
#[derive(Debug)]
pub struct Findings {
    /// What tells this host from others where `RINGTREE_HOST_ID` is not set.
    pub host_id: String,
    /// The kernel's boot.
    pub boot_id: Result<String, String>,
    /// The inode of the network namespace.
    pub network: Result<u64, String>,
    /// The inode of the user namespace.
    pub users: Result<u64, String>,
    /// The user's number.
    pub user: u32,
    /// Whether memory could be made and sealed; if so, whether others are kept from writing it.
    pub memory: Result<bool, String>,
    /// A socket for the neighbours.
    pub socket: Result<NearSocket, String>,
}

impl Findings {
    /// Tries everything here and now. What it makes is gone when the findings are dropped.
    #[must_use]
    pub fn here() -> Self {
        Self {
            host_id: address::host_id(),
            boot_id: address::boot_id().ok_or_else(|| "the kernel's boot id is unknown".to_owned()),
            network: namespace("net"),
            users: namespace("user"),
            user: rustix::process::geteuid().as_raw(),
            memory: sealed_memory(),
            socket: NearSocket::new()
                .map_err(|error| format!("an abstract Unix socket was refused: {error}")),
        }
    }

    /// Where memory can be shared, with the socket for it; or the first thing in the way.
    ///
    /// # Errors
    /// What is in the way, in words.
    pub fn place(self) -> Result<(Place, NearSocket), String> {
        self.memory?;
        let socket = self.socket?;
        let place = Place {
            boot_id: self.boot_id?,
            network: self.network?,
            users: self.users?,
            user: self.user,
            socket: socket.name().to_owned(),
            token: socket.token().clone(),
        };
        Ok((place, socket))
    }
}

/// The inode of a namespace that this process is in; 0 where the kernel has only one.
fn namespace(kind: &str) -> Result<u64, String> {
    let path = format!("/proc/self/ns/{kind}");
    match stat(&path) {
        Ok(found) => Ok(found.st_ino),
        // Without /proc the boot id is unknown too, and nothing is shared.
        Err(Errno::NOENT) => Ok(0),
        Err(error) => Err(format!("{path} cannot be read: {error}")),
    }
}

/// Makes a page of shared memory, as a transport would.
fn sealed_memory() -> Result<bool, String> {
    let refused = |error| format!("sealed memory (memfd_create) was refused: {error}");
    let page = Division {
        words: 512,
        bytes: 0,
    };
    let (_region, file) = OwnRegion::new(page).map_err(refused)?;
    let seals = fcntl_get_seals(&file).map_err(|error| refused(error.into()))?;
    Ok(seals.contains(SealFlags::FUTURE_WRITE))
}

/// What this rank offers to the others, and the socket that belongs to it.
pub(super) fn offer(settings: &Settings) -> (Offer, Option<NearSocket>) {
    if settings.world_size == 1 {
        return (Err("it is alone".to_owned()), None);
    }
    if settings.transport == TransportChoice::Tcp {
        return (Err("RINGTREE_TRANSPORT is tcp".to_owned()), None);
    }
    match Findings::here().place() {
        Ok((place, socket)) => (Ok(place), Some(socket)),
        Err(why) => (Err(why), None),
    }
}

/// The ranks that can share memory with `rank`, itself included, ascending.
pub(super) fn neighbours(peers: &[Peer], rank: usize) -> Vec<usize> {
    let Some(key) = peers[rank].sharing_key() else {
        return vec![rank];
    };
    (0..peers.len())
        .filter(|other| peers[*other].sharing_key() == Some(key))
        .collect()
}

/// g, if every g consecutive ranks, counted from 0, share memory, and no others do; else 1.
pub(super) fn ranks_per_host(peers: &[Peer]) -> usize {
    let mut first_of = BTreeMap::new();
    let mut firsts = Vec::with_capacity(peers.len());
    for (rank, peer) in peers.iter().enumerate() {
        let first = match peer.sharing_key() {
            Some(key) => *first_of.entry(key).or_insert(rank),
            None => rank,
        };
        firsts.push(first);
    }
    let ranks = firsts.iter().filter(|first| **first == 0).count();
    let in_blocks = firsts
        .iter()
        .enumerate()
        .all(|(rank, first)| *first == rank - rank % ranks);
    if in_blocks && peers.len().is_multiple_of(ranks) {
        ranks
    } else {
        1
    }
}

/// Why not all ranks can share memory, by the first one that cannot.
pub(super) fn obstacle(peers: &[Peer]) -> Option<String> {
    if peers.len() == 1 {
        return None;
    }
    let first = peers[0].sharing_key();
    let mut all = peers.iter().enumerate();
    all.find_map(|(rank, peer)| {
        let why = match (&peer.place, peer.sharing_key(), first) {
            (Err(why), _, _) => format!("cannot share memory: {why}"),
            (_, Some(key), Some(first)) if key != first => format!(
                "cannot share memory with rank 0 (host {}): {}",
                peers[0].host_name,
                first.difference(&key)
            ),
            _ => return None,
        };
        Some(format!(
            "RINGTREE_TRANSPORT is shm, but rank {rank} (host {}) {why}; with auto, ranks that \
             cannot share memory use TCP",
            peer.host_name
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank at a place with these marks: host, boot, network, user.
    fn peer(marks: [u32; 4]) -> Peer {
        Peer {
            address: ([127, 0, 0, 1], 1).into(),
            host_name: format!("h{}", marks[0]),
            host_id: format!("id{}", marks[0]),
            place: Ok(Place {
                boot_id: format!("boot{}", marks[1]),
                network: u64::from(marks[2]),
                users: 1,
                user: marks[3],
                socket: "s".into(),
                token: Token([0; 16]),
            }),
            pid: 1,
            local_rank: 0,
        }
    }

    fn refused() -> Peer {
        Peer {
            place: Err("memfd_create: no".into()),
            ..peer([0; 4])
        }
    }

    /// Ranks on these hosts; on host 9 nobody can share.
    fn hosts(hosts: &[u32]) -> Vec<Peer> {
        let one = |host: &u32| match host {
            9 => refused(),
            host => peer([*host, *host, 0, 0]),
        };
        hosts.iter().map(one).collect()
    }

    #[test]
    fn only_ranks_with_all_marks_in_common_share() {
        assert_eq!(neighbours(&[peer([1; 4]), peer([1; 4])], 1), [0, 1]);
        for mark in 0..4 {
            let mut other = [1; 4];
            other[mark] = 2;
            let peers = [peer([1; 4]), peer(other), peer([1; 4])];
            assert_eq!(neighbours(&peers, 0), [0, 2], "mark {mark}");
            assert_eq!(neighbours(&peers, 1), [1], "mark {mark}");
            assert_eq!(ranks_per_host(&peers), 1, "mark {mark}");
        }
    }

    #[test]
    fn who_cannot_share_is_alone_even_among_its_like() {
        let peers = [refused(), refused(), peer([0; 4])];
        for rank in 0..3 {
            assert_eq!(neighbours(&peers, rank), [rank]);
        }
        assert_eq!(ranks_per_host(&peers), 1);
    }

    #[test]
    fn hosts_with_equal_runs_of_ranks_have_a_number() {
        let cases: &[(&[u32], usize)] = &[
            (&[1], 1),
            (&[1, 1, 1], 3),
            (&[1, 1, 2, 2], 2),
            (&[1, 1, 1, 2, 2, 2, 3, 3, 3], 3),
            (&[1, 2, 3], 1),
            // Unequal, taking turns, a host that comes back, ranks apart.
            (&[1, 1, 2], 1),
            (&[1, 2, 2], 1),
            (&[1, 2, 1, 2], 1),
            (&[1, 1, 2, 2, 1, 1], 1),
            (&[1, 1, 9, 9], 1),
            (&[9, 9, 1, 1], 1),
            (&[9], 1),
        ];
        for (given, expected) in cases {
            assert_eq!(ranks_per_host(&hosts(given)), *expected, "{given:?}");
        }
    }

    #[test]
    fn the_first_rank_that_cannot_share_is_named_with_the_reason() {
        assert_eq!(obstacle(&[refused()]), None);
        assert_eq!(obstacle(&hosts(&[1, 1])), None);
        let line = obstacle(&hosts(&[1, 1, 9, 2])).unwrap();
        assert!(
            line.contains("rank 2 ") && line.contains("memfd_create: no"),
            "{line}"
        );
        let line = obstacle(&hosts(&[9, 1])).unwrap();
        assert!(line.contains("rank 0 "), "{line}");
        let reasons = ["RINGTREE_HOST_ID", "boot1 and boot2", "network", "users"];
        for (mark, reason) in reasons.iter().enumerate() {
            let mut other = [1; 4];
            other[mark] = 2;
            let line = obstacle(&[peer([1; 4]), peer(other)]).unwrap();
            assert!(line.contains("rank 1 ") && line.contains(reason), "{line}");
        }
    }

    #[test]
    fn whatever_is_missing_is_in_the_way() {
        let (place, _socket) = Findings::here().place().unwrap();
        assert!(!place.boot_id.is_empty() && place.network > 0);
        let spoil: [fn(&mut Findings); 5] = [
            |findings| findings.memory = Err("no".into()),
            |findings| findings.socket = Err("no".into()),
            |findings| findings.boot_id = Err("no".into()),
            |findings| findings.network = Err("no".into()),
            |findings| findings.users = Err("no".into()),
        ];
        for spoil in spoil {
            let mut findings = Findings::here();
            spoil(&mut findings);
            assert_eq!(findings.place().unwrap_err(), "no");
        }
    }

    #[test]
    fn tcp_offers_nothing() {
        let mut settings = Settings::new(0, 2, "127.0.0.1:1");
        assert!(offer(&settings).0.is_ok());
        settings.transport = TransportChoice::Tcp;
        assert!(matches!(offer(&settings), (Err(_), None)));
    }
}
