use super::*;
use crate::control::peer::Place;
use crate::error::ErrorKind;
use crate::protocol::fd_passing::TOKEN_BYTES;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::fs::{self, File};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const BYTES: usize = 8192;
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns `count` ranks on one host, connected as they are after a join.
fn ranks(count: usize) -> Vec<LocalPeers> {
    let sockets: Vec<_> = (0..count).map(|_| LocalSocket::new().unwrap()).collect();
    let peer = |socket: &LocalSocket| Peer {
        address: ([127, 0, 0, 1], 1).into(),
        host_name: "h".into(),
        host_id: "h".into(),
        site: String::new(),
        place: Ok(Place {
            boot_id: "b".into(),
            network: 1,
            users: 1,
            user: 1,
            socket: socket.name.clone(),
            token: socket.token.clone(),
        }),
        pid: 1,
        process: None,
    };
    let peers: Vec<Peer> = sockets.iter().map(peer).collect();
    let local = |(rank, socket)| {
        let secret = Some(Secret::new([3; 32]));
        LocalPeers::new(socket, (rank, 0), secret, &peers).unwrap()
    };
    sockets.into_iter().enumerate().map(local).collect()
}

/// Creates sealed memory with this name that begins with `mark`.
fn memory(name: &str, mark: u64) -> OwnedFd {
    let file = unsealed(name, BYTES);
    let file = File::from(file);
    file.write_all_at(&mark.to_le_bytes(), 0).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    file.into()
}

fn unsealed(name: &str, bytes: usize) -> OwnedFd {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, bytes as u64).unwrap();
    file
}

fn mark(file: OwnedFd) -> u64 {
    let mut bytes = [0; 8];
    File::from(file).read_exact_at(&mut bytes, 0).unwrap();
    u64::from_le_bytes(bytes)
}

/// Returns how many descriptors in this process refer to memory with this name.
fn open(name: &str) -> usize {
    let link = format!("/memfd:{name} (deleted)");
    let all = fs::read_dir("/proc/self/fd").unwrap();
    let links = all.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    links
        .filter(|found| found.to_string_lossy() == link)
        .count()
}

/// Sends a datagram to the socket of `local` from outside the job. The datagram consists of the
/// word of `local`, `bytes` and `descriptor`.
fn send_to(
    local: &LocalPeers,
    bytes: &[u8],
    descriptor: BorrowedFd<'_>,
) -> rustix::io::Result<usize> {
    send_with_word(&local.word, local, bytes, descriptor)
}

fn send_with_word(
    word: &[u8],
    local: &LocalPeers,
    bytes: &[u8],
    descriptor: BorrowedFd<'_>,
) -> rustix::io::Result<usize> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).unwrap();
    let address = SocketAddrUnix::try_from(rustix::net::getsockname(&local.socket).unwrap());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let bytes = [IoSlice::new(word), IoSlice::new(bytes)];
    let address = address.unwrap();
    rustix::net::sendmsg_addr(&socket, &address, &bytes, &mut ancillary, send_flags())
}

/// Returns messages to rank 0 that are each invalid in a different way.
fn forgeries(local: &LocalPeers) -> Vec<[u8; FD_MESSAGE_BYTES]> {
    let right = FdMessage {
        attempt: 0,
        channel: 4,
        from: 1,
        to: 0,
    };
    let nonce = Nonce::new([&Token([0; TOKEN_BYTES])]);
    vec![
        right.encode(&Secret::new([4; 32]), &local.nonce),
        right.encode(&Secret::absent(), &local.nonce),
        right.encode(&local.secret, &nonce),
        FdMessage {
            attempt: 1,
            ..right
        }
        .encode(&local.secret, &local.nonce),
        FdMessage { to: 1, ..right }.encode(&local.secret, &local.nonce),
        FdMessage { from: 0, ..right }.encode(&local.secret, &local.nonce),
        FdMessage { from: 99, ..right }.encode(&local.secret, &local.nonce),
    ]
}

