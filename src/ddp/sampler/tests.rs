//! Tests how samples are distributed among ranks and epochs.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
struct Case {
    length: usize,
    seed: u64,
    epoch: u64,
    is_dropping: bool,
    global_batch: Option<usize>,
}

impl Case {
    fn ranks(&self, world_size: usize) -> Vec<DistributedSampler> {
        let rank = |rank| {
            let sampler = DistributedSampler::new(self.length, self.seed, rank, world_size);
            let mut sampler = sampler.unwrap();
            if self.is_dropping {
                sampler = sampler.drop_last();
            }
            if let Some(batch) = self.global_batch {
                sampler = sampler.global_batch(batch).unwrap();
            }
            sampler.set_epoch(self.epoch);
            sampler
        };
        (0..world_size).map(rank).collect()
    }

    /// Returns the unit of padding and dropping. The number of samples per epoch is rounded to a
    /// multiple of this unit.
    fn unit(&self, world_size: usize) -> usize {
        self.global_batch.unwrap_or(world_size)
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let batch = prop::option::of((1usize..4).prop_map(|times| 24 * times));
    (1usize..400, any::<u64>(), 0u64..5, any::<bool>(), batch).prop_map(
        |(length, seed, epoch, is_dropping, global_batch)| Case {
            length,
            seed,
            epoch,
            is_dropping,
            global_batch,
        },
    )
}

fn world_sizes() -> impl Strategy<Value = usize> {
    prop::sample::select(vec![1usize, 2, 3, 4, 6, 8, 12])
}

/// Returns how often the ranks together yield each sample, indexed by sample.
fn counts(length: usize, ranks: Vec<DistributedSampler>) -> Vec<usize> {
    let mut counts = vec![0; length];
    ranks
        .into_iter()
        .flatten()
        .for_each(|sample| counts[sample] += 1);
    counts
}

proptest! {
    #[test]
    fn samples_are_divided_evenly_among_ranks(
        case in cases(), world_size in world_sizes(),
    ) {
        let ranks = case.ranks(world_size);
        let each = ranks[0].len();
        prop_assert!(ranks.iter().all(|rank| rank.len() == each));
        prop_assert!(ranks.iter().all(|rank| rank.clone().count() == each));
        let unit = case.unit(world_size);
        let counts = counts(case.length, ranks);
        let total: usize = counts.iter().sum();
        if case.is_dropping {
            prop_assert_eq!(total, case.length - case.length % unit);
            prop_assert!(counts.iter().all(|count| *count <= 1));
        } else {
            prop_assert_eq!(total, case.length.next_multiple_of(unit));
            let least = total.checked_div(case.length).unwrap_or(0);
            prop_assert!(counts.iter().all(|count| (least..=least + 1).contains(count)));
        }
    }

    #[test]
    fn resumed_sampler_continues_like_uninterrupted_one(
        case in cases(), world_size in world_sizes(), part in 0.0f64..=1.0,
    ) {
        for (rank, mut uninterrupted) in case.ranks(world_size).into_iter().enumerate() {
            let taken = (uninterrupted.len() as f64 * part) as usize;
            uninterrupted.by_ref().take(taken).for_each(drop);
            // Every rank has the same position, so the position of any rank can be used.
            let position = (taken * world_size) as u64;
            prop_assert_eq!(uninterrupted.position(), position);
            let mut resumed = case.ranks(world_size).remove(rank);
            resumed.set_epoch(99);
            resumed.resume(case.epoch, position);
            prop_assert_eq!(resumed.collect::<Vec<_>>(), uninterrupted.collect::<Vec<_>>());
        }
    }

    #[test]
    fn changed_rank_count_divides_remaining_samples(
        case in cases(), before in world_sizes(), after in world_sizes(), part in 0.0f64..=1.0,
    ) {
        let mut old = case.ranks(before);
        let taken = (old[0].len() as f64 * part) as usize;
        let mut seen = vec![0; case.length];
        for rank in &mut old {
            rank.by_ref().take(taken).for_each(|sample| seen[sample] += 1);
        }
        let position = old[0].position();
        let mut new = case.ranks(after);
        new.iter_mut().for_each(|rank| rank.resume(case.epoch, position));
        let each = new[0].len();
        prop_assert!(new.iter().all(|rank| rank.len() == each));
        let now = counts(case.length, new);
        let left = seen.iter().filter(|count| **count == 0).count();
        let total: usize = now.iter().sum();
        let fresh = (0..case.length).filter(|at| seen[*at] == 0 && now[*at] > 0).count();
        if case.is_dropping {
            prop_assert_eq!(total, fresh, "no sample is repeated");
            prop_assert!(left - fresh < case.unit(after) + after);
        } else {
            prop_assert_eq!(fresh, left, "no sample is skipped");
            prop_assert!(total - fresh < case.unit(after) + after);
        }
    }

    #[test]
    fn global_batch_is_independent_of_rank_count(
        case in cases(), batches in 1usize..4,
    ) {
        let case = Case { global_batch: Some(24 * batches), ..case };
        let steps = |world_size| {
            let mut ranks = case.ranks(world_size);
            let mut steps: Vec<Vec<usize>> = Vec::new();
            while let Some(first) = ranks[0].next_batch() {
                let others = ranks[1..].iter_mut().flat_map(|rank| rank.next_batch().unwrap());
                let mut step: Vec<_> = first.into_iter().chain(others).collect();
                assert_eq!(step.len(), 24 * batches);
                step.sort_unstable();
                steps.push(step);
            }
            assert!(ranks.iter_mut().all(|rank| rank.next_batch().is_none()));
            steps
        };
        let single = steps(1);
        for world_size in [2, 3, 4, 6, 8, 12, 24] {
            prop_assert_eq!(&steps(world_size), &single);
        }
    }
}

#[test]
fn order_depends_on_seed_and_epoch_unless_in_order() {
    let order = |seed, epoch| {
        let mut sampler = DistributedSampler::new(1000, seed, 0, 1).unwrap();
        sampler.set_epoch(epoch);
        sampler.collect::<Vec<_>>()
    };
    assert_ne!(order(1, 0), order(1, 1));
    assert_ne!(order(1, 0), order(2, 0));
    assert_eq!(order(1, 1), order(1, 1));
    let kept = DistributedSampler::new(7, 1, 1, 2).unwrap().in_order();
    assert_eq!(kept.collect::<Vec<_>>(), [1, 3, 5, 0]);
}

#[test]
fn invalid_rank_and_batch_size_are_explained() {
    let error = DistributedSampler::new(7, 1, 2, 2).unwrap_err().to_string();
    assert!(error.contains("rank 2 is out of range"), "{error}");
    let sampler = DistributedSampler::new(7, 1, 1, 2).unwrap();
    let error = sampler.global_batch(5).unwrap_err().to_string();
    assert!(error.contains("multiple of 2"), "{error}");
}
