//! Trains a small character-level language model on text, data-parallel over real processes.
//!
//! ```text
//! cargo run --release --example train_text -- --ranks 4
//! ```
//!
//! Every rank starts with rank 0's weights and trains on its share of each batch. The gradients are
//! averaged over all ranks before the optimizer step, so the replicas stay equal to the bit. The
//! example checks this at the end.

mod data;
mod matrix;
mod model;
mod optimizer;
mod options;
#[path = "../progress/mod.rs"]
mod progress;
mod random;
mod replicas;

use data::{Sampler, Text};
use model::{Model, Shape};
use optimizer::{Adam, learning_rate};
use options::Options;
use progress::Progress;
use random::Random;
use ringtree::launch::{is_rank, spawn_self};
use ringtree::{Communicator, Error, ReduceOp};
use std::process::ExitCode;

/// Default number of ranks to start.
const DEFAULT_RANKS: usize = 4;
/// Number of tokens that the model sees at a time.
const CONTEXT: usize = 16;
/// Length of the learned vector of a token.
const EMBEDDING: usize = 24;
/// Sizes of the hidden layers.
const HIDDEN: &[usize] = &[256, 128];
/// Maximum number of losses that are printed.
const LOSS_LINES: usize = 30;
/// Number of bytes that the trained model writes.
const SAMPLE_BYTES: usize = 300;
/// Temperature of the sample text. Values below 1 increase the probability of likely tokens.
const TEMPERATURE: f32 = 0.6;

/// A failure: a message for standard error and an exit code.
struct Failure {
    exit_code: u8,
    message: String,
}

impl Failure {
    fn usage(message: String) -> Self {
        Failure {
            exit_code: 2,
            message,
        }
    }

