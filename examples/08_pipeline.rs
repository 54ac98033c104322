//! Trains a pipeline of four stages. Each rank has one layer of the model, sends activations to the
//! next rank and gradients back, and has several micro-batches in flight.
//!
//! ```text
//! cargo run --release --example 08_pipeline           # four simulated ranks
//! cargo build --release --example 08_pipeline && \
//!     cargo run --release -- run --nproc-per-node 4 -- target/release/examples/08_pipeline
//! ```
//!
//! The schedule is *one forward, one backward* (1F1B; Narayanan et al., PipeDream-Flush, 2021). A
//! stage starts with as many forwards as there are stages after it, and then alternates between
//! forward and backward, so it stores few activations. While a stage alternates, it sends an
//! activation to the next stage as the next stage sends a gradient back. With `send` and `recv`,
//! the two stages could wait for each other, because messages of 4 MiB do not fit into the buffers
//! between them. With `start_send` and `start_recv`, a stage waits only for the message that it
//! needs next, which travels while the stage computes.
//!
//! A layer multiplies its input by one weight, so the gradients can be compared to the bit with
//! those of a program without a pipeline.

use ringtree::{Communicator, Error, ErrorKind, Result, Work};
use std::collections::VecDeque;

/// Number of elements in an activation: 4 MiB.
pub(crate) const ELEMENTS: usize = 1 << 20;
const MICRO_BATCHES: usize = 8;
const STAGES: usize = 4;

fn main() -> Result<()> {
    if ringtree::launch::is_rank() {
        println!("{}", program(&Communicator::from_env()?, ELEMENTS)?);
        return Ok(());
    }
    for told in ringtree::simulate(STAGES, |comm| program(comm, ELEMENTS)) {
        println!("{}", told?);
    }
    Ok(())
}

/// Runs one step and checks this stage's gradient. Returns a summary.
pub(crate) fn program(comm: &Communicator, elements: usize) -> Result<String> {
    let (rank, stages) = (comm.rank(), comm.world_size());
    let Trained { gradient, order } = train(comm, elements, MICRO_BATCHES)?;
    let expected = alone(stages, elements, MICRO_BATCHES)[rank];
    if gradient != expected {
        let wrong = format!("the gradient is {gradient:.4e}, not {expected:.4e}");
        return Err(Error::new(ErrorKind::System, wrong));
    }
    Ok(format!(
        "stage {rank}: {order:<52} gradient {gradient:.4e}, equal without a pipeline"
    ))
}

/// The result of a step on one stage.
struct Trained {
    gradient: f64,
    /// Forwards and backwards in the order of their execution.
    order: String,
}

/// Runs one step of this rank's stage.
fn train(comm: &Communicator, elements: usize, batches: usize) -> Result<Trained> {
    let mut stage = Stage::new(comm, elements);
    // Number of micro-batches by which forward is ahead of backward: one per following stage.
    let ahead = (comm.world_size() - comm.rank() - 1).min(batches);
    for batch in 0..batches + ahead {
        if batch < batches {
            stage.forward(batch, batches)?;
        }
        if batch >= ahead {
            stage.backward(batch - ahead, batches)?;
        }
    }
    stage.finish()
}

/// A message that this rank has started to receive, if any.
type Coming = Option<Work<Vec<f32>>>;

struct Stage<'a> {
    comm: &'a Communicator,
    elements: usize,
    layer: Layer,
    /// Inputs that backward will need.
    inputs: VecDeque<Vec<f32>>,
    /// Outputs of the last stage, from which backward starts.
    outputs: VecDeque<Vec<f32>>,
    /// The next activation from the previous stage, and the next gradient from the next stage.
    activation: Coming,
    slope: Coming,
    /// Messages to the neighboring stages that may still be in flight.
    sent: VecDeque<Work<Vec<f32>>>,
    order: String,
}

impl<'a> Stage<'a> {
    fn new(comm: &'a Communicator, elements: usize) -> Self {
        Self {
            comm,
            elements,
            layer: Layer::new(comm.rank()),
            inputs: VecDeque::new(),
            outputs: VecDeque::new(),
            activation: None,
            slope: None,
            sent: VecDeque::new(),
            order: String::new(),
        }
    }

    fn before(&self) -> Option<usize> {
        self.comm.rank().checked_sub(1)
    }

    fn after(&self) -> Option<usize> {
        Some(self.comm.rank() + 1).filter(|next| *next < self.comm.world_size())
    }

