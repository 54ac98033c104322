//! Measures the connection to another process.

use super::network::{Interfaces, number, owner, resolve};
use super::report::Group;
use ringtree::internal::bootstrap::{host_and_port, segment_bytes};
use serde_json::json;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Time limit for all connections.
const CONNECT_TIME: Duration = Duration::from_secs(4);
/// Number of connections whose time is measured.
const CONNECTIONS: usize = 10;
/// Number of bytes that headers and options of a packet use at most, including those of a tunnel.
const HEADERS_MAX: u64 = 150;

/// The address of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

/// Parses `HOST:PORT`, with an IPv6 address in brackets.
///
/// # Errors
/// Returns a message if the text is not of this form.
pub(super) fn parse(text: &str) -> Result<Address, String> {
    let address = text.rsplit_once(':').and_then(|(host, port)| {
        let bare = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']')?,
            None => Some(host).filter(|host| !host.contains([':', ']']))?,
        };
        let host = Some(bare).filter(|host| !host.is_empty())?;
        let port = port.parse().ok().filter(|port| *port > 0)?;
        let host = host.to_owned();
        Some(Address { host, port })
    });
    let form = "use HOST:PORT with a port from 1 to 65535, such as node0:29500 or [fd00::1]:29500";
    address.ok_or(form.to_owned())
}

/// Connects to `peer` until `end`. Returns the last connection, and the time that each connection
/// took to establish, in ascending order.
///
/// # Errors
/// Returns the reason if the first connection fails.
fn connect(peer: SocketAddr, end: Instant) -> Result<(TcpStream, Vec<Duration>), String> {
    let once = || {
        let begin = Instant::now();
        let left = end.saturating_duration_since(begin);
        let stream = TcpStream::connect_timeout(&peer, left.max(Duration::from_millis(1)));
        let time = begin.elapsed();
        let connected = stream.map(|stream| (stream, time));
        connected.map_err(|error| obstacle(peer, &error, time))
    };
    let (mut stream, time) = once()?;
    let mut times = vec![time];
    while let (true, Ok((next, time))) = (times.len() < CONNECTIONS, once()) {
        stream = next;
        times.push(time);
    }
    times.sort();
    Ok((stream, times))
}

fn ms(time: Duration) -> String {
    format!("{:.3} ms", time.as_secs_f64() * 1e3)
}

/// Returns the reason why a connection to `peer` failed after `time`, and what to do.
pub(super) fn obstacle(peer: SocketAddr, error: &io::Error, time: Duration) -> String {
    let (host, port) = (peer.ip(), peer.port());
    match error.kind() {
        io::ErrorKind::ConnectionRefused => format!(
            "the host {host} answers in {}, but nothing listens on port {port}; start the process \
             that listens there, or correct the port",
            ms(time)
        ),
        io::ErrorKind::TimedOut => format!(
            "{peer} did not answer within {:.1} s; the host may be down, or a firewall may drop \
             packets: allow TCP connections between the hosts",
            time.as_secs_f64()
        ),
        _ => format!("cannot connect to {peer}: {error}; check the address and the routes"),
    }
}

/// Returns the problem of a connection whose segments are much smaller than the MTU of its
/// interface `name`. On loopback, the kernel limits the segments for other reasons.
pub(super) fn small_segments(segment_bytes: u64, name: &str, mtu: u64) -> Option<String> {
    (name != "lo" && segment_bytes + HEADERS_MAX < mtu).then(|| {
        format!(
            "packets to the peer carry at most {segment_bytes} bytes, although the MTU of {name} \
             is {mtu}: the peer or a router has a smaller MTU; set the same MTU on all hosts"
        )
    })
}

/// Examines the connection to `address`.
///
/// # Errors
/// Returns the reason if it cannot be established.
pub(super) fn examine(
    address: &Address,
    interfaces: &Interfaces,
    group: &mut Group,
    problems: &mut Vec<String>,
) -> Result<(), String> {
    let Address { host, port } = address;
    group.add("address", host_and_port(host, *port));
    let unknown = |why| format!("{host} does not resolve: {why}; correct it, or use an address");
    let all = resolve(host).map_err(unknown)?;
    group.add("addresses", json!(all));
    let share = CONNECT_TIME / all.len() as u32;
    let mut reached = Err(String::new());
    for address in all {
        reached = connect((address, *port).into(), Instant::now() + share);
        if reached.is_ok() {
            break;
        }
    }
    let (stream, times) = reached?;
    let (median, least) = (times[times.len() / 2], times[0]);
    group.add("connections", times.len());
    group.add("connected to", json!(stream.peer_addr().ok()));
    let us = |time: Duration| time.as_nanos() as f64 / 1e3;
    group.add("round trip median us", us(median));
    group.add("round trip minimum us", us(least));
    let interface = stream.local_addr().ok();
    let interface = interface.and_then(|local| owner(interfaces, local.ip()));
    let segment = segment_bytes(&stream).ok().map(u64::from);
    let mtu = interface.and_then(|name| number(name, "mtu"));
    group.add("interface", interface.cloned());
    group.add("MTU", mtu);
    group.add("segment bytes", segment);
    if let (Some(segment), Some(name), Some(mtu)) = (segment, interface, mtu) {
        problems.extend(small_segments(segment, name, mtu));
    }
    Ok(())
}
