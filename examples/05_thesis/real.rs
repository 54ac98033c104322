//! Runs the step as one of several real ranks.

use super::{ALPHA, RATE_MBIT, simulated::choice};
use crate::step::{BUCKETS, Link, MODELS, Model};
use ringtree::plan::Algorithm;
use ringtree::{Communicator, Error, ErrorKind, ReduceOp};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Environment variables that tell a rank the model, the algorithm, and the number of steps.
pub(crate) const MODEL: &str = "THESIS_MODEL";
pub(crate) const ALGORITHM: &str = "THESIS_ALGORITHM";
pub(crate) const STEPS: &str = "THESIS_STEPS";
/// Number of steps before the measured ones. They open connections and congestion windows.
const WARM_UP: usize = 3;

/// Runs the steps as one rank. Rank 0 prints one line with the measured latency in microseconds,
/// the measured rate in Mbit/s and the algorithm, and then one line per step with the exposed
/// milliseconds.
///
/// # Errors
/// Returns the errors of the library, and an error if a sum is wrong.
pub(crate) fn take_part() -> Result<(), Error> {
    let said = |name| std::env::var(name).unwrap_or_default();
    let model = said(MODEL);
    let model = MODELS.iter().find(|one| one.name == model);
    let model = model.ok_or_else(|| {
        Error::new(
            ErrorKind::Usage,
            format!("{MODEL} is not the name of a model"),
        )
    })?;
    let algorithm: Option<Algorithm> = said(ALGORITHM).parse().ok();
    let steps: usize = said(STEPS).parse().unwrap_or(1);
    let comm = Communicator::from_env()?;
    let chosen = choice(comm.world_size(), algorithm, model, &comm.tuning().table());
    let chosen = chosen
        .map_err(|text| Error::new(ErrorKind::System, text))?
        .algorithm;
    comm.use_algorithm(Some(chosen))?;
    for _ in 0..WARM_UP {
        one_step(&comm, model)?;
    }
    let speaks = comm.rank() == 0;
    if speaks {
        let table = comm.tuning().table();
        let mbit = 8e-6 / table.tcp.beta_s_per_byte;
        println!("{:.0},{mbit:.2},{chosen}", table.tcp.alpha_s * 1e6);
    }
    for _ in 0..steps {
        let exposed = one_step(&comm, model)?;
        if speaks {
            println!("{:.3}", exposed.as_secs_f64() * 1e3);
        }
    }
    // A rank that exits closes its connections, so wait until the other ranks have received their
    // data.
    comm.barrier()
}

/// Runs one step, which all ranks start at the same time. Returns the exposed communication of the
/// slowest rank.
fn one_step(comm: &Communicator, model: &Model) -> Result<Duration, Error> {
    let link = Link::new(ALPHA, RATE_MBIT);
    let buckets: Vec<_> = (0..BUCKETS)
        .map(|_| vec![1.0f32; model.bucket_elements()])
        .collect();
    comm.barrier()?;
    let start = Instant::now();
    let mut under_way = Vec::new();
    for (bucket, gradients) in (0..).zip(buckets) {
        sleep_until(start + link.ready(model, bucket));
        under_way.push(comm.start_all_reduce(gradients, ReduceOp::Sum)?);
    }
    let mut sums = Vec::new();
    for work in under_way {
        sums.push(work.wait()?);
    }
    let mut slowest = [start.elapsed().as_nanos() as u64];
    let expected = comm.world_size() as f32;
    if sums.iter().flatten().any(|sum| *sum != expected) {
        return Err(Error::new(
            ErrorKind::System,
            format!("a sum is not {expected}"),
        ));
    }
    comm.all_reduce(&mut slowest, ReduceOp::Max)?;
    Ok(Duration::from_nanos(slowest[0]).saturating_sub(link.compute(model)))
}

/// Sleeps in place of forward and backward. The times are absolute so that late wake-ups do not add
/// up.
fn sleep_until(moment: Instant) {
    sleep(moment.saturating_duration_since(Instant::now()));
}
