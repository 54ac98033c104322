//! Gradients as products of thin matrices.

use super::matrix::{Shape, left_of, orthonormalise, product_row, right_of};
use crate::ddp::hooks::{BucketInfo, Exchange, Hook, Next};
use crate::ddp::random::fill_uniform;
use crate::ddp::values::Values;
use crate::op::ReduceOp;
use std::collections::BTreeMap;

/// The name of a matrix's entries in [`Hook::state`], before a slash and the parameter's name.
const ERROR: &str = "error";
const BASIS: &str = "basis";
const STEPS: &str = "steps";

/// Sends a gradient matrix M of m × n elements as P·Qᵀ, P of m × r and Q of n × r, which needs
/// r(m + n) + 1 elements on the wire instead of m·n. What is lost is added to the next step's
/// gradient (*error feedback*), so that over the steps nothing is.
///
/// One step, on every rank: M grows by the error of the step before; P = M·Q is averaged over the
/// ranks (first stage), and its columns are made orthonormal; Q = Mᵀ·P is averaged (second stage).
/// P·Qᵀ is the gradient, and Q the start of the next step. The new error is M − P·Qᵀ with the
/// rank's own Q, before it was averaged: the errors' mean is what the average lost, and each stays
/// as small as its rank's gradients, however much those differ. A matrix has the parameter's first
/// extent as rows. Vectors, and matrices that would not shrink to half, travel with the first stage
/// as they are.
///
/// A matrix whose gradient is zero on all ranks (a parameter that was not used) keeps its error and
/// gets zeros. One with an infinite or undefined element anywhere becomes undefined (NaN) as a
/// whole, on all ranks, and its error stays as it was: leave that step out.
///
/// The error is kept by the parameter's name. It is another one on every rank, so a checkpoint
/// needs [`Hook::state`] of every rank.
///
/// Source: Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
/// Distributed Optimization" (NeurIPS 2019), algorithms 1 and 2, with warm start.
///
/// ```
/// use ringtree::{Dtype, ddp::{DataParallel, Options, Parameter, PowerSgd}};
/// let corners = ringtree::simulate(2, |comm| {
///     let parameters = vec![Parameter::new("weight", &[64, 64], Dtype::F32)];
///     let options = Options::new().hook(PowerSgd::new(2));
///     let mut model = DataParallel::new(comm, parameters, options)?;
///     // A matrix of rank 1 on every rank: the average has rank 2, and is exact.
///     let gradient: Vec<f32> = (0..64 * 64)
///         .map(|at| if comm.rank() == 0 { (at / 64) as f32 } else { (at % 64) as f32 })
///         .collect();
///     model.report(0, &gradient)?;
///     model.wait()?;
///     Ok::<_, ringtree::Error>(model.gradient::<f32>(0)?.map(|mean| mean[64 * 64 - 1]))
/// });
/// assert_eq!(corners[0], corners[1]);
/// assert!(matches!(corners[0], Ok(Some(corner)) if (corner - 63.0).abs() < 0.01));
/// ```
#[derive(Clone, Debug)]
pub struct PowerSgd {
    rank: usize,
    seed: u64,
    start_after: u64,
    memories: BTreeMap<String, Memory>,
    /// By bucket.
    travelling: BTreeMap<usize, Travelling>,
}

/// What a matrix leaves from step to step.
#[derive(Clone, Debug, Default, PartialEq)]
struct Memory {
    error: Vec<f32>,
    /// Q.
    basis: Vec<f32>,
    /// Up to the first that is compressed.
    steps: u64,
}

/// A bucket between its stages.
#[derive(Clone, Debug)]
struct Travelling {
    /// Matrices with their errors, and all else as averaged.
    values: Vec<f32>,
    matrices: Vec<Matrix>,
}

/// A matrix of a bucket.
#[derive(Clone, Debug)]
struct Matrix {
    /// Which of the bucket's parameters.
    number: usize,
    shape: Shape,
    /// P, when it is averaged and orthonormal.
    left: Vec<f32>,
    /// This rank's Q.
    right: Vec<f32>,
    fate: Fate,
}

/// What becomes of a matrix, as all ranks find from what they averaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Moves,
    /// All ranks' gradients are zero.
    Rests,
    /// Some element is infinite or undefined.
    Spoiled,
}

