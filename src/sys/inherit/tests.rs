use super::*;
use std::os::fd::AsRawFd;

#[test]
fn take_listener_takes_only_listeners_and_only_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // No other test in this process uses such a high descriptor.
    let copy = rustix::io::fcntl_dupfd_cloexec(&listener, 700).unwrap();
    let descriptor = copy.into_raw_fd();
    let taken = take_listener(descriptor).unwrap().unwrap();
    assert_eq!(taken.local_addr().unwrap(), address);
    assert!(take_listener(descriptor).unwrap().is_none());

    let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    assert!(take_listener(datagrams.as_raw_fd()).is_err());
    assert!(datagrams.local_addr().is_ok(), "the socket must stay open");
    let file = fs::File::open("/proc/self/stat").unwrap();
    assert!(take_listener(file.as_raw_fd()).is_err());
    assert!(take_listener(1).is_err());
    assert!(take_listener(-1).is_err());
}
