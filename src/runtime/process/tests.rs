use super::*;
use mio::net::TcpStream;
use std::io::Read;

/// Returns a connection from `peer`, and the connection's other end.
fn connection(peer: usize) -> (DataStream, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let far = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let stream = TcpStream::from_std(listener.accept().unwrap().0);
    let hosts = (String::new(), String::new());
    (
        DataStream {
            peer,
            stream,
            hosts,
        },
        far,
    )
}

fn is_closed(far: &mut std::net::TcpStream) -> bool {
    far.set_nonblocking(true).unwrap();
    !far.read(&mut [0])
        .is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

#[test]
fn connections_for_unknown_groups_are_bounded_and_closed() {
    let mut arrivals = Arrivals::default();
    let mut far = Vec::new();
    let mut arrive = |arrivals: &mut Arrivals, group, peer| {
        let (stream, other) = connection(peer);
        arrivals.take(channel_number(group, 0), stream);
        far.push(other);
    };
    // While no group is expected, one peer connects. Then a group is expected, the same peer
    // connects twice, and another peer runs ahead in more channels than allowed.
    arrive(&mut arrivals, 7, 1);
    arrivals.known.await_group(true);
    arrive(&mut arrivals, 0, 1);
    arrive(&mut arrivals, 0, 1);
    for group in 0..=CHANNELS_AHEAD_MAX as u32 {
        arrive(&mut arrivals, group, 2);
    }
    let closed: Vec<bool> = far.iter_mut().map(is_closed).collect();
    assert!(closed[0] && closed[1] && closed[CHANNELS_AHEAD_MAX + 3]);
    assert_eq!(closed.iter().filter(|one| **one).count(), 3);
    // One group is created, and then no other group is expected.
    let reactor = Arc::new(Reactor::new().unwrap());
    let inbox = arrivals.inbox(channel_number(0, 0));
    assert!(inbox.take(1, &reactor).is_some() && inbox.take(2, &reactor).is_some());
    arrivals.tidy();
    assert!(!is_closed(&mut far[5]));
    arrivals.known.await_group(false);
    arrivals.tidy();
    assert!(is_closed(&mut far[5]));
    // A connection for a group that no longer exists is closed.
    arrivals.forget(0);
    let (stream, mut late) = connection(1);
    arrivals.take(channel_number(0, 0), stream);
    assert!(is_closed(&mut late) && arrivals.inboxes.is_empty());
}