impl PowerSgd {
    /// Approximations of this rank (at least 1; 1 to 4 are usual).
    #[must_use]
    pub fn new(rank: usize) -> Self {
        Self {
            rank: rank.max(1),
            seed: 0,
            start_after: 0,
            memories: BTreeMap::new(),
            travelling: BTreeMap::new(),
        }
    }

    /// Decides the random Q of the first step.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Sends everything as it is in the first `steps` steps, when gradients change most.
    #[must_use]
    pub fn start_after(self, steps: u64) -> Self {
        Self {
            start_after: steps,
            ..self
        }
    }

    /// The matrices of a bucket that are compressed in this step; counts the steps of the others.
    fn matrices(&mut self, bucket: &BucketInfo) -> Vec<Matrix> {
        let mut matrices = Vec::new();
        for (number, (_, parameter)) in bucket.parameters.iter().enumerate() {
            let Some(shape) = Shape::new(&parameter.shape, self.rank) else {
                continue;
            };
            let memory = self.memories.entry(parameter.name.clone()).or_default();
            if memory.steps < self.start_after {
                memory.steps += 1;
                continue;
            }
            memory.fit(shape, self.seed, &parameter.name);
            matrices.push(Matrix {
                number,
                shape,
                left: Vec::new(),
                right: Vec::new(),
                fate: Fate::Moves,
            });
        }
        matrices
    }

    /// The second exchange, with the matrices' P as averaged and all else in its place.
    fn second(
        &self,
        bucket: &BucketInfo,
        travelling: &mut Travelling,
        averaged: &[f32],
    ) -> Exchange {
        let Travelling { values, matrices } = travelling;
        let mut rest = averaged;
        let mut take = |count: usize| {
            let (now, later) = rest.split_at(count.min(rest.len()));
            rest = later;
            now
        };
        let mut sent = Vec::new();
        for matrix in matrices.iter_mut() {
            let shape = matrix.shape;
            let is_zero = take(1) == [0.0];
            matrix.left = take(shape.left_count()).to_vec();
            matrix.fate = if is_zero {
                Fate::Rests
            } else if matrix.left.iter().all(|one| one.is_finite()) {
                Fate::Moves
            } else {
                Fate::Spoiled
            };
            matrix.right = vec![0.0; shape.right_count()];
            if matrix.fate == Fate::Moves {
                orthonormalise(shape.rows, &mut matrix.left);
                let range = bucket.parameters[matrix.number].0.clone();
                right_of(shape, &values[range], &matrix.left, &mut matrix.right);
            }
            sent.extend_from_slice(&matrix.right);
        }
        for (number, (range, _)) in bucket.parameters.iter().enumerate() {
            if !matrices.iter().any(|matrix| matrix.number == number) {
                values[range.clone()].copy_from_slice(take(range.len()));
            }
        }
        Exchange::AllReduce(sent.into(), ReduceOp::Avg, None)
    }

    /// The gradients, with the matrices' Q as averaged.
    fn finish(
        &mut self,
        bucket: &BucketInfo,
        travelling: Travelling,
        averaged: &[f32],
    ) -> Vec<f32> {
        let Travelling {
            mut values,
            matrices,
        } = travelling;
        let mut rest = averaged;
        for mut matrix in matrices {
            let (right, later) = rest.split_at(matrix.shape.right_count());
            rest = later;
            if !right.iter().all(|one| one.is_finite()) {
                matrix.fate = Fate::Spoiled;
            }
            let (range, parameter) = &bucket.parameters[matrix.number];
            let values = &mut values[range.clone()];
            match matrix.fate {
                Fate::Rests => values.fill(0.0),
                Fate::Spoiled => values.fill(f32::NAN),
                Fate::Moves => {
                    let memory = self.memories.entry(parameter.name.clone()).or_default();
                    memory.take_over(&matrix, right, values);
                }
            }
        }
        values
    }
}

impl Memory {
    /// Makes what is not there, or is of another shape.
    fn fit(&mut self, shape: Shape, seed: u64, name: &str) {
        if self.error.len() != shape.rows * shape.columns {
            self.error = vec![0.0; shape.rows * shape.columns];
        }
        if self.basis.len() != shape.right_count() {
            self.basis = vec![0.0; shape.right_count()];
            fill_uniform(&mut self.basis, seed, name);
        }
    }

