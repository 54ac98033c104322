//! Sends each gradient matrix as two thin matrices whose product approximates it.

use super::matrix::{Shape, left_of, orthonormalize, product_row, right_of};
use crate::ddp::hooks::{BucketInfo, Exchange, Hook, Next};
use crate::ddp::random::fill_uniform;
use crate::ddp::values::Values;
use crate::error::{Error, Result};
use crate::op::ReduceOp;
use std::collections::BTreeMap;

/// Prefixes of a matrix's entries in [`Hook::state`]. Each is followed by a slash and the
/// parameter's name.
const ERROR: &str = "error";
const BASIS: &str = "basis";
const STEPS: &str = "steps";

/// A hook that approximates each m × n gradient matrix M by P·Qᵀ, where P is an m × r matrix and Q
/// is an n × r matrix, and sends P and Q instead of M.
///
/// The hook therefore sends r(m + n) + 1 elements instead of m·n. The part of the gradient that is
/// lost in the approximation is added to the gradient of the next step (*error feedback*), so
/// nothing is lost over multiple steps.
///
/// In each step, every rank does the following:
///
/// 1. Add the error of the previous step to M.
/// 2. Average P = M·Q across the ranks (first stage), and make the columns of P orthonormal.
/// 3. Average Q = Mᵀ·P across the ranks (second stage). P·Qᵀ is then used as the gradient, and the
///    next step starts with this Q.
/// 4. Keep M − P·Qᵀ as the new error, where Q is this rank's matrix from before averaging.
///
/// The mean of all ranks' errors is the part that is missing from the average. Each rank's error
/// stays as small as that rank's gradients, even if the gradients differ greatly between ranks.
///
/// A parameter is treated as a matrix whose number of rows is the parameter's first extent.
/// Vectors, and matrices that would not shrink to half their size or less, are sent uncompressed in
/// the first stage.
///
/// If the gradient of a matrix is zero on all ranks, as for an unused parameter, the gradient
/// remains zero and the error does not change. If any element is infinite or NaN on any rank, the
/// matrix's entire gradient becomes NaN on all ranks and the error does not change. Skip such
/// steps.
///
/// The error is stored under the parameter's name. It differs between ranks, so a checkpoint needs
/// the [`Hook::state`] of every rank.
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
///     // Every rank has a matrix of rank 1. The average has rank 2 and is exact.
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
    /// Buckets that are between their two stages, by bucket index.
    travelling: BTreeMap<usize, InFlight>,
}

/// State of a matrix that is kept between steps.
#[derive(Clone, Debug, Default, PartialEq)]
struct Memory {
    error: Vec<f32>,
    /// The matrix Q with which the next step starts.
    basis: Vec<f32>,
    /// Number of steps so far in which the matrix was sent uncompressed.
    steps: u64,
}

/// A bucket that is between its two stages.
#[derive(Clone, Debug)]
struct InFlight {
    /// The bucket's elements. Compressed matrices include their errors. After the first stage, all
    /// other elements are averages.
    values: Vec<f32>,
    matrices: Vec<Matrix>,
}

/// A matrix in a bucket that is sent in compressed form.
#[derive(Clone, Debug)]
struct Matrix {
    /// Index of the matrix in [`BucketInfo::parameters`].
    number: usize,
    shape: Shape,
    /// P, averaged across ranks and with orthonormal columns. Empty before the first stage
    /// completes.
    left: Vec<f32>,
    /// This rank's Q, before averaging.
    right: Vec<f32>,
    fate: Treatment,
}

/// How a matrix is treated in this step. Ranks derive this from averages, so all ranks agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Treatment {
    /// The matrix is compressed.
    Moves,
    /// All ranks' gradients are zero.
    Rests,
    /// An element is infinite or NaN on some rank.
    NonFinite,
}

impl PowerSgd {
    /// Creates a hook whose approximating matrices have the rank `rank`, which is usually between 1
    /// and 4. A rank of 0 is treated as 1.
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

    /// Sets the seed for the random matrix Q that is used in the first compressed step.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Makes the hook send everything uncompressed during the first `steps` steps, when gradients
    /// change the most.
    #[must_use]
    pub fn start_after(self, steps: u64) -> Self {
        Self {
            start_after: steps,
            ..self
        }
    }

