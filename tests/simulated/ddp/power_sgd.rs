//! Tests PowerSGD: later steps make up for the parts of a gradient that compression drops, and a
//! training run can be resumed.

use super::numbers;
use crate::long::short_or_long;
use proptest::prelude::*;
use ringtree::ddp::{BucketSize, DataParallel, Options, Parameter, PowerSgd};
use ringtree::internal::ddp::{
    BucketInfo, Exchange, Hook, Next, Values, hook_state, order, restore, restore_hook,
};
use ringtree::{Communicator, Dtype, Error, Result};
use std::sync::{Arc, Mutex};

const ROWS: usize = 20;
const COLUMNS: usize = 15;
const COUNT: usize = ROWS * COLUMNS;

fn weight() -> Vec<Parameter> {
    vec![Parameter::new("weight", &[ROWS, COLUMNS], Dtype::F32)]
}

/// Returns a random matrix.
fn random(words: &[u64]) -> Vec<f32> {
    numbers(words, COUNT)
        .iter()
        .map(|one| *one as f32)
        .collect()
}

/// Runs one step and returns its average.
fn average(model: &mut DataParallel, gradient: &[f32]) -> Result<Vec<f32>> {
    model.report(0, gradient)?;
    model.wait()?;
    Ok(model
        .gradient::<f32>(0)?
        .expect("the parameter is used")
        .to_vec())
}

fn error_of(model: &DataParallel) -> Vec<f32> {
    let mut state = hook_state(model).into_iter();
    let error = state.find(|(name, _)| name == "error/weight");
    error.expect("a matrix was compressed").1
}

fn length(values: &[f64]) -> f64 {
    values.iter().map(|one| one * one).sum::<f64>().sqrt()
}

/// Returns the sum of matrices of several ranks or steps.
fn sum<'a>(all: impl Iterator<Item = &'a Vec<f32>>) -> Vec<f64> {
    let mut sum = vec![0.0; COUNT];
    for values in all {
        sum.iter_mut()
            .zip(values)
            .for_each(|(sum, one)| *sum += f64::from(*one));
    }
    sum
}

/// Returns a matrix of rank `rank` whose columns span the same space on every rank and in every
/// step.
///
/// The singular values of all such matrices and of their sums are similar. Rounding leaves a
/// remainder in the error, which the next step divides by the smallest part of the average. If the
/// singular values differed greatly, the remainder would grow in every step until it is as large as
/// that part.
fn low_rank(rank: usize, words: &[u64]) -> Vec<f32> {
    let noise = numbers(words, rank * COLUMNS);
    let left = |row: usize, at: usize| {
        if row % rank == at {
            1.0 + row as f64 / 20.0
        } else {
            0.0
        }
    };
    let right = |column: usize, at: usize| {
        let own = if column % rank == at { 1.0 } else { 0.0 };
        own + noise[at * COLUMNS + column] / 4.0
    };
    let entry = |row, column| {
        (0..rank)
            .map(|at| left(row, at) * right(column, at))
            .sum::<f64>()
    };
    (0..COUNT)
        .map(|place| entry(place / COLUMNS, place % COLUMNS) as f32)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(short_or_long(16, 320)))]

    #[test]
    fn low_rank_averages_are_exact_from_the_first_step(
        world_size in 1usize..6, rank in 1usize..4, seed in 0u64..64,
    ) {
        let words = |member: usize, step: usize| [seed, member as u64, step as u64];
        let gradient = |member, step| low_rank(rank, &words(member, step));
        let ends = ringtree::simulate(world_size, |comm| {
            let options = Options::new().hook(PowerSgd::new(rank).seed(seed));
            let mut model = DataParallel::new(comm, weight(), options)?;
            let step = |step| average(&mut model, &gradient(comm.rank(), step));
            (0..6).map(step).collect::<Result<Vec<_>>>()
        });
        for (step, averaged) in ends[0].as_ref().unwrap().iter().enumerate() {
            let all: Vec<_> = (0..world_size).map(|member| gradient(member, step)).collect();
            let mean: Vec<_> = sum(all.iter()).iter().map(|one| one / world_size as f64).collect();
            let differences = averaged.iter().zip(&mean).map(|(one, mean)| f64::from(*one) - mean);
            let difference = length(&differences.collect::<Vec<_>>());
            prop_assert!(difference < 1e-2 * (1.0 + length(&mean)), "{step}: {difference}");
        }
        prop_assert!(ends.iter().all(|end| end == &ends[0]), "all ranks have the same bits");
    }

    /// Over T steps, the sum of the averages and of the ranks' mean error equals the sum of the
    /// true averages.
    #[test]
    fn error_feedback_loses_nothing_permanently(
        world_size in 1usize..5, rank in 1usize..3, start_after in 0u64..3, seed: u64,
    ) {
        const STEPS: u64 = 8;
        let ends = ringtree::simulate(world_size, |comm| {
            let hook = PowerSgd::new(rank).start_after(start_after);
            let mut model = DataParallel::new(comm, weight(), Options::new().hook(hook))?;
            let step = |step| average(&mut model, &random(&[seed, step, comm.rank() as u64]));
            let averages = (0..STEPS).map(step).collect::<Result<Vec<_>>>()?;
            Ok::<_, Error>((averages, error_of(&model)))
        });
        let ends: Vec<_> = ends.into_iter().map(Result::unwrap).collect();
        let n = world_size as f64;
        let of_step = |step| (0..world_size as u64).map(move |rank| random(&[seed, step, rank]));
        let gradients: Vec<_> = (0..STEPS).flat_map(of_step).collect();
        let (expected, averaged) = (sum(gradients.iter()), sum(ends[0].0.iter()));
        let missing = sum(ends.iter().map(|(_, error)| error));
        for at in 0..COUNT {
            let total = averaged[at] + missing[at] / n;
            prop_assert!((total - expected[at] / n).abs() < 1e-4, "{total} {}", expected[at] / n);
        }
        for (averages, _) in &ends {
            prop_assert_eq!(averages, &ends[0].0);
        }
    }
}

