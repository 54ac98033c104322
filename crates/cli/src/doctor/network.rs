//! Examines the network interfaces, the host name and the route to the rendezvous.

use super::report::{Group, read, variable};
use ringtree::internal::bootstrap::{host_name, interface_addresses};
use serde_json::json;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Time limit for resolving a name.
const RESOLVE_TIME: Duration = Duration::from_secs(3);

/// Addresses reserved for documentation (RFC 5737, 3849), to which the default route leads.
const ELSEWHERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// The addresses of the network interfaces that are up, by the names of the interfaces.
pub(super) type Interfaces = BTreeMap<String, Vec<IpAddr>>;

/// Returns the network interfaces that are up and have an address.
pub(super) fn interfaces(problems: &mut Vec<String>) -> Interfaces {
    let mut found = Interfaces::new();
    match interface_addresses() {
        Ok(all) => all.into_iter().for_each(|(name, address)| {
            found.entry(name).or_default().push(address);
        }),
        Err(error) => problems.push(format!("cannot list network interfaces: {error}")),
    }
    found
}

/// Returns the number in a file of a network interface.
pub(super) fn number(interface: &str, file: &str) -> Option<u64> {
    positive(&read(format!("/sys/class/net/{interface}/{file}"))?)
}

/// Returns a number that is greater than 0. Drivers that do not know the speed report -1.
pub(super) fn positive(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number| *number > 0)
}

/// Returns the addresses of `host` without duplicates.
///
/// # Errors
/// Returns the reason if the name does not resolve within [`RESOLVE_TIME`].
pub(super) fn resolve(host: &str) -> Result<Vec<IpAddr>, String> {
    let (sender, receiver) = mpsc::channel();
    let host = host.to_owned();
    // The resolver of the system may wait much longer, so it runs on a thread.
    let ask = move || {
        let found = (host.as_str(), 0).to_socket_addrs();
        let _ = sender.send(found.map(|all| all.map(|one| one.ip()).collect::<Vec<_>>()));
    };
    let started = thread::Builder::new().spawn(ask);
    started.map_err(|error| format!("cannot start a thread: {error}"))?;
    let found = receiver.recv_timeout(RESOLVE_TIME);
    let late = |_| format!("no answer within {} s", RESOLVE_TIME.as_secs());
    let mut found = found.map_err(late)?.map_err(|error| error.to_string())?;
    found.dedup();
    match found.is_empty() {
        true => Err("it has no address".to_owned()),
        false => Ok(found),
    }
}

/// Returns the local address from which this host reaches `target`. Connecting a datagram socket
/// sends nothing.
fn route(target: IpAddr) -> io::Result<IpAddr> {
    let socket = UdpSocket::bind(match target {
        IpAddr::V4(_) => "0.0.0.0:0",
        IpAddr::V6(_) => "[::]:0",
    })?;
    socket.connect(SocketAddr::new(target, 9))?;
    Ok(socket.local_addr()?.ip())
}

/// Returns the name of the interface that has the address `address`.
pub(super) fn owner(interfaces: &Interfaces, address: IpAddr) -> Option<&String> {
    let mut all = interfaces.iter();
    let found = all.find(|(_, addresses)| addresses.contains(&address));
    found.map(|(name, _)| name)
}

