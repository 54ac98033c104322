//! Measures the overhead of the data-parallel layer compared with its all-reduces.

use crate::measure::{reducer, summary_ms};
use crate::model::Model;
use crate::options::Job;
use ringtree::ddp::DataParallel;
use ringtree::{Communicator, ReduceOp, Result};
use std::time::Duration;

/// Compares steps without forward and backward, whose gradients are already in their buckets, with
/// all-reduces of vectors as long as the buckets, and with an all-reduce of one long vector. The
/// three alternate, so that a disturbance affects all of them.
pub(crate) fn compare(comm: &Communicator, job: &Job) -> Result<()> {
    let model = Model::new(job, comm);
    let mut reducer = reducer(comm, job, &model)?;
    let mut whole = vec![1.0f32; model.bytes() / size_of::<f32>()];
    let mut times: [Vec<Duration>; 3] = Default::default();
    let mut buckets = Vec::new();
    for step in 0..job.warm_up + job.steps {
        if step == 0 || step == job.warm_up {
            buckets = same_buckets(&reducer);
            times = Default::default();
        }
        times[0].push(timed(comm, || one_step(&mut reducer, &model))?);
        times[1].push(timed(comm, || bare_buckets(comm, &mut buckets))?);
        times[2].push(timed(comm, || comm.all_reduce(&mut whole, ReduceOp::Avg))?);
    }
    let summaries = [
        summary_ms(comm, &times[0])?,
        summary_ms(comm, &times[1])?,
        summary_ms(comm, &times[2])?,
    ];
    if comm.rank() == 0 {
        let count = buckets.len();
        println!(
            "ranks,buckets,of,layer_ms,same_buckets_ms,one_buffer_ms,to_buckets,to_one_buffer"
        );
        for (at, of) in ["median", "least"].iter().enumerate() {
            let [layer_ms, buckets_ms, whole_ms] = summaries.map(|summary| summary[at]);
            println!(
                "{},{count},{of},{layer_ms:.3},{buckets_ms:.3},{whole_ms:.3},{:.3},{:.3}",
                comm.world_size(),
                layer_ms / buckets_ms,
                layer_ms / whole_ms
            );
        }
    }
    comm.barrier()
}

fn same_buckets(reducer: &DataParallel) -> Vec<Vec<f32>> {
    let zeros = |bucket: &ringtree::ddp::Bucket| vec![0.0; bucket.count];
    reducer.buckets().iter().map(zeros).collect()
}

fn timed(comm: &Communicator, work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    comm.barrier()?;
    let start = comm.clock();
    work()?;
    Ok(comm.clock() - start)
}

fn one_step(reducer: &mut DataParallel, model: &Model) -> Result<()> {
    for parameter in (0..model.parameters.len()).rev() {
        reducer.gradient_mut::<f32>(parameter)?;
        reducer.ready(parameter)?;
    }
    reducer.wait()
}

/// Starts the all-reduces of all buckets and waits for them.
fn bare_buckets(comm: &Communicator, buckets: &mut [Vec<f32>]) -> Result<()> {
    let works: Result<Vec<_>> = buckets
        .iter_mut()
        .map(|bucket| Ok(comm.start_all_reduce(std::mem::take(bucket), ReduceOp::Avg)?))
        .collect();
    for (bucket, work) in buckets.iter_mut().zip(works?) {
        *bucket = work.wait()?;
    }
    Ok(())
}
