//! Which rank trains on which samples.

use super::random::permutation;
use crate::error::{Error, Result};

/// What is done when the samples do not divide evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tail {
    /// The first samples of the epoch come again at its end.
    Pad,
    /// The last samples of the epoch are left out.
    Drop,
}

/// Deals the samples of a data set out to the ranks, in another order every epoch.
///
/// An epoch is a sequence of all samples: a permutation that depends on the length, the seed and
/// the epoch, on nothing else. Of n ranks, rank r takes the entries r, r + n, r + 2n, …, so every
/// sample goes to one rank and all ranks get as many. For that the sequence is padded with its own
/// beginning, or cut ([`DistributedSampler::drop_last`]).
///
/// With a global batch of B samples every rank takes B / n a step, and the ranks together the next
/// B entries of the sequence: step k trains on the same samples, however many ranks there are.
///
/// The sampler is the iterator over this rank's samples in the epoch. Where it stands is one
/// number, [`position`](DistributedSampler::position), that is the same on all ranks after as many
/// steps and means the same for any number of ranks; with it, a checkpoint can
/// [`resume`](DistributedSampler::resume).
///
/// ```
/// use ringtree::ddp::DistributedSampler;
/// # fn main() -> ringtree::Result<()> {
/// let mut rank_0 = DistributedSampler::new(10, 42, 0, 2)?.global_batch(4)?;
/// let mut rank_1 = DistributedSampler::new(10, 42, 1, 2)?.global_batch(4)?;
/// for epoch in 0..3 {
///     rank_0.set_epoch(epoch);
///     rank_1.set_epoch(epoch);
///     let mut seen = Vec::new();
///     while let Some(batch) = rank_0.next_batch() {
///         assert_eq!(batch.len(), 2);
///         seen.extend(batch);
///         seen.extend(rank_1.next_batch().expect("ranks have as many"));
///     }
///     assert_eq!(seen.len(), 12); // two come twice
///     assert!((0..10).all(|sample| seen.contains(&sample)));
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct DistributedSampler {
    length: usize,
    seed: u64,
    rank: usize,
    world_size: usize,
    tail: Tail,
    is_shuffled: bool,
    /// A multiple of the world size; one sample a rank if none is set.
    global_batch: Option<usize>,
    epoch: u64,
    /// All samples, in this epoch's order.
    order: Vec<usize>,
    /// Entries of the epoch's sequence that all ranks together have taken.
    position: usize,
    /// Where the sequence ends: `position` then.
    end: usize,
}

impl DistributedSampler {
    /// Deals `length` samples, 0 and up, at the beginning of epoch 0. It holds 8 bytes a sample.
    ///
    /// # Errors
    /// [`Error::usage`] if there is no such rank, or no sample.
    pub fn new(length: usize, seed: u64, rank: usize, world_size: usize) -> Result<Self> {
        if rank >= world_size {
            return Err(Error::usage(format!(
                "there is no rank {rank} among {world_size} to deal samples to"
            )));
        }
        if length == 0 {
            return Err(Error::usage(
                "the data set has no samples to deal out; is it empty, or its path wrong?",
            ));
        }
        if length < world_size && rank == 0 {
            eprintln!(
                "ringtree: the data set has {length} samples for {world_size} ranks: unless the \
                 last are dropped, some come several times an epoch"
            );
        }
        let mut this = Self {
            length,
            seed,
            rank,
            world_size,
            tail: Tail::Pad,
            is_shuffled: true,
            global_batch: None,
            epoch: 0,
            order: Vec::new(),
            position: 0,
            end: 0,
        };
        this.set_epoch(0);
        Ok(this)
    }

    /// Leaves samples out at the end of an epoch, where else some would come twice.
    #[must_use]
    pub fn drop_last(mut self) -> Self {
        self.tail = Tail::Drop;
        self.end = self.find_end();
        self
    }

    /// Keeps the samples in their order, as for validation.
    #[must_use]
    pub fn in_order(mut self) -> Self {
        self.is_shuffled = false;
        self.order = (0..self.length).collect();
        self
    }

    /// Makes epochs of whole batches of so many samples, all ranks' together, which
    /// [`DistributedSampler::next_batch`] then returns. Then the steps of an epoch, too, are as
    /// many for any number of ranks.
    ///
    /// # Errors
    /// [`Error::usage`] if the ranks cannot take equal parts of it.
    pub fn global_batch(mut self, samples: usize) -> Result<Self> {
        if samples == 0 || !samples.is_multiple_of(self.world_size) {
            return Err(Error::usage(format!(
                "a global batch of {samples} samples has no equal parts for {} ranks; take a \
                 multiple of {}",
                self.world_size, self.world_size
            )));
        }
        self.global_batch = Some(samples);
        self.end = self.find_end();
        Ok(self)
    }

