use super::*;
use crate::error::ErrorKind;
use crate::protocol::handshake::HELLO_BYTES;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::IntoRawFd;

#[test]
fn ranks_join_in_any_order_with_equal_tables() {
    // Rank 0 joins last, first and in the middle.
    let orders: [&[u64]; 3] = [&[90, 0, 30, 60], &[0, 60, 30, 90], &[40, 0, 80, 0]];
    for delays in orders {
        let joined = join_all(world(4, PATIENCE), |rank| delays[rank]);
        let worlds = joined.iter().map(|joined| match joined {
            Ok(joined) => &joined.membership,
            Err(error) => panic!("{error}"),
        });
        let worlds: Vec<_> = worlds.collect();
        for (rank, membership) in worlds.iter().enumerate() {
            assert_eq!((membership.rank, membership.world_size), (rank, 4));
            assert_eq!(membership.peers, worlds[0].peers);
        }
        let places: Vec<_> = worlds.iter().map(|world| world.place_on_host()).collect();
        assert_eq!(places, [(0, 4), (1, 4), (2, 4), (3, 4)]);
        assert!(
            worlds[0]
                .peers
                .iter()
                .all(|peer| peer.pid == std::process::id())
        );
    }
}

#[test]
fn maximum_timeout_does_not_overflow() {
    for joined in join_all(world(2, Duration::MAX), |_| 0) {
        assert_eq!(joined.unwrap().membership.world_size, 2);
    }
}

#[test]
fn single_rank_joins_without_network() {
    let mut settings = Settings::new(0, 1, "nowhere.invalid:1");
    settings.timeout = Duration::from_millis(100);
    let joined = join(&settings).map_err(|error| error.to_string()).unwrap();
    assert_eq!(joined.membership.peers.len(), 1);
}

#[test]
fn wrong_secret_is_reported_and_counted_at_rank_0() {
    let mut settings = world(3, Duration::from_millis(700));
    settings[2].secret = Some(Secret::new([43; 32]));
    let rendezvous = settings[0].rendezvous.clone();
    let mut lines: Vec<_> = join_all(settings, |_| 0)
        .into_iter()
        .map(join_line)
        .collect();
    let expected = format!("rank 2: the rendezvous {rendezvous} rejected the job secret");
    let line = lines.pop().unwrap();
    // The line begins differently if rank 0 times out during this rank's last try.
    assert!(line.contains(&expected), "{line}");
    for line in lines {
        assert!(line.contains("rank 2 of 3 did not reach"), "{line}");
        let (before, after) = line.split_once("failed handshakes: ").unwrap();
        assert!(!before.is_empty() && !after.starts_with('0'), "{line}");
        assert!(line.contains(", one of them from 127.0.0.1"), "{line}");
        assert!(line.contains("job secret"), "{line}");
    }
}

#[test]
fn missing_secret_is_treated_as_wrong() {
    let mut settings = world(2, Duration::from_millis(500));
    settings[1].secret = None;
    let line = join_line(join_all(settings, |_| 0).pop().unwrap());
    assert!(line.contains("rejected the job secret"), "{line}");
}

#[test]
fn world_size_mismatch_is_reported_to_all_ranks() {
    let mut settings = world(3, PATIENCE);
    settings[1].world_size = 5;
    let began = Instant::now();
    let lines: Vec<_> = join_all(settings, |_| 0)
        .into_iter()
        .map(join_line)
        .collect();
    assert!(
        began.elapsed() < PATIENCE / 2,
        "the error must arrive before the timeout"
    );
    assert!(
        lines[1].contains("WORLD_SIZE is 5 here, but 3 on rank 0"),
        "{}",
        lines[1]
    );
    for line in [&lines[0], &lines[2]] {
        assert!(line.contains("it is 3 on rank 0 but 5 on rank 1"), "{line}");
    }
}

#[test]
fn duplicate_rank_is_reported_to_all_ranks() {
    let mut settings = world(4, PATIENCE);
    settings[3] = settings[2].clone();
    let lines: Vec<_> = join_all(settings, |_| 0)
        .into_iter()
        .map(join_line)
        .collect();
    for line in lines {
        assert!(line.contains("two processes have rank 2"), "{line}");
        let process = format!("process {}", std::process::id());
        assert_eq!(line.matches(&process).count(), 2, "{line}");
    }
}

#[test]
fn second_rank_0_error_suggests_duplicate() {
    let settings = world(2, Duration::from_millis(600));
    let second = Settings {
        timeout: Duration::from_millis(100),
        ..settings[0].clone()
    };
    let first = thread::spawn(move || join(&settings[0]));
    thread::sleep(Duration::from_millis(150));
    let line = join_line(join(&second));
    assert!(line.contains("a second rank 0?"), "{line}");
    join_line(first.join().unwrap());
}

