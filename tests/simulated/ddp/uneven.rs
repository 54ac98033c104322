//! Tests that ranks that run out of data do not block the others.

use super::{HOOKS, Real, gradient, model, with_real};
use ringtree::ddp::{BucketSize, DataParallel, Options};
use ringtree::{Communicator, Result};

const RANKS: usize = 4;
/// Number of steps for which each rank has data.
const STEPS: [u64; RANKS] = [2, 5, 0, 3];

/// Trains until no rank has data. Returns the averaged gradients of all parameters, indexed by
/// step.
fn train(comm: &Communicator, options: Options) -> Result<Vec<Vec<f64>>> {
    let parameters = model();
    let options = options.buckets(BucketSize::Bytes(500)).uneven_data();
    let mut model = DataParallel::new(comm, parameters.clone(), options)?;
    let mut steps = Vec::new();
    let mut update = |model: &mut DataParallel| {
        let mut all = Vec::new();
        for (number, parameter) in parameters.iter().enumerate() {
            with_real!(parameter.dtype, T => {
                let gradient = model.gradient::<T>(number)?.expect("active ranks use it");
                all.extend(gradient.iter().map(|one| one.to_f64()));
            });
        }
        steps.push(all);
        Ok(())
    };
    for step in 0..STEPS[comm.rank()] {
        for (number, parameter) in parameters.iter().enumerate() {
            let values = gradient(parameter, number, step, comm.rank() as u64);
            with_real!(parameter.dtype, T => {
                let values: Vec<T> = values.into_iter().map(T::from_f64).collect();
                model.report(number, &values)
            })?;
        }
        model.wait()?;
        update(&mut model)?;
    }
    model.join(&mut update)?;
    Ok(steps)
}

#[test]
fn averages_stay_over_all_ranks_until_no_rank_has_data() {
    let parameters = model();
    for hook in HOOKS {
        let ends = ringtree::simulate(RANKS, |comm| train(comm, (hook.set)(Options::new())));
        let first = ends[0].as_ref().unwrap();
        assert!(
            ends.iter().all(|end| end.as_ref() == Ok(first)),
            "{hook:?}: ranks have different bits"
        );
        assert_eq!(first.len(), 5, "{hook:?}");
        for (step, averages) in first.iter().enumerate() {
            let mut expected = vec![0.0; averages.len()];
            let active = (0..RANKS).filter(|rank| STEPS[*rank] > step as u64);
            for rank in active {
                let all = parameters
                    .iter()
                    .enumerate()
                    .flat_map(|(number, parameter)| {
                        gradient(parameter, number, step as u64, rank as u64)
                    });
                for (sum, value) in expected.iter_mut().zip(all) {
                    *sum += value / RANKS as f64;
                }
            }
            for (average, expected) in averages.iter().zip(&expected) {
                let difference = (average - expected).abs();
                assert!(
                    difference < 0.02,
                    "{hook:?} step {step}: {average}, not {expected}"
                );
            }
        }
    }
}
