//! Runs the stages of a bucket's exchange.

use super::hooks::{BucketInfo, Exchange, Hook, Next};
use super::options::Options;
use super::values::{Pending, Values};
use crate::comm::Communicator;
use crate::error::{Error, Result};
use crate::op::ReduceOp;
use crate::plan::Algorithm;
use std::time::Duration;

/// Location of a bucket's gradients.
pub(super) enum Content {
    Here(Values),
    Flying(Flight),
    /// Stored by the carrier.
    Carried,
    /// Lost because of an error.
    Lost,
}

/// A bucket whose gradients are being exchanged.
pub(super) struct Flight {
    pending: Pending,
    pub(super) stage: usize,
    /// `true` if a hook decides what follows each exchange. Otherwise, the first exchange is the
    /// only one.
    is_hooked: bool,
}

impl Flight {
    /// Issues the bucket's first exchange. If this is an all-reduce of all of the bucket's
    /// elements, it uses `algorithm` unless the hook requests a specific algorithm. If the averages
    /// are sharded, the first exchange is the only one, and each rank receives only its own block.
    pub(super) fn launch(
        comm: &Communicator,
        options: &mut Options,
        bucket: &BucketInfo,
        gradients: Values,
        algorithm: Option<Algorithm>,
    ) -> Result<Self> {
        let (exchange, is_hooked) = match gradients {
            values if options.is_sharded => (Exchange::ReduceScatter(values, ReduceOp::Avg), false),
            Values::F32(values) => (options.hook.start(bucket, values), true),
            values => (Exchange::AllReduce(values, ReduceOp::Avg, None), false),
        };
        let exchange = match exchange {
            Exchange::AllReduce(values, op, None) if values.count() == bucket.count => {
                Exchange::AllReduce(values, op, algorithm)
            }
            other => other,
        };
        Ok(Self {
            pending: issue(comm, exchange)?,
            stage: 0,
            is_hooked,
        })
    }

    /// Returns `true` if the current exchange has completed.
    pub(super) fn is_finished(&self) -> bool {
        self.pending.is_finished()
    }

    /// Waits for the current exchange, and issues the next one if the hook requests it. Sets
    /// `ended_at` to the time at which the current exchange completed.
    pub(super) fn proceed(
        self,
        comms: &[Communicator],
        hook: &mut dyn Hook,
        bucket: &BucketInfo,
        ended_at: &mut Duration,
    ) -> Result<Content> {
        let values;
        (values, *ended_at) = self.pending.wait()?;
        if !self.is_hooked {
            return Ok(Content::Here(values));
        }
        let stage = self.stage + 1;
        match hook.resume(bucket, self.stage, values) {
            Next::Done(gradients) if gradients.len() == bucket.count => {
                Ok(Content::Here(gradients.into()))
            }
            Next::Done(gradients) => Err(Error::usage(format!(
                "the hook '{}' returned {} gradients, expected {}; return one gradient per element",
                hook.name(),
                gradients.len(),
                bucket.count
            ))),
            Next::Exchange(exchange) => match comms.get(stage) {
                Some(comm) => Ok(Content::Flying(Self {
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