#[test]
fn exchange_on_two_channels_ignores_forged_datagrams() {
    let name = "ringtree-test-all";
    let all = ranks(8);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let exchanges: Vec<_> = (0..8)
            .flat_map(|rank| [(rank, 6_u32), (rank, 7)])
            .map(|(rank, channel)| {
                let local = &all[rank];
                scope.spawn(move || {
                    let own = memory(name, u64::from(channel) * 100 + rank as u64);
                    let handed = local.exchange(channel, &own, Some(BYTES), PATIENCE);
                    let marks = handed.unwrap().into_iter();
                    let marks: Vec<_> = marks.map(|(from, file)| (from, mark(file))).collect();
                    let expected = (0..8_usize).filter(|other| *other != rank);
                    let marks_of = |from| (from, u64::from(channel) * 100 + from as u64);
                    assert_eq!(marks, expected.map(marks_of).collect::<Vec<_>>());
                })
            })
            .collect();
        scope.spawn(|| {
            let own = memory(name, 0);
            while !is_over.load(Ordering::Relaxed) {
                for local in &all {
                    for forgery in forgeries(local) {
                        // This fails whenever the queue is full.
                        let _ = send_to(local, &forgery, own.as_fd());
                    }
                    let _ = send_to(local, &[7; 300], own.as_fd());
                    let _ = send_to(local, &[], own.as_fd());
                    let _ = send_with_word(&[], local, &[], own.as_fd());
                    let _ = send_with_word(&[9; WORD_BYTES], local, &[], own.as_fd());
                }
                thread::sleep(Duration::from_micros(200));
            }
        });
        let ended: Vec<_> = exchanges.into_iter().map(|each| each.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(|end| end.is_ok()));
    });
    // Dropping the sockets closes the descriptors left in their queues.
    drop(all);
    assert_eq!(open(name), 0);
}

#[test]
fn forged_messages_are_dropped_and_descriptors_closed() {
    let name = "ringtree-test-forged";
    let all = ranks(2);
    let own = memory(name, 0);
    for forgery in forgeries(&all[0]) {
        send_to(&all[0], &forgery, own.as_fd()).unwrap();
        all[0].drain();
        assert!(lock(&all[0].stash).is_empty());
        assert_eq!(open(name), 1);
    }
    // Messages with a valid proof are accepted, but only one descriptor per channel is kept.
    for _ in 0..2 {
        assert!(all[1].pass_descriptor(4, own.as_fd(), 0).unwrap());
        all[0].drain();
        assert_eq!(open(name), 2);
    }
    let socket = String::from_utf8(
        SocketAddrUnix::try_from(rustix::net::getsockname(&all[0].socket).unwrap())
            .unwrap()
            .abstract_name()
            .unwrap()
            .to_vec(),
    )
    .unwrap();
    let is_there = || {
        let sockets = fs::read_to_string("/proc/net/unix").unwrap();
        sockets.contains(&socket)
    };
    assert!(is_there());
    drop(all);
    assert!(!is_there());
    assert_eq!(open(name), 1);
}

/// Returns the length of the next datagram in the queue of `local`, without removing it.
fn queued(local: &LocalPeers) -> rustix::io::Result<usize> {
    let mut bytes = [0; 400];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    rustix::net::recv(&local.socket, &mut bytes, flags).map(|(_, bytes)| bytes)
}

#[test]
fn kernel_drops_datagrams_without_the_word() {
    let all = ranks(2);
    let own = memory("ringtree-test-strangers", 0);
    let word = all[0].word;
    let mut almost = word;
    almost[WORD_BYTES - 1] ^= 1;
    let invalid: [&[u8]; 6] = [
        &[],
        &word[..4],
        &word[..7],
        &almost,
        &all[1].word,
        &[7; 300],
    ];
    for bytes in invalid {
        send_with_word(bytes, &all[0], &[], own.as_fd()).unwrap();
        assert_eq!(queued(&all[0]), Err(Errno::AGAIN), "{bytes:?}");
    }
    send_with_word(&word, &all[0], &[], own.as_fd()).unwrap();
    assert_eq!(queued(&all[0]), Ok(WORD_BYTES));
}

