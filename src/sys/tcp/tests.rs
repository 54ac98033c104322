use super::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

#[test]
fn received_bytes_are_acknowledged() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut far = listener.accept().unwrap().0;
    near.write_all(&[1; 100]).unwrap();
    far.read_exact(&mut [0; 100]).unwrap();
    // Within a host, an acknowledgment arrives immediately or when the next timer expires.
    while acknowledged(&near).unwrap().is_awaited {
        std::thread::yield_now();
    }
    // This call may fail only on kernels that do not have the option.
    if let Err(error) = try_again_within(&near, Duration::from_secs(2)) {
        assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT));
    }
    assert!(round_trip(&near).unwrap() < Duration::from_secs(1));
    assert!(acknowledged(&std::io::pipe().unwrap().0).is_err());
}