#[test]
fn settings_mismatch_is_reported_with_both_values() {
    let mut settings = world(3, PATIENCE);
    settings[2].algorithm = Some("ring".to_owned());
    // Rank 1 joins after the failure is known.
    let lines = join_all(settings, |rank| if rank == 1 { 300 } else { 0 });
    for line in lines.into_iter().map(join_line) {
        assert!(line.contains("RINGTREE_ALGORITHM differs"), "{line}");
        assert!(line.contains("\"auto\" on rank 0"), "{line}");
        assert!(line.contains("\"ring\" on rank 2"), "{line}");
    }
}

#[test]
fn timeout_error_names_missing_ranks() {
    let mut settings = world(5, Duration::from_millis(500));
    settings.truncate(3);
    let began = Instant::now();
    for line in join_all(settings, |_| 0).into_iter().map(join_line) {
        assert!(line.contains("ranks 3, 4 of 5 did not reach"), "{line}");
        assert!(line.contains("within 500 ms"), "{line}");
    }
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn unreachable_rendezvous_error_quotes_system_error() {
    let mut settings = world(2, Duration::from_millis(200));
    let client = settings.pop().unwrap();
    let line = join_line(join(&client));
    assert!(line.contains(&client.rendezvous), "{line}");
    assert!(
        line.contains("refused") && line.contains("200 ms"),
        "{line}"
    );
}

#[test]
fn unresolvable_rendezvous_is_named_in_error() {
    let mut settings = Settings::new(1, 2, "no-such-host.invalid:29500");
    settings.timeout = Duration::from_millis(200);
    let line = join_line(join(&settings));
    assert!(line.contains("no-such-host.invalid:29500"), "{line}");
}

#[test]
fn join_without_secret_requires_loopback() {
    // This address is reserved for documentation, so no host has it. The join must not contact it.
    for rank in [0, 1] {
        let mut settings = Settings::new(rank, 2, "192.0.2.1:29500");
        settings.timeout = Duration::from_millis(300);
        let Err(error) = join(&settings) else {
            panic!("the join must be rejected");
        };
        assert!(error.kind() == ErrorKind::Configuration, "{error:?}");
        let line = error.to_string();
        assert!(line.contains("RINGTREE_SECRET is not set"), "{line}");
    }
    let mut settings = world(2, PATIENCE);
    for settings in &mut settings {
        settings.secret = None;
    }
    for joined in join_all(settings, |_| 0) {
        joined.map_err(|error| error.to_string()).unwrap();
    }
}

#[test]
fn rendezvous_moves_to_next_port_if_taken() {
    let mut settings = world(3, PATIENCE);
    let port: u16 = settings[0]
        .rendezvous
        .rsplit_once(':')
        .unwrap()
        .1
        .parse()
        .unwrap();
    // This service accepts connections but sends nothing, like a store that waits for a request.
    let other_service = TcpListener::bind(("127.0.0.1", port)).unwrap();
    for settings in &mut settings {
        settings.next_port_too = true;
    }
    for joined in join_all(settings, |_| 0) {
        joined.map_err(|error| error.to_string()).unwrap();
    }
    drop(other_service);
}

#[test]
fn explicit_rendezvous_that_is_taken_is_an_error() {
    let mut settings = world(2, Duration::from_millis(300));
    let taken = TcpListener::bind(&settings[0].rendezvous).unwrap();
    let line = join_line(join(&settings.remove(0)));
    assert!(
        line.contains("the process that is listening there"),
        "{line}"
    );
    drop(taken);
}

#[test]
fn inherited_listener_is_used_once_and_then_its_address() {
    let mut settings = world(2, PATIENCE);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let rendezvous = listener.local_addr().unwrap().to_string();
    for settings in &mut settings {
        settings.rendezvous.clone_from(&rendezvous);
    }
    // Use a descriptor number that no other test in this process uses.
    let copy = rustix::io::fcntl_dupfd_cloexec(&listener, 800).unwrap();
    drop(listener);
    settings[0].listener_fd = Some(copy.into_raw_fd());
    for _ in 0..2 {
        for joined in join_all(settings.clone(), |_| 0) {
            joined.map_err(|error| error.to_string()).unwrap();
        }
    }
}

/// Connects to `rendezvous`, retrying until a process listens there.
pub(super) fn connect(rendezvous: &str) -> std::net::TcpStream {
    let end = Instant::now() + PATIENCE;
    loop {
        match std::net::TcpStream::connect(rendezvous) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn garbage_at_rendezvous_does_not_disturb_join() {
    let settings = world(3, PATIENCE);
    let rendezvous = settings[0].rendezvous.clone();
    let strangers = thread::spawn(move || {
        let mut held = Vec::new();
        for round in 0..100_u8 {
            let mut stream = connect(&rendezvous);
            let bytes = [round.wrapping_mul(37); 3 * HELLO_BYTES];
            match round % 4 {
                0 => drop(stream),
                1 => drop(stream.write_all(&bytes)),
                2 => {
                    // Send the beginning of a valid hello, and then nothing.
                    let _ = stream.write_all(b"ringtree");
                    held.push(stream);
                }
                _ => held.push(stream),
            }
        }
        held
    });
    for joined in join_all(settings, |rank| 200 * (rank as u64)) {
        joined.map_err(|error| error.to_string()).unwrap();
    }
    drop(strangers.join().unwrap());
}

#[test]
fn silent_peers_beyond_limit_only_delay_join() {
    let settings = world(2, PATIENCE);
    let rendezvous = settings[0].rendezvous.clone();
    let client = settings[1].clone();
    let rank_0 = thread::spawn(move || join(&settings[0]));
    let held: Vec<_> = (0..crate::limits::HANDSHAKES_PENDING_MAX * 2)
        .map(|_| connect(&rendezvous))
        .collect();
    join(&client).map_err(|error| error.to_string()).unwrap();
    rank_0
        .join()
        .unwrap()
        .map_err(|error| error.to_string())
        .unwrap();
    drop(held);
}

#[test]
fn unauthenticated_peer_is_disconnected_without_answer() {
    let settings = world(2, PATIENCE);
    let rendezvous = settings[0].rendezvous.clone();
    let client = settings[1].clone();
    let rank_0 = thread::spawn(move || join(&settings[0]));
    let mut stream = connect(&rendezvous);
    stream.write_all(&[7; HELLO_BYTES]).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = Vec::new();
    // The connection is closed or reset, in both cases without an answer.
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.is_empty());
    join(&client).map_err(|error| error.to_string()).unwrap();
    rank_0
        .join()
        .unwrap()
        .map_err(|error| error.to_string())
        .unwrap();
}

#[test]
fn no_socket_listens_on_wildcard_address() {
    let settings = world(2, PATIENCE);
    let rendezvous: std::net::SocketAddr = settings[0].rendezvous.parse().unwrap();
    let start = |joined: Result<Joined>| {
        let recorder: Arc<dyn Handler> = Arc::new(Recorder::default());
        joined.unwrap().start(recorder, None).unwrap()
    };
    let running: Vec<Membership> = join_all(settings, |_| 0).into_iter().map(start).collect();
    let membership = &running[0];
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    // Column 1 is the address and port in hexadecimal. Column 3 is the state; 0A means listening.
    let listeners: Vec<(&str, u16)> = table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let (address, port) = columns[1].split_once(':')?;
            (columns[3] == "0A").then_some((address, u16::from_str_radix(port, 16).ok()?))
        })
        .collect();
    for peer in membership.peers.iter() {
        let on_port = listeners
            .iter()
            .filter(|(_, port)| *port == peer.address.port());
        let bound: Vec<&str> = on_port.map(|(address, _)| *address).collect();
        assert_eq!(bound, ["0100007F"], "only 127.0.0.1 may be bound");
    }
    let closed = listeners.iter().all(|(_, port)| *port != rendezvous.port());
    assert!(
        closed,
        "the rendezvous must close after all ranks have joined"
    );
    running.iter().for_each(|one| one.control.shutdown());
}