/// An unauthenticated peer sends a socket that blocks when its last reference is closed.
#[test]
fn receiver_never_closes_unauthenticated_descriptor() {
    let linger = Duration::from_secs(600);
    let all = ranks(2);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut full = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (reader, _) = listener.accept().unwrap();
    full.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut full, &[1; 1 << 16]).is_ok() {}
    SockRef::from(&full).set_linger(Some(linger)).unwrap();
    send_with_word(&[], &all[0], &[], full.as_fd()).unwrap();
    // Closing the socket must block only the sender.
    let stranger = thread::spawn(move || drop(full));
    let (sender, receiver) = std::sync::mpsc::channel();
    let local = thread::spawn(move || {
        all[0].drain();
        sender.send(()).unwrap();
    });
    receiver
        .recv_timeout(PATIENCE)
        .expect("draining must not wait until a descriptor is closed");
    drop(reader);
    stranger.join().unwrap();
    local.join().unwrap();
}

#[test]
fn descriptors_kept_for_later_are_limited() {
    let name = "ringtree-test-kept";
    let all = ranks(2);
    let own = memory(name, 0);
    for channel in 0..HANDED_CHANNELS_MAX as u32 + 5 {
        assert!(all[1].pass_descriptor(channel, own.as_fd(), 0).unwrap());
        all[0].drain();
    }
    assert_eq!(open(name), 1 + HANDED_CHANNELS_MAX);
    // An exchange uses up a kept descriptor, which makes room for another channel.
    let handed = all[0].exchange(3, &own, Some(BYTES), PATIENCE);
    assert_eq!(handed.unwrap().len(), 1);
    assert_eq!(open(name), HANDED_CHANNELS_MAX);
    for channel in [500, 501] {
        assert!(all[1].pass_descriptor(channel, own.as_fd(), 0).unwrap());
        all[0].drain();
    }
    assert_eq!(open(name), 1 + HANDED_CHANNELS_MAX);
}

#[test]
fn fd_exchange_timeout_names_missing_ranks() {
    let name = "ringtree-test-late";
    let all = ranks(4);
    let late = Duration::from_millis(300);
    thread::scope(|scope| {
        for rank in [0, 1] {
            let local = &all[rank];
            scope.spawn(move || {
                let own = memory(name, 0);
                let error = local.exchange(2, &own, Some(BYTES), late);
                let Err(error) = error else {
                    panic!("expected a deadline error, got {error:?}");
                };
                assert!(error.kind() == ErrorKind::Deadline, "{error:?}");
                let line = error.to_string();
                assert!(line.contains("ranks 2, 3 did not"), "{line}");
                assert!(!line.contains('\n'));
                assert!(lock(&local.stash).is_empty());
            });
        }
    });
    drop(all);
    assert_eq!(open(name), 0);
}

#[test]
fn fd_exchange_names_lost_rank_before_deadline() {
    for dies_during_exchange in [false, true] {
        let mut all = ranks(3);
        let last = all.pop().unwrap();
        thread::scope(|scope| {
            for local in &all {
                scope.spawn(move || {
                    let own = memory("ringtree-test-gone", 0);
                    let error = local.exchange(2, &own, Some(BYTES), PATIENCE);
                    let Err(error) = error else {
                        panic!("expected an error, got {error:?}");
                    };
                    assert!(error.kind() == ErrorKind::PeerLost, "{error:?}");
                    assert_eq!(error.peer(), Some(2));
                    let message = error.to_string();
                    assert!(message.starts_with("rank 2 is gone"), "{message}");
                });
            }
            if dies_during_exchange {
                thread::sleep(Duration::from_millis(50));
            }
            drop(last);
        });
    }
}

