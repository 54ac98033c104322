use super::*;
use crate::control::cancel::Cancel;
use crate::control::channel::Channel;
use crate::control::handshake::connect;
use crate::control::wait::wait;
use crate::protocol::handshake::{Hello, Purpose};
use mio::Poll;
use std::time::Duration;

/// Returns connections with channels 0 to `count` - 1, and the other ends of these channels.
pub(crate) fn connected(count: usize) -> (Poll, Connections, Vec<Channel>) {
    let expected = Expected {
        purpose: Purpose::Control,
        world_size: 2,
        rank: 0,
        attempt: 0,
    };
    let hello = Hello {
        purpose: Purpose::Control,
        world_size: 2,
        group: 0,
        epoch: 0,
        attempt: 0,
        from: 1,
        to: 0,
    };
    let patience = Duration::from_secs(20);
    let secret = Secret::new([5; 32]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = TcpListener::from_std(listener);
    let address = listener.local_addr().unwrap();
    let mut poll = Poll::new().unwrap();
    let own = Some(secret.clone());
    let listener = Some(listener);
    let mut connections = Connections::new(poll.registry(), listener, expected, own).unwrap();
    let end = Instant::now() + patience;
    let dial = move || {
        let dialed = connect(
            address,
            Some(&secret),
            hello,
            patience,
            end,
            &Cancel::default(),
        );
        let dialed = dialed.map_err(|why| why.to_string()).unwrap();
        Channel::new(dialed.stream, dialed.key, true)
    };
    let mut events = Events::with_capacity(16);
    let dialing = std::thread::spawn(move || (0..count).map(|_| dial()).collect());
    while connections.channels.len() < count {
        wait(&mut poll, &mut events, Some(end)).unwrap();
        connections.note(&events);
        while let Some(Incoming::<()>::Handshake(outcome)) = connections.next() {
            connections.add(outcome.result.unwrap(), false).unwrap();
        }
        assert!(Instant::now() < end);
    }
    (poll, connections, dialing.join().unwrap())
}

#[test]
fn busy_channel_blocks_neither_others_nor_owner() {
    let (_poll, mut connections, mut ends) = connected(2);
    for number in 0..CONTROL_BATCH_MAX + 100 {
        ends[0].send(&number);
    }
    ends[1].send(&7_usize);
    let mut from = [0; 2];
    let none = Events::with_capacity(1);
    for turn in 0.. {
        connections.ready.extend([0, 1]);
        let mut taken = 0;
        while let Some(Incoming::Message(id, _)) = connections.next::<usize>() {
            from[id] += 1;
            taken += 1;
            assert!(
                turn > 0 || from[0] < 3 || from[1] == 1,
                "the channels must take turns"
            );
        }
        assert!(taken <= CONTROL_BATCH_MAX);
        if from == [CONTROL_BATCH_MAX + 100, 1] {
            return;
        }
        assert!(turn > 0 || taken == CONTROL_BATCH_MAX);
        let at = connections.next_deadline();
        assert!(turn > 0 || at.is_some_and(|at| at <= Instant::now()));
        connections.note(&none);
    }
}

#[test]
fn unread_messages_survive_failed_write() {
    let (mut poll, mut connections, mut ends) = connected(1);
    let mut end = ends.remove(0);
    (1..4_usize).for_each(|number| end.send(&number));
    // A write to a closed end makes the system reset the connection, so that a later write
    // fails.
    drop(end);
    let end = Instant::now() + Duration::from_secs(20);
    let mut events = Events::with_capacity(16);
    while !connections.channels[&0].is_broken() {
        assert!(Instant::now() < end);
        connections.send(0, &9_usize);
    }
    let mut seen = Vec::new();
    loop {
        match connections.next::<usize>() {
            Some(Incoming::Message(0, number)) => seen.push(number),
            Some(Incoming::Lost(0, _)) => break,
            Some(_) => panic!("unexpected event"),
            None => wait(&mut poll, &mut events, Some(end)).unwrap(),
        }
        assert!(Instant::now() < end);
        connections.note(&events);
    }
    assert_eq!(seen, [1, 2, 3]);
    assert!(!connections.contains(0));
}