#[test]
fn rank_of_earlier_attempt_is_rejected_harmlessly() {
    let mut settings = world(3, PATIENCE);
    for settings in &mut settings {
        settings.attempt = 2;
    }
    let mut old = settings[1].clone();
    old.attempt = 1;
    settings.insert(1, old);
    // The old rank joins while rank 0 waits for two others: before both of them, or between them.
    for delays in [[0, 50, 150, 150], [0, 100, 0, 200]] {
        let mut joined = join_all(settings.clone(), |at| delays[at]);
        let line = join_line(joined.remove(1));
        assert!(
            line.contains("rank 1: this process belongs to attempt 1"),
            "{line}"
        );
        assert!(
            line.contains("to attempt 2: a restart has replaced"),
            "{line}"
        );
        for joined in joined {
            let joined = joined.map_err(|error| error.to_string()).unwrap();
            assert_eq!(joined.membership.world_size, 3);
        }
    }
}

#[test]
fn old_rank_0_gives_way_to_next_attempt() {
    let old = world(2, PATIENCE);
    let mut settings = old.clone();
    for settings in &mut settings {
        settings.attempt = 1;
    }
    let replaced = old[0].clone();
    let replaced = thread::spawn(move || join(&replaced));
    // Rank 1 reaches the old rank 0 first. The new rank 0 starts when the port is free.
    let second = settings.pop().unwrap();
    let second = thread::spawn(move || join(&second));
    let line = join_line(replaced.join().unwrap());
    assert!(line.contains("this process belongs to attempt 0"), "{line}");
    assert!(
        line.contains("rank 1") && line.contains("to attempt 1"),
        "{line}"
    );
    join(&settings[0])
        .map_err(|error| error.to_string())
        .unwrap();
    let second = second.join().unwrap();
    second.map_err(|error| error.to_string()).unwrap();
}

#[test]
fn rank_that_times_out_reports_reason_to_all() {
    let mut settings = world(4, PATIENCE);
    settings.truncate(3);
    let began = Instant::now();
    settings[2].timeout = Duration::from_millis(300);
    let joined = join_all(settings, |_| 0);
    for line in joined.into_iter().map(join_line) {
        assert!(line.starts_with("rank 2: reached the rendezvous"), "{line}");
    }
    assert!(
        began.elapsed() < PATIENCE / 2,
        "the error must arrive before the timeout"
    );
}
