//! Tests that averages are right and have the same bits on all ranks.

use super::{HOOKS, Real, Row, gradient, numbers, shuffled, with_real};
use crate::long::short_or_long;
use proptest::prelude::*;
use ringtree::ddp::{BucketSize, DataParallel, Options, Parameter};
use ringtree::sim::World;
use ringtree::{Communicator, Dtype, Result};
use std::time::Duration;

/// A training run of a few steps.
#[derive(Clone, Debug)]
struct Run {
    world_size: usize,
    parameters: Vec<Parameter>,
    bucket_bytes: usize,
    steps: u64,
    micro_batches: u64,
    /// Probability that a rank does not use a given parameter in a micro-batch.
    unused: f64,
    seed: u64,
}

/// Returns a number that, together with the step, identifies a micro-batch.
fn source(rank: usize, micro_batch: u64) -> u64 {
    rank as u64 * 100 + micro_batch
}

impl Run {
    fn is_used(&self, number: usize, step: u64, source: u64) -> bool {
        let chance = numbers(&[self.seed, 1, number as u64, step, source], 1)[0];
        // A step in which no rank reports a gradient is an error.
        number == 0 || chance > 2.0 * self.unused - 1.0
    }

    /// Returns the order in which a rank's backward computes gradients.
    fn order(&self, step: u64, source: u64) -> Vec<usize> {
        shuffled(&[self.seed, 2, step, source], self.parameters.len())
    }

    fn micro_batch(&self, model: &mut DataParallel, step: u64, source: u64) -> Result<()> {
        for number in self.order(step, source) {
            if !self.is_used(number, step, source) {
                continue;
            }
            let parameter = &self.parameters[number];
            let values = gradient(parameter, number, self.seed ^ step, source);
            with_real!(parameter.dtype, T => {
                let values: Vec<T> = values.into_iter().map(T::from_f64).collect();
                model.report(number, &values)
            })?;
        }
        Ok(())
    }

    /// Trains on one rank. Returns the averaged gradients of every parameter, indexed by step.
    fn train_on_rank(&self, comm: &Communicator, hook: Row) -> Result<Vec<Vec<Option<Vec<f64>>>>> {
        let options = Options::new().buckets(BucketSize::Bytes(self.bucket_bytes));
        let options = options.allow_unused();
        let options = (hook.set)(options);
        let mut model = DataParallel::new(comm, self.parameters.clone(), options)?;
        let mut steps = Vec::new();
        for step in 0..self.steps {
            for micro_batch in 0..self.micro_batches - 1 {
                let source = source(comm.rank(), micro_batch);
                model.no_sync(|model| self.micro_batch(model, step, source))?;
            }
            let last = source(comm.rank(), self.micro_batches - 1);
            self.micro_batch(&mut model, step, last)?;
            model.wait()?;
            let read = |(number, parameter): (usize, &Parameter)| {
                with_real!(parameter.dtype, T => {
                    let values = model.gradient::<T>(number)?;
                    Ok(values.map(|values| values.iter().map(|one| one.to_f64()).collect()))
                })
            };
            let all = self.parameters.iter().enumerate().map(read);
            steps.push(all.collect::<Result<_>>()?);
        }
        assert_eq!(model.steps(), self.steps);
        Ok(steps)
    }

    /// Returns a parameter's average, computed in `f64`, and the mean of the magnitudes, or `None`
    /// if no rank uses the parameter.
    fn reference(&self, number: usize, step: u64) -> Option<(Vec<f64>, f64)> {
        let parameter = &self.parameters[number];
        let mut mean = vec![0.0; parameter.count()];
        let mut magnitude = 0.0;
        let mut is_used = false;
        let ranks = 0..self.world_size;
        let sources = ranks.flat_map(|rank| (0..self.micro_batches).map(move |at| (rank, at)));
        for (rank, micro_batch) in sources {
            let source = source(rank, micro_batch);
            if !self.is_used(number, step, source) {
                continue;
            }
            is_used = true;
            let values = gradient(parameter, number, self.seed ^ step, source);
            let largest = values.iter().fold(0.0f64, |most, one| most.max(one.abs()));
            magnitude += largest / self.world_size as f64;
            for (mean, value) in mean.iter_mut().zip(values) {
                *mean += value / self.world_size as f64;
            }
        }
        is_used.then_some((mean, magnitude))
    }

    fn check(&self, hook: Row) {
        let mut world = World::new(self.world_size);
        world.network.seed = self.seed;
        world.network.faults.delay_max = Duration::from_micros(self.seed % 200);
        let ends = world.run(|comm| self.train_on_rank(comm, hook));
        let first = ends[0].as_ref().unwrap();
        for (rank, end) in ends.iter().enumerate() {
            assert!(
                end.as_ref() == Ok(first),
                "{hook:?}: rank {rank} has different bits"
            );
        }
        for (step, averages) in first.iter().enumerate() {
            for (number, average) in averages.iter().enumerate() {
                let reference = self.reference(number, step as u64);
                let name = &self.parameters[number];
                let place = format!("{hook:?}, step {step}, {name}");
                let (Some(average), Some((mean, magnitude))) = (average, &reference) else {
                    assert!(
                        average.is_none() && reference.is_none(),
                        "{place}: an average exists only if the parameter is used"
                    );
                    continue;
                };
                let mut relative = with_real!(name.dtype, T => <T as Real>::RELATIVE);
                let mut absolute = 6e-8;
                if name.dtype == Dtype::F32 {
                    (relative, absolute) = (hook.relative, hook.absolute);
                }
                let most = relative * magnitude + absolute;
                for (at, (average, mean)) in average.iter().zip(mean).enumerate() {
                    let difference = (average - mean).abs();
                    assert!(
                        difference <= most,
                        "{place}, element {at}: {average}, not {mean}"
                    );
                }
            }
        }
    }
}

