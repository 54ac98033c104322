//! Tensor-parallel inference: every rank has a slice of each layer, and after each layer an
//! all-reduce adds up what the slices contribute to a token's 4,096 activations, 16 KiB. Rank 0
//! gets the requests. The other ranks wait for them patiently: without a deadline, and asleep. A
//! request has a deadline again.
//!
//! `cargo run --release --example 10_inference`, or among processes
//! `ringtree run --nproc-per-node 4 -- target/release/examples/10_inference`

use ringtree::{Communicator, Error, ReduceOp, Result, UniqueId};
use std::time::Duration;

/// Ranks, where `ringtree run` starts none.
const RANKS: usize = 2;
const ACTIVATIONS: usize = 4096;
/// What a rank computes between two all-reduces takes this long.
const COMPUTE: Duration = Duration::from_millis(1);
/// No request comes for this long.
const IDLE: Duration = Duration::from_secs(1);
/// Layers that each request goes through.
const REQUESTS: [u32; 2] = [100, 400];
/// A rank that holds up a request for longer than this is as good as dead.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    if std::env::var_os("RANK").is_some() {
        return one_rank(&Communicator::from_env()?);
    }
    let id = UniqueId::on("127.0.0.1")?;
    std::thread::scope(|scope| {
        let start = |rank| {
            let builder = Communicator::builder().rank(rank).world_size(RANKS);
            let builder = builder.unique_id(&id);
            scope.spawn(move || one_rank(&builder.connect()?))
        };
        let ranks: Vec<_> = (0..RANKS).map(start).collect();
        for (rank, thread) in ranks.into_iter().enumerate() {
            let died = |_| Error::system(format!("the thread of rank {rank} panicked"));
            thread.join().map_err(died)??;
        }
        Ok(())
    })
}

fn one_rank(comm: &Communicator) -> Result<()> {
    let mut times = serve(comm, std::thread::sleep)?;
    times.sort();
    if comm.rank() == 0 {
        println!(
            "{} all-reduces of 16 KiB, one a millisecond, over {} ranks ({}):",
            times.len(),
            comm.world_size(),
            comm.transport()
        );
        for percentile in [50, 90, 99, 100] {
            let time = times[(times.len() - 1) * percentile / 100];
            println!("  {percentile:>3} % within {time:.1?}");
        }
    }
    Ok(())
}

/// Serves the requests; returns how long each all-reduce took this rank.
pub(crate) fn serve(comm: &Communicator, pause: impl Fn(Duration)) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    let mut requests = REQUESTS.into_iter();
    loop {
        // A request says through how many layers it goes. None are left: 0 says that this is all.
        let mut layers = [0];
        if comm.rank() == 0 {
            pause(IDLE);
            layers[0] = requests.next().unwrap_or(0);
            comm.broadcast(&mut layers, 0)?;
        } else {
            comm.patient().broadcast(&mut layers, 0)?;
        }
        if layers[0] == 0 {
            return Ok(times);
        }
        answer(comm, layers[0], &pause, &mut times)?;
    }
}

fn answer(
    comm: &Communicator,
    layers: u32,
    pause: &impl Fn(Duration),
    times: &mut Vec<Duration>,
) -> Result<()> {
    let comm = comm.with_timeout(REQUEST_TIMEOUT);
    // Memory that the ranks of a host read where it lies.
    let mut activations = comm.alloc::<f32>(ACTIVATIONS)?;
    activations.fill(1.0);
    for _ in 0..layers {
        pause(COMPUTE);
        let start = comm.clock();
        comm.all_reduce(&mut activations, ReduceOp::Avg)?;
        times.push(comm.clock() - start);
    }
    match activations.iter().all(|one| *one == 1.0) {
        true => Ok(()),
        false => Err(Error::system("the activations are wrong")),
    }
}