/// Examines the network.
pub(super) fn examine(interfaces: &Interfaces, problems: &mut Vec<String>) -> Group {
    let mut group = Group::new("Network");
    let name = host_name();
    let found = resolve(&name);
    let rendezvous = variable("RINGTREE_RENDEZVOUS").or_else(|| variable("MASTER_ADDR"));
    if rendezvous.is_none_or(|rendezvous| rendezvous.starts_with(&name)) {
        problems.extend(host_problem(&name, &found));
    }
    group.add("host name", name);
    group.add("host addresses", json!(found.ok()));
    let values = interfaces.iter().map(|(name, addresses)| {
        let (mtu, speed) = (number(name, "mtu"), number(name, "speed"));
        let value = json!({ "addresses": addresses, "mtu": mtu, "speed_mbit": speed });
        (name.clone(), value)
    });
    group.each("interface", values.collect());
    let asked = variable("RINGTREE_INTERFACE");
    problems.extend(asked.and_then(|asked| unknown_interface(&asked, interfaces)));
    to_rendezvous(&mut group, interfaces, problems);
    for name in ["tcp_rmem", "tcp_wmem"] {
        let numbers = read(format!("/proc/sys/net/ipv4/{name}"));
        group.add(name, numbers.map(|text| numbers_in(&text)));
    }
    let queue = read("/proc/sys/net/core/somaxconn");
    group.add("somaxconn", queue.and_then(|text| positive(&text)));
    group
}

/// Returns the numbers in a text.
pub(super) fn numbers_in(text: &str) -> Vec<u64> {
    let words = text.split_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

/// Returns the problem of a host name that resolves to `found`.
pub(super) fn host_problem(name: &str, found: &Result<Vec<IpAddr>, String>) -> Option<String> {
    match found {
        Err(why) => Some(format!(
            "the host name {name} does not resolve: {why}; add it to /etc/hosts or to the name \
             server, or set MASTER_ADDR to an address of rank 0's host"
        )),
        Ok(all) if all.iter().all(IpAddr::is_loopback) => Some(format!(
            "the host name {name} resolves only to loopback, so ranks on other hosts cannot reach \
             this host by a rendezvous with this name; set MASTER_ADDR to another address of rank \
             0's host"
        )),
        Ok(_) => None,
    }
}

/// Returns the problem of a value of `RINGTREE_INTERFACE` that does not exist.
pub(super) fn unknown_interface(asked: &str, interfaces: &Interfaces) -> Option<String> {
    let address = asked.parse().ok();
    let owner = address.and_then(|address| owner(interfaces, address));
    let names: Vec<&str> = interfaces.keys().map(String::as_str).collect();
    (owner.is_none() && !names.contains(&asked)).then(|| {
        format!(
            "RINGTREE_INTERFACE={asked} is not an interface or address of this host that is up; \
             use one of {}",
            names.join(", ")
        )
    })
}

/// Returns the host of the rendezvous.
pub(super) fn rendezvous(set: impl Fn(&str) -> Option<String>) -> Option<String> {
    let of_address = |address: String| Some(address.rsplit_once(':')?.0.to_owned());
    let host = set("RINGTREE_RENDEZVOUS").and_then(of_address);
    let host = host.or_else(|| set("MASTER_ADDR"))?;
    Some(host.trim_matches(['[', ']']).to_owned())
}

/// Adds the interface that the route to the rendezvous uses, or the default route.
fn to_rendezvous(group: &mut Group, interfaces: &Interfaces, problems: &mut Vec<String>) {
    let host = rendezvous(variable);
    let targets = match &host {
        None => Ok(ELSEWHERE.to_vec()),
        Some(host) => resolve(host).map_err(|why| format!("it does not resolve: {why}")),
    };
    let to_first = |targets: Vec<IpAddr>| {
        let mut found = targets.into_iter().map(route).collect::<Vec<_>>();
        found.sort_by_key(io::Result::is_err);
        found.remove(0).map_err(|error| error.to_string())
    };
    let found = targets.and_then(to_first);
    let interface = found.as_ref().ok().and_then(|own| owner(interfaces, *own));
    let target = host.as_deref().unwrap_or("other hosts");
    group.add("route to", target);
    group.add("route interface", interface.cloned());
    group.add("route address", json!(found.as_ref().ok()));
    let is_alone = interfaces.values().flatten().all(IpAddr::is_loopback);
    if let Err(why) = found
        && (host.is_some() || is_alone)
    {
        problems.push(format!(
            "this host has no route to {target}: {why}; check the network, and MASTER_ADDR or \
             RINGTREE_RENDEZVOUS if it is set"
        ));
    }
}
