//! Defines the hooks that turn a bucket's gradients into their averages across all ranks.

mod half;
mod matrix;
mod plain;
mod power_sgd;

pub use half::HalfHook;
pub use plain::Plain;
pub use power_sgd::PowerSgd;

use super::parameter::Parameter;
use super::values::Values;
use crate::error::Result;
use crate::op::ReduceOp;
use crate::plan::Algorithm;
use std::ops::Range;

/// Description of a bucket, for hooks and carriers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketInfo {
    /// Position of the bucket in launch order.
    pub index: usize,
    /// This process's rank.
    pub rank: usize,
    /// Number of ranks.
    pub world_size: usize,
    /// Number of elements in the bucket.
    pub count: usize,
    /// Parameters in the bucket, each with the range of its elements.
    pub parameters: Vec<(Range<usize>, Parameter)>,
}

/// A collective that a hook requests. All ranks take part in it.
#[derive(Clone, Debug, PartialEq)]
pub enum Exchange {
    /// Every rank gets the reduction of all ranks' values. If the algorithm is `None`, the call
    /// chooses one.
    AllReduce(Values, ReduceOp, Option<Algorithm>),
    /// Every rank gets its own block (see [`Communicator::block`](crate::Communicator::block)) of
    /// the reduction. The contents of the other blocks are unspecified.
    ReduceScatter(Values, ReduceOp),
    /// Every rank gets the blocks of all ranks.
    AllGather(Values),
}

/// A hook's decision after an exchange.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Another exchange, in the next stage.
    Exchange(Exchange),
    /// The averaged gradients, one for each element of the bucket.
    Done(Vec<f32>),
}

/// A hook that processes a bucket's f32 gradients between the backward pass and the optimizer.
///
/// Buckets of other types are averaged without the hook.
///
/// A bucket passes through one or more *stages*. Each stage is one collective. The stages of
/// different buckets overlap. Each stage number has its own communicator, on which the stages with
/// that number are issued in bucket order, so that all ranks issue the same calls. [`Hook::start`]
/// and [`Hook::resume`] must base their decisions only on values that are the same on all ranks:
/// the bucket and the results of exchanges. Together, the two methods must average the gradients
/// exactly once.
///
/// ```
/// use ringtree::internal::ddp::{BucketInfo, Exchange, Hook, Next, Values};
/// use ringtree::ReduceOp;
///
/// /// Averages the signs of the gradients.
/// struct Signs;
///
/// impl Hook for Signs {
///     fn name(&self) -> String {
///         "signs".into()
///     }
///     fn start(&mut self, _: &BucketInfo, gradients: Vec<f32>) -> Exchange {
///         let signs: Vec<f32> = gradients.into_iter().map(f32::signum).collect();
///         Exchange::AllReduce(signs.into(), ReduceOp::Avg, None)
///     }
///     fn resume(&mut self, _: &BucketInfo, _: usize, averaged: Values) -> Next {
///         Next::Done(averaged.try_into().expect("the type that was sent"))
///     }
/// }
/// # let _: Box<dyn Hook> = Box::new(Signs);
/// ```
pub trait Hook: Send {
    /// Returns the name of the hook, including all settings that must be the same on all ranks. The
    /// ranks compare this name.
    fn name(&self) -> String;

    /// Returns the maximum number of exchanges per bucket.
    fn stages(&self) -> usize {
        1
    }

    /// Returns the first exchange to perform for a bucket that contains this rank's `gradients`.
    fn start(&mut self, bucket: &BucketInfo, gradients: Vec<f32>) -> Exchange;

    /// Decides what to do after the exchange in `stage` (counted from 0) has returned `values`.
    fn resume(&mut self, bucket: &BucketInfo, stage: usize, values: Values) -> Next;

    /// Returns this rank's named state, for use in a checkpoint.
    fn state(&self) -> Vec<(String, Vec<f32>)> {
        Vec::new()
    }

    /// Returns `true` if the state called `name` is the same on all ranks. If it is, ranks for
    /// which a checkpoint contains no such state get the state of rank 0.
    fn is_shared(&self, name: &str) -> bool {
        let _ = name;
        false
    }

    /// Restores the state that [`Hook::state`] returned in an earlier run.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Usage`](crate::ErrorKind::Usage) if the state does not match.
    fn restore(&mut self, state: Vec<(String, Vec<f32>)>) -> Result<()> {
        let _ = state;
        Ok(())
    }
}
