//! Measures the gain or cost of sending gradients while backward computes.

use crate::measure::reducer;
use crate::model::Model;
use crate::options::Job;
use ringtree::ddp::DataParallel;
use ringtree::{Communicator, ReduceOp, Result};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Number of iterations that are timed to determine the speed of the core.
const PROBE_LOOPS: u32 = 1_000_000;

/// Measures steps in pairs. In one step of a pair, each layer's gradients are reported as soon as
/// backward has computed them. In the other step, all gradients are reported at the end of
/// backward. Backward does the same work in both steps. If there are more ranks than cores, the
/// ranks share the cores.
pub(crate) fn overlap(comm: &Communicator, job: &Job, backward_ms: f64) -> Result<()> {
    let model = Model::new(job, comm);
    let mut reducer = reducer(comm, job, &model)?;
    let mut loops = [loops_in(backward_ms / job.layers as f64)];
    comm.broadcast(&mut loops, 0)?;
    let mut pairs = Vec::new();
    for step in 0..job.warm_up + job.steps {
        let mut pair = [true, false].map(|overlaps| (overlaps, 0.0));
        // Alternate the order within a pair, so that an effect on the following step is the same
        // for both.
        pair.rotate_left(step % 2);
        for (overlaps, took_s) in &mut pair {
            comm.barrier()?;
            let start = comm.clock();
            one_step(
                &mut reducer,
                &model,
                job.layers,
                (*overlaps, loops[0], step),
            )?;
            *took_s = (comm.clock() - start).as_secs_f64();
        }
        pair.rotate_right(step % 2);
        if step >= job.warm_up {
            pairs.push(pair.map(|(_, took_s)| took_s));
        }
    }
    let mut slowest: Vec<f64> = pairs.into_iter().flatten().collect();
    comm.all_reduce(&mut slowest, ReduceOp::Max)?;
    if comm.rank() == 0 {
        let of = |from: usize| slowest[from..].iter().step_by(2).copied();
        let ratios = of(0).zip(of(1)).map(|(with, without)| with / without);
        let (with_ms, without_ms) = (1e3 * median(of(0)), 1e3 * median(of(1)));
        println!("ranks,buckets,overlapped_ms,apart_ms,ratio");
        let (ranks, buckets) = (comm.world_size(), reducer.buckets().len());
        let ratio = median(ratios);
        println!("{ranks},{buckets},{with_ms:.2},{without_ms:.2},{ratio:.3}");
    }
    comm.barrier()
}

fn one_step(
    reducer: &mut DataParallel,
    model: &Model,
    layers: usize,
    (overlaps, loops, step): (bool, u32, usize),
) -> Result<()> {
    let report = |reducer: &mut DataParallel, layer: usize| {
        let mut parameters = model.layer(layer).rev();
        parameters.try_for_each(|one| reducer.report(one, model.gradient(one, step)))
    };
    reducer.start_backward();
    for layer in (0..layers).rev() {
        compute(loops);
        if overlaps {
            report(reducer, layer)?;
        }
    }
    if !overlaps {
        (0..layers)
            .rev()
            .try_for_each(|layer| report(reducer, layer))?;
    }
    reducer.wait()
}

/// Computes `loops` iterations. Each iteration depends on the previous one.
fn compute(loops: u32) {
    let mut number = black_box(1.0f64);
    for _ in 0..loops {
        number = number * 0.999_999 + 1e-9;
    }
    black_box(number);
}

/// Returns the number of iterations that take `wanted_ms`, based on the fastest of several trials.
fn loops_in(wanted_ms: f64) -> u32 {
    let probe = |_| {
        let start = Instant::now();
        compute(PROBE_LOOPS);
        start.elapsed()
    };
    let least = (0..20).map(probe).min().unwrap_or(Duration::MAX);
    (f64::from(PROBE_LOOPS) * wanted_ms / (least.as_secs_f64() * 1e3)) as u32
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
