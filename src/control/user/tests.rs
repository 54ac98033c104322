use super::*;
use std::net::TcpListener;

#[test]
fn look_up_returns_user_of_socket() {
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let Ok(listener) = TcpListener::bind(at) else {
            assert!(at.starts_with('['), "only IPv6 may be unavailable");
            continue;
        };
        let far = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        // Concurrent tests fork, and a child would keep the connection open.
        crate::link::tcp::keep_from_children(&far);
        let (near, theirs) = listener.accept().unwrap();
        let here = near.local_addr().unwrap();
        let ours = rustix::process::geteuid().as_raw();
        assert_eq!(look_up(theirs, here).unwrap(), Some(ours));
        check(&TcpStream::from_std(near)).unwrap();
        drop(far);
        assert_eq!(
            look_up(theirs, here).unwrap(),
            None,
            "a closed socket has no user"
        );
    }
}

#[test]
fn user_is_read_only_from_matching_line() {
    let line = "   7: 0100007F:BA0C 0100007F:7531 01 00000000:00000000 00:00000000 00000000 \
                65534        0 12345 1 0000000000000000 20 0 0 10 -1";
    let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    assert_eq!(user_in(line, at(0xBA0C), at(0x7531)), Some(65534));
    assert_eq!(user_in(line, at(0x7531), at(0xBA0C)), None);
    // A closed connection has no process at its end.
    let closed = line.replace(" 01 ", " 06 ");
    assert_eq!(user_in(&closed, at(0xBA0C), at(0x7531)), None);
    for garbage in [
        "",
        "sl local_address rem_address st",
        "1: x:y z:q 01",
        "a b c d e f g h",
    ] {
        assert_eq!(user_in(garbage, at(1), at(2)), None);
    }
}