    /// Replaces `values`, the gradient with the error, by the average approximation, with the
    /// average Q, and keeps what the rank's own lacks.
    fn take_over(&mut self, matrix: &Matrix, average: &[f32], values: &mut [f32]) {
        let Matrix {
            shape, left, right, ..
        } = matrix;
        let columns = shape.columns;
        let mut own = vec![0.0; columns];
        let rows = values.chunks_exact_mut(columns);
        for (at, (values, error)) in rows.zip(self.error.chunks_exact_mut(columns)).enumerate() {
            product_row(*shape, at, left, right, &mut own);
            for ((error, value), own) in error.iter_mut().zip(&*values).zip(&own) {
                *error = value - own;
            }
            product_row(*shape, at, left, average, values);
        }
        let bases = self.basis.chunks_exact_mut(columns);
        for (basis, average) in bases.zip(average.chunks_exact(columns)) {
            // From a zero column there would be no way back.
            if average.iter().any(|one| *one != 0.0) {
                basis.copy_from_slice(average);
            }
        }
    }
}

impl Hook for PowerSgd {
    fn name(&self) -> String {
        let Self {
            rank,
            seed,
            start_after,
            ..
        } = self;
        format!("PowerSGD of rank {rank} with seed {seed} after {start_after} steps")
    }

    fn stages(&self) -> usize {
        2
    }

    fn start(&mut self, bucket: &BucketInfo, mut values: Vec<f32>) -> Exchange {
        let matrices = self.matrices(bucket);
        if matrices.is_empty() {
            return Exchange::AllReduce(values.into(), ReduceOp::Avg, None);
        }
        let mut sent = Vec::new();
        for Matrix { number, shape, .. } in &matrices {
            let (range, parameter) = &bucket.parameters[*number];
            let matrix = &mut values[range.clone()];
            let is_zero = matrix.iter().all(|one| *one == 0.0);
            sent.push(if is_zero { 0.0 } else { 1.0 });
            let memory = &self.memories[&parameter.name];
            for (value, error) in matrix.iter_mut().zip(&memory.error) {
                *value += error;
            }
            let start = sent.len();
            sent.resize(start + shape.left_count(), 0.0);
            left_of(*shape, matrix, &memory.basis, &mut sent[start..]);
        }
        for (number, (range, _)) in bucket.parameters.iter().enumerate() {
            if !matrices.iter().any(|matrix| matrix.number == number) {
                sent.extend_from_slice(&values[range.clone()]);
            }
        }
        let travelling = Travelling { values, matrices };
        self.travelling.insert(bucket.index, travelling);
        Exchange::AllReduce(sent.into(), ReduceOp::Avg, None)
    }

    fn resume(&mut self, bucket: &BucketInfo, stage: usize, values: Values) -> Next {
        let averaged: Vec<f32> = values
            .try_into()
            .expect("invariant: f32 was sent, and what returns has its type");
        let Some(mut travelling) = self.travelling.remove(&bucket.index) else {
            return Next::Done(averaged);
        };
        if stage > 0 {
            return Next::Done(self.finish(bucket, travelling, &averaged));
        }
        let exchange = self.second(bucket, &mut travelling, &averaged);
        self.travelling.insert(bucket.index, travelling);
        Next::Exchange(exchange)
    }

    /// For every matrix: `error/NAME`, this rank's own; `basis/NAME` and `steps/NAME`, all ranks'.
    fn state(&self) -> Vec<(String, Vec<f32>)> {
        let entries = |(name, memory): (&String, &Memory)| {
            [
                (format!("{ERROR}/{name}"), memory.error.clone()),
                (format!("{BASIS}/{name}"), memory.basis.clone()),
                (format!("{STEPS}/{name}"), vec![memory.steps as f32]),
            ]
        };
        self.memories.iter().flat_map(entries).collect()
    }

    fn is_shared(&self, name: &str) -> bool {
        !name.starts_with(ERROR)
    }

    fn restore(&mut self, state: Vec<(String, Vec<f32>)>) -> Result<(), String> {
        self.memories.clear();
        self.travelling.clear();
        for (key, values) in state {
            let foreign = || format!("PowerSGD has no state called {key}");
            let (kind, name) = key.split_once('/').ok_or_else(foreign)?;
            let memory = self.memories.entry(name.to_owned()).or_default();
            match kind {
                ERROR => memory.error = values,
                BASIS => memory.basis = values,
                STEPS => memory.steps = values.first().map_or(0, |steps| *steps as u64),
                _ => return Err(foreign()),
            }
        }
        Ok(())
    }
}
