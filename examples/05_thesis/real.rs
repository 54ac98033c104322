//! The step for real: this process is one of several ranks, whatever started them.

use crate::step::{BUCKET_ELEMENTS, BUCKETS, FORWARD, Point, WAYS, ready};
use ringtree::{Communicator, Error, ReduceOp};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Steps that open connections and windows before those that count.
const WARM_UP: usize = 5;

/// Takes part in `steps` steps by every algorithm; the median of each, on rank 0 alone.
///
/// # Errors
/// What the library reports, or a wrong sum.
pub(crate) fn take_part(steps: usize) -> Result<Option<Vec<Point>>, Error> {
    let comm = Communicator::from_env()?;
    let mut points = Vec::new();
    for (way, algorithm) in WAYS {
        comm.use_algorithm(algorithm)?;
        let mut times = Vec::new();
        for _ in 0..WARM_UP + steps {
            times.push(one_step(&comm)?);
        }
        let counted = &mut times[WARM_UP..];
        counted.sort_unstable();
        points.push(Point::new(comm.world_size(), way, counted[steps / 2]));
    }
    Ok((comm.rank() == 0).then_some(points))
}

/// One step from a common start; returns how long the slowest rank took.
fn one_step(comm: &Communicator) -> Result<Duration, Error> {
    let ones = || vec![1.0f32; BUCKET_ELEMENTS];
    let buckets: Vec<_> = (0..BUCKETS).map(|_| ones()).collect();
    comm.barrier()?;
    let start = Instant::now();
    sleep_until(start + FORWARD);
    let mut under_way = Vec::new();
    for (bucket, gradients) in (0..).zip(buckets) {
        sleep_until(start + ready(bucket));
        under_way.push(comm.all_reduce_async(gradients, ReduceOp::Sum)?);
    }
    let mut sums = Vec::new();
    for work in under_way {
        sums.push(work.wait()?);
    }
    let mut slowest = [start.elapsed().as_nanos() as u64];
    let expected = comm.world_size() as f32;
    if sums.iter().flatten().any(|sum| *sum != expected) {
        return Err(Error::system(format!("a sum is not {expected}")));
    }
    comm.all_reduce(&mut slowest, ReduceOp::Max)?;
    Ok(Duration::from_nanos(slowest[0]))
}

/// Backward is a timetable here: absolute times, so that late wake-ups do not add up.
fn sleep_until(moment: Instant) {
    sleep(moment.saturating_duration_since(Instant::now()));
}
