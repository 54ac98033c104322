//! Tests that processes without the secret can delay a join only briefly.

use super::join::connect;
use super::*;
use crate::limits::HANDSHAKES_PENDING_MAX;
use crate::protocol::handshake::{ANSWER_BYTES, HELLO_BYTES, Hello, Initiator, Purpose};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;

/// Number of connections that the flood keeps open.
const HELD: usize = 1500;

/// Floods `address` with connections until `is_over` is set: first `HELD` in quick succession, then
/// up to 1,000 per second. Sends `bytes` on each and keeps the last `HELD` open.
fn flood(address: SocketAddr, bytes: &[u8], is_over: &AtomicBool) {
    // This process holds both ends of every connection, so it needs many descriptors.
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let mut held = VecDeque::new();
    while !is_over.load(Ordering::Relaxed) {
        let timeout = Duration::from_millis(20);
        if let Ok(mut stream) = std::net::TcpStream::connect_timeout(&address, timeout) {
            // The other end may have closed the connection already.
            let _ = stream.write_all(bytes);
            held.push_back(stream);
        }
        if held.len() > HELD {
            held.pop_front();
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Joins a world of two ranks, in which rank 1 starts after connections that send `bytes` have
/// flooded the rendezvous.
fn join_while_flooded_with(bytes: &[u8]) {
    let mut settings = world(2, PATIENCE);
    // With this setting, a rank waits for an answer for the shortest time.
    settings.iter_mut().for_each(|one| one.next_port_too = true);
    let address = settings[0].rendezvous.parse().unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let rank_0 = scope.spawn(|| join(&settings[0]));
        drop(connect(&settings[0].rendezvous));
        scope.spawn(|| flood(address, bytes, &is_over));
        thread::sleep(Duration::from_secs(1));
        let rank_1 = join(&settings[1]).map(drop);
        let rank_0 = rank_0.join().unwrap().map(drop);
        is_over.store(true, Ordering::Relaxed);
        assert_eq!((rank_0, rank_1), (Ok(()), Ok(())));
    });
}

#[test]
fn rank_joins_despite_silent_connections() {
    join_while_flooded_with(b"");
}

#[test]
fn rank_joins_despite_partial_handshakes() {
    join_while_flooded_with(b"ringtree");
}

#[test]
fn rank_joins_despite_handshakes_without_proof() {
    let hello = Hello {
        purpose: Purpose::Control,
        world_size: 2,
        group: 0,
        epoch: 0,
        attempt: 0,
        from: 1,
        to: 0,
    };
    let (_, frame) = Initiator::new(&Secret::absent(), hello, [1; 32]);
    join_while_flooded_with(&frame);
}

#[test]
fn active_handshake_is_kept_among_silent_ones() {
    let settings = world(2, PATIENCE);
    let rendezvous = settings[0].rendezvous.clone();
    let client = settings[1].clone();
    let rank_0 = thread::spawn(move || join(&settings[0]));
    let hello = Hello {
        purpose: Purpose::Control,
        world_size: 2,
        group: 0,
        epoch: 0,
        attempt: 0,
        from: 1,
        to: 0,
    };
    let (_, frame) = Initiator::new(&Secret::absent(), hello, [1; 32]);
    let mut slow = connect(&rendezvous);
    slow.write_all(&frame[..HELLO_BYTES - 1]).unwrap();
    // This is longer than an honest handshake takes, and shorter than its time limit.
    thread::sleep(Duration::from_millis(600));
    let silent: Vec<_> = (0..4 * HANDSHAKES_PENDING_MAX)
        .map(|_| connect(&rendezvous))
        .collect();
    thread::sleep(Duration::from_millis(300));
    slow.write_all(&frame[HELLO_BYTES - 1..]).unwrap();
    slow.set_read_timeout(Some(PATIENCE)).unwrap();
    slow.read_exact(&mut [0; ANSWER_BYTES])
        .expect("the rendezvous must answer with a challenge");
    join(&client).map(drop).unwrap();
    rank_0.join().unwrap().map(drop).unwrap();
    drop(silent);
}

/// Starts an impostor that listens on `port` and handles each connection with `answer`.
fn impostor(port: u16, answer: impl Fn(&mut std::net::TcpStream) + Send + 'static) {
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            // Once a rank has reached the real rendezvous, it does not connect again, and this loop
            // waits forever.
            answer(&mut stream);
        }
    });
}