    fn work(message: String) -> Self {
        Failure {
            exit_code: 1,
            message,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::work(error.to_string())
    }
}

fn main() -> ExitCode {
    run().unwrap_or_else(|failure| {
        eprintln!("train_text: {}", failure.message);
        ExitCode::from(failure.exit_code)
    })
}

/// Starts the ranks, or trains if this process is one of them.
fn run() -> Result<ExitCode, Failure> {
    let options = Options::read().map_err(Failure::usage)?;
    if !is_rank() {
        let ranks = options.ranks.unwrap_or(DEFAULT_RANKS);
        let options = Options {
            ranks: Some(ranks),
            ..options
        };
        options.check(ranks).map_err(Failure::usage)?;
        Text::load(options.text.as_deref(), CONTEXT).map_err(Failure::work)?;
        let exit_code = spawn_self(ranks)?;
        return Ok(ExitCode::from(u8::try_from(exit_code).unwrap_or(1)));
    }
    let comm = Communicator::from_env()?;
    options.check(comm.world_size()).map_err(Failure::usage)?;
    let text = Text::load(options.text.as_deref(), CONTEXT).map_err(Failure::work)?;
    train_and_compare(&comm, &options, &text)
}

/// Trains as one rank and compares the replicas.
fn train_and_compare(
    comm: &Communicator,
    options: &Options,
    text: &Text,
) -> Result<ExitCode, Failure> {
    agree_on_the_job(comm, options, text)?;
    let model = Model::new(Shape {
        context: CONTEXT,
        vocabulary: text.vocabulary_size(),
        embedding: EMBEDDING,
        hidden: HIDDEN.to_vec(),
    });
    let mut weights = train(comm, options, text, &model)?;
    if options.corrupt_rank == Some(comm.rank()) {
        weights[0] = weights[0].next_up();
    }
    let fingerprints = replicas::gather(comm, &replicas::fingerprint(&weights))?;
    let differing = replicas::differing(&fingerprints);
    if comm.rank() == 0 {
        let hash = replicas::short(&fingerprints[0]);
        match &differing {
            None => println!("replicas identical: yes (weights {hash})"),
            Some(ranks) => println!(
                "replicas identical: no (weights {hash} on rank 0; not the same on {ranks})"
            ),
        }
        if differing.is_none() {
            print_sample(&model, &weights, text, options.seed);
        }
    }
    comm.barrier()?;
    Ok(ExitCode::from(u8::from(differing.is_some())))
}

/// Checks that all ranks have the same text and settings before they train.
fn agree_on_the_job(comm: &Communicator, options: &Options, text: &Text) -> Result<(), Failure> {
    // Omit the path of the text, which may differ between ranks.
    let settings = Options {
        text: None,
        ..options.clone()
    };
    let own = replicas::fingerprint_of_bytes(&[
        format!("{settings:?}").as_bytes(),
        text.vocabulary(),
        text.tokens(),
    ]);
    match replicas::differing(&replicas::gather(comm, &own)?) {
        None => Ok(()),
        Some(ranks) => Err(Failure::work(format!(
            "the text or the options of {ranks} differ from those of rank 0; start all ranks with \
             the same ones"
        ))),
    }
}

/// Trains `model` and returns its weights.
fn train(
    comm: &Communicator,
    options: &Options,
    text: &Text,
    model: &Model,
) -> Result<Vec<f32>, Failure> {
    let mut weights = match comm.rank() {
        0 => model.initial_parameters(options.seed),
        _ => vec![0.0; model.parameter_count()],
    };
    comm.broadcast(&mut weights, 0)?;

    let sampler = Sampler::new(
        text.sample_count(),
        options.batch,
        comm.rank(),
        comm.world_size(),
        options.seed,
    );
    let share = options.batch / comm.world_size();
    let mut adam = Adam::new(weights.len());
    let mut gradients = vec![0.0; weights.len()];
    let mut loss_since_line = 0.0;
    let steps_per_line = options.steps.div_ceil(LOSS_LINES);
    let progress = Progress::new(options.steps as u64, 0, comm.local_rank());
    if comm.rank() == 0 {
        progress.print(&describe(comm, options, text, model));
    }
    for step in 0..options.steps {
        gradients.fill(0.0);
        let samples: Vec<usize> = sampler.samples(step).collect();
        for micro_batch in samples.chunks_exact(share / options.accumulate) {
            let (contexts, targets) = text.batch(micro_batch);
            loss_since_line += model.accumulate_gradients(
                &weights,
                &contexts,
                &targets,
                1.0 / share as f32,
                &mut gradients,
            );
        }
        comm.all_reduce(&mut gradients, ReduceOp::Avg)?;
        let rate = learning_rate(options.learning_rate, step, options.steps);
        adam.step(&mut weights, &gradients, rate);

        let done = step + 1;
        progress.advance(done as u64);
        if done % steps_per_line == 0 || done == options.steps {
            let steps = (done - 1) % steps_per_line + 1;
            let mut loss = [loss_since_line / steps as f32];
            comm.all_reduce(&mut loss, ReduceOp::Avg)?;
            loss_since_line = 0.0;
            if comm.rank() == 0 {
                let norm = length(&gradients);
                progress.print(&format!(
                    "step {done:5}  loss {:.4}  gradient {norm:.4}",
                    loss[0]
                ));
            }
        }
    }
    progress.finish();
    Ok(weights)
}

/// Returns the Euclidean norm of `vector`.
fn length(vector: &[f32]) -> f64 {
    let squares = vector.iter().map(|value| f64::from(*value).powi(2));
    squares.sum::<f64>().sqrt()
}

/// Describes the training in one line.
fn describe(comm: &Communicator, options: &Options, text: &Text, model: &Model) -> String {
    format!(
        "{} parameters, {} bytes of text ({} different), {} samples per step over {} ranks",
        model.parameter_count(),
        text.tokens().len(),
        text.vocabulary_size(),
        options.batch,
        comm.world_size(),
    )
}

/// Prints text that the model writes as the continuation of a random part of the training text.
fn print_sample(model: &Model, weights: &[f32], text: &Text, seed: u64) {
    let mut random = Random::new(seed);
    let start = random.bits() as usize % text.sample_count();
    let mut tokens = text.sample(start).0.to_vec();
    for _ in 0..SAMPLE_BYTES {
        let context = &tokens[tokens.len() - CONTEXT..];
        let probabilities = model.predict(weights, context, TEMPERATURE);
        tokens.push(draw(&probabilities, &mut random));
    }
    let bytes: Vec<u8> = tokens.iter().map(|token| text.byte(*token)).collect();
    println!("--- the model writes:");
    println!("{}", String::from_utf8_lossy(&bytes));
}

/// Draws a token according to the probabilities.
fn draw(probabilities: &[f32], random: &mut Random) -> u8 {
    let mut left = random.unit();
    for (token, probability) in (0..=u8::MAX).zip(probabilities) {
        left -= probability;
        if left < 0.0 {
            return token;
        }
    }
    // Because of rounding, the sum may be slightly less than 1.
    (probabilities.len() - 1) as u8
}