#[test]
fn exchange_accepts_only_sealed_memory_of_right_size() {
    let all = ranks(2);
    let sealed = memory("ringtree-test-right", 0);
    let (pipe, _writer) = std::io::pipe().unwrap();
    let shrinking = unsealed("ringtree-test-shrinking", BYTES);
    fcntl_add_seals(&shrinking, SealFlags::GROW).unwrap();
    let cases = [
        (
            unsealed("ringtree-test-unsealed", BYTES),
            BYTES,
            "not sealed",
        ),
        (shrinking, BYTES, "not sealed"),
        (OwnedFd::from(pipe), BYTES, "not sealed"),
        (
            memory("ringtree-test-size", 0),
            2 * BYTES,
            "8192 bytes, but 16384",
        ),
    ];
    for (channel, (theirs, bytes, why)) in (0..).zip(cases) {
        assert!(all[1].pass_descriptor(channel, theirs.as_fd(), 0).unwrap());
        let error = all[0].exchange(channel, &sealed, Some(bytes), PATIENCE);
        let Err(error) = error else {
            panic!("expected an error, got {error:?}");
        };
        assert!(error.kind() == ErrorKind::Protocol, "{error:?}");
        let line = error.to_string();
        assert!(
            line.contains("memory of rank 1") && line.contains(why),
            "{line}"
        );
        all[1].drain();
    }
}

#[test]
fn dropped_descriptor_error_suggests_ulimit() {
    let all = ranks(2);
    let own = memory("ringtree-test-cut", 0);
    // Add the entry for a descriptor that the kernel dropped for lack of a free descriptor number.
    lock(&all[0].stash).entry(0).or_default().insert(1, None);
    let error = all[0].exchange(0, &own, Some(BYTES), PATIENCE);
    let line = error.unwrap_err().to_string();
    assert!(
        line.contains("rank 1") && line.contains("ulimit -n"),
        "{line}"
    );
}

/// Sleeps in the reactor until a wake-up arrives. Returns immediately if one has arrived before.
fn sleep_until_woken(reactor: &Reactor) {
    let start = Instant::now();
    reactor.sleep(PATIENCE);
    assert!(start.elapsed() < PATIENCE, "no wake-up ended the sleep");
}

#[test]
fn wake_ends_sleep_despite_unread_datagrams() {
    let all = ranks(2);
    let reactor = Arc::new(Reactor::new().unwrap());
    all[1].end_sleeps_of(&reactor).unwrap();
    all[0].wake(1);
    sleep_until_woken(&reactor);
    thread::scope(|scope| {
        for _ in 0..20 {
            all[1].drain();
            scope.spawn(|| all[0].wake(1));
            sleep_until_woken(&reactor);
        }
    });
    // Send more wake-ups than a queue holds, while no thread reads. No call may block.
    for _ in 0..2 * DATAGRAMS_AT_ONCE {
        all[0].wake(1);
    }
    sleep_until_woken(&reactor);
    all[1].drain();
    all[0].wake(1);
    sleep_until_woken(&reactor);
    // Waking a rank that does not exist or is gone does nothing.
    all[0].wake(7);
    let mut all = all;
    drop(all.pop());
    all[0].wake(1);
}

#[test]
fn exchange_forwards_wake_up_to_sleeper() {
    let all = ranks(2);
    let reactor = Arc::new(Reactor::new().unwrap());
    all[1].end_sleeps_of(&reactor).unwrap();
    let own = memory("ringtree-test-passes-on", 0);
    thread::scope(|scope| {
        let exchange = scope.spawn(|| all[1].exchange(0, &own, Some(BYTES), PATIENCE));
        for _ in 0..100 {
            all[1].drain();
            all[0].wake(1);
            sleep_until_woken(&reactor);
        }
        all[0].exchange(0, &own, Some(BYTES), PATIENCE).unwrap();
        assert_eq!(exchange.join().unwrap().unwrap().len(), 1);
    });
}
