//! Runs the stages of a bucket's exchange.

use super::hooks::{BucketInfo, Exchange, Hook, Next};
use super::values::{Pending, Values};
use crate::comm::Communicator;
use crate::error::{Error, Result};
use crate::op::ReduceOp;
use crate::plan::Algorithm;
use std::time::Duration;

/// The exchange of one bucket in its current stage.
pub(super) struct Flight {
    pending: Pending,
    pub(super) stage: usize,
    /// `true` if a hook decides what follows each exchange. Otherwise, the first exchange is the
    /// only one.
    is_hooked: bool,
}

/// Outcome of [`Flight::proceed`].
pub(super) enum Landing {
    /// In flight, in the next stage.
    Flying(Flight),
    /// The averaged gradients, and the time at which the last exchange completed.
    Landed(Values, Duration),
}

impl Flight {
    /// Issues the first exchange of the bucket. If this is an all-reduce of all of the bucket's
    /// elements, it uses `algorithm`, unless the hook names an algorithm.
    pub(super) fn launch(
        comm: &Communicator,
        hook: &mut dyn Hook,
        bucket: &BucketInfo,
        gradients: Values,
        algorithm: Option<Algorithm>,
    ) -> Result<Self> {
        let whole = |values: Values, op| Exchange::AllReduce(values, op, algorithm);
        let (exchange, is_hooked) = match gradients {
            Values::F32(gradients) => match hook.start(bucket, gradients) {
                Exchange::AllReduce(values, op, None) if is_whole(&values, bucket) => {
                    (whole(values, op), true)
                }
                other => (other, true),
            },
            others => (whole(others, ReduceOp::Avg), false),
        };
        let pending = issue(comm, exchange)?;
        Ok(Self {
            pending,
            stage: 0,
            is_hooked,
        })
    }

    /// Issues the only exchange of a bucket whose averages are sharded. The exchange gives each
    /// rank its block.
    pub(super) fn scatter(comm: &Communicator, gradients: Values) -> Result<Self> {
        Ok(Self {
            pending: gradients.reduce_scatter(comm, ReduceOp::Avg)?,
            stage: 0,
            is_hooked: false,
        })
    }

    /// Returns `true` if the current exchange has completed.
    pub(super) fn is_finished(&self) -> bool {
        self.pending.is_finished()
    }

    /// Waits for the current exchange, and issues the next one if the hook requests it.
    pub(super) fn proceed(
        self,
        comms: &[Communicator],
        hook: &mut dyn Hook,
        bucket: &BucketInfo,
    ) -> Result<Landing> {
        let (values, ended_at) = self.pending.wait()?;
        if !self.is_hooked {
            return Ok(Landing::Landed(values, ended_at));
        }
        let stage = self.stage + 1;
        match hook.resume(bucket, self.stage, values) {
            Next::Done(gradients) if gradients.len() == bucket.count => {
                Ok(Landing::Landed(gradients.into(), ended_at))
            }
            Next::Done(gradients) => Err(Error::usage(format!(
                "the hook '{}' returned {} gradients, expected {}; return one gradient per element",
                hook.name(),
                gradients.len(),
                bucket.count
            ))),
            Next::Exchange(exchange) => match comms.get(stage) {
                Some(comm) => Ok(Landing::Flying(Self {
                    pending: issue(comm, exchange)?,
                    stage,
                    is_hooked: true,
                })),
                None => Err(Error::usage(format!(
                    "the hook '{}' requests more than its {} stages; increase `Hook::stages`",
                    hook.name(),
                    comms.len()
                ))),
            },
        }
    }
}

fn is_whole(values: &Values, bucket: &BucketInfo) -> bool {
    values.bytes().len() == bucket.count * values.dtype().size()
}

fn issue(comm: &Communicator, exchange: Exchange) -> Result<Pending> {
    match exchange {
        Exchange::AllReduce(values, op, None) => values.all_reduce(comm, op),
        Exchange::AllReduce(values, op, Some(algorithm)) => {
            let before = comm.algorithm();
            comm.use_algorithm(Some(algorithm))?;
            let pending = values.all_reduce(comm, op);
            comm.use_algorithm(before)?;
            pending
        }
        Exchange::ReduceScatter(values, op) => values.reduce_scatter(comm, op),
        Exchange::AllGather(values) => values.all_gather(comm),
    }
}
