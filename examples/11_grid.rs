//! A grid of four ranks: each row holds one copy of a layer, cut in two (tensor parallel), and the
//! rows train on different samples (data parallel).
//!
//! ```text
//! cargo run --release --example 11_grid
//! ```
//!
//! ```text
//!              column 0     column 1
//! row 0        rank 0 ───── rank 1       a row sums the halves of an output
//!                │            │
//! row 1        rank 2 ───── rank 3       a column averages the gradients of one half
//! ```
//!
//! Run without a launcher, the program starts four copies of itself.

use ringtree::{Communicator, ReduceOp, Result};
use std::process::ExitCode;

/// Ranks of a row.
const TENSOR: usize = 2;
const RANKS: usize = 4;
/// Inputs of the layer: one output is their weighted sum. A rank has half of the weights.
const INPUTS: usize = 8;
const OWN: usize = INPUTS / TENSOR;
const STEPS: usize = 200;
const RATE: f32 = 0.05;

/// The weights that the samples come from.
fn sought(input: usize) -> f32 {
    (input as f32 - 3.5) / 2.0
}

/// Input number `input` of the sample that `row` takes in `step`.
fn sample(step: usize, row: usize, input: usize) -> f32 {
    let mixed = (step * 31 + row * 17 + input * 7 + step * input) % 13;
    mixed as f32 / 6.0 - 1.0
}

fn train(world: &Communicator) -> Result<String> {
    let (row, column) = (world.rank() / TENSOR, world.rank() % TENSOR);
    let tensor = world.split(row, column)?.expect("every rank is in a row");
    let data = world
        .split(column, row)?
        .expect("every rank is in a column");
    let mut weights = [0.0f32; OWN];
    let mut loss = 0.0;
    for step in 0..STEPS {
        let inputs: Vec<f32> = (0..INPUTS).map(|input| sample(step, row, input)).collect();
        let own = &inputs[column * OWN..][..OWN];
        // Forward: this rank's half of the sum, and then the row's.
        let mut output = [own
            .iter()
            .zip(&weights)
            .map(|(one, weight)| one * weight)
            .sum::<f32>()];
        tensor.all_reduce(&mut output, ReduceOp::Sum)?;
        let target: f32 = inputs
            .iter()
            .enumerate()
            .map(|(input, one)| one * sought(input))
            .sum();
        let error = output[0] - target;
        // Backward: the gradients of this half, averaged over the samples of all rows.
        let mut gradients: Vec<f32> = own.iter().map(|one| 2.0 * error * one).collect();
        data.all_reduce(&mut gradients, ReduceOp::Avg)?;
        for (weight, gradient) in weights.iter_mut().zip(&gradients) {
            *weight -= RATE * gradient;
        }
        loss = error * error;
    }
    let mut all = [0.0f32; INPUTS];
    all[column * OWN..][..OWN].copy_from_slice(&weights);
    tensor.all_gather(&mut all)?;
    let weights = all.map(|weight| format!("{weight:.2}")).join(" ");
    Ok(format!(
        "rank {} is in row {row} and column {column}; loss {loss:.4}, weights {weights}",
        world.rank()
    ))
}

fn run() -> Result<i32> {
    if std::env::var_os("RANK").is_none() {
        return ringtree::launch::spawn_self(RANKS);
    }
    let world = Communicator::from_env()?;
    let told = train(&world)?;
    // In the order of the ranks.
    for rank in 0..world.world_size() {
        if rank == world.rank() {
            println!("{told}");
        }
        world.barrier()?;
    }
    Ok(0)
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
