//! A complete training program for any number of ranks. It averages gradients while backward runs,
//! with accumulation, clipping, epochs, validation, checkpoints and metrics.
//!
//! ```text
//! cargo run --release --example 15_training                       # two processes
//! target/release/ringtree run --nproc-per-node 4 --max-restarts 3 -- \
//!     target/release/examples/15_training FOLDER
//! ```
//!
//! Kill a rank of the second command, or stop a command and start it again: training resumes from
//! the last checkpoint and ends with the same bits. The model, a sum of cosines, learns a line.

use ringtree::ddp::{AdamW, DataParallel, Optimizer, Options, Run};
use ringtree::{Communicator, Result};

const SAMPLES: usize = 960;
const EPOCHS: u64 = 20;
/// Number of samples per step on all ranks together.
const BATCH: usize = 32;
const STEPS: u64 = EPOCHS * (SAMPLES / BATCH) as u64;
const SAVE_EVERY: u64 = 100;
/// The parameters of the curve shift + Σ height[k] · cos((k + 1) · π · x).
const PARAMETERS: [(&str, usize); 2] = [("height", 8), ("shift", 1)];
type Weights = Vec<Vec<f32>>;

/// Trains until `epochs` epochs are complete. Returns the validation loss and the weights.
pub(crate) fn train(comm: &Communicator, folder: &str, epochs: u64) -> Result<(f64, Weights)> {
    let mut run = Run::open(comm, folder)?;
    let options = Options::new().clip_norm(1.0);
    let mut model = DataParallel::new(run.comm(), PARAMETERS, options)?;
    let mut optimizer = Optimizer::new(&model, AdamW::default())?;
    let mut sampler = run.sampler(SAMPLES, 1)?.global_batch(BATCH)?.epochs(epochs);
    let mut weights = Weights::from(PARAMETERS.map(|(_, count)| vec![0.0; count]));
    run.resume(&mut model, &mut sampler, |all| {
        optimizer.parts_and_weights(all, &mut weights[..])
    })?;
    let mut metrics = run.metrics(format!("{folder}/metrics.jsonl"))?;
    while let Some(samples) = sampler.next_batch() {
        let (first, last) = samples.split_at(samples.len() / 2);
        let mut loss = [model.no_sync(|model| backward(model, &weights, first))?];
        loss[0] += backward(&mut model, &weights, last)?; // full buckets are sent meanwhile
        model.wait()?; // all ranks have the averages, clipped
        let rate = 0.02 * (1.0 - (model.steps() - 1) as f64 / STEPS as f64);
        optimizer.step(&mut model, &mut weights[..], rate)?;

        ringtree::ddp::average(run.comm(), &mut [&mut loss])?;
        let samples = ("samples", BATCH as f64);
        let mut numbers = vec![("loss", loss[0]), ("learning_rate", rate), samples];
        if model.steps().is_multiple_of(SAVE_EVERY) {
            let validation = validate(run.comm(), &weights)?;
            numbers.push(("validation_loss", validation));
            // The checkpoint is written during the next steps.
            run.save(&model, &sampler, validation, |all| {
                optimizer.parts_and_weights(all, &mut weights[..])
            })?;
            if comm.rank() == 0 {
                println!("step {:3}  loss {:.6}", model.steps(), loss[0]);
            }
        }
        metrics.write(&model, numbers)?;
    }
    run.finish()?; // waits for the last checkpoint
    Ok((validate(run.comm(), &weights)?, weights))
}

/// Runs forward and backward on half of the samples of a step. Reports the gradients, beginning
/// with those of the last layer.
fn backward(model: &mut DataParallel, weights: &Weights, samples: &[usize]) -> Result<f64> {
    let mut gradients = Weights::from(PARAMETERS.map(|(_, count)| vec![0.0; count]));
    let (mut loss, share) = (0.0, 0.5 / samples.len() as f32);
    for sample in samples {
        let x = *sample as f32 / SAMPLES as f32;
        let error = error_at(x, weights);
        loss += f64::from(share * error * error);
        for (slope, wave) in gradients[0].iter_mut().zip(waves(x)) {
            *slope += 2.0 * error * share * wave;
        }
        gradients[1][0] += 2.0 * error * share;
    }
    model.report("shift", &gradients[1])?;
    model.report("height", &gradients[0])?;
    Ok(loss)
}

fn waves(x: f32) -> impl Iterator<Item = f32> {
    (1..=PARAMETERS[0].1).map(move |k| (k as f32 * std::f32::consts::PI * x).cos())
}

fn error_at(x: f32, weights: &Weights) -> f32 {
    let parts = waves(x).zip(&weights[0]).map(|(wave, one)| wave * one);
    weights[1][0] + parts.sum::<f32>() - x
}

/// Returns the loss on points between the samples. The ranks share these points.
fn validate(comm: &Communicator, weights: &Weights) -> Result<f64> {
    let own = (comm.rank()..SAMPLES).step_by(comm.world_size());
    let errors = own.map(|place| error_at((place as f32 + 0.5) / SAMPLES as f32, weights));
    let mut sum = [errors.map(|error| f64::from(error * error)).sum::<f64>()];
    ringtree::ddp::average(comm, &mut [&mut sum])?;
    Ok(sum[0] * comm.world_size() as f64 / SAMPLES as f64)
}

fn main() -> Result<()> {
    if !ringtree::launch::is_rank() {
        std::process::exit(ringtree::launch::spawn_self(2)?); // launches itself
    }
    let comm = Communicator::from_env()?;
    let folder = std::env::args().nth(1);
    let folder = folder.as_deref().unwrap_or("target/15_training");
    let (loss, weights) = train(&comm, folder, EPOCHS)?;
    if comm.rank() == 0 {
        println!("validation loss {loss:.6}, a weight {}", weights[0][0]);
    }
    Ok(())
}
