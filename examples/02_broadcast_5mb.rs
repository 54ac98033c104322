//! A file of 5 MB goes from one host to seven over links of 1 MB/s, in three ways.
//!
//! Point to point takes 35 s, a binomial tree 15 s, and what `auto` chooses little more than the
//! 5 s in which the file fits through one link at all. The engine runs all three on real bytes;
//! only the clock and the network are simulated.
//!
//! `cargo run --release --example 02_broadcast_5mb [-- PICTURE.svg]`

mod drawing;

use drawing::lanes::{Panel, timeline};
use ringtree::plan::price::LinkCost;
use ringtree::sim::network::{Network, Transfer};
use ringtree::sim::simulate::World;
use ringtree::{Algorithm, TuningTable};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const HOSTS: usize = 8;
const FILE_BYTES: usize = 5_000_000;
const LINK_BYTES_PER_S: f64 = 1e6;
const LATENCY: Duration = Duration::from_millis(1);

fn main() -> ExitCode {
    let ways = [
        (
            Some(Algorithm::Flat),
            "Point to point",
            "seven sends share one port",
        ),
        (
            Some(Algorithm::Binomial),
            "Binomial tree",
            "three doubling rounds",
        ),
        (None, "ringtree auto", "circulant pipeline"),
    ];
    let mut panels = Vec::new();
    for (algorithm, name, note) in ways {
        match run(algorithm) {
            Ok((seconds, lanes)) => {
                println!("{name:<16}{seconds:>8.2} s   {note}");
                panels.push(Panel {
                    name: name.into(),
                    note: note.into(),
                    lanes,
                });
            }
            Err(problem) => {
                eprintln!("{name}: {problem}");
                return ExitCode::FAILURE;
            }
        }
    }
    let title = "5 MB from one host to seven over 1 MB/s links";
    let note = "each row is a host, filled as it comes to hold the file; simulated network, real \
                engine, real bytes";
    let Some(path) = std::env::args().nth(1) else {
        return ExitCode::SUCCESS;
    };
    match std::fs::write(&path, timeline(title, note, &panels)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot write {path}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Who holds how much of the file when: by rank, (seconds, part).
type Lanes = Vec<Vec<(f64, f64)>>;

/// Broadcasts the file; returns how long it took and who held how much of it when.
fn run(algorithm: Option<Algorithm>) -> Result<(f64, Lanes), String> {
    let mut world = World::new(HOSTS);
    world.algorithm = algorithm;
    world.network.bandwidth_bytes_per_s = LINK_BYTES_PER_S;
    world.network.latency = LATENCY;
    world.tuning = TuningTable {
        tcp: LinkCost {
            alpha_s: LATENCY.as_secs_f64(),
            overhead_s: 0.0,
            beta_s_per_byte: 1.0 / LINK_BYTES_PER_S,
            gamma_s_per_byte: 0.0,
        },
        ..TuningTable::default()
    };
    let network = Arc::new(Mutex::new(Network::new(world.network.clone(), HOSTS)));
    network
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .record_transfers();
    let file: Vec<u8> = (0..FILE_BYTES)
        .map(|index| (index * 7 % 251) as u8)
        .collect();
    let ends = world.run_on(&network, |comm| {
        let mut copy = if comm.rank() == 0 {
            file.clone()
        } else {
            vec![0; FILE_BYTES]
        };
        comm.broadcast(&mut copy, 0).map(|()| copy == file)
    });
    for (rank, end) in ends.into_iter().enumerate() {
        if !end.map_err(|error| error.to_string())? {
            return Err(format!("rank {rank} received something else than was sent"));
        }
    }
    let network = network.lock().unwrap_or_else(PoisonError::into_inner);
    let transfers = network.transfers();
    let end = transfers
        .iter()
        .map(|transfer| transfer.end)
        .max()
        .unwrap_or_default();
    Ok((end.as_secs_f64(), lanes(transfers)))
}

fn lanes(transfers: &[Transfer]) -> Lanes {
    let mut held = [0; HOSTS];
    let mut lanes = vec![Vec::new(); HOSTS];
    lanes[0].push((0.0, 1.0));
    let mut arrivals: Vec<&Transfer> = transfers.iter().collect();
    arrivals.sort_by_key(|transfer| transfer.end);
    for transfer in arrivals {
        held[transfer.to] += transfer.bytes;
        let part = (held[transfer.to] as f64 / FILE_BYTES as f64).min(1.0);
        lanes[transfer.to].push((transfer.end.as_secs_f64(), part));
    }
    lanes
}
