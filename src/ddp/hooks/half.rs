//! Sends gradients as 16-bit values.

use crate::ddp::hooks::{BucketInfo, Exchange, Hook, Next};
use crate::ddp::values::Values;
use crate::dtype::Dtype;
use crate::op::ReduceOp;
use crate::plan::Algorithm;
use half::slice::HalfFloatSliceExt;
use std::collections::BTreeMap;

/// A hook that exchanges f32 gradients as 16-bit values, which halves the number of bytes.
///
/// Each gradient is rounded twice, regardless of the number of ranks. First, every rank rounds its
/// gradients to 16 bits. The owner of each block then sums all ranks' values in f32, divides the
/// sum by the number of ranks, and rounds the result to 16 bits. Finally, the blocks are gathered
/// as 16-bit values. The owner of a block also uses the rounded values, so all ranks end up with
/// the same bits. With unit roundoff u, the error is at most u · (mean of the ranks' magnitudes +
/// magnitude of the mean), ignoring terms of order u².
///
/// [`HalfHook::bf16`] (u = 2⁻⁸) has the same range as f32. [`HalfHook::f16`] (u = 2⁻¹¹) is more
/// precise but has a smaller range. Values above 65,504 on any rank become infinite. Below 6·10⁻⁵,
/// the distance between adjacent representable values is a constant 6·10⁻⁸, so each rounding can
/// add an error of up to 2⁻²⁵, which is a third of a gradient of 10⁻⁷. Scale the loss so that the
/// gradients lie between these limits, and skip steps that have infinite gradients. Sums do not
/// overflow because they remain in f32 until they are divided.
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
    /// Vectors from the last step that are kept for reuse, by bucket index.
    spare: BTreeMap<usize, Spare>,
}

/// Vectors that each step reuses for the same bucket.
#[derive(Clone, Debug, Default)]
struct Spare {
    wide: Vec<f32>,
    narrow: Option<Values>,
}

impl HalfHook {
    /// Creates a hook that sends gradients as bfloat16.
    #[must_use]
    pub fn bf16() -> Self {
        Self::new(Dtype::Bf16)
    }

    /// Creates a hook that sends gradients in IEEE half precision.
    #[must_use]
    pub fn f16() -> Self {
        Self::new(Dtype::F16)
    }

    fn new(dtype: Dtype) -> Self {
        let spare = BTreeMap::new();
        Self { dtype, spare }
    }
}

impl Hook for HalfHook {
    fn name(&self) -> String {
        self.dtype.to_string()
    }

    fn start(&mut self, bucket: &BucketInfo, gradients: Vec<f32>) -> Exchange {
        let spare = self.spare.entry(bucket.index).or_default();
        let narrow = spare.narrow.take();
        let mut narrow = narrow
            .filter(|values| values.count() == gradients.len())
            .unwrap_or_else(|| Values::zeros(self.dtype, gradients.len()));
        match &mut narrow {
            Values::Bf16(values) => values.convert_from_f32_slice(&gradients),
            Values::F16(values) => values.convert_from_f32_slice(&gradients),
            _ => {}
        }
        spare.wide = gradients;
        // In two-shot, the reduce-scatter reduces all ranks' values in a single operation. The sum
        // and the division are in f32, and the result is rounded once.
        Exchange::AllReduce(narrow, ReduceOp::Avg, Some(Algorithm::TwoShot))
    }

    fn resume(&mut self, bucket: &BucketInfo, _: usize, averaged: Values) -> Next {
        let spare = self.spare.entry(bucket.index).or_default();
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
