//! Trains on a grid of four ranks. Each row has one copy of a layer, split in two (tensor
//! parallel). The rows train on different samples (data parallel).
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
//! Without a launcher, the program starts four copies of itself.

use ringtree::{Communicator, Error, ErrorKind, ReduceOp, Result};
use std::process::ExitCode;

/// Number of ranks in a row.
const TENSOR: usize = 2;
const RANKS: usize = 4;
/// Number of inputs of the layer, whose output is their weighted sum. Each rank has half of the
/// weights.
const INPUTS: usize = 8;
const OWN: usize = INPUTS / TENSOR;
const STEPS: usize = 150;
const RATE: f32 = 0.15;

/// Returns a weight of the function that the layer learns.
fn sought(input: usize) -> f32 {
    (input as f32 - 3.5) / 2.0
}

/// Returns one input of the sample that the row `row` uses in `step`.
fn sample(step: usize, row: usize, input: usize) -> f32 {
    let number = TENSOR * step + row;
    let mixed = (number + 1) * (number + input) * (input + 3) % 17;
    mixed as f32 / 8.0 - 1.0
}

/// Trains this rank's half of the layer and checks it. Returns a summary.
pub(crate) fn program(world: &Communicator) -> Result<String> {
    let (row, column) = (world.rank() / TENSOR, world.rank() % TENSOR);
    let tensor = world.split(row, column)?;
    let end = world
        .split(column, row)
        .and_then(|data| train(&tensor, &data).inspect_err(|error| data.abort(error)));
    // Report a failure in the column to the row, and vice versa. Otherwise, the other ranks would
    // learn only that this rank has left, and not why.
    let (loss, weights) = end.inspect_err(|error| tensor.abort(error))?;
    let mut found = weights.iter().enumerate();
    if !found.all(|(input, weight)| (weight - sought(input)).abs() < 0.01) {
        return Err(Error::new(
            ErrorKind::System,
            format!("the weights are wrong: {weights:?}"),
        ));
    }
    let weights = weights.map(|weight| format!("{weight:.2}")).join(" ");
    Ok(format!(
        "rank {} is in row {row} and column {column}; loss {loss:.4}, weights {weights}",
        world.rank()
    ))
}

/// Trains the layer. Returns the last loss and all weights.
fn train(tensor: &Communicator, data: &Communicator) -> Result<(f32, [f32; INPUTS])> {
    let (row, column) = (data.rank(), tensor.rank());
    let mut weights = [0.0f32; OWN];
    let mut loss = 0.0;
    for step in 0..STEPS {
        let inputs: Vec<f32> = (0..INPUTS).map(|input| sample(step, row, input)).collect();
        let own = &inputs[column * OWN..][..OWN];
        // Forward: compute this rank's half of the sum, then sum over the row.
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
        // Backward: average the gradients of this half over the samples of all rows.
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
    Ok((loss, all))
}

fn run() -> Result<i32> {
    if !ringtree::launch::is_rank() {
        return ringtree::launch::spawn_self(RANKS);
    }
    let world = Communicator::from_env()?;
    let told = program(&world)?;
    // Let the ranks print in rank order.
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
