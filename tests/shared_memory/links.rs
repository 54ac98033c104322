//! Tests guarantees of shared-memory links on which the engine relies.

use crate::shares::{memory, peer_memory, peer_region, region};
use crate::world::connected;
use ringtree::internal::engine::{Endpoint, Links};
use ringtree::internal::limits::SHARED_SEGMENT_BYTES;
use ringtree::internal::link::shm::{Allocation, Local, LocalLinks, Own, OwnRegion, links};
use ringtree::internal::link::{Link, LinkError, Message, Payload};
use std::sync::Arc;

/// The links of one rank, and the state that these links share.
pub(crate) type Channel = (LocalLinks, Local);

/// Creates the links of every rank, over separate regions.
pub(crate) fn channel(world_size: usize) -> Vec<Channel> {
    channel_without((0, 0), world_size, 0).0
}

/// Like [`channel`], but without the last `less` ranks. Also returns the regions of these ranks.
pub(crate) fn channel_without(
    name: (u32, u16),
    world_size: usize,
    less: usize,
) -> (Vec<Channel>, Vec<OwnRegion>) {
    let made = (0..world_size).map(|_| region(world_size));
    let (mut regions, files): (Vec<_>, Vec<_>) = made.unzip();
    let others = regions.split_off(world_size - less);
    let ranks: Vec<_> = (0..world_size).collect();
    let one = |(rank, own)| {
        let peers = (0..world_size).filter(|peer| *peer != rank);
        let map = |peer: usize| {
            let theirs = peer_region(world_size, &files[peer]);
            (peer, theirs)
        };
        let wake: ringtree::internal::link::shm::Wake = Arc::new(|_| {});
        links(name, &ranks, rank, own, peers.map(map).collect(), &wake)
    };
    let channels = regions.into_iter().enumerate().map(one).collect();
    (channels, others)
}

/// Returns the link to `peer`.
pub(crate) fn to(channel: &mut Channel, peer: usize) -> &mut dyn Link {
    let found = channel.0.iter_mut().find(|(each, _)| *each == peer);
    found.expect("every rank has a link").1.as_mut()
}

/// Returns the endpoints of message 0 to each of `peers`.
pub(crate) fn endpoints<const PEERS: usize>(peers: [usize; PEERS]) -> [Endpoint; PEERS] {
    peers.map(|peer| Endpoint {
        lane: 0,
        peer,
        number: 0,
    })
}

/// Sends data to several peers, but writes it only once. Returns the number of bytes sent.
pub(crate) fn send(
    links: &mut Links,
    to: &[Endpoint],
    message: &Message,
    offset: usize,
    data: &[u8],
) -> usize {
    let sent = links.send(to, message, offset, data, false);
    sent.expect("no link is broken")
}

/// Stores the data that has arrived from `peer`. Returns the number of bytes.
pub(crate) fn receive(links: &mut Links, peer: usize, message: &Message, into: &mut [u8]) -> usize {
    let received = links.receive(peer, message, 0, into);
    received.expect("no link is broken")
}

fn message(sequence: u64, bytes: usize) -> Message {
    Message {
        sequence,
        digest: 1,
        number: 0,
        bytes,
    }
}

/// The link accepts two complete messages of any guaranteed length, no matter how many messages
/// came before and what the receiver has answered. This holds even if the sender reads no answer.
#[test]
fn link_holds_two_messages_of_sender_that_reads_no_answer() {
    for bytes in [1, 8, 40, 41, 1000, SHARED_SEGMENT_BYTES] {
        let mut links = channel(2);
        let [near, far] = &mut links[..] else {
            panic!("two ranks");
        };
        let (near, far) = (to(near, 1), to(far, 0));
        assert_eq!(near.capacity(), SHARED_SEGMENT_BYTES);
        let data = vec![3; bytes];
        let mut into = data.clone();
        for sequence in 0..200 {
            let message = message(sequence, bytes);
            assert_eq!(near.send(&message, 0, Payload::Bytes(&[&data])), Ok(bytes));
            let second = Message {
                number: 1,
                ..message
            };
            assert_eq!(near.send(&second, 0, Payload::Bytes(&[&data])), Ok(bytes));
            for message in [message, second] {
                assert_eq!(far.receive(&message, 0, &mut into), Ok(bytes));
                // Answer while the link has space for an answer.
                let answer = far.send(&message, 0, Payload::Bytes(&[&[0]]));
                assert!(answer.is_ok());
            }
        }
    }
}

