//! Creates links over the simulated network's byte streams.

use super::network::Network;
use crate::engine::medium::host::Links;
use crate::link::Link;
use crate::link::stream::StreamLink;
use crate::lock::lock;
use crate::protocol::members::Members;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::sync::{Arc, Mutex};

/// Creates the links from `rank` to its peers in a group that contains all `world_size` ranks.
/// Connecting a link takes no virtual time, so a link is ready as soon as it is first used.
#[must_use]
pub fn links(network: &Arc<Mutex<Network>>, group: u32, rank: usize, world_size: usize) -> Links {
    links_among(network, group, rank, &Members::everyone(world_size))
}

/// Like [`links`], but creates links for a group of `members`. `rank` is this rank's world rank.
#[must_use]
pub fn links_among(
    network: &Arc<Mutex<Network>>,
    group: u32,
    rank: usize,
    members: &Members,
) -> Links {
    let (count, members) = (members.count(), members.clone());
    let membership = Membership {
        network: Arc::clone(network),
        group,
        rank,
    };
    let connect = move |peer| -> Box<dyn Link> {
        let mut stream = Some(membership.stream(members.world_rank(peer)));
        Box::new(StreamLink::new((group, 0), Box::new(move || stream.take())))
    };
    Links::new(count, Box::new(connect))
}

/// A rank's membership in a group. Dropping it closes all of the rank's streams in the group.
#[derive(Debug)]
struct Membership {
    network: Arc<Mutex<Network>>,
    group: u32,
    rank: usize,
}

impl Membership {
    fn stream(&self, peer: usize) -> SimStream {
        SimStream {
            network: Arc::clone(&self.network),
            group: self.group,
            rank: self.rank,
            peer,
        }
    }
}

/// A rank's end of a connection. Dropping it closes this end. Bytes that have already been written
/// still arrive, and the peer then reads the end of the stream.
#[derive(Debug)]
pub struct SimStream {
    network: Arc<Mutex<Network>>,
    group: u32,
    rank: usize,
    peer: usize,
}

impl Read for SimStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(into)])
    }

    fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        lock(&self.network).read(self.group, self.rank, self.peer, slices)
    }
}

impl Write for SimStream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(data)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        lock(&self.network).write(self.group, self.rank, self.peer, slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        lock(&self.network).close_connection(self.group, self.rank, self.peer);
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        lock(&self.network).leave_group(self.group, self.rank);
    }
}

#[cfg(test)]
mod tests;
