use super::*;
use crate::limits::{CONTROL_MESSAGE_BYTES_MAX, CONTROL_QUEUE_BYTES_MAX, HANDSHAKES_PENDING_MAX};
use crate::link::tcp::{Inbox, Reactor, TcpLink};
use crate::protocol::handshake::{Hello, Initiator, Output, Purpose};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;

#[test]
fn messages_arrive_in_order_on_every_rank() {
    let ranks = running(4);
    for (from, (membership, _)) in ranks.iter().enumerate() {
        for number in 0..50_u8 {
            for to in 0..4 {
                membership.control.send(to, 7, &[from as u8, number]);
            }
        }
        membership
            .control
            .send_all(8, &vec![from as u8; CONTROL_MESSAGE_BYTES_MAX]);
    }
    for (rank, (_, recorder)) in ranks.iter().enumerate() {
        recorder.wait("200 messages to this rank and 3 to all", |seen| {
            (seen.messages.len() == 203).then_some(())
        });
        let seen = recorder.seen.lock().unwrap();
        for from in 0..4 {
            let own = seen.messages.iter().filter(|message| message.0 == from);
            let small: Vec<_> = own.clone().filter(|message| message.1 == 7).collect();
            let numbers: Vec<u8> = small.iter().map(|message| message.2[1]).collect();
            assert_eq!(
                numbers,
                (0..50).collect::<Vec<u8>>(),
                "from {from} to {rank}"
            );
            let to_all = own.filter(|message| message.1 == 8).count();
            assert_eq!(to_all, usize::from(from != rank));
        }
    }
    shut_down(&ranks);
    assert!(
        ranks
            .iter()
            .all(|(_, recorder)| recorder.seen.lock().unwrap().failed.is_empty())
    );
}

#[test]
fn messages_sent_before_shutdown_arrive() {
    for leaver in [0, 2] {
        let ranks = running(3);
        let control = &ranks[leaver].0.control;
        for _ in 0..40 {
            control.send_all(1, &[9; 20_000]);
        }
        control.send_all(1, b"goodbye");
        control.shutdown();
        for (rank, (_, recorder)) in ranks.iter().enumerate() {
            if rank != leaver {
                recorder.wait("a goodbye", |seen| {
                    let last = seen.messages.last()?;
                    (last.2 == b"goodbye" && seen.messages.len() == 41).then_some(())
                });
            }
        }
        // Rank 0 notices when any other rank leaves. The other ranks notice only when rank 0
        // leaves.
        let witness = if leaver == 0 { 1 } else { 0 };
        let (rank, why) = ranks[witness]
            .1
            .wait("a loss", |seen| seen.lost.first().cloned());
        assert_eq!(
            (rank, why.as_str()),
            (leaver, "it closed its control connection")
        );
        shut_down(&ranks);
    }
}

#[test]
fn concurrent_shutdown_is_fast_and_idempotent() {
    let ranks = running(4);
    let began = Instant::now();
    shut_down(&ranks);
    assert!(began.elapsed() < Duration::from_secs(5));
    // A second shutdown is harmless.
    shut_down(&ranks);
}

#[test]
fn rank_0_notices_lost_rank() {
    let mut joined = join_all(world(3, PATIENCE), |_| 0);
    drop(joined.pop());
    let recorder = Arc::new(Recorder::default());
    let rank_0 = joined.remove(0).unwrap();
    let membership = rank_0.start(recorder.clone(), None).unwrap();
    let (rank, _) = recorder.wait("the loss of rank 2", |seen| seen.lost.first().cloned());
    assert_eq!(rank, 2);
    drop(joined);
    membership.control.shutdown();
}

#[test]
fn poke_wakes_control_thread() {
    let ranks = running(1);
    let (membership, recorder) = &ranks[0];
    let before = recorder.seen.lock().unwrap().awake;
    membership.control.poke();
    recorder.wait("a wake-up", |seen| (seen.awake > before).then_some(()));
    membership.control.send(0, 3, b"to myself");
    recorder.wait("a message to itself", |seen| seen.messages.pop());
    shut_down(&ranks);
}

/// Returns streams for group 5 between all pairs of ranks. Both ranks of each pair request the
/// connection.
fn connected(ranks: &[(Membership, Arc<Recorder>)]) -> Vec<Vec<(usize, TcpStream)>> {
    for (rank, (membership, _)) in ranks.iter().enumerate() {
        for peer in (0..ranks.len()).filter(|peer| *peer != rank) {
            membership.control.dial(5, peer);
        }
    }
    let others = ranks.len() - 1;
    let take = |(_, recorder): &(Membership, Arc<Recorder>)| {
        recorder.wait("streams", |seen| {
            (seen.streams.len() == others).then_some(())
        });
        let streams = std::mem::take(&mut recorder.seen.lock().unwrap().streams);
        let mut by_peer = Vec::new();
        for (group, peer, stream) in streams {
            assert_eq!(group, 5);
            assert!(stream.nodelay().unwrap());
            by_peer.push((peer, stream));
        }
        by_peer.sort_by_key(|(peer, _)| *peer);
        by_peer
    };
    ranks.iter().map(take).collect()
}

