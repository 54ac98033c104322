//! Computes the norm of the averaged gradient and clips the gradient. The norm has the same bits on
//! all ranks.
//!
//! After the exchange, each rank sums the squares of the elements in its block of each bucket in
//! f64. This takes one pass over 1/n of the gradient, where n is the number of ranks. The ranks
//! exchange these sums and add them in bucket order and, within each bucket, in rank order.
//! Therefore, all ranks get the same bits. A rank that has only its own block of each bucket
//! ([`Options::sharded`](super::Options::sharded)) computes the same norm as a rank that has all
//! blocks.

use super::options::NonFinite;
use super::parallel::{Content, DataParallel};
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

    /// Computes the norm together with all other ranks. Each rank contributes its block of every
    /// bucket.
    pub(super) fn agree_on_norm(&mut self) -> Result<()> {
        self.norm = None;
        if self.clip.is_none() {
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
        let (Some(longest), Some(norm)) = (self.clip, self.norm) else {
            return Ok(());
        };
        if !norm.is_finite() {
            return self.without_norm(norm);
        }
        if norm <= longest {
            return Ok(());
        }
        for (content, bucket) in self.contents.iter_mut().zip(&self.layout.buckets) {
            let range = match self.is_sharded {
                true => self.comms[0].block(bucket.count),
                false => 0..bucket.count,
            };
            if let Content::Here(values) = content {
                values.scale(range, longest / norm);
            }
        }
        Ok(())
    }

    /// Handles a norm that is infinite or NaN on all ranks.
    fn without_norm(&mut self, norm: f64) -> Result<()> {
        match self.on_non_finite {
            NonFinite::Ignore => {}
            NonFinite::Skip => self.leave_out(),
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

/// Number of independent sums, so that the compiler can use vector instructions.
const LANES: usize = 8;

/// Returns the sum of the squares. The order of additions depends only on the number of values.
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
    /// Returns the sum of the squares of floating-point elements.
    fn squares(&self, range: std::ops::Range<usize>) -> f64 {
        match self {
            Self::F32(values) => squares(&values[range], f64::from),
            Self::F64(values) => squares(&values[range], |one| one),
            Self::F16(values) => squares(&values[range], f64::from),
            Self::Bf16(values) => squares(&values[range], f64::from),
            _ => 0.0,
        }
    }

    /// Multiplies floating-point elements by `factor`. The factor and the products are f32 (or f64
    /// for f64 elements), and each product is rounded once to the elements' type.
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
mod tests {
    use super::*;
    use crate::ddp::{BucketSize, Options, Parameter};
    use crate::dtype::Dtype;

    /// The norm, the gradients after `wait`, and the number of skipped steps.
    type End = Result<(Option<f64>, Vec<f32>, u64)>;

    /// Runs one step on `ranks` ranks. Rank r reports `factor` · (r + 1) · (1, 2, 3, …) for each of
    /// three parameters.
    fn step(ranks: usize, options: fn() -> Options, factor: f32) -> Vec<End> {
        crate::simulate(ranks, move |comm| {
            let counts = [5, 1, 300];
            let parameter = |(at, count): (usize, &usize)| {
                Parameter::new(&format!("p{at}"), &[*count], Dtype::F32)
            };
            let parameters = counts.iter().enumerate().map(parameter).collect();
            let options = options().buckets(BucketSize::Bytes(1000));
            let mut model = DataParallel::new(comm, parameters, options)?;
            for (number, count) in counts.into_iter().enumerate() {
                let one = |at: usize| factor * (comm.rank() + 1) as f32 * (at + 1) as f32;
                let gradient: Vec<f32> = (0..count).map(one).collect();
                model.report(number, &gradient)?;
            }
            model.wait()?;
            let mut all = Vec::new();
            for number in 0..counts.len() {
                let gradient = model.gradient::<f32>(number)?;
                all.extend_from_slice(gradient.unwrap_or_default());
            }
            Ok((model.gradient_norm(), all, model.skipped()))
        })
    }

    fn length(of: &[f32]) -> f64 {
        of.iter()
            .map(|one| f64::from(*one).powi(2))
            .sum::<f64>()
            .sqrt()
    }

    #[test]
    fn a_long_gradient_is_shortened_to_the_norm_and_a_short_one_left_alone() {
        for ranks in [1, 2, 3, 5] {
            let plain = step(ranks, Options::new, 1.0);
            let (none, full, _) = plain[0].as_ref().unwrap();
            assert_eq!(*none, None);
            let clipped = step(ranks, || Options::new().clip_norm(2.0), 1.0);
            assert!(
                clipped.iter().all(|end| *end == clipped[0]),
                "{ranks} ranks"
            );
            let (norm, short, _) = clipped[0].as_ref().unwrap();
            let norm = norm.unwrap();
            assert!((norm / length(full) - 1.0).abs() < 1e-12, "{norm}");
            assert!(
                (length(short) / 2.0 - 1.0).abs() < 1e-6,
                "{}",
                length(short)
            );
            let scaled = full.iter().map(|one| one * (2.0 / norm) as f32);
            assert_eq!(*short, scaled.collect::<Vec<_>>());
            let same = step(ranks, || Options::new().clip_norm(1e9), 1.0);
            assert_eq!(same[0].as_ref().unwrap().1, *full);
        }
    }

    #[test]
    fn a_norm_that_overflows_is_treated_as_a_gradient_that_is_not_finite() {
        // Every gradient is finite, but the sum of the largest is not.
        let large = f32::MAX / 601.0;
        let ignored = step(2, || Options::new().clip_norm(1.0), large);
        assert_eq!(ignored[0].as_ref().unwrap().0, Some(f64::INFINITY));
        let skip = || Options::new().clip_norm(1.0).non_finite(NonFinite::Skip);
        for end in step(2, skip, large) {
            let (_, gradients, skipped) = end.unwrap();
            assert_eq!((gradients.len(), skipped), (0, 1));
        }
        let fail = || Options::new().clip_norm(1.0).non_finite(NonFinite::Fail);
        for end in step(2, fail, large) {
            let line = end.unwrap_err().to_string();
            assert!(line.contains("norm") && line.contains("step 0"), "{line}");
        }
    }
}