#[test]
fn mean_over_steps_approaches_the_true_gradient() {
    let ends = ringtree::simulate(3, |comm| {
        let mut model = DataParallel::new(comm, weight(), Options::new().hook(PowerSgd::new(1)))?;
        let step = |_| average(&mut model, &random(&[comm.rank() as u64]));
        (0..200).map(step).collect::<Result<Vec<_>>>()
    });
    let averages = ends[0].as_ref().unwrap();
    let gradients: Vec<_> = (0..3).map(|rank| random(&[rank])).collect();
    let truth: Vec<_> = sum(gradients.iter()).iter().map(|one| one / 3.0).collect();
    let distance = |steps: usize| {
        let mean = sum(averages[..steps].iter());
        let pairs = mean.iter().zip(&truth);
        let differences = pairs.map(|(mean, truth)| mean / steps as f64 - truth);
        length(&differences.collect::<Vec<_>>()) / length(&truth)
    };
    let (first, some, many) = (distance(1), distance(50), distance(200));
    assert!(
        first > 0.5,
        "a matrix of rank 1 cannot equal the gradient: {first}"
    );
    assert!(
        some < 0.4 && many < 0.1,
        "{some} after 50 steps, {many} after 200"
    );
}

#[test]
fn resumed_run_has_the_bits_of_an_undisturbed_run() {
    let ends = ringtree::simulate(3, |comm| {
        let make = || {
            let hook = PowerSgd::new(2).seed(3).start_after(2);
            DataParallel::new(comm, weight(), Options::new().hook(hook))
        };
        let gradient = |step: u64| random(&[step, comm.rank() as u64]);
        for stop in 1..6 {
            let mut model = make()?;
            for step in 0..stop {
                average(&mut model, &gradient(step))?;
            }
            let mut resumed = make()?;
            let order = order(&model).map(|(order, since)| (order.to_vec(), since));
            restore(&mut resumed, model.steps(), order)?;
            restore_hook(&mut resumed, hook_state(&model))?;
            for step in stop..8 {
                let expected = average(&mut model, &gradient(step))?;
                assert_eq!(
                    average(&mut resumed, &gradient(step))?,
                    expected,
                    "from {stop}: {step}"
                );
            }
            assert_eq!(hook_state(&resumed), hook_state(&model));
        }
        Ok::<_, Error>(())
    });
    assert_eq!(ends, vec![Ok(()); 3]);
}

#[test]
fn ranks_added_at_a_resume_get_the_same_averages() {
    let options = || Options::new().hook(PowerSgd::new(2).seed(3).start_after(2));
    let gradient = |comm: &Communicator, step: u64| random(&[step, comm.rank() as u64]);
    let states = ringtree::simulate(2, |comm| {
        let mut model = DataParallel::new(comm, weight(), options()).unwrap();
        for step in 0..4 {
            average(&mut model, &gradient(comm, step)).unwrap();
        }
        hook_state(&model)
    });
    let ends = ringtree::simulate(4, |comm| {
        let mut model = DataParallel::new(comm, weight(), options())?;
        let own = states.get(comm.rank()).cloned();
        restore_hook(&mut model, own.unwrap_or_default())?;
        (4..7)
            .map(|step| average(&mut model, &gradient(comm, step)))
            .collect::<Result<Vec<_>>>()
    });
    assert!(ends[0].is_ok(), "{ends:?}");
    assert!(ends.iter().all(|end| *end == ends[0]), "replicas differ");
}

/// A hook that records how many elements it exchanges.
struct Measured(PowerSgd, Arc<Mutex<Vec<usize>>>);

impl Measured {
    fn note(&self, exchange: &Exchange) {
        if let Exchange::AllReduce(values, ..) = exchange {
            self.1.lock().unwrap().push(values.count());
        }
    }
}

impl Hook for Measured {
    fn name(&self) -> String {
        self.0.name()
    }
    fn stages(&self) -> usize {
        self.0.stages()
    }
    fn start(&mut self, bucket: &BucketInfo, gradients: Vec<f32>) -> Exchange {
        let exchange = self.0.start(bucket, gradients);
        self.note(&exchange);
        exchange
    }
    fn resume(&mut self, bucket: &BucketInfo, stage: usize, values: Values) -> Next {
        let next = self.0.resume(bucket, stage, values);
        if let Next::Exchange(exchange) = &next {
            self.note(exchange);
        }
        next
    }
}

