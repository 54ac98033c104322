//! Trains with sharded weights, like FSDP and ZeRO-3.
//!
//! Every rank stores a part of each layer. A layer is gathered before it is used and dropped
//! afterwards. Its gradient is averaged and scattered. The sizes of the layers are not multiples of
//! the number of ranks, so the parts are uneven, and some are empty.
//!
//! ```text
//! cargo run --release --example 09_uneven_shards      # four simulated ranks
//! cargo build --release --example 09_uneven_shards && \
//!     cargo run --release -- run --nproc-per-node 4 -- target/release/examples/09_uneven_shards
//! ```
//!
//! `Layout::Ceil` splits like `torch.chunk`: on four ranks, a layer of 77 weights has parts of 20,
//! 20, 20 and 17. `Layout::Counts` allows any sizes: the last layer is too small to split and is
//! stored only on the last rank. Neither call copies its input or needs padding.

use ringtree::{Communicator, Error, ErrorKind, Layout, ReduceOp, Result};

const RANKS: usize = 4;
const STEPS: usize = 20;
const RATE: f32 = 0.25;
/// Number of weights in each layer.
const LAYERS: [usize; 4] = [77, 5000, 1021, 9];

fn main() -> Result<()> {
    if ringtree::launch::is_rank() {
        println!("{}", program(&Communicator::from_env()?)?);
        return Ok(());
    }
    for told in ringtree::simulate(RANKS, program) {
        println!("{}", told?);
    }
    Ok(())
}

/// A layer and this rank's shard of it.
struct Sharded {
    /// Number of weights on each rank, or `None` if [`Layout::Ceil`] splits the layer.
    counts: Option<Vec<usize>>,
    /// Total number of weights in all shards.
    weights: usize,
    shard: Vec<f32>,
}

impl Sharded {
    fn new(comm: &Communicator, layer: usize) -> Self {
        let (rank, ranks, weights) = (comm.rank(), comm.world_size(), LAYERS[layer]);
        let mut counts = vec![0; ranks];
        counts[ranks - 1] = weights;
        let mut sharded = Self {
            counts: (layer + 1 == LAYERS.len()).then_some(counts),
            weights,
            shard: Vec::new(),
        };
        let own = sharded.layout().block(rank, ranks, weights);
        sharded.shard = vec![0.0; own.len()];
        sharded
    }

    fn layout(&self) -> Layout<'_> {
        self.counts.as_ref().map_or(Layout::Ceil, Layout::from)
    }

    /// Gathers all weights of the layer into `memory`, which all layers share.
    fn gather<'a>(&self, comm: &Communicator, memory: &'a mut [f32]) -> Result<&'a [f32]> {
        let whole = &mut memory[..self.weights];
        comm.all_gather_into(&self.shard, &mut self.layout().of(&mut *whole))?;
        Ok(whole)
    }

    /// Averages the ranks' gradients of the layer, and updates this rank's shard with its part of
    /// the mean.
    fn learn(&mut self, comm: &Communicator, gradient: &[f32]) -> Result<()> {
        let mut own = vec![0.0; self.shard.len()];
        comm.reduce_scatter_into(&self.layout().of(gradient), &mut own, ReduceOp::Avg)?;
        descend(&mut self.shard, &own);
        Ok(())
    }
}

/// Trains all layers and checks this rank's shards. Returns a summary.
pub(crate) fn program(comm: &Communicator) -> Result<String> {
    let layers = 0..LAYERS.len();
    let mut layers: Vec<_> = layers.map(|layer| Sharded::new(comm, layer)).collect();
    let largest = LAYERS.into_iter().max();
    let mut memory = vec![0.0; largest.unwrap_or(0)];
    for step in 0..STEPS {
        for layer in &mut layers {
            let weights = layer.gather(comm, &mut memory)?;
            let slope = gradient(weights, step, comm.rank());
            layer.learn(comm, &slope)?;
        }
    }
    for layer in &layers {
        let own = layer.layout();
        let own = own.block(comm.rank(), comm.world_size(), layer.weights);
        let right = &alone(layer.weights, comm.world_size())[own];
        let mut pairs = layer.shard.iter().zip(right);
        if !pairs.all(|(one, right)| (one - right).abs() < 1e-5) {
            return Err(Error::new(
                ErrorKind::System,
                "a single program gets different weights",
            ));
        }
    }
    let part = |layer: &Sharded| format!("{} of {}", layer.shard.len(), layer.weights);
    let parts: Vec<_> = layers.iter().map(part).collect();
    Ok(format!(
        "rank {} learned {} weights, equal to those of a single program",
        comm.rank(),
        parts.join(", ")
    ))
}

/// Runs forward and backward. Returns the gradient of the complete layer for one rank's samples.
/// Here, each weight learns the mean of the samples; in a real layer, the gradients depend on all
/// weights.
fn gradient(weights: &[f32], step: usize, rank: usize) -> Vec<f32> {
    let sample = |at: usize| ((step * 5 + rank * 11 + at * 3) % 7) as f32 / 7.0;
    let pairs = weights.iter().enumerate();
    pairs.map(|(at, weight)| weight - sample(at)).collect()
}

fn descend(weights: &mut [f32], gradient: &[f32]) {
    let pairs = weights.iter_mut().zip(gradient);
    pairs.for_each(|(weight, slope)| *weight -= RATE * slope);
}

/// Trains a layer in one process on the samples of all ranks, for comparison.
fn alone(weights: usize, ranks: usize) -> Vec<f32> {
    let mut layer = vec![0.0; weights];
    for step in 0..STEPS {
        let mut mean = vec![0.0; weights];
        for rank in 0..ranks {
            let slope = gradient(&layer, step, rank);
            let pairs = mean.iter_mut().zip(slope);
            pairs.for_each(|(mean, one)| *mean += one / ranks as f32);
        }
        descend(&mut layer, &mean);
    }
    layer
}
