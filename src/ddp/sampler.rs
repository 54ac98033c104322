//! Distributes the samples of a data set among the ranks.

use super::random::permutation;
use crate::error::{Error, Result};
use crate::event;

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
    /// Number of samples in the data set.
    pub(crate) length: usize,
    /// Seed of the permutations.
    pub(crate) seed: u64,
    rank: usize,
    world_size: usize,
    /// `true` if the last samples of an epoch are dropped when they cannot be divided evenly among
    /// the ranks. `false` if the first samples are repeated instead.
    drops_last: bool,
    is_shuffled: bool,
    /// Number of samples per global batch, which is a multiple of the world size. `None` means one
    /// sample per rank.
    global_batch: Option<usize>,
    epoch: u64,
    /// All samples, in this epoch's order.
    order: Vec<usize>,
    /// Number of epochs after which [`DistributedSampler::next_batch`] stops. `None` means that it
    /// stops after every epoch.
    epochs: Option<u64>,
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
            event::warn(
                rank,
                format!(
                    "the data set has only {length} samples for {world_size} ranks; some samples \
                     are repeated in each epoch unless the last samples are dropped"
                ),
            );
        }
        let mut this = Self {
            length,
            seed,
            rank,
            world_size,
            drops_last: false,
            is_shuffled: true,
            global_batch: None,
            epoch: 0,
            epochs: None,
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
        self.drops_last = true;
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

    /// Makes [`DistributedSampler::next_batch`] continue with the next epoch until it has completed
    /// `epochs` epochs. Without this setting, it stops at the end of every epoch.
    ///
    /// ```
    /// use ringtree::ddp::DistributedSampler;
    /// let sampler = DistributedSampler::new(10, 42, 0, 1)?;
    /// let mut sampler = sampler.global_batch(5)?.epochs(3);
    /// let batches = std::iter::from_fn(|| sampler.next_batch());
    /// assert_eq!(batches.count(), 6);
    /// # Ok::<(), ringtree::Error>(())
    /// ```
    #[must_use]
    pub fn epochs(mut self, epochs: u64) -> Self {
        self.epochs = Some(epochs);
        self
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
    /// [`DistributedSampler::global_batch`] is set. Returns `None` at the end of the epoch or, with
    /// [`DistributedSampler::epochs`], at the end of the last epoch.
    pub fn next_batch(&mut self) -> Option<Vec<usize>> {
        let each = self.global_batch.unwrap_or(self.world_size) / self.world_size;
        while self.epochs.is_none_or(|epochs| self.epoch < epochs) {
            let batch: Vec<_> = self.take(each).collect();
            if !batch.is_empty() {
                return Some(batch);
            }
            self.epochs?;
            self.set_epoch(self.epoch + 1);
        }
        None
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
        let round = |count: usize, unit: usize| match self.drops_last {
            true => count - count % unit,
            false => count.next_multiple_of(unit),
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
mod tests;
