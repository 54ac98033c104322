//! Broadcasts a file of 5 MB from one host to seven others over links of 1 MB/s, in three ways.
//!
//! Point to point takes 35 s, and a binomial tree 15 s. The algorithm that `auto` chooses takes
//! little more than 5 s, the time that the file needs on one link. The engine runs all three on
//! real bytes; only the clock and the network are simulated.
//!
//! With `--sockets`, the broadcasts also run between eight processes on emulated hosts of this
//! machine: in real time, over the kernel's TCP, on links of 1 MB/s that also carry the headers of
//! Ethernet and TCP. This takes a minute and needs root; without root, the example prints a
//! message.
//!
//! `cargo run --release --example 02_broadcast_5mb [-- [--sockets] PICTURE.svg]`

#[path = "../drawing/mod.rs"]
mod drawing;
mod measured;
mod simulated;

use drawing::lanes::{Panel, timeline};
use ringtree::plan::Algorithm;
use ringtree_network::{Network, Shape};
use std::process::ExitCode;
use std::time::Duration;

const HOSTS: usize = 8;
const FILE_BYTES: usize = 5_000_000;
const LINK_BYTES_PER_S: f64 = 1e6;
const LATENCY: Duration = Duration::from_millis(1);
/// Time for which a message occupies its sender and its receiver.
const OVERHEAD: Duration = Duration::from_micros(100);
/// Bytes that the kernel buffers for a sender: what the link carries in an eighth of a second.
const SEND_BUFFER_BYTES: u64 = 128 << 10;
/// Fraction of a full packet that is payload. The rest is headers and framing.
const PAYLOAD_SHARE: f64 = 1448.0 / 1538.0;
/// Smallest increase of a rank's part of the file that a lane shows as a step.
const STEP: f64 = 0.01;

/// A way to send the file.
struct Way {
    /// The algorithm, or `None` for the one that ringtree chooses.
    algorithm: Option<Algorithm>,
    name: &'static str,
    note: &'static str,
    /// Minimum time on the wire in seconds, without framing.
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

/// Duration of a run in seconds, and the progress of each rank as (seconds, fraction of the file
/// that the rank has from then on).
type Run = (f64, Vec<Vec<(f64, f64)>>);

fn main() -> ExitCode {
    let end = match ringtree::launch::is_rank() {
        true => measured::one_rank().map_err(|error| error.to_string()),
        false => all_ways(),
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

/// Creates the emulated hosts. If that is impossible, prints the reason and returns `None`.
fn emulated_hosts() -> Option<Network> {
    let shape = Shape {
        delay: LATENCY,
        // If the kernel buffered megabytes, the rounds of a tree would overlap and share the port.
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

/// Converts `arrivals`, which are (seconds, rank, bytes) in order of time, to the progress of all
/// ranks. Rank 0 has the file from the beginning.
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

/// Returns the contents of the file.
fn file() -> Vec<u8> {
    (0..FILE_BYTES)
        .map(|index| (index * 7 % 251) as u8)
        .collect()
}
