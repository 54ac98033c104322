//! Gradient accumulation: two samples on one rank give the gradients of one sample on each of two.
//!
//! ```text
//! cargo run --example 03_accumulation
//! ```
//!
//! A linear model of two weights and a bias, and the squared error of its output. On one rank the
//! gradients of two samples are accumulated, each with half the weight; on two ranks each takes
//! one sample, and an all-reduce averages. The results are the same.

use ringtree::ReduceOp;

/// A sample: what goes in, and what should come out.
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

/// The derivatives of (output − target)² by the first weight, the second weight and the bias.
fn gradients(sample: &Sample) -> [f64; 3] {
    let [first, second] = sample.inputs;
    let output = WEIGHTS[0] * first + WEIGHTS[1] * second + BIAS;
    let error = output - sample.target;
    [2.0 * error * first, 2.0 * error * second, 2.0 * error]
}

/// One rank, both samples: no communication, one sum.
pub(crate) fn accumulated() -> [f64; 3] {
    let mut sum = [0.0; 3];
    for sample in &SAMPLES {
        for (total, gradient) in sum.iter_mut().zip(gradients(sample)) {
            *total += gradient / SAMPLES.len() as f64;
        }
    }
    sum
}

/// Two ranks, one sample each: one all-reduce.
pub(crate) fn averaged() -> ringtree::Result<Vec<[f64; 3]>> {
    let ranks = ringtree::simulate(SAMPLES.len(), |comm| {
        let mut own = gradients(&SAMPLES[comm.rank()]);
        comm.all_reduce(&mut own, ReduceOp::Avg)?;
        Ok(own)
    });
    ranks.into_iter().collect()
}

fn main() -> ringtree::Result<()> {
    let alone = accumulated();
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
