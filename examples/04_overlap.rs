//! An all-reduce runs in the background while the caller computes. The two ranks are threads, each
//! with its own communicator over loopback TCP.
//!
//! `cargo run --release --example 04_overlap`

use ringtree::start::UniqueId;
use ringtree::{Communicator, Error, ErrorKind, ReduceOp};
use std::time::{Duration, Instant};

const RANKS: usize = 2;
const ELEMENTS: usize = 4 << 20;
/// Duration of a backward pass, which this example replaces by sleeping.
const COMPUTE: Duration = Duration::from_millis(150);

fn main() -> Result<(), Error> {
    let id = UniqueId::on("127.0.0.1")?;
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..RANKS)
            .map(|rank| {
                let id = &id;
                scope.spawn(move || one_rank(rank, id))
            })
            .collect();
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

fn one_rank(rank: usize, id: &UniqueId) -> Result<(), Error> {
    let comm = Communicator::builder()
        .rank(rank)
        .world_size(RANKS)
        .unique_id(id)
        .connect()?;
    // The first call also opens the links, so do not measure it.
    comm.barrier()?;
    let start = Instant::now();
    comm.all_reduce(&mut vec![1.0f32; ELEMENTS], ReduceOp::Sum)?;
    let alone = start.elapsed();
    let work = comm.start_all_reduce(vec![1.0f32; ELEMENTS], ReduceOp::Sum)?;
    std::thread::sleep(COMPUTE);
    let start = Instant::now();
    let sum = work.wait()?;
    let exposed = start.elapsed();
    println!(
        "rank {rank}: {ELEMENTS} elements take {alone:.1?}; started before computing, they block \
         only for {exposed:.1?} (every element is {})",
        sum[0]
    );
    Ok(())
}