/// Sends `sent` from `from` to `to`, sleeping in the reactor while nothing moves, and returns what
/// arrived.
fn transfer(reactor: &Reactor, from: &mut TcpLink, to: &mut TcpLink, sent: &[u8]) -> Vec<u8> {
    let mut written = 0;
    let mut received = Vec::new();
    let mut piece = vec![0; 1 << 16];
    while received.len() < sent.len() {
        let mut moved = false;
        if written < sent.len() {
            match from.write(&sent[written..]) {
                Ok(count) => (written, moved) = (written + count, true),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        match to.read(&mut piece) {
            Ok(count) => {
                received.extend_from_slice(&piece[..count]);
                moved = true;
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        if !moved {
            reactor.sleep(PATIENCE);
        }
    }
    received
}

fn data_stream(peer: usize, stream: TcpStream) -> DataStream {
    let hosts = ("here".to_owned(), "there".to_owned());
    DataStream {
        peer,
        stream,
        hosts,
    }
}

#[test]
fn data_connections_carry_bytes_in_both_directions() {
    let ranks = running(3);
    let reactor = Arc::new(Reactor::new().unwrap());
    let mut links: Vec<Vec<(usize, TcpLink)>> = Vec::new();
    for streams in connected(&ranks) {
        let inbox = Inbox::default();
        let peers: Vec<_> = streams.iter().map(|(peer, _)| *peer).collect();
        for (peer, stream) in streams {
            inbox.push(data_stream(peer, stream));
        }
        let taken = peers
            .into_iter()
            .map(|peer| (peer, inbox.take(peer, &reactor)));
        links.push(taken.map(|(peer, link)| (peer, link.unwrap())).collect());
    }
    let sent: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    for (low, high) in [(0, 1), (0, 2), (1, 2)] {
        let mut here = links[low].remove(0);
        let at = links[high]
            .iter()
            .position(|(peer, _)| *peer == low)
            .unwrap();
        let mut there = links[high].remove(at);
        assert_eq!((here.0, there.0), (high, low));
        assert!(transfer(&reactor, &mut here.1, &mut there.1, &sent) == sent);
        assert!(transfer(&reactor, &mut there.1, &mut here.1, &sent) == sent);
        drop(here);
        let end = there.1.read(&mut [0; 8]);
        assert!(
            matches!(end, Ok(0) | Err(_)),
            "a closed link must not deliver bytes"
        );
    }
    shut_down(&ranks);
}

#[test]
fn wake_ends_next_or_current_sleep() {
    let reactor = Arc::new(Reactor::new().unwrap());
    reactor.wake();
    reactor.sleep(PATIENCE * 10);
    let waker = Arc::clone(&reactor);
    let thread = thread::spawn(move || waker.wake());
    reactor.sleep(PATIENCE * 10);
    thread.join().unwrap();
}

#[test]
fn data_wakes_control_thread_only_if_requested() {
    let reactor = Arc::new(Reactor::new().unwrap());
    let recorder = Arc::new(Recorder::default());
    let mut settings = world(1, PATIENCE);
    let joined = join(&settings.remove(0)).unwrap();
    let membership = joined
        .start(recorder.clone(), Some(reactor.as_raw_fd()))
        .unwrap();

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut far = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (near, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    let inbox = Inbox::default();
    inbox.push(data_stream(1, TcpStream::from_std(near)));
    assert!(
        inbox.take(0, &reactor).is_none(),
        "the stream belongs to a different peer"
    );
    let mut link = inbox.take(1, &reactor).unwrap();

    for round in 0..3_u8 {
        recorder.note(|seen| seen.wants_data_events = true);
        membership.control.poke();
        // Wait until the wake-ups from the poke and from the writable socket have occurred.
        thread::sleep(Duration::from_millis(100));
        let before = recorder.seen.lock().unwrap().awake;
        far.write_all(&[round]).unwrap();
        recorder.wait("data", |seen| (seen.awake > before).then_some(()));
        let mut byte = [255];
        assert_eq!(link.read(&mut byte).unwrap(), 1);
        assert_eq!(byte, [round]);

        recorder.note(|seen| seen.wants_data_events = false);
        membership.control.poke();
        thread::sleep(Duration::from_millis(100));
        let before = recorder.seen.lock().unwrap().awake;
        far.write_all(&[round]).unwrap();
        thread::sleep(Duration::from_millis(50));
        assert_eq!(recorder.seen.lock().unwrap().awake, before);
        assert_eq!(link.read(&mut byte).unwrap(), 1);
    }
    membership.control.shutdown();
}

#[test]
fn failed_data_connection_reports_address() {
    let mut settings = world(2, Duration::from_millis(400));
    let second = settings.pop().unwrap();
    let first = settings.pop().unwrap();
    let thread = thread::spawn(move || join(&first));
    let leaver = join(&second).unwrap();
    let rank_0 = thread.join().unwrap().unwrap();
    let address = leaver.membership.peers[1].address.to_string();
    drop(leaver);
    let recorder = Arc::new(Recorder::default());
    let membership = rank_0.start(recorder.clone(), None).unwrap();
    membership.control.dial(5, 1);
    let (group, peer, why) = recorder.wait("a failure", |seen| seen.failed.pop());
    assert_eq!((group, peer), (5, 1));
    assert!(why.contains(&address), "{why}");
    membership.control.shutdown();
}

#[test]
fn handler_gets_only_complete_authenticated_connections() {
    let ranks = running(2);
    let (membership, recorder) = &ranks[1];
    let address = membership.peers[1].address;
    let hello = Hello {
        purpose: Purpose::Data,
        world_size: 2,
        group: 5,
        epoch: 0,
        attempt: 0,
        from: 0,
        to: 1,
    };
    // The last connection belongs to another attempt of the job.
    for (secret, attempt, frames) in [(42, 0, 2), (42, 0, 1), (43, 0, 2), (42, 1, 3)] {
        let hello = Hello { attempt, ..hello };
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE / 4)).unwrap();
        let (mut initiator, mut frame) = Initiator::new(&Secret::new([secret; 32]), hello, [1; 32]);
        for _ in 0..frames {
            stream.write_all(&frame).unwrap();
            let mut answer = vec![0; initiator.bytes_wanted()];
            stream.read_exact(&mut answer).unwrap();
            match initiator.input(&answer) {
                Ok(Output::Reply(reply) | Output::Done { reply, .. }) => frame = reply,
                Ok(Output::Refuse { .. }) | Err(_) => break,
            }
        }
    }
    // The first connection that the handler gets is a valid one that is dialed afterwards.
    ranks[0].0.control.dial(6, 1);
    recorder.wait("the valid connection", |seen| seen.streams.pop());
    let seen = recorder.seen.lock().unwrap();
    assert!(seen.streams.is_empty() && seen.failed.is_empty());
    drop(seen);
    shut_down(&ranks);
}

#[test]
fn full_queue_drops_rank_that_stops_reading() {
    let mut joined = join_all(world(2, PATIENCE), |_| 0);
    // The rank has joined, but no thread reads its connection.
    let silent = joined.pop();
    let recorder = Arc::new(Recorder::default());
    let rank_0 = joined.remove(0).unwrap();
    let membership = rank_0.start(recorder.clone(), None).unwrap();
    let payload = vec![1; CONTROL_MESSAGE_BYTES_MAX];
    let enough = 4 * CONTROL_QUEUE_BYTES_MAX / payload.len();
    for _ in 0..enough {
        membership.control.send(1, 1, &payload);
        // Send no faster than the thread handles messages, because this test must fill the
        // connection's queue and not the thread's.
        while membership.control.queued_bytes() > 0 {
            thread::yield_now();
        }
    }
    let (rank, why) = recorder.wait("the loss of rank 1", |seen| seen.lost.pop());
    assert_eq!(rank, 1);
    assert!(why.contains("queue is full"), "{why}");
    drop(silent);
    membership.control.shutdown();
}

#[test]
fn oversized_message_fails_only_its_sender() {
    for sender in [0, 1] {
        let ranks = running(3);
        let (membership, recorder) = &ranks[sender];
        let payload = vec![1; CONTROL_MESSAGE_BYTES_MAX + 1];
        membership.control.send_all(7, &payload);
        let cause = recorder.wait("the cause", |seen| seen.causes.pop());
        assert!(cause.kind() == crate::ErrorKind::Protocol, "{cause}");
        membership.control.send_all(7, &payload[1..]);
        for (membership, recorder) in &ranks {
            if membership.rank != sender {
                let (from, ..) =
                    recorder.wait("the message of maximum length", |seen| seen.messages.pop());
                assert_eq!(from, sender);
            }
            assert!(recorder.seen.lock().unwrap().lost.is_empty());
        }
        shut_down(&ranks);
    }
}

#[test]
fn more_ranks_than_pending_handshakes_can_join() {
    let count = HANDSHAKES_PENDING_MAX + 16;
    let ranks = running(count);
    for (membership, _) in &ranks {
        membership.control.send_all(1, b"hello");
    }
    for (_, recorder) in &ranks {
        recorder.wait("the hello of every other rank", |seen| {
            (seen.messages.len() == count - 1).then_some(())
        });
    }
    shut_down(&ranks);
}

#[test]
fn concurrent_goodbyes_all_arrive() {
    for _ in 0..10 {
        let ranks = running(3);
        thread::scope(|scope| {
            for (membership, _) in &ranks {
                scope.spawn(|| {
                    membership.control.send_all(1, b"goodbye");
                    if membership.rank != 2 {
                        membership.control.shutdown();
                    }
                });
            }
        });
        let (membership, recorder) = &ranks[2];
        recorder.wait("both goodbyes", |seen| {
            (seen.messages.len() == 2).then_some(())
        });
        membership.control.shutdown();
    }
}