#[test]
fn power_sgd_sends_as_few_elements_as_documented() {
    ringtree::simulate(2, |comm| {
        let sizes = Arc::default();
        let hook = Measured(PowerSgd::new(3).start_after(1), Arc::clone(&sizes));
        let mut parameters = vec![
            Parameter::new("large", &[100, 10, 8], Dtype::F32),
            Parameter::new("bias", &[33], Dtype::F32),
            Parameter::new("small", &[6, 6], Dtype::F32),
        ];
        let step = |parameters: &[Parameter]| {
            let hook = Measured(hook.0.clone(), Arc::clone(&hook.1));
            let options = Options::new()
                .buckets(BucketSize::Bytes(1 << 20))
                .hook(hook);
            let mut model = DataParallel::new(comm, parameters.to_vec(), options)?;
            for _step in 0..2 {
                for (number, parameter) in parameters.iter().enumerate() {
                    model.report(number, &vec![1.0f32; parameter.count()])?;
                }
                model.wait()?;
            }
            Ok::<_, Error>(std::mem::take(&mut *sizes.lock().unwrap()))
        };
        let whole = 8000 + 33 + 36;
        let (left, right) = (3 * 100 + 1 + 33 + 36, 3 * 80);
        assert_eq!(step(&parameters), Ok(vec![whole, left, right]));
        // If compression pays off for no matrix, there is only one stage.
        parameters.remove(0);
        assert_eq!(step(&parameters), Ok(vec![33 + 36, 33 + 36]));
    });
}

#[test]
fn non_finite_gradient_spreads_to_all_ranks_but_not_to_state() {
    let ends = ringtree::simulate(3, |comm| {
        let mut parameters = weight();
        parameters.push(Parameter::new("other", &[1], Dtype::F32));
        let options = Options::new().hook(PowerSgd::new(2)).allow_unused();
        let mut model = DataParallel::new(comm, parameters, options)?;
        let mut gradient = random(&[comm.rank() as u64]);
        average(&mut model, &gradient)?;
        let before = hook_state(&model);
        let clean = gradient.clone();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            if comm.rank() == 1 {
                gradient[7] = bad;
                gradient[8] = bad;
            }
            let all = average(&mut model, &gradient)?;
            assert!(all.iter().all(|one| one.is_nan()), "{bad}");
            assert_eq!(hook_state(&model), before);
        }
        // A step in which no rank uses the parameter does not change the state either.
        model.report(1, &[1.0f32])?;
        model.wait()?;
        assert_eq!(model.gradient::<f32>(0)?, None);
        assert_eq!(average(&mut model, &[0.0; COUNT])?, [0.0; COUNT]);
        assert_eq!(hook_state(&model), before);
        average(&mut model, &clean)
    });
    let first = ends[0].as_ref().unwrap();
    assert!(first.iter().all(|one| one.is_finite()));
    assert!(ends.iter().all(|end| end.as_ref() == Ok(first)));
}

/// Trains a linear map on data that is divided among the ranks. Returns its first and last loss.
fn trained(comm: &Communicator, options: Options) -> Result<(f64, f64)> {
    const SAMPLES: usize = 40;
    let target = numbers(&[1], COUNT);
    let inputs = numbers(&[2, comm.rank() as u64], SAMPLES * ROWS);
    let mut model = DataParallel::new(comm, weight(), options)?;
    let mut weights = vec![0.0f32; COUNT];
    let mut losses = Vec::new();
    for _step in 0..300 {
        let mut gradient = vec![0.0f64; COUNT];
        let mut loss = 0.0;
        for input in inputs.chunks(ROWS) {
            for column in 0..COLUMNS {
                let at = |row: usize| row * COLUMNS + column;
                let error: f64 = (0..ROWS)
                    .map(|row| input[row] * (f64::from(weights[at(row)]) - target[at(row)]))
                    .sum();
                loss += error * error / SAMPLES as f64;
                for row in 0..ROWS {
                    gradient[at(row)] += 2.0 * error * input[row] / SAMPLES as f64;
                }
            }
        }
        let gradient: Vec<_> = gradient.iter().map(|one| *one as f32).collect();
        let mean = average(&mut model, &gradient)?;
        weights
            .iter_mut()
            .zip(mean)
            .for_each(|(weight, slope)| *weight -= 0.1 * slope);
        losses.push(loss);
    }
    Ok((losses[0], losses[losses.len() - 1]))
}

#[test]
fn training_with_power_sgd_converges_like_plain_training() {
    let run = |options: fn() -> Options| {
        let ends = ringtree::simulate(3, |comm| trained(comm, options()));
        ends[0].clone().unwrap()
    };
    let (start, plain) = run(Options::new);
    let (_, compressed) = run(|| Options::new().hook(PowerSgd::new(2)));
    assert!(plain < 1e-3 * start, "{plain} of {start}");
    assert!(
        compressed < 1e-3 * start,
        "{compressed} of {start}; uncompressed: {plain}"
    );
}
