//! Tests the death of a rank during a step: either the step counts on all survivors, or no survivor
//! can read its gradients.

use super::{HOOKS, Real, model, with_real};
use crate::long::short_or_long;
use proptest::prelude::*;
use ringtree::ddp::{BucketSize, DataParallel, Options, Parameter};
use ringtree::internal::ddp::{BucketInfo, Exchange, Hook, Next, Values, restore};
use ringtree::sim::World;
use ringtree::{Communicator, Dtype, Error, ErrorKind, ReduceOp, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn steps_of_a_failed_resumed_run_count_from_the_checkpoint() {
    for milliseconds in [0, 5, 60] {
        let mut world = World::new(4);
        world.network.faults.deaths = vec![(2, Duration::from_millis(milliseconds))];
        let ends = world.run(|comm| {
            let parameters = vec![Parameter::new("weight", &[300], Dtype::F32)];
            let mut model = DataParallel::new(comm, parameters, Options::new())?;
            restore(&mut model, 100, None)?;
            while model
                .report(0, &[1.0f32; 300])
                .and_then(|()| model.wait())
                .is_ok()
            {}
            Ok::<_, Error>((
                model.steps(),
                model.steps_that_count(Duration::from_secs(5)),
            ))
        });
        for end in [0, 1, 3].map(|rank| &ends[rank]).into_iter().flatten() {
            let (steps, count) = end;
            assert!((*steps..=*steps + 1).contains(&count.unwrap()), "{ends:?}");
            assert!(*steps >= 100, "{ends:?}");
        }
    }
}

/// Trains until a call fails. Returns the number of steps that counted, and the error.
fn train(comm: &Communicator, options: Options) -> (u64, Error) {
    let parameters = model();
    let options = options.buckets(BucketSize::Bytes(300));
    let mut model = match DataParallel::new(comm, parameters.clone(), options) {
        Ok(model) => model,
        Err(error) => return (0, error),
    };
    let step = |model: &mut DataParallel, step: u64| -> Result<()> {
        for (number, parameter) in parameters.iter().enumerate() {
            with_real!(parameter.dtype, T => {
                let value = T::from_f64((comm.rank() as u64 + step % 8) as f64);
                model.report(number, &vec![value; parameter.count()])
            })?;
        }
        model.wait()
    };
    let mut counted = 0;
    loop {
        if let Err(error) = step(&mut model, counted) {
            for (number, parameter) in parameters.iter().enumerate() {
                let read = with_real!(parameter.dtype, T => model.gradient::<T>(number).map(drop));
                assert_eq!(
                    read,
                    Err(error.clone()),
                    "no averages can be read after a failure"
                );
            }
            assert_eq!(model.wait(), Err(error.clone()), "the first error persists");
            return (counted, error);
        }
        let mean = (comm.world_size() - 1) as f64 / 2.0 + (counted % 8) as f64;
        for (number, parameter) in parameters.iter().enumerate() {
            with_real!(parameter.dtype, T => {
                let average = model.gradient::<T>(number).unwrap().unwrap();
                for one in average {
                    let difference = (one.to_f64() - mean).abs();
                    assert!(difference < 0.02 * mean + 1e-3, "{parameter}: {one}, not {mean}");
                }
            });
        }
        counted += 1;
    }
}

/// A hook that averages gradients and counts the averages that have arrived.
struct Counting(Arc<AtomicUsize>);

impl Hook for Counting {
    fn name(&self) -> String {
        "counting".into()
    }

    fn start(&mut self, _: &BucketInfo, gradients: Vec<f32>) -> Exchange {
        Exchange::AllReduce(gradients.into(), ReduceOp::Avg, None)
    }

    fn resume(&mut self, bucket: &BucketInfo, _: usize, averaged: Values) -> Next {
        self.0.fetch_add(bucket.count, Ordering::Relaxed);
        Next::Done(averaged.try_into().expect("f32 was sent"))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(short_or_long(100, 4000)))]

    #[test]
    fn survivors_agree_on_which_steps_count(
        hook in prop::sample::select(HOOKS),
        world_size in 2usize..6,
        victim in 0usize..6,
        at_us in 0u64..20_000,
        delay_us in 0u64..200,
        seed: u64,
    ) {
        let victim = victim % world_size;
        let mut world = World::new(world_size);
        world.network.seed = seed;
        world.network.faults.delay_max = Duration::from_micros(delay_us);
        world.network.faults.deaths = vec![(victim, Duration::from_micros(at_us))];
        let ends = world.run(|comm| train(comm, (hook.set)(Options::new())));
        let most = ends.iter().map(|(counted, _)| *counted).max().unwrap();
        for (rank, (counted, error)) in ends.iter().enumerate() {
            // A rank that took step k knows that all ranks had the gradients of that step. So the
            // other ranks lack at most step k.
            prop_assert!(counted + 1 >= most, "rank {}: {} of {}", rank, counted, most);
            if rank != victim {
                prop_assert!(error.kind() == ErrorKind::PeerLost, "rank {rank}: {error}");
                prop_assert_eq!(error.peer(), Some(victim));
            }
        }
    }

    #[test]
    fn step_that_counts_on_one_rank_has_all_gradients_on_all(
        world_size in 2usize..6,
        victim in 0usize..6,
        at_us in 0u64..100_000,
        delay_us in 0u64..3000,
        seed: u64,
    ) {
        let mut world = World::new(world_size);
        world.network.seed = seed;
        world.network.faults.delay_max = Duration::from_micros(delay_us);
        let victim = (victim % world_size, Duration::from_micros(at_us));
        world.network.faults.deaths = vec![victim];
        let ends = world.run(|comm| {
            let arrived = Arc::default();
            let hook = Counting(Arc::clone(&arrived));
            let (counted, _) = train(comm, Options::new().hook(hook));
            (counted, arrived.load(Ordering::Relaxed))
        });
        let most = ends.iter().map(|(counted, _)| *counted).max().unwrap();
        let of_f32 = model().into_iter().filter(|one| one.dtype == Dtype::F32);
        let all = of_f32.map(|one| one.count()).sum::<usize>() * most as usize;
        for (rank, (_, arrived)) in ends.iter().enumerate() {
            prop_assert!(*arrived >= all, "rank {}: {} of {}", rank, arrived, all);
        }
    }
}
