//! Gradient accumulation: two samples on one rank give the same gradients as one sample on each of
//! two ranks.
//!
//! ```text
//! cargo run --example 03_accumulation
//! ```
//!
//! The model is linear, with two weights, a bias and a squared error. On one rank, the gradients of
//! two samples are accumulated, each multiplied by one half. The first gradient is reported within
//! `no_sync`, so nothing is sent. On two ranks, each rank computes the gradient of one sample, and
//! the ranks average their gradients. The results are the same.

use ringtree::ddp::{DataParallel, Options, Parameter};
use ringtree::{Communicator, Dtype, Result};

/// A sample: the inputs and the expected output.
struct Sample {
    inputs: [f64; 2],
    target: f64,
}

const SAMPLES: [Sample; 2] = [
    Sample {
        inputs: [6.0, 2.0],
        target: 15.0,
    },
    Sample {
        inputs: [5.0, 2.0],
        target: 12.0,
    },
];
const WEIGHTS: [f64; 2] = [0.773, 0.321];
const BIAS: f64 = 0.067;

/// Returns the derivatives of (output − target)² with respect to the two weights and the bias.
fn gradients(sample: &Sample) -> [f64; 3] {
    let [first, second] = sample.inputs;
    let output = WEIGHTS[0] * first + WEIGHTS[1] * second + BIAS;
    let error = output - sample.target;
    [2.0 * error * first, 2.0 * error * second, 2.0 * error]
}

/// Runs one step of a rank on its `samples`. Returns the averaged gradients.
fn step(comm: &Communicator, samples: &[Sample]) -> Result<[f64; 3]> {
    let all = vec![Parameter::new("weights and bias", &[3], Dtype::F64)];
    let mut model = DataParallel::new(comm, all, Options::new())?;
    let backward = |model: &mut DataParallel, sample: &Sample| {
        // The loss of a step is the mean over this rank's samples, so divide each gradient by their
        // number.
        let gradient = gradients(sample).map(|slope| slope / samples.len() as f64);
        model.report(0, &gradient)
    };
    if let Some((last, before)) = samples.split_last() {
        // Within `no_sync`, gradients are only added up: none is complete, and nothing is sent.
        model.no_sync(|model| before.iter().try_for_each(|sample| backward(model, sample)))?;
        backward(&mut model, last)?; // the bucket is now full and is sent
    }
    model.wait()?;
    let averaged = model.gradient(0)?.unwrap_or_default();
    Ok(std::array::from_fn(|at| averaged[at]))
}

/// Computes the gradients of both samples on one rank.
pub(crate) fn accumulated() -> Result<[f64; 3]> {
    ringtree::simulate(1, |comm| step(comm, &SAMPLES)).remove(0)
}

/// Computes the gradient of one sample on each of two ranks.
pub(crate) fn averaged() -> Result<Vec<[f64; 3]>> {
    let ranks = ringtree::simulate(SAMPLES.len(), |comm| {
        step(comm, &SAMPLES[comm.rank()..][..1])
    });
    ranks.into_iter().collect()
}

fn main() -> Result<()> {
    let alone = accumulated()?;
    let shared = averaged()?;
    let show = |who: String, [first, second, bias]: [f64; 3]| {
        println!("{who:28} weights {first:9.4} {second:9.4}  bias {bias:9.4}");
    };
    for (place, sample) in SAMPLES.iter().enumerate() {
        show(format!("sample {place} alone:"), gradients(sample));
    }
    show("both accumulated on 1 rank:".to_owned(), alone);
    for (rank, gradients) in shared.iter().enumerate() {
        show(format!("averaged, on rank {rank} of 2:"), *gradients);
    }
    let equal = |one: &[f64; 3]| one.iter().zip(&alone).all(|(a, b)| (a - b).abs() < 1e-12);
    assert!(shared.iter().all(equal), "the two ways must agree");
    println!("the two ways agree");
    Ok(())
}
