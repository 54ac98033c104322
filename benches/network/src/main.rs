//! Starts a program on emulated hosts, once per rank, with the variables of a job.
//!
//! `ringtree-network --hosts 8 --rate 1000 --delay-us 250 -- ringtree bench all-reduce`
//!
//! Exit codes: 0 on success; the code of the first rank that fails; 1 without root or after the
//! time limit; 2 for wrong usage.

use clap::Parser;
use ringtree_network::{Network, Shape, Sites};
use std::io;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

/// Interval between checks of whether a rank has exited.
const LOOK: Duration = Duration::from_millis(10);

/// Start a program on emulated hosts, once per rank (needs root; removes the hosts afterwards)
#[derive(Debug, Parser)]
#[command(name = "ringtree-network")]
struct Arguments {
    /// Number of hosts
    #[arg(long, default_value_t = 2)]
    hosts: usize,
    /// Rate of a host's link in each direction, in Mbit/s, including framing
    #[arg(long, default_value_t = 1000.0)]
    rate: f64,
    /// Delay from one host to another, in microseconds
    #[arg(long, default_value_t = 250)]
    delay_us: u64,
    /// Maximum random extra delay of a packet, in microseconds
    #[arg(long, default_value_t = 0)]
    jitter_us: u64,
    /// Maximum bytes queued for a link [default: what the link carries in 50 ms, 64 KiB to 1 MiB]
    #[arg(long)]
    queue: Option<u64>,
    /// Number of hosts per site, such as 4,4; they share the site's uplink. Sets RINGTREE_SITE for
    /// the ranks unless it is set, even to an empty value
    #[arg(long, value_delimiter = ',', requires = "uplink")]
    sites: Vec<usize>,
    /// Rate of a site's uplink in each direction, in Mbit/s
    #[arg(long, requires = "sites")]
    uplink: Option<f64>,
    /// Additional delay between sites, in microseconds
    #[arg(long, default_value_t = 0)]
    uplink_delay_us: u64,
    /// Maximum bytes that the kernel buffers for a connection's sender [default: the machine's]
    #[arg(long)]
    send_buffer: Option<u64>,
    /// TCP congestion control [default: the machine's]
    #[arg(long)]
    congestion_control: Option<String>,
    /// Ranks per host: one number for all hosts, or one per host, such as 3,5,2
    #[arg(long, value_delimiter = ',', default_values_t = [1])]
    ranks_per_host: Vec<usize>,
    /// Time limit in seconds, after which the ranks are killed
    #[arg(long, default_value_t = 170.0)]
    limit_s: f64,
    /// Port at which the ranks connect
    #[arg(long, default_value_t = 29500)]
    port: u16,
    /// Program and its arguments
    #[arg(last = true, required = true)]
    program: Vec<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let end = match shape(&arguments) {
        Ok(shape) => run(&arguments, &shape),
        Err(what) => {
            eprintln!("ringtree-network: {what}");
            return ExitCode::from(2);
        }
    };
    end.unwrap_or_else(|error| {
        eprintln!("ringtree-network: {error}");
        ExitCode::FAILURE
    })
}

fn shape(arguments: &Arguments) -> Result<Shape, String> {
    let bytes_per_s = |mbit_per_s: f64| mbit_per_s * 1e6 / 8.0;
    let plain = Shape::new(arguments.hosts, bytes_per_s(arguments.rate));
    let shape = Shape {
        delay: Duration::from_micros(arguments.delay_us),
        jitter: Duration::from_micros(arguments.jitter_us),
        queue_bytes: arguments.queue.unwrap_or(plain.queue_bytes),
        sites: arguments.uplink.map(|uplink| Sites {
            hosts: arguments.sites.clone(),
            bytes_per_s: bytes_per_s(uplink),
            delay: Duration::from_micros(arguments.uplink_delay_us),
        }),
        send_buffer_bytes: arguments.send_buffer,
        congestion_control: arguments.congestion_control.clone(),
        ..plain
    };
    shape.check()?;
    let counts = &arguments.ranks_per_host;
    if ![1, arguments.hosts].contains(&counts.len()) || counts.contains(&0) {
        return Err("--ranks-per-host must be one number, or one per host, each at least 1".into());
    }
    if !(arguments.limit_s >= 0.0 && arguments.limit_s <= 1e9) {
        return Err("--limit-s must be 0 to 1e9 seconds".into());
    }
    Ok(shape)
}

fn run(arguments: &Arguments, shape: &Shape) -> io::Result<ExitCode> {
    let deadline = Instant::now() + Duration::from_secs_f64(arguments.limit_s);
    let network = Network::open(shape)?;
    let counts = arguments.ranks_per_host.iter().cycle();
    let counts: Vec<usize> = counts.take(arguments.hosts).copied().collect();
    let program = |host| {
        let mut command = Command::new(&arguments.program[0]);
        command.args(&arguments.program[1..]);
        if let Some(site) = site_of(arguments, host) {
            command.env("RINGTREE_SITE", site.to_string());
        }
        command
    };
    let ranks = network.start_ranks(&counts, arguments.port, program)?;
    let code = wait(ranks, deadline)?;
    let statistics = network.close()?;
    eprintln!(
        "network: {} packets, {} dropped, at most {:.0} µs late{}",
        statistics.packets,
        statistics.dropped,
        statistics.late.as_secs_f64() * 1e6,
        if statistics.is_real_time {
            ""
        } else {
            "; without real-time priority, which needs CAP_SYS_NICE"
        }
    );
    Ok(code)
}

/// Returns the site of a host, or `None` if there are no sites or `RINGTREE_SITE` is set.
fn site_of(arguments: &Arguments, host: usize) -> Option<usize> {
    let mut hosts = 0;
    let is_behind = |size: &usize| {
        hosts += size;
        hosts > host
    };
    let site = arguments.sites.iter().position(is_behind);
    site.filter(|_| std::env::var_os("RINGTREE_SITE").is_none())
}

/// Waits until all ranks have exited, and kills them at the deadline. Returns the exit code.
fn wait(mut ranks: Vec<Child>, deadline: Instant) -> io::Result<ExitCode> {
    let mut code = 0;
    while !ranks.is_empty() {
        let mut left = Vec::new();
        for mut rank in ranks {
            match rank.try_wait()? {
                None => left.push(rank),
                Some(status) if code == 0 => code = status.code().unwrap_or(1),
                Some(_) => {}
            }
        }
        if Instant::now() > deadline {
            for rank in &mut left {
                rank.kill()?;
                rank.wait()?;
            }
            return Err(io::Error::other(
                "the ranks exceeded the time limit (--limit-s) and were killed",
            ));
        }
        ranks = left;
        std::thread::sleep(LOOK);
    }
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}
