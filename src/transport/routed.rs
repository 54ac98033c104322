//! Some peers through shared memory, the others through streams.

use super::shm::SharedTransport;
use super::shm::lent::Allocation;
use super::{Addressee, LinkError, Message, Transport};

/// A [`Transport`] that knows which peer is where.
pub struct RoutedTransport<F: Transport> {
    near: SharedTransport,
    far: F,
}

impl<F: Transport> RoutedTransport<F> {
    /// Peers that `near` reaches go there, all others to `far`.
    #[must_use]
    pub fn new(near: SharedTransport, far: F) -> Self {
        Self { near, far }
    }

    fn to(&mut self, peer: usize) -> &mut dyn Transport {
        if self.near.reaches(peer) {
            &mut self.near
        } else {
            &mut self.far
        }
    }

    fn of(&self, peer: usize) -> &dyn Transport {
        if self.near.reaches(peer) {
            &self.near
        } else {
            &self.far
        }
    }
}

impl<F: Transport> Transport for RoutedTransport<F> {
    fn name(&self) -> &'static str {
        "shm+tcp"
    }

    fn open(&mut self, peer: usize) {
        self.to(peer).open(peer);
    }

    fn send(
        &mut self,
        peer: usize,
        message: &Message,
        offset: usize,
        data: &[u8],
    ) -> Result<usize, LinkError> {
        self.to(peer).send(peer, message, offset, data)
    }

    fn receive(
        &mut self,
        peer: usize,
        message: &Message,
        offset: usize,
        into: &mut [u8],
    ) -> Result<usize, LinkError> {
        self.to(peer).receive(peer, message, offset, into)
    }

    fn fetch(&mut self, peer: usize, message: &Message, offset: usize) -> Result<usize, LinkError> {
        self.to(peer).fetch(peer, message, offset)
    }

    fn view(&self, peer: usize, bytes: usize) -> &[u8] {
        self.of(peer).view(peer, bytes)
    }

    fn confirm(&self, peer: usize) -> Result<(), LinkError> {
        self.of(peer).confirm(peer)
    }

    fn consume(&mut self, peer: usize, bytes: usize) {
        self.to(peer).consume(peer, bytes);
    }

    fn may_have_arrived(&self, peer: usize) -> bool {
        self.of(peer).may_have_arrived(peer)
    }

    fn holds_bytes(&self, peer: usize) -> usize {
        self.of(peer).holds_bytes(peer)
    }

    fn publishes(&self, to: &[Addressee]) -> bool {
        self.near.publishes(to)
    }

    fn publish(
        &mut self,
        to: &[Addressee],
        message: &Message,
        offset: usize,
        data: &[u8],
    ) -> Result<usize, LinkError> {
        self.near.publish(to, message, offset, data)
    }

    fn admit(&mut self, allocation: Allocation) {
        self.near.admit(allocation);
    }

    fn lends(&self, to: &[Addressee], data: &[u8]) -> bool {
        self.near.lends(to, data)
    }

    fn lend(
        &mut self,
        to: &[Addressee],
        message: &Message,
        offset: usize,
        data: &[u8],
    ) -> Result<usize, LinkError> {
        self.near.lend(to, message, offset, data)
    }

    fn is_released(&mut self, to: Addressee, sequence: u64) -> bool {
        self.near.is_released(to, sequence)
    }

    fn withdraw(&mut self) {
        self.near.withdraw();
    }

    fn settle(&mut self) {
        self.near.settle();
        self.far.settle();
    }
}