    /// Returns a buffer to receive into: the buffer of a completed send, or a new one.
    fn buffer(&mut self) -> Result<Vec<f32>> {
        match self.sent.front() {
            Some(work) if work.is_finished() => {
                let work = self
                    .sent
                    .pop_front()
                    .expect("invariant: the first send exists");
                Ok(work.wait()?)
            }
            _ => Ok(vec![0.0; self.elements]),
        }
    }

    /// Returns the message `due` from `peer`. Unless `is_last` is set, also starts to receive the
    /// next message, which arrives while this stage computes.
    fn next(&mut self, due: Coming, peer: usize, is_last: bool) -> Result<(Vec<f32>, Coming)> {
        let due = match due {
            Some(due) => due,
            None => self.comm.start_recv(self.buffer()?, peer)?,
        };
        let came = due.wait()?;
        let next = match is_last {
            true => None,
            false => Some(self.comm.start_recv(self.buffer()?, peer)?),
        };
        Ok((came, next))
    }

    fn forward(&mut self, batch: usize, batches: usize) -> Result<()> {
        let input = match self.before() {
            Some(peer) => {
                let due = self.activation.take();
                let (input, next) = self.next(due, peer, batch + 1 == batches)?;
                self.activation = next;
                input
            }
            None => sample(batch, self.elements),
        };
        let output = self.layer.forward(&input);
        self.inputs.push_back(input);
        match self.after() {
            Some(peer) => self.sent.push_back(self.comm.start_send(output, peer)?),
            None => self.outputs.push_back(output),
        }
        self.order.push_str(&format!("F{batch} "));
        Ok(())
    }

    fn backward(&mut self, batch: usize, batches: usize) -> Result<()> {
        let slope = match self.after() {
            Some(peer) => {
                let due = self.slope.take();
                let (slope, next) = self.next(due, peer, batch + 1 == batches)?;
                self.slope = next;
                slope
            }
            // The loss is half the squared length of the output, so the gradient of the loss is the
            // output itself.
            None => self
                .outputs
                .pop_front()
                .expect("invariant: forward ran before"),
        };
        let input = self
            .inputs
            .pop_front()
            .expect("invariant: forward ran before");
        let slope = self.layer.backward(&input, slope);
        if let Some(peer) = self.before() {
            self.sent.push_back(self.comm.start_send(slope, peer)?);
        }
        self.order.push_str(&format!("B{batch} "));
        Ok(())
    }

    fn finish(self) -> Result<Trained> {
        for work in self.sent {
            work.wait()?;
        }
        Ok(Trained {
            gradient: self.layer.gradient,
            order: self.order,
        })
    }
}

/// The layer of one stage.
struct Layer {
    weight: f32,
    gradient: f64,
}

impl Layer {
    fn new(number: usize) -> Self {
        Self {
            weight: 1.0 + 0.125 * number as f32,
            gradient: 0.0,
        }
    }

    fn forward(&self, input: &[f32]) -> Vec<f32> {
        input.iter().map(|one| self.weight * one).collect()
    }

    /// Converts the gradient with respect to the output into the gradient with respect to the
    /// input.
    fn backward(&mut self, input: &[f32], mut slope: Vec<f32>) -> Vec<f32> {
        for (slope, input) in slope.iter_mut().zip(input) {
            self.gradient += f64::from(*slope * input);
            *slope *= self.weight;
        }
        slope
    }
}

/// Returns a sample, which is the input of the first stage.
fn sample(batch: usize, elements: usize) -> Vec<f32> {
    (0..elements)
        .map(|at| ((at + batch) % 97) as f32 / 97.0)
        .collect()
}

/// Computes the gradients of all layers without a pipeline.
fn alone(stages: usize, elements: usize, batches: usize) -> Vec<f64> {
    let mut layers: Vec<_> = (0..stages).map(Layer::new).collect();
    for batch in 0..batches {
        let mut inputs = vec![sample(batch, elements)];
        for layer in &layers {
            inputs.push(layer.forward(inputs.last().expect("invariant: the sample is present")));
        }
        let mut slope = inputs.pop().expect("invariant: the output is present");
        for (layer, input) in layers.iter_mut().zip(inputs).rev() {
            slope = layer.backward(&input, slope);
        }
    }
    layers.into_iter().map(|layer| layer.gradient).collect()
}