#[test]
fn message_to_several_peers_is_accepted_by_all_or_none() {
    let channels = channel(3).into_iter();
    let mut links: Vec<_> = channels.map(|channel| connected(3, channel)).collect();
    let to = endpoints([1, 2]);
    let mut into = [0; 100];
    let mut taken = 0;
    while send(&mut links[0], &to, &message(taken, 100), 0, &[7; 100]) == 100 {
        taken += 1;
    }
    assert!(taken >= 2);
    for sequence in 0..taken {
        assert_eq!(
            receive(&mut links[1], 0, &message(sequence, 100), &mut into),
            100
        );
    }
    // One peer has read everything, and the other peer has read nothing.
    let next = message(taken, 100);
    assert_eq!(send(&mut links[0], &to, &next, 0, &[7; 100]), 0);
    assert_eq!(receive(&mut links[1], 0, &next, &mut into), 0);
    assert_eq!(receive(&mut links[2], 0, &message(0, 100), &mut into), 100);
    assert_eq!(send(&mut links[0], &to, &next, 0, &[7; 100]), 100);
    assert_eq!(receive(&mut links[1], 0, &next, &mut into), 100);
    assert_eq!(into, [7; 100]);
}

/// A link to another host, which accepts bytes but cannot read memory.
struct Far;

impl Link for Far {
    fn send(&mut self, _: &Message, _: usize, payload: Payload<'_>) -> Result<usize, LinkError> {
        match payload {
            Payload::Bytes(parts) => Ok(parts.iter().map(|part| part.len()).sum()),
            other => panic!("{other:?} to another host"),
        }
    }
    fn receive(&mut self, _: &Message, _: usize, _: &mut [u8]) -> Result<usize, LinkError> {
        Ok(0)
    }
    fn fetch(&mut self, _: &Message, _: usize) -> Result<usize, LinkError> {
        Ok(0)
    }
    fn view(&self, _: usize) -> &[u8] {
        &[]
    }
    fn consume(&mut self, _: usize) -> Result<(), LinkError> {
        Ok(())
    }
}

/// A program exposes its data no matter which ranks receive it. Ranks on other hosts are sent a
/// copy.
#[test]
fn bytes_are_exposed_only_to_ranks_on_same_host() {
    const BYTES: usize = 4096;
    let mut channels = channel(2).into_iter();
    let (mut near, mut other) = (channels.next().unwrap(), channels.next().unwrap());
    near.0.push((2, Box::new(Far)));
    let mut links = connected(3, near);
    let (mut own, file) = memory(BYTES);
    let allocation = |own, theirs| Allocation {
        number: 1,
        own,
        theirs,
    };
    links
        .local()
        .unwrap()
        .admit(allocation(Own::new(&own), vec![]));
    let theirs = peer_memory(BYTES, &file);
    let (unused, _) = memory(BYTES);
    other
        .1
        .admit(allocation(Own::new(&unused), vec![(0, theirs)]));

    let message = message(1, 100);
    let data = own.bytes(0, 100);
    for peer in [1, 2] {
        let sent = links.send(&endpoints([peer]), &message, 0, data, true);
        assert_eq!(sent.unwrap(), 100);
    }
    // The rank on this host reads the memory in place, and so gets its current contents.
    own.bytes_mut(0, 100).fill(9);
    let mut into = [7; 100];
    assert_eq!(to(&mut other, 0).receive(&message, 0, &mut into), Ok(100));
    assert_eq!(into, [9; 100]);
}