    /// Returns the matrices in a bucket that are compressed in this step. For the other matrices,
    /// counts this step as an uncompressed one.
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
                fate: Treatment::Moves,
            });
        }
        matrices
    }

    /// Returns the bucket's averaged gradients. `rest` contains the averages of Q for all of the
    /// bucket's compressed matrices.
    fn finish(
        &mut self,
        bucket: &BucketInfo,
        mut travelling: InFlight,
        mut rest: &[f32],
    ) -> Vec<f32> {
        for mut matrix in travelling.matrices {
            let right = rest
                .split_off(..matrix.shape.right_count())
                .unwrap_or_default();
            if !right.iter().all(|one| one.is_finite()) {
                matrix.fate = Treatment::NonFinite;
            }
            let (range, parameter) = &bucket.parameters[matrix.number];
            let values = &mut travelling.values[range.clone()];
            match matrix.fate {
                Treatment::Rests => values.fill(0.0),
                Treatment::NonFinite => values.fill(f32::NAN),
                Treatment::Moves => {
                    let memory = self.memories.entry(parameter.name.clone()).or_default();
                    memory.take_over(&matrix, right, values);
                }
            }
        }
        travelling.values
    }
}

impl InFlight {
    /// Stores the averages of P and of all uncompressed elements, and returns the second exchange.
    fn second(&mut self, bucket: &BucketInfo, mut averaged: &[f32]) -> Exchange {
        let Self { values, matrices } = self;
        let mut take = |count: usize| averaged.split_off(..count).unwrap_or_default();
        let mut sent = Vec::new();
        for matrix in matrices.iter_mut() {
            let shape = matrix.shape;
            let is_zero = take(1) == [0.0];
            matrix.left = take(shape.left_count()).to_vec();
            matrix.fate = match matrix.left.iter().all(|one| one.is_finite()) {
                _ if is_zero => Treatment::Rests,
                true => Treatment::Moves,
                false => Treatment::NonFinite,
            };
            matrix.right = vec![0.0; shape.right_count()];
            if matrix.fate == Treatment::Moves {
                orthonormalize(shape.rows, &mut matrix.left);
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
}

impl Memory {
    /// Initializes the error and the basis if they are missing or have a different size.
    fn fit(&mut self, shape: Shape, seed: u64, name: &str) {
        if self.error.len() != shape.rows * shape.columns {
            self.error = vec![0.0; shape.rows * shape.columns];
        }
        if self.basis.len() != shape.right_count() {
            self.basis = vec![0.0; shape.right_count()];
            fill_uniform(&mut self.basis, seed, name);
        }
    }

    /// Replaces `values`, which contains the gradient plus the error, with the approximation
    /// computed from the average Q. The new error is the difference between the old `values` and
    /// the approximation computed from this rank's Q.
    fn take_over(&mut self, matrix: &Matrix, average: &[f32], values: &mut [f32]) {
        let (shape, columns) = (matrix.shape, matrix.shape.columns);
        let mut own = vec![0.0; columns];
        let rows = values.chunks_exact_mut(columns);
        for (at, (values, error)) in rows.zip(self.error.chunks_exact_mut(columns)).enumerate() {
            product_row(shape, at, &matrix.left, &matrix.right, &mut own);
            for ((error, value), own) in error.iter_mut().zip(&*values).zip(&own) {
                *error = value - own;
            }
            product_row(shape, at, &matrix.left, average, values);
        }
        let bases = self.basis.chunks_exact_mut(columns);
        for (basis, average) in bases.zip(average.chunks_exact(columns)) {
            // If a column is zero, keep the previous one, because a zero column would stay zero in
            // all later steps.
            if average.iter().any(|one| *one != 0.0) {
                basis.copy_from_slice(average);
            }
        }
    }
}

impl Hook for PowerSgd {
    fn name(&self) -> String {
        format!(
            "PowerSGD of rank {} with seed {} after {} steps",
            self.rank, self.seed, self.start_after
        )
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
        let travelling = InFlight { values, matrices };
        self.travelling.insert(bucket.index, travelling);
        Exchange::AllReduce(sent.into(), ReduceOp::Avg, None)
    }

    fn resume(&mut self, bucket: &BucketInfo, stage: usize, values: Values) -> Next {
        let averaged: Vec<f32> = values
            .try_into()
            .expect("invariant: f32 was sent, and the result has the same type");
        let Some(mut travelling) = self.travelling.remove(&bucket.index) else {
            return Next::Done(averaged);
        };
        if stage > 0 {
            return Next::Done(self.finish(bucket, travelling, &averaged));
        }
        let exchange = travelling.second(bucket, &averaged);
        self.travelling.insert(bucket.index, travelling);
        Next::Exchange(exchange)
    }

    /// Returns three entries for every matrix. `error/NAME` differs between ranks, whereas
    /// `basis/NAME` and `steps/NAME` do not.
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

    fn restore(&mut self, state: Vec<(String, Vec<f32>)>) -> Result<()> {
        self.memories.clear();
        self.travelling.clear();
        for (key, values) in state {
            let foreign = || Error::usage(format!("PowerSGD has no state named {key}"));
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
