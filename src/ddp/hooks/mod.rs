//! How a bucket of gradients becomes the average of all ranks'.

mod half;
mod matrix;
mod plain;
mod power_sgd;

pub use half::HalfHook;
pub use plain::Plain;
pub use power_sgd::PowerSgd;

use super::parameter::Parameter;
use super::values::Values;
use crate::op::ReduceOp;
use crate::plan::Algorithm;
use std::ops::Range;

/// A bucket, as a hook sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketInfo {
    /// Its place in the order of launches.
    pub index: usize,
    /// This rank.
    pub rank: usize,
    /// How many ranks there are.
    pub world_size: usize,
    /// Elements in it.
    pub count: usize,
    /// The parameters, with their elements of the bucket.
    pub parameters: Vec<(Range<usize>, Parameter)>,
}

/// A collective over all ranks that a hook wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Exchange {
    /// Every rank gets the reduction of all ranks' values, by this algorithm or the chosen one.
    AllReduce(Values, ReduceOp, Option<Algorithm>),
    /// Every rank gets its block ([`Communicator::block`](crate::Communicator::block)) of the
    /// reduction; the rest is unspecified.
    ReduceScatter(Values, ReduceOp),
    /// Every rank gets the blocks of all ranks.
    AllGather(Values),
}

/// What follows on the end of an exchange.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// One more exchange, the next stage.
    Exchange(Exchange),
    /// The averaged gradients, as many as there were.
    Done(Vec<f32>),
}

/// What is done with the f32 gradients of a bucket between backward and the optimizer. (Buckets of
/// other types are averaged as they are.)
///
/// A bucket goes through one or several *stages*, each a collective. The stages of different
/// buckets overlap; those of one number are issued in the order of the buckets, on a communicator
/// of their own, so that all ranks issue the same. Both methods must decide by what all ranks have
/// in common alone (the bucket, what the exchanges returned), and average exactly once.
///
/// ```
/// use ringtree::ddp::{BucketInfo, Exchange, Hook, Next, Values};
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
    /// Its name with all that ranks must agree on, for they compare it.
    fn name(&self) -> String;

    /// The most exchanges a bucket goes through.
    fn stages(&self) -> usize {
        1
    }

    /// The first exchange of a bucket with this rank's gradients.
    fn start(&mut self, bucket: &BucketInfo, gradients: Vec<f32>) -> Exchange;

    /// The exchange of `stage` (from 0) has returned `values`.
    fn resume(&mut self, bucket: &BucketInfo, stage: usize, values: Values) -> Next;

    /// What this rank must carry into a checkpoint, by name.
    fn state(&self) -> Vec<(String, Vec<f32>)> {
        Vec::new()
    }

    /// Whether the state called `name` is equal on all ranks. Ranks that a checkpoint has nothing
    /// of then get rank 0's.
    fn is_shared(&self, name: &str) -> bool {
        let _ = name;
        false
    }

    /// Takes up what [`Hook::state`] returned in an earlier run.
    ///
    /// # Errors
    /// A sentence that says what does not fit.
    fn restore(&mut self, state: Vec<(String, Vec<f32>)>) -> Result<(), String> {
        let _ = state;
        Ok(())
    }
}