    /// Goes to the beginning of an epoch. All ranks choose the same.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.resume(epoch, 0);
    }

    /// The epoch.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// How many samples the data set has.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.length
    }

    /// The seed of its permutations.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// How many entries of the epoch's sequence all ranks together have taken, if all have taken as
    /// many as this one. A checkpoint carries it with the epoch.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position as u64
    }

    /// Goes to where a sampler of the same length and seed stood, on any rank.
    ///
    /// With as many ranks as then, every rank continues exactly as it would have. With another
    /// number of ranks, they share out what was left of the epoch: none of it is left out (but for
    /// what [`DistributedSampler::drop_last`] drops of it), and nothing that was taken before comes
    /// again (but for the padding).
    pub fn resume(&mut self, epoch: u64, position: u64) {
        if epoch != self.epoch || self.order.len() != self.length {
            self.order = if self.is_shuffled {
                permutation(self.length, self.seed, epoch)
            } else {
                (0..self.length).collect()
            };
        }
        self.epoch = epoch;
        self.position = usize::try_from(position).unwrap_or(usize::MAX);
        self.end = self.find_end();
    }

    /// This rank's part of the next global batch, or its next sample alone if no
    /// [`DistributedSampler::global_batch`] is set; `None` at the end of the epoch.
    pub fn next_batch(&mut self) -> Option<Vec<usize>> {
        let each = self.global_batch.unwrap_or(self.world_size) / self.world_size;
        let batch: Vec<_> = self.take(each).collect();
        (!batch.is_empty()).then_some(batch)
    }

    /// The position at which the epoch ends, seen from where it stands now: after whole batches,
    /// and as many samples on all ranks.
    fn find_end(&self) -> usize {
        let start = match self.global_batch {
            None => self.position,
            Some(batch) => self.position - self.position % batch,
        };
        if start >= self.length {
            return self.position;
        }
        let round = |count: usize, unit: usize| match self.tail {
            Tail::Pad => count.next_multiple_of(unit),
            Tail::Drop => count - count % unit,
        };
        let end = start + round(self.length - start, self.global_batch.unwrap_or(1));
        self.position + round(end.saturating_sub(self.position), self.world_size)
    }
}

impl Iterator for DistributedSampler {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.position >= self.end {
            return None;
        }
        let entry = self.position + self.rank;
        self.position += self.world_size;
        Some(self.order[entry % self.length])
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.end.saturating_sub(self.position) / self.world_size;
        (left, Some(left))
    }
}

impl ExactSizeIterator for DistributedSampler {}

#[cfg(test)]
mod tests {
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

        /// Samples that are no multiple of this are padded or dropped.
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

    /// How often each sample comes in what the ranks yield.
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
        fn every_sample_goes_to_one_rank_and_all_ranks_get_as_many(
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
        fn resumed_at_any_point_the_rest_is_the_undisturbed_one(
            case in cases(), world_size in world_sizes(), part in 0.0f64..=1.0,
        ) {
            for (rank, mut undisturbed) in case.ranks(world_size).into_iter().enumerate() {
                let taken = (undisturbed.len() as f64 * part) as usize;
                undisturbed.by_ref().take(taken).for_each(drop);
                // Any rank's position serves.
                let position = (taken * world_size) as u64;
                prop_assert_eq!(undisturbed.position(), position);
                let mut resumed = case.ranks(world_size).remove(rank);
                resumed.set_epoch(99);
                resumed.resume(case.epoch, position);
                prop_assert_eq!(resumed.collect::<Vec<_>>(), undisturbed.collect::<Vec<_>>());
            }
        }

        #[test]
        fn another_number_of_ranks_shares_out_exactly_the_rest(
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
                prop_assert_eq!(total, fresh, "nothing comes twice");
                prop_assert!(left - fresh < case.unit(after) + after);
            } else {
                prop_assert_eq!(fresh, left, "nothing is left out");
                prop_assert!(total - fresh < case.unit(after) + after);
            }
        }

        #[test]
        fn a_step_trains_on_the_same_samples_for_any_number_of_ranks(
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
            let alone = steps(1);
            for world_size in [2, 3, 4, 6, 8, 12, 24] {
                prop_assert_eq!(&steps(world_size), &alone);
            }
        }
    }

    #[test]
    fn epochs_and_seeds_shuffle_differently_and_validation_not_at_all() {
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
    fn misuse_is_explained() {
        let error = DistributedSampler::new(7, 1, 2, 2).unwrap_err().to_string();
        assert!(error.contains("no rank 2"), "{error}");
        let sampler = DistributedSampler::new(7, 1, 1, 2).unwrap();
        let error = sampler.global_batch(5).unwrap_err().to_string();
        assert!(error.contains("multiple of 2"), "{error}");
    }
}
