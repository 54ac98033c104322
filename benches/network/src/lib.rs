//! Emulates hosts on one machine: network namespaces connected by a switch with configurable rates
//! and delays.
//!
//! Each host is a network namespace with its own host name and one port, the TUN device `eth0`. One
//! thread reads the packets that the kernel's TCP sends on the ports, and writes them to the
//! receivers' ports when they are due. TUN is the only kernel feature that this needs besides
//! namespaces. Hosts have the addresses 10.79.0.1, 10.79.0.2 and so on.
//!
//! Namespaces and ports belong to this process and have no names outside it. When the process ends,
//! even by a signal, the kernel removes them and kills the processes that [`Network::command`]
//! started. The thread that called [`Network::command`] must live as long as these processes.
//!
//! The switch uses about 10 µs of CPU time per packet of up to 16 KiB. The ranks on this machine do
//! not get this time. [`Statistics::late`] shows how well the switch kept up.
//!
//! # Modules
//!
//! `shape` and `switch` have no side effects, `shaper` is the thread, and `sys` contains all unsafe
//! code.

mod shape;
mod shaper;
mod switch;
mod sys;

pub use shape::{HOSTS_MAX, Shape, Sites};
pub use shaper::{Delivery, Statistics};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use shaper::{Shaper, Shared};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum number of packets that wait in a host for its port.
const PACKETS_WAITING: usize = 2000;

/// Emulated hosts, which are removed when this value is dropped.
///
/// ```no_run
/// use ringtree_network::{Network, Shape};
/// use std::process::Command;
///
/// let network = Network::open(&Shape::new(2, 125e6))?; // needs root
/// let mut ping = Command::new("ping");
/// network.command(0, ping.args(["-c", "1", "10.79.0.2"]))?.wait()?;
/// # Ok::<_, std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Network {
    hosts: Vec<Namespaces>,
    shared: Arc<Shared>,
    start: Instant,
    thread: Option<JoinHandle<io::Result<Statistics>>>,
}

/// The two namespaces of a host.
#[derive(Debug)]
struct Namespaces {
    network: File,
    name: File,
}

impl Namespaces {
    /// Opens the namespaces of the calling thread.
    fn own() -> io::Result<Self> {
        Ok(Self {
            network: File::open("/proc/thread-self/ns/net")?,
            name: File::open("/proc/thread-self/ns/uts")?,
        })
    }

    /// Moves the calling thread into these namespaces.
    fn enter(&self) -> io::Result<()> {
        move_into_link_name_space(self.network.as_fd(), Some(LinkNameSpaceType::Network))?;
        move_into_link_name_space(
            self.name.as_fd(),
            Some(LinkNameSpaceType::HostNameAndNISDomainName),
        )?;
        Ok(())
    }
}

impl Network {
    /// Creates the hosts and starts to forward packets.
    ///
    /// # Errors
    /// Returns an error if the shape is invalid, if the process is not root, or if `/dev/net/tun`
    /// or the command `ip` is missing.
    pub fn open(shape: &Shape) -> io::Result<Self> {
        shape.check().map_err(io::Error::other)?;
        let (mut hosts, mut ports) = (Vec::new(), Vec::new());
        for host in 0..shape.hosts {
            // The thread that creates a host moves into it, so use a new thread for each host.
            let shape = shape.clone();
            let made = std::thread::spawn(move || make_host(&shape, host)).join();
            let (namespaces, port) =
                made.map_err(|_| io::Error::other("creating a host panicked"))??;
            hosts.push(namespaces);
            ports.push(port);
        }
        let (shared, start) = (Arc::new(Shared::default()), Instant::now());
        let shaper = Shaper::new(shape, ports, start, Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("shaper".into());
        let thread = thread.spawn(move || shaper.run())?;
        Ok(Self {
            hosts,
            shared,
            start,
            thread: Some(thread),
        })
    }

    /// Returns the address of a host.
    #[must_use]
    pub fn address(host: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 79, 0, u8::try_from(host + 1).unwrap_or(u8::MAX))
    }

    /// Starts `command` on a host. The kernel kills its process when the calling thread ends.
    ///
    /// # Errors
    /// Returns an error if the host does not exist or the process cannot be started.
    pub fn command(&self, host: usize, command: &mut Command) -> io::Result<Child> {
        let there = self.hosts.get(host);
        let there = there.ok_or_else(|| io::Error::other(format!("host {host} does not exist")))?;
        let here = Namespaces::own()?;
        sys::die_with_parent(command);
        there.enter()?;
        let child = command.spawn();
        here.enter()?;
        child
    }

