//! Measures steps that follow a timetable and, between the steps, bare all-reduces of the same
//! bytes.

use crate::model::Model;
use crate::options::{Job, Measure};
use ringtree::ddp::{BucketSize, BucketStatistics, DataParallel, Options};
use ringtree::plan::Collective;
use ringtree::{Communicator, Dtype, ReduceOp, Result};
use std::time::Duration;

/// Seconds per byte at 1 Gbit/s.
const LINE_SECONDS_PER_BYTE: f64 = 8e-9;

/// Header line for the rows that `measure` prints.
pub(crate) const HEADER: &str = concat!(
    "implementation,ranks,algorithm,size,bucket_bytes,buckets,gradient_bytes,",
    "forward_ms,backward_ms,step_ms,exposed_ms,communication_ms"
);

/// The time at which each part of a step ends, relative to the start of the step.
struct Timetable {
    forward: Duration,
    backward: Duration,
    layers: u32,
    is_simulated: bool,
}

impl Timetable {
    fn new(measure: &Measure, world_size: usize, bytes: usize) -> Self {
        let ranks = world_size as f64;
        let share = 2.0 * (ranks - 1.0) / ranks;
        let bound_ms = share * bytes as f64 * LINE_SECONDS_PER_BYTE * 1e3;
        let backward_ms = measure.backward_ms.unwrap_or(bound_ms);
        let forward_ms = measure.forward_ms.unwrap_or(backward_ms / 3.0);
        Self {
            forward: Duration::from_secs_f64(forward_ms.max(0.0) / 1e3),
            backward: Duration::from_secs_f64(backward_ms.max(0.0) / 1e3),
            layers: u32::try_from(measure.job.layers).unwrap_or(u32::MAX),
            is_simulated: measure.simulated,
        }
    }

    /// Sleeps until `deadline` on the rank's clock.
    fn sleep_until(&self, comm: &Communicator, deadline: Duration) {
        let left = deadline.saturating_sub(comm.clock());
        if self.is_simulated {
            ringtree::sim::sleep(comm, left);
        } else {
            std::thread::sleep(left);
        }
    }

    fn after_layers(&self, done: usize) -> Duration {
        let done = u32::try_from(done).unwrap_or(u32::MAX);
        self.forward + self.backward * done / self.layers
    }
}

/// Creates the data-parallel layer for the job.
pub(crate) fn reducer(comm: &Communicator, job: &Job, model: &Model) -> Result<DataParallel> {
    comm.use_algorithm(job.algorithm)?;
    let options = Options::new().buckets(job.bucket);
    DataParallel::new(comm, model.parameters.clone(), options)
}

/// Returns the median and the minimum over all steps of the slowest rank's time, in milliseconds.
pub(crate) fn summary_ms(comm: &Communicator, times: &[Duration]) -> Result<[f64; 2]> {
    let mut slowest: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
    comm.all_reduce(&mut slowest, ReduceOp::Max)?;
    slowest.sort_by(f64::total_cmp);
    let at = |place: usize| slowest.get(place).copied().unwrap_or(f64::NAN);
    Ok([at(slowest.len() / 2), at(0)])
}

/// Runs the job of one rank.
pub(crate) fn measure(comm: &Communicator, measure: &Measure) -> Result<()> {
    let job = &measure.job;
    let model = Model::new(job, comm);
    let timetable = Timetable::new(measure, comm.world_size(), model.bytes());
    let mut reducer = reducer(comm, job, &model)?;
    let mut whole = vec![1.0f32; model.bytes() / Dtype::F32.size()];
    let (mut steps, mut communications) = (Vec::new(), Vec::new());
    let mut last_start = Duration::ZERO;
    for step in 0..job.warm_up + job.steps {
        comm.barrier()?;
        last_start = comm.clock();
        one_step(comm, &mut reducer, &model, &timetable, step)?;
        let step_time = comm.clock() - last_start;
        model.check(&reducer, step)?;
        if !measure.steps_only {
            comm.barrier()?;
            let start = comm.clock();
            comm.all_reduce(&mut whole, ReduceOp::Avg)?;
            communications.push(comm.clock() - start);
        }
        steps.push(step_time);
        if step + 1 == job.warm_up {
            steps.clear();
            communications.clear();
        }
    }
    let [step_ms, _] = summary_ms(comm, &steps)?;
    let [communication_ms, _] = summary_ms(comm, &communications)?;
    if comm.rank() == 0 {
        if measure.verbose {
            explain(reducer.statistics(), last_start);
        }
        let [forward_ms, backward_ms] =
            [timetable.forward, timetable.backward].map(|time| time.as_secs_f64() * 1e3);
        println!(
            "{},{},{},{forward_ms:.2},{backward_ms:.2},{step_ms:.2},{:.2},\
             {communication_ms:.2}",
            if measure.simulated {
                "simulated"
            } else {
                &measure.label
            },
            comm.world_size(),
            buckets(comm, job, &reducer, model.bytes())?,
            step_ms - forward_ms - backward_ms,
        );
    }
    comm.barrier()
}

fn one_step(
    comm: &Communicator,
    reducer: &mut DataParallel,
    model: &Model,
    timetable: &Timetable,
    step: usize,
) -> Result<()> {
    let start = comm.clock();
    timetable.sleep_until(comm, start + timetable.forward);
    reducer.start_backward();
    let layers = timetable.layers as usize;
    for done in 1..=layers {
        timetable.sleep_until(comm, start + timetable.after_layers(done));
        for parameter in model.layer(layers - done).rev() {
            reducer.report(parameter, model.gradient(parameter, step))?;
        }
    }
    reducer.wait()
}

/// Returns the CSV fields that describe the buckets, including the algorithm for the largest one.
fn buckets(comm: &Communicator, job: &Job, reducer: &DataParallel, bytes: usize) -> Result<String> {
    let largest = reducer.buckets().iter().map(|bucket| bucket.bytes).max();
    let largest = largest.unwrap_or_default();
    let elements = largest / Dtype::F32.size();
    let choice = comm.plan_for(Collective::AllReduce, elements, Dtype::F32, 0)?;
    let algorithm = choice.algorithm;
    let chosen = if job.algorithm.is_some() {
        algorithm.to_string()
    } else {
        format!("auto ({algorithm})")
    };
    let size = match job.bucket {
        BucketSize::Auto => "auto".to_owned(),
        BucketSize::Bytes(bytes) => bytes.to_string(),
    };
    let count = reducer.buckets().len();
    Ok(format!("{chosen},{size},{largest},{count},{bytes}"))
}

/// Prints one line per bucket. Times are in milliseconds since the start of the step.
fn explain(statistics: &[BucketStatistics], start: Duration) {
    eprintln!("bucket    bytes  launched     ended  communication  exposed");
    for (index, bucket) in statistics.iter().enumerate() {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        eprintln!(
            "{index:>6}{:>9}{:>10.2}{:>10.2}{:>15.2}{:>9.2}",
            bucket.bytes,
            ms(bucket.launched_at.saturating_sub(start)),
            ms(bucket.ended_at.saturating_sub(start)),
            ms(bucket.ended_at - bucket.launched_at),
            ms(bucket.exposed),
        );
    }
}
