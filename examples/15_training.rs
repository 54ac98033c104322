//! A whole training on as many ranks as it is started on: gradients averaged while backward runs,
//! accumulation, clipping, epochs, validation, checkpoints, and metrics.
//!
//! ```text
//! cargo run --release --example 15_training                       # two processes
//! target/release/ringtree run --nproc-per-node 4 --max-restarts 3 -- \
//!     target/release/examples/15_training FOLDER
//! ```
//!
//! Kill a rank of the second, or end either and start it again: it goes on from the last
//! checkpoint, and ends with the same bits. The model, a curve of 16 soft steps,
//! learns a sine.

use ringtree::ddp::checkpoint::{Checkpoints, Directory, Parts, Run};
use ringtree::ddp::{DataParallel, DistributedSampler, Measured, Options, Parameter};
use ringtree::{Communicator, Dtype, Error, ReduceOp, Result};
use std::path::Path;

const STEPS: u64 = 600;
const SAVE_EVERY: u64 = 100;
const SAMPLES: usize = 1000;
/// Samples of a step over all ranks, and parts in which each rank goes through its share.
const BATCH: usize = 32;
const PARTS: usize = 2;
const LONGEST_GRADIENT: f64 = 1.0;

/// A soft step h is output[h] · tanh(slope[h] · x + shift[h]); the curve is their sum.
const NAMES: [&str; 3] = ["slope", "shift", "output"];
const COUNT: usize = 16;
type Weights = [Vec<f32>; 3];

/// A point of the curve that is learnt. Validation takes points in between.
fn point(number: f32) -> (f32, f32) {
    let x = number / SAMPLES as f32 * 6.0 - 3.0;
    (x, x.sin())
}

/// The squared error at `x`; adds its gradient, times `factor`, to `gradients`.
fn error_at((x, y): (f32, f32), weights: &Weights, gradients: &mut Weights, factor: f32) -> f32 {
    let steps = (0..COUNT).map(|h| (weights[0][h] * x + weights[1][h]).tanh());
    let steps: Vec<f32> = steps.collect();
    let curve: f32 = steps
        .iter()
        .zip(&weights[2])
        .map(|(step, output)| step * output)
        .sum();
    let slope = 2.0 * (curve - y) * factor;
    for (h, step) in steps.iter().enumerate() {
        let inner = slope * weights[2][h] * (1.0 - step * step);
        gradients[0][h] += inner * x;
        gradients[1][h] += inner;
        gradients[2][h] += slope * step;
    }
    (curve - y) * (curve - y)
}

/// Forward and backward over `samples`, whose gradients are reported, the last layer's first.
fn backward(model: &mut DataParallel, weights: &Weights, samples: &[usize]) -> Result<f32> {
    let (mut gradients, mut loss) = (zeros(), 0.0);
    let share = 1.0 / (samples.len() * PARTS) as f32;
    for sample in samples {
        loss += share * error_at(point(*sample as f32), weights, &mut gradients, share);
    }
    for number in [2, 1, 0] {
        model.report(number, &gradients[number])?;
    }
    Ok(loss)
}

/// Names all that a checkpoint keeps: once, for saving and for resuming.
fn name_all(parts: &mut Parts<'_>, weights: &mut Weights, speeds: &mut Weights) -> Result<()> {
    for (name, (weights, speeds)) in NAMES.iter().zip(weights.iter_mut().zip(speeds)) {
        parts.tensor(&format!("model/{name}"), &[COUNT], weights)?;
        parts.tensor(&format!("optimizer/{name}"), &[COUNT], speeds)?;
    }
    Ok(())
}

