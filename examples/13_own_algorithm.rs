//! Defines a custom algorithm: an all-reduce along the columns and rows of a grid. The example
//! verifies it, draws it, predicts its time, and runs it on simulated ranks.
//!
//! `cargo run --example 13_own_algorithm`

use ringtree::ReduceOp;
use ringtree::plan::draw::{self, Caption};
use ringtree::plan::{
    Algorithm, ChunkRange, Collective, Cost, Hosts, LinkCost, Request, Source, Step, Traffic, plan,
};
use ringtree::plan::{Entry, prove, required};

const RANKS: usize = 12;
const BYTES: usize = 1 << 10;

/// An all-reduce on a grid of two rows: the ranks of a column exchange their buffers, and then the
/// ranks of a row.
const TWO_ROWS: Entry = Entry {
    name: "two-rows",
    collectives: &[Collective::AllReduce],
    source: "this example",
    build,
    cost,
    ..Entry::PLAIN
};

/// Returns the rounds of one rank. In each round, the rank sends its chunks to all ranks that
/// differ from it in only one coordinate. It folds their chunks with its own, in the order of that
/// coordinate.
fn build(request: &Request) -> Vec<Vec<Step>> {
    let (n, rank) = (request.world_size, request.rank);
    let rows = if n.is_multiple_of(2) { 2 } else { 1 };
    let columns = n / rows;
    let (row, column) = (rank / columns, rank % columns);
    let in_column: Vec<usize> = (0..rows).map(|row| row * columns + column).collect();
    let in_row: Vec<usize> = (0..columns).map(|column| row * columns + column).collect();
    let groups = [in_column, in_row].into_iter();
    let groups: Vec<_> = groups.filter(|group| group.len() > 1).collect();
    groups
        .iter()
        .enumerate()
        .map(|(nth, group)| {
            let all = || vec![ChunkRange::new(0, request.pieces)];
            let others = group.iter().filter(|peer| **peer != rank);
            let source = |&peer: &usize| match peer == rank {
                true => Source::Own,
                false => Source::Peer(peer),
            };
            let fold = Step::Receive {
                sources: group.iter().map(source).collect(),
                ranges: all(),
                // The result of the last fold contains every contribution.
                completes: nth + 1 == groups.len(),
            };
            others
                .map(|peer| Step::send(*peer, all()))
                .chain([fold])
                .collect()
        })
        .collect()
}

/// Returns the cost for any number of ranks. Volumes are in units of the complete buffer.
fn cost(request: &Request) -> Cost {
    let n = request.world_size;
    let rows = if n.is_multiple_of(2) { 2 } else { 1 };
    let exchanged = (rows - 1 + n / rows - 1) as f64;
    Cost {
        rounds: usize::from(rows > 1) + usize::from(n / rows > 1),
        hops: (usize::from(rows > 1) + usize::from(n / rows > 1)) as f64,
        messages_on_path: exchanged,
        volume_on_path: exchanged,
        folded_on_path: exchanged,
        max_sent_per_rank: exchanged,
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let two_rows = Algorithm::register(TWO_ROWS)?;
    let request = |algorithm| Request {
        collective: Collective::AllReduce,
        algorithm,
        world_size: RANKS,
        rank: 0,
        root: 0,
        pieces: 1,
        hosts: Hosts::APART,
    };
    prove(&request(two_rows))?;
    println!("verified for {RANKS} ranks\n");

    let link = LinkCost {
        alpha_s: 10e-6,
        overhead_s: 5e-6,
        beta_s_per_byte: 0.8e-9,
        gamma_s_per_byte: 0.1e-9,
    };
    let time_s = |algorithm| -> Result<f64, String> {
        let entry = required(Collective::AllReduce, algorithm)?;
        Ok((entry.cost)(&request(algorithm)).time_s(BYTES, &link))
    };
    let of_rank = |rank| {
        plan(&Request {
            rank,
            ..request(two_rows)
        })
    };
    let plans: Vec<_> = (0..RANKS).map(of_rank).collect::<Result<_, _>>()?;
    let caption = Caption {
        bytes: BYTES,
        time_s: time_s(two_rows)?,
        traffic: Traffic::of(&request(two_rows), BYTES)?,
    };
    println!("{}", draw::text(&plans, &caption)?);
    for other in [two_rows, Algorithm::Flat, Algorithm::RecursiveDoubling] {
        let (name, time_us) = (other.to_string(), time_s(other)? * 1e6);
        println!("{name:>20} {time_us:6.1} µs predicted");
    }

    let sums = ringtree::simulate(RANKS, |comm| {
        comm.use_algorithm(Some(two_rows))?;
        let mut numbers = vec![comm.rank() as f32; BYTES / 4];
        comm.all_reduce(&mut numbers, ReduceOp::Sum)?;
        Ok::<_, ringtree::Error>(numbers)
    });
    let expected = (0..RANKS).sum::<usize>() as f32;
    for (rank, numbers) in sums.into_iter().enumerate() {
        if numbers?.iter().any(|number| *number != expected) {
            return Err(format!("rank {rank} has a wrong sum").into());
        }
    }
    println!("\nrun on simulated ranks: every rank holds {expected}");
    Ok(())
}