    /// Starts the ranks of a job, which connect at `port` of host 0.
    ///
    /// `ranks_of_hosts` is the number of ranks on each host. `program` returns the command for a
    /// host, which is started once per rank with the variables of the job. If `RINGTREE_SECRET` is
    /// not set, the job gets a new secret.
    ///
    /// # Errors
    /// Returns an error if a process cannot be started.
    pub fn start_ranks(
        &self,
        ranks_of_hosts: &[usize],
        port: u16,
        mut program: impl FnMut(usize) -> Command,
    ) -> io::Result<Vec<Child>> {
        let world_size: usize = ranks_of_hosts.iter().sum();
        let secret = std::env::var("RINGTREE_SECRET");
        let secret = secret.or_else(|_| new_secret())?;
        let mut ranks = Vec::new();
        for (host, count) in ranks_of_hosts.iter().enumerate() {
            for local_rank in 0..*count {
                let mut command = program(host);
                for (name, number) in [
                    ("RANK", ranks.len()),
                    ("WORLD_SIZE", world_size),
                    ("LOCAL_RANK", local_rank),
                    ("LOCAL_WORLD_SIZE", *count),
                    ("MASTER_PORT", port.into()),
                ] {
                    command.env(name, number.to_string());
                }
                command.env("MASTER_ADDR", Network::address(0).to_string());
                command.env("RINGTREE_SECRET", &secret);
                let started = self.command(host, &mut command);
                ranks.push(started.map_err(|error| {
                    let program = command.get_program().to_string_lossy();
                    io::Error::new(error.kind(), format!("{program}: {error}"))
                })?);
            }
        }
        Ok(ranks)
    }

    /// Returns the time since the network was created, the clock of [`Delivery::at`].
    #[must_use]
    pub fn clock(&self) -> Duration {
        self.start.elapsed()
    }

    /// Returns the CPU time that the switch has used so far.
    #[must_use]
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.shared.busy_ns.load(Ordering::Relaxed))
    }

    /// Returns the number of bytes delivered so far, including framing.
    #[must_use]
    pub fn carried_bytes(&self) -> u64 {
        self.shared.carried_bytes.load(Ordering::Relaxed)
    }

    /// Starts to record deliveries.
    pub fn record(&self) {
        self.shared.records.store(true, Ordering::Relaxed);
    }

    /// Removes and returns the deliveries recorded so far, in order of time.
    #[must_use]
    pub fn deliveries(&self) -> Vec<Delivery> {
        let deliveries = self.shared.deliveries.lock();
        std::mem::take(&mut *deliveries.unwrap_or_else(PoisonError::into_inner))
    }

    /// Removes the network and returns its statistics.
    ///
    /// # Errors
    /// Returns an error if the switch failed. From then on, it did not deliver any packets.
    pub fn close(mut self) -> io::Result<Statistics> {
        self.end()
    }

    fn end(&mut self) -> io::Result<Statistics> {
        self.shared.is_over.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else {
            return Ok(Statistics::default());
        };
        thread
            .join()
            .map_err(|_| io::Error::other("the thread of the switch panicked"))?
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Ignore the error, because only `close` reports failures.
        let _ = self.end();
    }
}

/// Moves the calling thread into a new host. Returns the namespaces and the port.
fn make_host(shape: &Shape, host: usize) -> io::Result<(Namespaces, File)> {
    let because = |what: &'static str| {
        move |error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"))
    };
    sys::leave_network().map_err(because("cannot create a network namespace (needs root)"))?;
    rustix::system::sethostname(format!("host{host}").as_bytes())?;
    let port = sys::make_port().map_err(because("cannot create a port on /dev/net/tun"))?;
    let (after_idle, retransmit_us) = match shape.is_slow_motion {
        true => ("0", "10000000"),
        false => ("1", "200000"),
    };
    for (name, value) in [
        ("ipv6/conf/all/disable_ipv6", "1"),
        ("ipv4/tcp_no_metrics_save", "1"),
        ("ipv4/tcp_slow_start_after_idle", after_idle),
        ("ipv4/tcp_rto_min_us", retransmit_us),
    ] {
        // Ignore the error, because a kernel that lacks the setting does not need it.
        let _ = std::fs::write(format!("/proc/sys/net/{name}"), value);
    }
    if let Some(bytes) = shape.send_buffer_bytes {
        let least_default_most = format!("4096 {} {bytes}", bytes.min(16 << 10));
        std::fs::write("/proc/sys/net/ipv4/tcp_wmem", least_default_most)
            .map_err(because("net.ipv4.tcp_wmem"))?;
    }
    if let Some(name) = &shape.congestion_control {
        std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", name).map_err(because(
            "the congestion control is not in net.ipv4.tcp_allowed_congestion_control",
        ))?;
    }
    let packet_bytes = shape.packet_bytes();
    let address = Network::address(host);
    ip(&format!(
        "link set lo up\naddr add {address}/24 dev eth0\n\
         link set dev eth0 gso_max_size {packet_bytes} txqueuelen {PACKETS_WAITING} up\n"
    ))
    .map_err(because("`ip` (iproute2)"))?;
    Ok((Namespaces::own()?, port))
}

/// Returns 32 random bytes in hexadecimal.
fn new_secret() -> io::Result<String> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Runs the command `ip` with `lines` as its batch of commands.
fn ip(lines: &str) -> io::Result<()> {
    let mut command = Command::new("ip");
    command.args(["-batch", "-"]).stdin(Stdio::piped());
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(lines.as_bytes())?;
    }
    let done = child.wait_with_output()?;
    match done.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&done.stderr);
            let first = said.lines().next().unwrap_or_default().to_owned();
            Err(io::Error::other(first))
        }
    }
}
