//! Distributes the samples of a data set among the ranks.

use super::random::permutation;
use crate::error::{Error, Result};

/// How to treat samples that cannot be divided evenly among the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tail {
    /// The first samples of the epoch are repeated at its end.
    Pad,
    /// The last samples of the epoch are dropped.
    Drop,
}

/// An iterator over this rank's samples in a data set. The order is different in every epoch.
///
/// In each epoch, all samples form a sequence, which is a permutation that depends only on the
/// length, the seed and the epoch. With n ranks, rank r gets the entries r, r + n, r + 2n, …, so
/// every entry goes to exactly one rank and all ranks get the same number of samples. To make this
/// possible, the sequence is either padded with samples from its start or shortened (see
/// [`DistributedSampler::drop_last`]).
///
/// With a global batch of B samples, every rank gets B / n samples per step, and all ranks together
/// get the next B entries of the sequence. Step k therefore uses the same samples regardless of the
/// number of ranks.
///
/// The progress within an epoch is described by a single number, the
/// [`position`](DistributedSampler::position). After the same number of steps, the position is the
/// same on all ranks. Its meaning does not depend on the number of ranks. A checkpoint stores the
/// position, and [`resume`](DistributedSampler::resume) restores it.
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
///     assert_eq!(seen.len(), 12); // two are repeated
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
    /// Number of samples per global batch, which is a multiple of the world size. `None` means one
    /// sample per rank.
    global_batch: Option<usize>,
    epoch: u64,
    /// All samples, in the order of this epoch.
    order: Vec<usize>,
    /// Number of entries of the epoch's sequence that all ranks together have taken.
    position: usize,
    /// Value of `position` at the end of the sequence.
    end: usize,
}

impl DistributedSampler {
    /// Creates a sampler for samples 0 to `length` − 1. The sampler starts at the beginning of
    /// epoch 0.
    ///
    /// The sampler uses 8 bytes of memory per sample.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Usage`](crate::ErrorKind::Usage) if `rank` is out of range or `length`
    /// is 0.
    pub fn new(length: usize, seed: u64, rank: usize, world_size: usize) -> Result<Self> {
        if rank >= world_size {
            return Err(Error::usage(format!(
                "rank {rank} is out of range: the {world_size} ranks are numbered from 0"
            )));
        }
        if length == 0 {
            return Err(Error::usage("the data set has no samples; check its path"));
        }
        if length < world_size && rank == 0 {
            eprintln!(
                "ringtree: the data set has only {length} samples for {world_size} ranks; some \
                 samples are repeated in each epoch unless the last samples are dropped"
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

    /// Makes the sampler drop samples at the end of each epoch instead of repeating samples.
    #[must_use]
    pub fn drop_last(mut self) -> Self {
        self.tail = Tail::Drop;
        self.end = self.find_end();
        self
    }

    /// Makes the sampler keep the samples in order instead of shuffling them. This is useful for
    /// validation, for example.
    #[must_use]
    pub fn in_order(mut self) -> Self {
        self.is_shuffled = false;
        self.order = (0..self.length).collect();
        self
    }

    /// Sets the total number of samples per step across all ranks.
    /// [`DistributedSampler::next_batch`] then returns this rank's part of these samples.
    ///
    /// With this setting, epochs consist of complete batches and have the same number of steps
    /// regardless of the number of ranks.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Usage`](crate::ErrorKind::Usage) if `samples` is 0 or not a multiple of
    /// the number of ranks.
    pub fn global_batch(mut self, samples: usize) -> Result<Self> {
        if samples == 0 || !samples.is_multiple_of(self.world_size) {
            return Err(Error::usage(format!(
                "cannot divide a global batch of {samples} samples equally among {} ranks; use a \
                 positive multiple of {}",
                self.world_size, self.world_size
            )));
        }
        self.global_batch = Some(samples);
        self.end = self.find_end();
        Ok(self)
    }

    /// Moves to the beginning of `epoch`. All ranks must select the same epoch.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.resume(epoch, 0);
    }

    /// Returns the current epoch.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the number of samples in the data set.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.length
    }

    /// Returns the seed of the permutations.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns how many entries of the epoch's sequence have been taken by all ranks together,
    /// assuming that each rank has taken as many as this rank.
    ///
    /// A checkpoint stores this number together with the epoch.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position as u64
    }

    /// Moves to `position` in `epoch`. The position may come from any rank's sampler that has the
    /// same length and seed.
    ///
    /// If the number of ranks is the same as before, every rank continues exactly as it would have
    /// without the interruption. If the number of ranks is different, the ranks divide the rest of
    /// the epoch among themselves. Every remaining sample is used, except for samples dropped
    /// because of [`DistributedSampler::drop_last`], and no earlier sample is repeated, except as
    /// padding.
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

    /// Returns this rank's part of the next global batch, or a single sample if no
    /// [`DistributedSampler::global_batch`] is set. Returns `None` at the end of the epoch.
    pub fn next_batch(&mut self) -> Option<Vec<usize>> {
        let each = self.global_batch.unwrap_or(self.world_size) / self.world_size;
        let batch: Vec<_> = self.take(each).collect();
        (!batch.is_empty()).then_some(batch)
    }

    /// Returns the position at which the epoch ends if it continues from the current position:
    /// after complete batches, and with the same number of samples on all ranks.
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

        /// Returns the number by which the number of samples per epoch must be divisible after
        /// padding or dropping.
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

    /// Returns how often the ranks yield each sample.
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
                // Every rank has the same position, so any can be used.
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
                prop_assert_eq!(total, fresh, "no sample is repeated");
                prop_assert!(left - fresh < case.unit(after) + after);
            } else {
                prop_assert_eq!(fresh, left, "no sample is skipped");
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
        assert!(error.contains("rank 2 is out of range"), "{error}");
        let sampler = DistributedSampler::new(7, 1, 1, 2).unwrap();
        let error = sampler.global_batch(5).unwrap_err().to_string();
        assert!(error.contains("multiple of 2"), "{error}");
    }
}