/// Returns an acceptor's frame.
fn frame(version: u16, kind: u8, reason: u8) -> [u8; ANSWER_BYTES] {
    let mut frame = [7; ANSWER_BYTES];
    frame[..4].copy_from_slice(b"rtok");
    frame[4..6].copy_from_slice(&version.to_le_bytes());
    (frame[6], frame[7]) = (kind, reason);
    if kind == 1 {
        frame[7..16].fill(0);
    }
    frame
}

#[test]
fn join_survives_impostor_replies() {
    let this = crate::protocol::handshake::WIRE_VERSION;
    let (challenge, accepted) = (frame(this, 1, 0), frame(this, 2, 0));
    let refused = frame(this, 3, 2);
    let cases = [
        vec![frame(this + 1, 1, 0)],
        vec![challenge, refused],
        vec![challenge, accepted],
        vec![[0; ANSWER_BYTES]],
    ];
    for replies in cases {
        let mut settings = world(2, PATIENCE);
        settings.iter_mut().for_each(|one| one.next_port_too = true);
        let at: SocketAddr = settings[0].rendezvous.parse().unwrap();
        impostor(at.port() + 1, move |stream| {
            for frame in &replies {
                let _ = stream.read(&mut [0; HELLO_BYTES]);
                let _ = stream.write_all(frame);
            }
            let _ = stream.read(&mut [0; HELLO_BYTES]);
        });
        // Rank 1 starts first and reaches the impostor.
        for joined in join_all(settings, |rank| if rank == 0 { 400 } else { 0 }) {
            joined.map(drop).unwrap();
        }
    }
}

#[test]
fn timeout_error_quotes_impostor() {
    let mut settings = world(2, Duration::from_millis(600));
    let at: SocketAddr = settings[1].rendezvous.parse().unwrap();
    impostor(at.port(), |stream| {
        let _ = stream.read(&mut [0; HELLO_BYTES]);
        let _ = stream.write_all(&frame(999, 1, 0));
    });
    let line = join_line(join(&settings.remove(1)));
    assert!(
        line.contains("wire version 999") && line.contains("600 ms"),
        "{line}"
    );
}

#[test]
fn slow_impostor_cannot_delay_join_past_timeout() {
    let mut settings = world(2, Duration::from_secs(3));
    let at: SocketAddr = settings[1].rendezvous.parse().unwrap();
    impostor(at.port(), |stream| {
        for byte in frame(crate::protocol::handshake::WIRE_VERSION, 1, 0) {
            if stream.write_all(&[byte]).is_err() {
                return;
            }
            thread::sleep(Duration::from_secs(1));
        }
    });
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::spawn(move || sender.send(join_line(join(&settings.remove(1)))));
    let line = receiver.recv_timeout(PATIENCE).expect("the join must end");
    assert!(line.contains("did not respond to the handshake"), "{line}");
}

#[test]
fn data_socket_refuses_connections_until_served() {
    let joined = join_all(world(2, PATIENCE), |_| 0);
    let joined: Vec<Joined> = joined.into_iter().map(Result::unwrap).collect();
    let address = joined[1].membership.peers[1].address;
    let early = std::net::TcpStream::connect(address);
    assert!(
        early.is_err(),
        "the data socket must not accept connections yet"
    );
    let start = |joined: Joined| {
        let recorder = Arc::new(Recorder::default());
        let handler: Arc<dyn Handler> = recorder.clone();
        (joined.start(handler, None).unwrap(), recorder)
    };
    let mut joined = joined.into_iter();
    let first = start(joined.next().unwrap());
    // A peer that connects too early tries again.
    first.0.control.dial(1, 1);
    thread::sleep(Duration::from_millis(100));
    let ranks = [first, start(joined.next().unwrap())];
    for (_, recorder) in &ranks {
        recorder.wait("the connection", |seen| seen.streams.pop());
    }
    shut_down(&ranks);
}
