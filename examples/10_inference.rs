//! Serves a model with tensor parallelism.
//!
//! Every rank has a slice of each layer. After each layer, an all-reduce sums the slices'
//! contributions to a token's 4,096 activations (16 KiB). Rank 0 receives the requests. The other
//! ranks wait for requests with `without_timeout`, that is, without a timeout and without using a
//! core. The calls that serve a request have a timeout.
//!
//! Run it with `cargo run --release --example 10_inference`, or as processes with
//! `ringtree run --nproc-per-node 4 -- target/release/examples/10_inference`.

use ringtree::start::UniqueId;
use ringtree::{Communicator, Error, ErrorKind, ReduceOp, Result};
use std::time::Duration;

/// Number of ranks if `ringtree run` does not start them.
const RANKS: usize = 2;
const ACTIVATIONS: usize = 4096;
/// Time that a rank computes between two all-reduces.
const COMPUTE: Duration = Duration::from_millis(1);
/// Time between two requests.
const IDLE: Duration = Duration::from_secs(1);
/// Number of layers of each request.
const REQUESTS: [u32; 2] = [100, 400];
/// If a rank delays a request for longer than this, it counts as failed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    if ringtree::launch::is_rank() {
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
            let died = |_| {
                Error::new(
                    ErrorKind::System,
                    format!("the thread of rank {rank} panicked"),
                )
            };
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
            "{} all-reduces of 16 KiB, one per millisecond, over {} ranks ({}):",
            times.len(),
            comm.world_size(),
            comm.info().transport
        );
        for percentile in [50, 90, 99, 100] {
            let time = times[(times.len() - 1) * percentile / 100];
            println!("  {percentile:>3} % within {time:.1?}");
        }
    }
    Ok(())
}

/// Serves the requests. Returns the time of each all-reduce on this rank.
pub(crate) fn serve(comm: &Communicator, pause: impl Fn(Duration)) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    let mut requests = REQUESTS.into_iter();
    loop {
        // A request is the number of its layers. 0 ends the program.
        let mut layers = [0];
        if comm.rank() == 0 {
            pause(IDLE);
            layers[0] = requests.next().unwrap_or(0);
            comm.broadcast(&mut layers, 0)?;
        } else {
            comm.without_timeout().broadcast(&mut layers, 0)?;
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
    // The other ranks on the host can read this memory in place.
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
        false => Err(Error::new(ErrorKind::System, "the activations are wrong")),
    }
}