fn parameters() -> impl Strategy<Value = Vec<Parameter>> {
    let shape = prop_oneof![
        3 => (1usize..40).prop_map(|one| vec![one]),
        4 => (12usize..20, 12usize..20).prop_map(|(one, other)| vec![one, other]),
        1 => Just(vec![10, 4, 5]),
        1 => Just(vec![]),
        1 => Just(vec![0]),
    ];
    let dtype = prop_oneof![
        5 => Just(Dtype::F32),
        1 => Just(Dtype::F64),
        1 => Just(Dtype::Bf16),
        1 => Just(Dtype::F16),
    ];
    prop::collection::vec((shape, dtype), 1..9).prop_map(|kinds| {
        let one = |(number, (shape, dtype)): (usize, &(Vec<usize>, Dtype))| {
            Parameter::new(&format!("layer {number}"), shape, *dtype)
        };
        kinds.iter().enumerate().map(one).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(short_or_long(32, 640)))]

    #[test]
    fn every_hook_averages_any_gradients_in_any_order(
        world_size in 1usize..7,
        parameters in parameters(),
        bucket_bytes in prop::sample::select(vec![1usize, 300, 2000, 1 << 20]),
        micro_batches in 1u64..4,
        unused in prop::sample::select(vec![0.0, 0.3, 0.8]),
        seed: u64,
    ) {
        let steps = 4;
        let run = Run {
            world_size,
            parameters,
            bucket_bytes,
            steps,
            micro_batches,
            unused,
            seed,
        };
        HOOKS.iter().for_each(|hook| run.check(*hook));
    }
}

#[test]
fn accumulated_micro_batches_equal_one_large_batch() {
    // The values are integers, so that their sums are exact in any order.
    let part = |rank: usize, micro_batch: usize| -> Vec<f32> {
        let one = |at: usize| ((at * 7 + rank * 5 + micro_batch * 3) % 11) as f32 - 5.0;
        (0..16 * 12).map(one).collect()
    };
    for hook in HOOKS {
        let ends = ringtree::simulate(4, |comm| {
            let rank = comm.rank();
            let model = || {
                let parameters = vec![Parameter::new("weight", &[16, 12], Dtype::F32)];
                DataParallel::new(comm, parameters, (hook.set)(Options::new()))
            };
            let (mut small, mut large) = (model()?, model()?);
            for _step in 0..3 {
                small.no_sync(|small| {
                    small.report(0, &part(rank, 0))?;
                    small.report(0, &part(rank, 1))
                })?;
                small.report(0, &part(rank, 2))?;
                let parts = [part(rank, 0), part(rank, 1), part(rank, 2)];
                let sum = |at: usize| parts.iter().map(|part| part[at]).sum::<f32>();
                large.report(0, &(0..16 * 12).map(sum).collect::<Vec<_>>())?;
                small.wait()?;
                large.wait()?;
                assert_eq!(
                    small.gradient::<f32>(0),
                    large.gradient::<f32>(0),
                    "{hook:?}"
                );
            }
            Ok::<_, ringtree::Error>(())
        });
        assert_eq!(ends, vec![Ok(()); 4], "{hook:?}");
    }
}

/// Inputs (6, 2) and (5, 2), targets 15 and 12, weights 0.773 and 0.321, bias 0.067.
#[test]
fn two_samples_on_one_rank_equal_one_sample_on_each_of_two() {
    let slope = |sample: usize| -> [f32; 3] {
        let ([one, other], target) = [([6.0, 2.0], 15.0), ([5.0, 2.0], 12.0)][sample];
        let error = 0.773 * one + 0.321 * other + 0.067 - target;
        [error * one, error * other, error]
    };
    let step = |world_size: usize| {
        ringtree::simulate(world_size, |comm| {
            let parameters = vec![Parameter::new("line", &[3], Dtype::F32)];
            let mut model = DataParallel::new(comm, parameters, Options::new())?;
            if world_size == 1 {
                model.no_sync(|model| model.report(0, &slope(0)))?;
                model.report(0, &slope(1))?;
            } else {
                model.report(0, &slope(comm.rank()))?;
            }
            model.wait()?;
            let mean = model.gradient::<f32>(0)?.unwrap();
            // This is the mean over the samples.
            Ok::<_, ringtree::Error>(
                mean.iter()
                    .map(|one| one * world_size as f32 / 2.0)
                    .collect(),
            )
        })
    };
    let single: Vec<Result<Vec<f32>>> = step(1);
    assert_eq!(step(2), vec![single[0].clone(); 2]);
    let expected = [-47.524, -17.079, -8.5395];
    for (one, expected) in single[0].as_ref().unwrap().iter().zip(expected) {
        assert!((one - expected).abs() < 1e-3, "{one}, not {expected}");
    }
}
