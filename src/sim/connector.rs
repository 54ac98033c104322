//! The simulated network's byte streams, for any transport over streams.

use super::network::Network;
use crate::transport::Connector;
use std::collections::{BTreeSet, VecDeque};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The network, also after a rank panicked while it held the lock: each of its methods leaves it
/// whole.
pub(crate) fn lock(network: &Mutex<Network>) -> MutexGuard<'_, Network> {
    network.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes one rank's streams to its peers in one group. A link is ready as soon as it is asked for,
/// and costs no virtual time.
#[derive(Debug)]
pub struct SimConnector {
    network: Arc<Mutex<Network>>,
    group: u32,
    rank: usize,
    requested: BTreeSet<usize>,
    ready: VecDeque<usize>,
}

impl SimConnector {
    /// The connector of `rank` for the links of `group`; the ranks here are the network's.
    #[must_use]
    pub fn new(network: Arc<Mutex<Network>>, group: u32, rank: usize) -> Self {
        SimConnector {
            network,
            group,
            rank,
            requested: BTreeSet::new(),
            ready: VecDeque::new(),
        }
    }
}

impl Connector for SimConnector {
    type Stream = SimStream;

    fn name(&self) -> &'static str {
        "sim"
    }

    fn request(&mut self, peer: usize) {
        if self.requested.insert(peer) {
            self.ready.push_back(peer);
        }
    }

    fn ready(&mut self) -> Option<(usize, SimStream)> {
        let peer = self.ready.pop_front()?;
        let network = Arc::clone(&self.network);
        Some((
            peer,
            SimStream {
                network,
                group: self.group,
                rank: self.rank,
                peer,
            },
        ))
    }
}

/// One rank's end of a connection. Dropping it closes that end: what was written still arrives,
/// then the peer reads the end of the stream.
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

impl Drop for SimConnector {
    fn drop(&mut self) {
        // Whoever opens a link to this rank from now on finds nobody.
        lock(&self.network).leave_group(self.group, self.rank);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::network::NetworkConfig;

    fn stream(
        network: &Arc<Mutex<Network>>,
        rank: usize,
        peer: usize,
    ) -> (SimConnector, SimStream) {
        let mut connector = SimConnector::new(Arc::clone(network), 0, rank);
        connector.request(peer);
        connector.request(peer);
        let (ready_peer, stream) = connector.ready().unwrap();
        assert_eq!(ready_peer, peer);
        assert!(connector.ready().is_none(), "asked twice, made once");
        (connector, stream)
    }

    #[test]
    fn two_ends_talk_and_a_dropped_end_is_the_end_of_the_stream() {
        let network = Arc::new(Mutex::new(Network::new(NetworkConfig::default(), 2)));
        let (_left_connector, mut left) = stream(&network, 0, 1);
        let (right_connector, mut right) = stream(&network, 1, 0);
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
        // Who comes when a connector is gone finds nobody.
        drop(right_connector);
        let (_late_connector, mut late) = stream(&network, 0, 1);
        while lock(&network).advance().is_some() {}
        assert_eq!(late.read(&mut into).unwrap(), 0);
    }
}
