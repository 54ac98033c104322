//! A file of 5 MB goes from one host to seven over links of 1 MB/s, in three ways.
//!
//! Point to point takes 35 s, a binomial tree 15 s, and what `auto` chooses little more than the
//! 5 s in which the file fits through one link at all. The engine runs all three on real bytes;
//! only the clock and the network are simulated.
//!
//! With `--sockets` it runs them once more, between eight processes on emulated hosts of this
//! machine: real time, the kernel's TCP, links of 1 MB/s that carry Ethernet's and TCP's headers,
//! too. That takes a minute and needs root; without it one line says so.
//!
//! `cargo run --release --example 02_broadcast_5mb [-- [--sockets] PICTURE.svg]`

#[path = "../drawing/mod.rs"]
mod drawing;
mod measured;
mod simulated;

use drawing::lanes::{Panel, timeline};
use ringtree::Algorithm;
use ringtree_network::{Network, Shape};
use std::process::ExitCode;
use std::time::Duration;

const HOSTS: usize = 8;
const FILE_BYTES: usize = 5_000_000;
const LINK_BYTES_PER_S: f64 = 1e6;
const LATENCY: Duration = Duration::from_millis(1);
/// How long a message keeps a host busy.
const OVERHEAD: Duration = Duration::from_micros(100);
/// What the kernel keeps of what a connection sends: what the link carries in an eighth second.
const SEND_BUFFER_BYTES: u64 = 128 << 10;
/// How much of a full packet on the wire is the file's: the rest is headers and framing.
const PAYLOAD_SHARE: f64 = 1448.0 / 1538.0;
/// A lane shows steps of at least this part of the file.
const STEP: f64 = 0.01;

/// How the file is sent.
struct Way {
    /// None for what ringtree chooses.
    algorithm: Option<Algorithm>,
    name: &'static str,
    note: &'static str,
    /// How long the wire needs at least, framing left aside.
    least_s: f64,
}

const WAYS: [Way; 3] = [
    Way {
        algorithm: Some(Algorithm::Flat),
        name: "Point to point",
        note: "seven sends share one port",
        least_s: 35.0,
    },
    Way {
        algorithm: Some(Algorithm::Binomial),
        name: "Binomial tree",
        note: "three doubling rounds",
        least_s: 15.0,
    },
    Way {
        algorithm: None,
        name: "ringtree auto",
        note: "circulant pipeline",
        least_s: 5.0,
    },
];

/// How long it took, and which part of the file who held when: by rank, (seconds, part).
type Run = (f64, Vec<Vec<(f64, f64)>>);

fn main() -> ExitCode {
    let end = match std::env::var_os("RANK") {
        Some(_) => measured::one_rank().map_err(|error| error.to_string()),
        None => all_ways(),
    };
    match end {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("02_broadcast_5mb: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn all_ways() -> Result<(), String> {
    let (mut path, mut wants_sockets) = (None, false);
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--sockets" => wants_sockets = true,
            _ => path = Some(argument),
        }
    }
    let hosts = wants_sockets.then(emulated_hosts).flatten();
    let mut panels = Vec::new();
    for way in &WAYS {
        let (simulated_s, lanes) = simulated::run(way.algorithm)?;
        println!("{:<16}{simulated_s:>8.2} s   {}", way.name, way.note);
        panels.push(panel(way, way.note, lanes));
        if let Some(network) = &hosts {
            let (measured_s, lanes) = measured::run(network, way)?;
            let wire_s = way.least_s / PAYLOAD_SHARE;
            println!(
                "{:<16}{measured_s:>8.2} s   on sockets; the wire needs {wire_s:.2} s",
                ""
            );
            panels.push(panel(way, "the same on real sockets", lanes));
        }
    }
    let Some(path) = path else {
        return Ok(());
    };
    let title = "5 MB from one host to seven over 1 MB/s links";
    let note = match hosts {
        None => {
            "each row is a host, filled as it comes to hold the file; simulated network, real \
             engine, real bytes"
        }
        Some(_) => {
            "each row is a host and what it holds; simulated, then over TCP between emulated hosts"
        }
    };
    std::fs::write(&path, timeline(title, note, &panels))
        .map_err(|error| format!("cannot write {path}: {error}"))
}

/// The hosts; where there can be none, a line says why.
fn emulated_hosts() -> Option<Network> {
    let shape = Shape {
        delay: LATENCY,
        // With megabytes, a tree's rounds would run into each other and share the port.
        send_buffer_bytes: Some(SEND_BUFFER_BYTES),
        ..Shape::new(HOSTS, LINK_BYTES_PER_S)
    };
    let hosts = Network::open(&shape);
    hosts
        .inspect_err(|error| eprintln!("02_broadcast_5mb: simulated only: {error}"))
        .ok()
}

fn panel(way: &Way, note: &str, lanes: Vec<Vec<(f64, f64)>>) -> Panel {
    Panel {
        name: way.name.into(),
        note: note.into(),
        lanes,
    }
}

/// The lanes of all ranks when `arrivals` come, each (seconds, rank, bytes), in order of time.
/// Rank 0 holds the file from the beginning.
fn lanes(arrivals: impl IntoIterator<Item = (f64, usize, usize)>) -> Vec<Vec<(f64, f64)>> {
    let mut held = [0; HOSTS];
    let mut lanes: Vec<Vec<(f64, f64)>> = vec![Vec::new(); HOSTS];
    lanes[0].push((0.0, 1.0));
    for (time_s, rank, bytes) in arrivals {
        held[rank] += bytes;
        let part = (held[rank] as f64 / FILE_BYTES as f64).min(1.0);
        let shown = lanes[rank].last().map_or(0.0, |(_, part)| *part);
        if part >= shown + STEP || (part == 1.0 && shown < 1.0) {
            lanes[rank].push((time_s, part));
        }
    }
    lanes
}

/// What is sent.
fn file() -> Vec<u8> {
    (0..FILE_BYTES)
        .map(|index| (index * 7 % 251) as u8)
        .collect()
}
