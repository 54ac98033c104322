//! Gradients in 16 bits on the wire.

use crate::ddp::hooks::{BucketInfo, Exchange, Hook, Next};
use crate::ddp::values::Values;
use crate::dtype::Dtype;
use crate::op::ReduceOp;
use crate::plan::Algorithm;
use half::slice::HalfFloatSliceExt;

/// Exchanges f32 gradients in 16 bits: half the bytes.
///
/// A gradient is rounded twice, whatever the number of ranks. Every rank rounds its own to 16 bits;
/// the owner of a shard folds all ranks' values in f32, divides, and rounds once; the shards are
/// gathered in 16 bits, and the owner keeps the rounded values like every other rank, so that all
/// ranks have the same bits. With unit roundoff u, the error is at most u · (mean of the ranks'
/// magnitudes + magnitude of the mean), but for terms of order u².
///
/// [`HalfHook::bf16`] (u = 2⁻⁸) has the range of f32. [`HalfHook::f16`] (u = 2⁻¹¹) is more precise,
/// but what is above 65,504 on a rank becomes infinite, and below 6·10⁻⁵ its steps are a constant
/// 6·10⁻⁸, so that each rounding may err by another 2⁻²⁵, which is a third of a gradient of 10⁻⁷:
/// scale the loss so that gradients lie between, and leave out a step with infinite ones. Sums do
/// not overflow, for they are in f32 until they are divided.
///
/// ```
/// use ringtree::{Dtype, ddp::{DataParallel, HalfHook, Options, Parameter}};
/// let means = ringtree::simulate(3, |comm| {
///     let parameters = vec![Parameter::new("weight", &[2], Dtype::F32)];
///     let options = Options::new().hook(HalfHook::bf16());
///     let mut model = DataParallel::new(comm, parameters, options)?;
///     model.report(0, &[comm.rank() as f32, 1.0 / 3.0])?;
///     model.wait()?;
///     Ok::<_, ringtree::Error>(model.gradient::<f32>(0)?.map(<[_]>::to_vec))
/// });
/// assert_eq!(means, vec![Ok(Some(vec![1.0, 0.333_984_38])); 3]);
/// ```
#[derive(Clone, Debug)]
pub struct HalfHook {
    dtype: Dtype,
    /// By bucket: the vectors of its last step, to be used again.
    spare: Vec<Spare>,
}

/// Memory of a bucket.
#[derive(Clone, Debug, Default)]
struct Spare {
    wide: Vec<f32>,
    narrow: Option<Values>,
}

impl HalfHook {
    /// In bfloat16.
    #[must_use]
    pub fn bf16() -> Self {
        Self {
            dtype: Dtype::Bf16,
            spare: Vec::new(),
        }
    }

    /// In IEEE half precision.
    #[must_use]
    pub fn f16() -> Self {
        Self {
            dtype: Dtype::F16,
            spare: Vec::new(),
        }
    }

    fn spare(&mut self, bucket: &BucketInfo) -> &mut Spare {
        if self.spare.len() <= bucket.index {
            self.spare.resize_with(bucket.index + 1, Spare::default);
        }
        &mut self.spare[bucket.index]
    }
}

impl Hook for HalfHook {
    fn name(&self) -> String {
        self.dtype.to_string()
    }

    fn start(&mut self, bucket: &BucketInfo, gradients: Vec<f32>) -> Exchange {
        let dtype = self.dtype;
        let spare = self.spare(bucket);
        let narrow = spare.narrow.take();
        let mut narrow = narrow
            .filter(|values| values.count() == gradients.len())
            .unwrap_or_else(|| Values::zeros(dtype, gradients.len()));
        match &mut narrow {
            Values::Bf16(values) => values.convert_from_f32_slice(&gradients),
            Values::F16(values) => values.convert_from_f32_slice(&gradients),
            _ => {}
        }
        spare.wide = gradients;
        // Its reduce-scatter is one fold of all ranks' values: the sum and the division are in f32,
        // and the result is rounded once.
        Exchange::AllReduce(narrow, ReduceOp::Avg, Some(Algorithm::TwoShot))
    }

    fn resume(&mut self, bucket: &BucketInfo, _: usize, averaged: Values) -> Next {
        let spare = self.spare(bucket);
        let mut wide = std::mem::take(&mut spare.wide);
        wide.resize(bucket.count, 0.0);
        match &averaged {
            Values::Bf16(values) => values.convert_to_f32_slice(&mut wide),
            Values::F16(values) => values.convert_to_f32_slice(&mut wide),
            _ => {}
        }
        spare.narrow = Some(averaged);
        Next::Done(wide)
    }
}
