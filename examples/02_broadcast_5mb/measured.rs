//! Measures the broadcast between processes on emulated hosts, in real time.
//!
//! Each rank is a copy of this program. It prints a line when all ranks are ready, whereupon the
//! parent starts the clock. Later it prints how long it took to get the file.

use super::{FILE_BYTES, HOSTS, Run, Way, file, lanes};
use ringtree::plan::Collective;
use ringtree::{Communicator, Dtype};
use ringtree_network::Network;
use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Environment variable with the algorithm.
const ALGORITHM: &str = "BROADCAST_ALGORITHM";
/// The port at which the ranks connect.
const PORT: u16 = 29500;
/// Seconds after which the ranks are stopped. No broadcast takes that long.
const LIMIT_S: &str = "90";

/// Broadcasts the file between new processes and checks the copies.
pub(crate) fn run(network: &Network, way: &Way) -> Result<Run, String> {
    measure(network, way).map_err(|error| format!("{}: {error}", way.name))
}

fn measure(network: &Network, way: &Way) -> io::Result<Run> {
    let program = std::env::current_exe()?;
    let name = way
        .algorithm
        .map_or("auto".into(), |algorithm| algorithm.to_string());
    let rank = |_host| {
        // `timeout` stops a rank that hangs.
        let mut command = Command::new("timeout");
        command.arg(LIMIT_S).arg(&program).stdout(Stdio::piped());
        command.env(ALGORITHM, &name);
        command
    };
    network.record();
    let mut ranks = network.start_ranks(&[1; HOSTS], PORT, rank)?;
    let mut said = Vec::new();
    for rank in &mut ranks {
        let output = rank.stdout.take();
        said.push(BufReader::new(output.ok_or_else(|| broken("no output"))?).lines());
    }
    let mut line = |rank: usize| {
        said[rank]
            .next()
            .unwrap_or_else(|| Err(broken("it failed")))
    };
    line(0)?;
    let begin = network.clock();
    let mut times_s = Vec::new();
    for rank in 0..HOSTS {
        if rank > 0 {
            line(rank)?;
        }
        let time_s: f64 = line(rank)?.parse().map_err(io::Error::other)?;
        times_s.push(time_s);
    }
    ranks.iter_mut().try_for_each(end)?;
    let deliveries = network.deliveries();
    let after = deliveries.iter().filter(|delivery| delivery.at > begin);
    let arrivals = after.map(|delivery| {
        let time_s = (delivery.at - begin).as_secs_f64();
        (time_s, delivery.host, delivery.bytes as usize)
    });
    let mut lanes = lanes(arrivals);
    for (lane, time_s) in lanes.iter_mut().zip(&times_s).skip(1) {
        // The network also counts the bytes of message headers, so use the exact time that the rank
        // reports.
        lane.retain(|(at_s, part)| at_s < time_s && *part < 1.0);
        lane.push((*time_s, 1.0));
    }
    Ok((times_s.into_iter().fold(0.0, f64::max), lanes))
}

fn end(rank: &mut Child) -> io::Result<()> {
    match rank.wait()?.success() {
        true => Ok(()),
        false => Err(broken("it failed")),
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::other(format!("a rank on an emulated host: {what}"))
}

/// Runs one rank.
pub(crate) fn one_rank() -> ringtree::Result<()> {
    let comm = Communicator::from_env()?;
    let algorithm = std::env::var(ALGORITHM).unwrap_or_default();
    let file = file();
    let mut copy = match comm.rank() {
        0 => file.clone(),
        _ => vec![0; FILE_BYTES],
    };
    comm.barrier()?;
    comm.use_algorithm(algorithm.parse().ok())?;
    if comm.rank() == 0 {
        let explained = comm.plan_for(Collective::Broadcast, FILE_BYTES, Dtype::U8, 0)?;
        eprintln!("{explained}");
    }
    println!("ready");
    let start = Instant::now();
    comm.broadcast(&mut copy, 0)?;
    let time: Duration = start.elapsed();
    comm.use_algorithm(None)?;
    assert!(copy == file, "the file arrived damaged");
    // A rank that exits closes its connections, so wait until the other ranks have received the
    // file.
    comm.barrier()?;
    println!("{}", time.as_secs_f64());
    Ok(())
}
