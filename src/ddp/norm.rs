//! Computes the norm of the averaged gradient and clips the gradient. The norm has the same bits on
//! all ranks.
//!
//! After the exchange, each rank sums the squares of the elements in its block of each bucket in
//! f64. This takes one pass over 1/n of the gradient, where n is the number of ranks. The ranks
//! exchange these sums and add them in bucket order and, within each bucket, in rank order.
//! Therefore, all ranks get the same bits. A rank that has only its own block of each bucket
//! ([`Options::sharded`](super::Options::sharded)) computes the same norm as a rank that has all
//! blocks.

use super::flight::Content;
use super::options::NonFinite;
use super::parallel::DataParallel;
use super::values::Values;
use crate::error::{Error, Result};

impl DataParallel {
    /// Returns the Euclidean norm of the last step's averaged gradient, taken over all parameters
    /// before clipping.
    ///
    /// The norm has the same bits on all ranks. This method requires
    /// [`Options::clip_norm`](super::Options::clip_norm).
    #[must_use]
    pub fn gradient_norm(&self) -> Option<f64> {
        self.norm
    }

    /// Computes the norm together with all other ranks. Each rank contributes the sum of the
    /// squares in its block of every bucket.
    pub(super) fn agree_on_norm(&mut self) -> Result<()> {
        self.norm = None;
        if self.options.clip.is_none() {
            return Ok(());
        }
        let comm = &self.comms[0];
        let buckets = self.contents.len();
        let mut sums = vec![0.0; comm.world_size() * buckets];
        let own = &mut sums[comm.rank() * buckets..][..buckets];
        for (sum, content) in own.iter_mut().zip(&self.contents) {
            if let Content::Here(values) = content {
                *sum = values.squares(comm.block(values.count()));
            }
        }
        comm.all_gather(&mut sums)?;
        let in_order = (0..buckets).flat_map(|bucket| sums[bucket..].iter().step_by(buckets));
        self.norm = Some(in_order.sum::<f64>().sqrt());
        Ok(())
    }

    /// Scales this rank's gradient down to the maximum norm if its norm is larger. If the norm is
    /// not finite, applies [`NonFinite`].
    pub(super) fn clip(&mut self) -> Result<()> {
        let (Some(longest), Some(norm)) = (self.options.clip, self.norm) else {
            return Ok(());
        };
        if !norm.is_finite() {
            return self.without_norm(norm);
        }
        if norm <= longest {
            return Ok(());
        }
        for index in 0..self.contents.len() {
            let range = self.own_range(&self.layout.buckets[index]);
            if let Content::Here(values) = &mut self.contents[index] {
                values.scale(range, longest / norm);
            }
        }
        Ok(())
    }

    /// Applies [`NonFinite`] to a step whose norm is infinite or NaN. The norm is the same on all
    /// ranks, so all ranks treat the step the same way.
    fn without_norm(&mut self, norm: f64) -> Result<()> {
        match self.options.non_finite {
            NonFinite::Ignore => {}
            NonFinite::Skip => self.skip_step(),
            NonFinite::Fail => {
                return Err(Error::usage(format!(
                    "the norm of the averaged gradient of step {} is {norm}: every rank's gradient \
                     is finite, but the sum of the gradients or its square is not; reduce the \
                     learning rate or the loss scale, or use `NonFinite::Skip` to skip such steps",
                    self.steps
                )));
            }
        }
        Ok(())
    }
}

/// Number of partial sums. They are independent so that the compiler can use vector instructions.
const LANES: usize = 8;

/// Returns the sum of the squares of `values`. The order of additions depends only on the number of
/// values.
pub(super) fn squares<T: Copy>(values: &[T], wide: impl Fn(T) -> f64) -> f64 {
    let mut lanes = [0.0; LANES];
    for values in values.chunks(LANES) {
        for (lane, value) in lanes.iter_mut().zip(values) {
            let value = wide(*value);
            *lane += value * value;
        }
    }
    lanes.iter().sum()
}

impl Values {
    /// Returns the sum of the squares of the elements in `range`, or 0 if the elements are
    /// integers.
    fn squares(&self, range: std::ops::Range<usize>) -> f64 {
        match self {
            Self::F32(values) => squares(&values[range], f64::from),
            Self::F64(values) => squares(&values[range], |one| one),
            Self::F16(values) => squares(&values[range], f64::from),
            Self::Bf16(values) => squares(&values[range], f64::from),
            _ => 0.0,
        }
    }

    /// Multiplies the elements in `range` by `factor`, unless they are integers. The factor and the
    /// products are f32 (or f64 for f64 elements), and each product is rounded once to the
    /// elements' type.
    fn scale(&mut self, range: std::ops::Range<usize>, factor: f64) {
        let short = factor as f32;
        match self {
            Self::F32(values) => values[range].iter_mut().for_each(|one| *one *= short),
            Self::F64(values) => values[range].iter_mut().for_each(|one| *one *= factor),
            Self::F16(values) => values[range]
                .iter_mut()
                .for_each(|one| *one = half::f16::from_f32(one.to_f32() * short)),
            Self::Bf16(values) => values[range]
                .iter_mut()
                .for_each(|one| *one = half::bf16::from_f32(one.to_f32() * short)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
