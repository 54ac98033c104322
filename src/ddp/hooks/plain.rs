//! Averages gradients without any further processing.

use super::{BucketInfo, Exchange, Hook, Next};
use crate::ddp::values::Values;
use crate::op::ReduceOp;

/// A hook that averages gradients with a single all-reduce and does no further processing. This is
/// the default hook.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl Hook for Plain {
    fn name(&self) -> String {
        "plain".into()
    }

    fn start(&mut self, _: &BucketInfo, gradients: Vec<f32>) -> Exchange {
        Exchange::AllReduce(gradients.into(), ReduceOp::Avg, None)
    }

    fn resume(&mut self, _: &BucketInfo, _: usize, values: Values) -> Next {
        Next::Done(values.try_into().unwrap_or_default())
    }
}