/// Trains to step `steps`; returns the loss on the validation points, and the weights.
pub(crate) fn train(comm: &Communicator, folder: &Path, steps: u64) -> Result<(f64, Weights)> {
    let checkpoints = Checkpoints::new(Directory::new(folder), 2).keep_best();
    let mut run = Run::open(comm, checkpoints)?;
    let options = Options::new().clip_norm(LONGEST_GRADIENT);
    let parameters = NAMES.map(|name| Parameter::new(name, &[COUNT], Dtype::F32));
    let mut model = DataParallel::new(run.comm(), parameters.into(), options)?;
    let (rank, ranks) = (comm.rank(), comm.world_size());
    let mut sampler = DistributedSampler::new(SAMPLES, 1, rank, ranks)?.global_batch(BATCH)?;
    let wave = |seed: f32| (0..COUNT).map(|h| (h as f32 * 7.3 + seed).sin()).collect();
    let (mut weights, mut speeds): (Weights, _) = ([1.0, 2.0, 3.0].map(wave), zeros());
    let (own, their) = (&mut weights, &mut speeds);
    run.resume(&mut model, &mut sampler, |all| name_all(all, own, their))?;
    let mut metrics = run.metrics(folder.join("metrics.jsonl"))?;
    while model.steps() < steps {
        let Some(samples) = sampler.next_batch() else {
            sampler.set_epoch(sampler.epoch() + 1);
            continue;
        };
        let (first, last) = samples.split_at(samples.len() / PARTS);
        let mut loss = model.no_sync(|model| backward(model, &weights, first))?;
        loss += backward(&mut model, &weights, last)?; // full buckets leave while this runs
        model.wait()?;

        let slopes = |number| Ok::<_, Error>(model.gradient::<f32>(number)?.unwrap_or_default());
        let slopes = [slopes(0)?, slopes(1)?, slopes(2)?]; // averaged, and clipped
        let rate = 0.1 * (1.0 - (model.steps() - 1) as f32 / STEPS as f32);
        for number in 0..NAMES.len() {
            let own = weights[number].iter_mut().zip(&mut speeds[number]);
            for ((weight, speed), slope) in own.zip(slopes[number]) {
                *speed = 0.9 * *speed + slope;
                *weight -= rate * *speed;
            }
        }

        let mut loss = [f64::from(loss)];
        run.comm().all_reduce(&mut loss, ReduceOp::Avg)?;
        let mut measured = Measured::new(loss[0], f64::from(rate), BATCH as u64);
        if model.steps().is_multiple_of(SAVE_EVERY) {
            let validation = validate(run.comm(), &weights)?;
            measured = measured.with("validation_loss", validation);
            let (own, their) = (&mut weights, &mut speeds);
            run.save(&model, &sampler, validation, |all| {
                name_all(all, own, their)
            })?;
        }
        let line = metrics.write(&model, measured)?; // on rank 0
        if let Some(line) = line.filter(|line| line.step % SAVE_EVERY == 0) {
            println!("step {:3}  loss {:.6}", line.step, line.loss);
        }
    }
    run.finish()?; // the last checkpoint is written
    Ok((validate(run.comm(), &weights)?, weights))
}

/// The loss on points between the samples, which the ranks share out.
fn validate(comm: &Communicator, weights: &Weights) -> Result<f64> {
    let own = (comm.rank()..SAMPLES - 1).step_by(comm.world_size());
    let error = |at: usize| error_at(point(at as f32 + 0.5), weights, &mut zeros(), 0.0);
    let mut sum = [own.map(|at| f64::from(error(at))).sum::<f64>()];
    comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    Ok(sum[0] / (SAMPLES - 1) as f64)
}

fn zeros() -> Weights {
    std::array::from_fn(|_| vec![0.0; COUNT])
}

fn main() -> Result<()> {
    if std::env::var_os("RANK").is_none() {
        std::process::exit(ringtree::launch::spawn_self(2)?); // its own launcher
    }
    let comm = Communicator::from_env()?;
    let folder = std::env::args().nth(1);
    let folder = folder.unwrap_or("target/15_training".into());
    let (loss, weights) = train(&comm, Path::new(&folder), STEPS)?;
    if comm.rank() == 0 {
        println!("validation loss {loss:.6}, a weight {}", weights[0][0]);
    }
    Ok(())
}
