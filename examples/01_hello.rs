//! Sums numbers over four simulated ranks, without a network or launcher.
//!
//! `cargo run --example 01_hello`

use ringtree::{Error, ReduceOp};

fn main() -> Result<(), Error> {
    let sums = ringtree::simulate(4, |comm| {
        let mut numbers = [comm.rank() as f32, 1.0];
        comm.all_reduce(&mut numbers, ReduceOp::Sum)?;
        Ok::<_, Error>(numbers)
    });
    for (rank, numbers) in sums.into_iter().enumerate() {
        println!("rank {rank} holds {:?}", numbers?);
    }
    Ok(())
}
