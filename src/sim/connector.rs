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
mod tests {
    use super::*;
    use crate::sim::network::NetworkConfig;

    fn stream(network: &Arc<Mutex<Network>>, rank: usize, peer: usize) -> (Membership, SimStream) {
        let membership = Membership {
            network: Arc::clone(network),
            group: 0,
            rank,
        };
        let stream = membership.stream(peer);
        (membership, stream)
    }

    #[test]
    fn dropped_end_closes_stream_after_written_bytes() {
        let network = Arc::new(Mutex::new(Network::new(NetworkConfig::default(), 2)));
        let (_left_membership, mut left) = stream(&network, 0, 1);
        let (right_membership, mut right) = stream(&network, 1, 0);
        let mut into = [0; 9];
        let nothing = right.read(&mut into).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        let slices = [
            IoSlice::new(b"head"),
            IoSlice::new(b""),
            IoSlice::new(b"tail!"),
        ];
        assert_eq!(left.write_vectored(&slices).unwrap(), 9);
        drop(left);
        while lock(&network).advance().is_some() {}
        let (front, back) = into.split_at_mut(2);
        let mut slices = [IoSliceMut::new(front), IoSliceMut::new(back)];
        assert_eq!(right.read_vectored(&mut slices).unwrap(), 9);
        assert_eq!(&into, b"headtail!");
        assert_eq!(right.read(&mut into).unwrap(), 0);
        assert_eq!(
            right.write(b"x").unwrap_err().kind(),
            io::ErrorKind::BrokenPipe
        );
        // A stream to a rank that has left ends immediately.
        drop(right_membership);
        let (_late_membership, mut late) = stream(&network, 0, 1);
        while lock(&network).advance().is_some() {}
        assert_eq!(late.read(&mut into).unwrap(), 0);
    }
}
