//! A complete training program for any number of ranks. It averages gradients while backward runs,
//! with accumulation, clipping, epochs, validation, checkpoints and metrics.
//!
//! ```text
//! cargo run --release --example 15_training                       # two processes
//! target/release/ringtree run --nproc-per-node 4 --max-restarts 3 -- \
//!     target/release/examples/15_training FOLDER
//! ```
//!
//! Kill a rank of the second command, or stop either and start it again: it resumes from the last
//! checkpoint and ends with the same bits. The model, a sum of cosines, learns a straight line.

use indicatif::{ProgressBar, ProgressDrawTarget};
use ringtree::ddp::checkpoint::{Checkpoints, Directory, Parts, Run};
use ringtree::ddp::{AdamW, DataParallel, DistributedSampler, Measured};
use ringtree::ddp::{Optimizer, Options, Parameter};
use ringtree::{Communicator, Dtype, ReduceOp, Result};
use std::path::Path;

const STEPS: u64 = 600;
const SAVE_EVERY: u64 = 100;
const SAMPLES: usize = 1000;
/// Samples per step over all ranks, and micro-batches into which each rank splits its share.
const BATCH: usize = 32;
const PARTS: usize = 2;
/// The curve is shift + Σ height[k] · cos((k + 1) · π · x).
const PARAMETERS: [(&str, usize); 2] = [("height", 8), ("shift", 1)];
type Weights = Vec<Vec<f32>>;

/// Returns the squared error at `x`, and adds its gradient times `factor` to `gradients`.
fn error_at(x: f32, weights: &Weights, gradients: &mut Weights, factor: f32) -> f32 {
    let waves = (1..=PARAMETERS[0].1).map(|k| (k as f32 * std::f32::consts::PI * x).cos());
    let parts = waves.clone().zip(&weights[0]).map(|(wave, one)| wave * one);
    let error = weights[1][0] + parts.sum::<f32>() - x;
    for (slope, wave) in gradients[0].iter_mut().zip(waves) {
        *slope += 2.0 * error * factor * wave;
    }
    gradients[1][0] += 2.0 * error * factor;
    error * error
}

/// Runs forward and backward on `samples`, and reports the gradients, the last layer's first.
fn backward(model: &mut DataParallel, weights: &Weights, samples: &[usize]) -> Result<f32> {
    let (mut gradients, mut loss) = (zeros(), 0.0);
    let share = 1.0 / (samples.len() * PARTS) as f32;
    for sample in samples {
        let x = *sample as f32 / SAMPLES as f32;
        loss += share * error_at(x, weights, &mut gradients, share);
    }
    for number in [1, 0] {
        model.report(number, &gradients[number])?;
    }
    Ok(loss)
}

/// Names everything that a checkpoint stores, for both saving and resuming.
fn name_all(all: &mut Parts<'_>, weights: &mut Weights, own: &mut Optimizer<AdamW>) -> Result<()> {
    for ((name, count), weights) in PARAMETERS.iter().zip(weights) {
        all.tensor(&format!("model/{name}"), &[*count], weights)?;
    }
    own.parts(all)
}

/// Trains to the end of `bar`. Returns the validation loss and the weights.
pub(crate) fn train(
    comm: &Communicator,
    folder: &Path,
    bar: &ProgressBar,
) -> Result<(f64, Weights)> {
    let checkpoints = Checkpoints::new(Directory::new(folder), 2).keep_best();
    let mut run = Run::open(comm, checkpoints)?;
    let parameters = PARAMETERS.map(|(name, count)| Parameter::new(name, &[count], Dtype::F32));
    let options = Options::new().clip_norm(1.0);
    let mut model = DataParallel::new(run.comm(), parameters.into(), options)?;
    let mut optimizer = Optimizer::new(&model, AdamW::default())?;
    let (rank, ranks) = (comm.rank(), comm.world_size());
    let mut sampler = DistributedSampler::new(SAMPLES, 1, rank, ranks)?.global_batch(BATCH)?;
    let mut weights = zeros();
    let resumed = |all: &mut Parts<'_>| name_all(all, &mut weights, &mut optimizer);
    run.resume(&mut model, &mut sampler, resumed)?;
    let mut metrics = run.metrics(folder.join("metrics.jsonl"))?;
    bar.set_position(model.steps());
    while Some(model.steps()) < bar.length() {
        let Some(samples) = sampler.next_batch() else {
            sampler.set_epoch(sampler.epoch() + 1);
            continue;
        };
        let (first, last) = samples.split_at(samples.len() / PARTS);
        let mut loss = model.no_sync(|model| backward(model, &weights, first))?;
        loss += backward(&mut model, &weights, last)?; // full buckets are sent meanwhile
        model.wait()?; // all ranks have the averages, clipped
        let rate = 0.02 * (1.0 - (model.steps() - 1) as f64 / STEPS as f64);
        optimizer.step(&mut model, &mut weights[..], rate)?;
        bar.inc(1);

        let mut loss = [f64::from(loss)];
        run.comm().all_reduce(&mut loss, ReduceOp::Avg)?;
        let mut measured = Measured::new(loss[0], rate, BATCH as u64);
        if model.steps().is_multiple_of(SAVE_EVERY) {
            let validation = validate(run.comm(), &weights)?;
            measured = measured.with("validation_loss", validation);
            let saved = |all: &mut Parts<'_>| name_all(all, &mut weights, &mut optimizer);
            run.save(&model, &sampler, validation, saved)?; // written during the next steps
        }
        let line = metrics.write(&model, measured)?; // `Some` on rank 0
        if let Some(line) = line.filter(|line| line.step % SAVE_EVERY == 0) {
            bar.suspend(|| println!("step {:3}  loss {:.6}", line.step, line.loss));
        }
    }
    bar.finish_and_clear();
    run.finish()?; // waits for the last checkpoint
    Ok((validate(run.comm(), &weights)?, weights))
}

/// Returns the loss on points between the samples, which are divided among the ranks.
fn validate(comm: &Communicator, weights: &Weights) -> Result<f64> {
    let own = (comm.rank()..SAMPLES).step_by(comm.world_size());
    let x = |place: usize| (place as f32 + 0.5) / SAMPLES as f32;
    let errors = own.map(|place| f64::from(error_at(x(place), weights, &mut zeros(), 0.0)));
    let mut sum = [errors.sum::<f64>()];
    comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    Ok(sum[0] / SAMPLES as f64)
}

fn zeros() -> Weights {
    PARAMETERS.map(|(_, count)| vec![0.0; count]).into()
}

fn main() -> Result<()> {
    if std::env::var_os("RANK").is_none() {
        std::process::exit(ringtree::launch::spawn_self(2)?); // launches itself
    }
    let comm = Communicator::from_env()?;
    let folder = std::env::args().nth(1);
    let folder = folder.as_deref().unwrap_or("target/15_training");
    let target = match comm.local_rank() {
        0 => ProgressDrawTarget::stdout(), // one bar per host, on a terminal
        _ => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(Some(STEPS), target);
    let (loss, weights) = train(&comm, Path::new(folder), &bar)?;
    if comm.rank() == 0 {
        println!("validation loss {loss:.6}, a weight {}", weights[0][0]);
    }
    Ok(())
}
