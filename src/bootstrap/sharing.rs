//! Checks whether this process can share memory, and explains why ranks cannot share memory with
//! each other.
//!
//! Every rank checks its own process ([`Findings`]) and adds the result to the record that it sends
//! when it joins. All ranks then reach the same conclusion from the table of all records; see
//! [`crate::control::peer`].

use super::address;
use super::settings::{Settings, TransportChoice};
use crate::control::local::LocalSocket;
use crate::control::peer::Process;
use crate::control::peer::{Offer, Peer, Place, SharingKey};
use crate::control::process;
use crate::event;
use crate::limits::RANKS_PER_HOST_MAX;
use crate::link::shm::{region, region_bytes};
use crate::sys::shared::address_space_holds;
use rustix::fs::{SealFlags, fcntl_get_seals, stat};
use rustix::io::Errno;

/// Number of channels that exist while a communicator connects: two for the communicator itself and
/// two for measurements.
const CHANNELS_AT_CONNECT: usize = 4;

/// Returns a clause that explains why two ranks with different keys cannot share memory.
fn difference(one: &SharingKey<'_>, other: &SharingKey<'_>) -> String {
    if one.boot_id != other.boot_id {
        format!(
            "they run on different kernels (boot ids {} and {})",
            one.boot_id, other.boot_id
        )
    } else if one.host_id != other.host_id {
        format!(
            "their host ids differ ({} and {}; RINGTREE_HOST_ID sets them)",
            one.host_id, other.host_id
        )
    } else if one.network != other.network {
        format!(
            "they are in different network namespaces ({} and {})",
            one.network, other.network
        )
    } else {
        format!(
            "they run as different users ({} of namespace {} and {} of namespace {})",
            one.user, one.users, other.user, other.users
        )
    }
}

/// The result of checking whether this process can share memory.
#[derive(Debug)]
pub struct Findings {
    /// The detected host ID, which is used if `RINGTREE_HOST_ID` is not set.
    pub host_id: String,
    /// The kernel's boot ID.
    pub boot_id: Result<String, String>,
    /// The inode of the network namespace.
    pub network: Result<u64, String>,
    /// The inode of the user namespace.
    pub users: Result<u64, String>,
    /// The effective user ID.
    pub user: u32,
    /// The outcome of creating sealed memory: `true` if the seals prevent other processes from
    /// writing to it.
    pub memory: Result<bool, String>,
    /// A socket for the other ranks on this host.
    pub socket: Result<LocalSocket, String>,
}

impl Findings {
    /// Checks whether this process could be one of `ranks` ranks that share memory on this host.
    /// Resources that the check creates are released when the findings are dropped.
    #[must_use]
    pub fn here(ranks: usize) -> Self {
        Self {
            host_id: address::host_id(),
            boot_id: address::boot_id().ok_or_else(|| "the kernel's boot id is unknown".to_owned()),
            network: namespace("net"),
            users: namespace("user"),
            user: rustix::process::geteuid().as_raw(),
            memory: sealed_memory(ranks.clamp(1, RANKS_PER_HOST_MAX)),
            socket: LocalSocket::new()
                .map_err(|error| format!("cannot create an abstract Unix socket: {error}")),
        }
    }

    /// Returns the information that other ranks need in order to share memory with this process,
    /// and the socket for it.
    ///
    /// # Errors
    /// Returns the first reason why memory cannot be shared.
    pub fn place(self) -> Result<(Place, LocalSocket), String> {
        self.memory?;
        let socket = self.socket?;
        let place = Place {
            boot_id: self.boot_id?,
            network: self.network?,
            users: self.users?,
            user: self.user,
            socket: socket.name.clone(),
            token: socket.token.clone(),
        };
        Ok((place, socket))
    }
}

/// Returns the identity of this process on its host.
pub(super) fn own_process() -> Option<Process> {
    let space = format!("{}/{}", address::boot_id()?, namespace("pid").ok()?);
    let started = process::started(std::process::id())?;
    Some(Process { space, started })
}

/// Returns the inode of this process's namespace of the given kind, or 0 if the kernel has only one
/// such namespace.
fn namespace(kind: &str) -> Result<u64, String> {
    let path = format!("/proc/self/ns/{kind}");
    match stat(&path) {
        Ok(found) => Ok(found.st_ino),
        // If /proc itself is missing, the boot ID is unknown too, so no memory is shared.
        Err(Errno::NOENT) => Ok(0),
        Err(error) => Err(format!("cannot read {path}: {error}")),
    }
}

/// Creates the memory that one of `ranks` ranks shares over a channel, and checks that the address
/// space can hold the memory of all ranks and channels. Returns `true` if other processes cannot
/// write to the memory.
fn sealed_memory(ranks: usize) -> Result<bool, String> {
    let refused = |error| format!("cannot create sealed memory (memfd_create): {error}");
    let (_region, file) = region(ranks).map_err(refused)?;
    let mapped = CHANNELS_AT_CONNECT * ranks * region_bytes(ranks);
    address_space_holds(mapped).map_err(|error| {
        format!("cannot map {mapped} bytes of shared memory: {error}; raise `ulimit -v`")
    })?;
    let seals = fcntl_get_seals(&file).map_err(|error| refused(error.into()))?;
    Ok(seals.contains(SealFlags::FUTURE_WRITE))
}

/// Returns this rank's offer to share memory with the other ranks, and the socket for it.
pub(super) fn offer(settings: &Settings) -> (Offer, Option<LocalSocket>) {
    if settings.world_size == 1 {
        return (Err("it is the only rank".to_owned()), None);
    }
    if settings.transport == TransportChoice::Tcp {
        return (Err("RINGTREE_TRANSPORT=tcp".to_owned()), None);
    }
    match Findings::here(settings.local_world_size_at_most()).place() {
        Ok((place, socket)) => (Ok(place), Some(socket)),
        Err(why) => {
            if settings.transport == TransportChoice::Auto
                && settings.local_world_size_at_most() > 1
            {
                let rank = settings.rank;
                event::warn(rank, format!("rank {rank} uses TCP within its host: {why}"));
            }
            (Err(why), None)
        }
    }
}

/// Returns a message that names the first rank that cannot share memory and explains why, or `None`
/// if all ranks can share memory.
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
                difference(&first, &key)
            ),
            _ => return None,
        };
        Some(format!(
            "RINGTREE_TRANSPORT=shm, but rank {rank} (host {}) {why}; with \
             RINGTREE_TRANSPORT=auto, ranks that cannot share memory use TCP",
            peer.host_name
        ))
    })
}

#[cfg(test)]
mod tests;
