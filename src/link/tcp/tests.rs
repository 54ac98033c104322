use super::*;
use std::net::TcpListener;

/// Creates a link, and returns it with the other end of its connection.
fn pair(reactor: &Arc<Reactor>) -> (TcpLink, std::net::TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    near.set_nonblocking(true).unwrap();
    set_options(&near).unwrap();
    let inbox = Inbox::default();
    inbox.push(DataStream {
        peer: 1,
        stream: TcpStream::from_std(near),
        hosts: ("here".into(), "there".into()),
    });
    (
        inbox.take(1, reactor).unwrap(),
        listener.accept().unwrap().0,
    )
}

#[test]
fn silence_counts_only_while_acknowledgment_is_due() {
    let start = Instant::now();
    let second = Duration::from_secs(1);
    let awaited = |last| Acknowledged {
        is_awaited: true,
        last,
    };
    let mut silence = Silence::default();
    // The connection has been idle for an hour when bytes are sent.
    assert_eq!(silence.lasts(awaited(3600 * second), start), Duration::ZERO);
    assert_eq!(
        silence.lasts(awaited(3603 * second), start + 3 * second),
        3 * second
    );
    // The last acknowledgment arrived one second ago, and a further acknowledgment is due.
    assert_eq!(silence.lasts(awaited(second), start + 6 * second), second);
    assert_eq!(
        silence.lasts(awaited(4 * second), start + 9 * second),
        4 * second
    );
    let idle = Acknowledged {
        is_awaited: false,
        last: 60 * second,
    };
    assert_eq!(silence.lasts(idle, start + 69 * second), Duration::ZERO);
    assert_eq!(
        silence.lasts(awaited(90 * second), start + 99 * second),
        Duration::ZERO
    );
}

/// The peer does not read for longer than it takes to detect an unreachable peer. If
/// `RINGTREE_TEST_LONG` is set, it does not read for a minute.
#[test]
fn peer_that_does_not_read_is_not_disconnected() {
    let computes = match std::env::var_os("RINGTREE_TEST_LONG") {
        Some(_) => Duration::from_secs(60),
        None => CUT_OFF_AFTER + Duration::from_secs(3),
    };
    let reactor = Arc::new(Reactor::new().unwrap());
    let (mut link, mut far) = pair(&reactor);
    let piece = vec![1; 1 << 20];
    let mut written = 0;
    let end = Instant::now() + computes;
    while Instant::now() < end {
        match link.write(&piece) {
            Ok(bytes) => written += bytes,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        reactor.sleep(Duration::from_millis(50));
        reactor.close_unreachable();
    }
    drop(link);
    let mut read = Vec::new();
    far.read_to_end(&mut read).unwrap();
    assert_eq!(read.len(), written);
}
