//! Splits a text into training samples and distributes them among the ranks.

use super::random::mix;
use std::fs;
use std::path::{Path, PathBuf};

/// A text as tokens. The token of a byte is its index among the different bytes in the text.
pub(crate) struct Text {
    /// The text, with each byte replaced by its index in `vocabulary`.
    tokens: Vec<u8>,
    /// The different bytes in the text, in ascending order.
    vocabulary: Vec<u8>,
    /// Number of tokens in a sample that precede the token to predict.
    context: usize,
}

impl Text {
    /// Loads the file `path`, or this project's sources if `path` is `None`.
    pub(crate) fn load(path: Option<&Path>, context: usize) -> Result<Self, String> {
        let files = match path {
            Some(path) => vec![path.to_path_buf()],
            None => own_sources()?,
        };
        let mut bytes = Vec::new();
        for file in &files {
            let content = fs::read(file).map_err(|error| cannot_read(file, &error))?;
            bytes.extend(content);
        }
        Self::new(&bytes, context)
    }

    /// Splits `bytes` into samples of `context` known tokens and one token to predict.
    pub(crate) fn new(bytes: &[u8], context: usize) -> Result<Self, String> {
        if bytes.len() <= context {
            return Err(format!(
                "the text has {} bytes; training needs at least {}",
                bytes.len(),
                context + 1
            ));
        }
        let mut place_of = [None; 256];
        for &byte in bytes {
            place_of[usize::from(byte)] = Some(0);
        }
        let mut vocabulary = Vec::new();
        for (byte, place) in (0..=u8::MAX).zip(&mut place_of) {
            if place.is_some() {
                *place = Some(vocabulary.len() as u8);
                vocabulary.push(byte);
            }
        }
        let place = |byte: &u8| place_of[usize::from(*byte)].expect("invariant: it occurs");
        Ok(Text {
            tokens: bytes.iter().map(place).collect(),
            vocabulary,
            context,
        })
    }

    /// Returns the number of different bytes in the text.
    pub(crate) fn vocabulary_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// Returns the different bytes of the text, in ascending order.
    pub(crate) fn vocabulary(&self) -> &[u8] {
        &self.vocabulary
    }

    /// Returns the byte that `token` represents.
    pub(crate) fn byte(&self, token: u8) -> u8 {
        self.vocabulary[usize::from(token)]
    }

    /// Returns all tokens of the text.
    pub(crate) fn tokens(&self) -> &[u8] {
        &self.tokens
    }

    /// Returns the number of samples: one for each token with a complete context before it.
    pub(crate) fn sample_count(&self) -> usize {
        self.tokens.len() - self.context
    }

    /// Returns the context of `sample` and the token to predict.
    pub(crate) fn sample(&self, sample: usize) -> (&[u8], u8) {
        let end = sample + self.context;
        (&self.tokens[sample..end], self.tokens[end])
    }

    /// Returns the contexts of `samples`, concatenated, and the token that follows each context.
    pub(crate) fn batch(&self, samples: &[usize]) -> (Vec<u8>, Vec<u8>) {
        let mut contexts = Vec::with_capacity(samples.len() * self.context);
        let mut targets = Vec::with_capacity(samples.len());
        for &sample in samples {
            let (context, target) = self.sample(sample);
            contexts.extend_from_slice(context);
            targets.push(target);
        }
        (contexts, targets)
    }
}

/// Returns the Rust files of the project that contains this example, sorted by path.
fn own_sources() -> Result<Vec<PathBuf>, String> {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let root = folders
        .find(|folder| folder.join("DESIGN.md").is_file())
        .ok_or("the default text, this project's sources, does not exist; pass --text FILE")?;
    let mut found = Vec::new();
    let mut directories = vec![root.join("src"), root.join("crates")];
    while let Some(directory) = directories.pop() {
        let failed = |error| cannot_read(&directory, &error);
        for entry in fs::read_dir(&directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn cannot_read(path: &Path, error: &std::io::Error) -> String {
    format!("cannot read the text {}: {error}", path.display())
}

/// Distributes the samples of a text among ranks, in a different order in every epoch.
///
/// The samples form one endless stream: epoch 0 shuffled, then epoch 1 shuffled, and so on. Step k
/// trains on the k-th `global_batch` samples of the stream, no matter how many ranks there are.
/// Rank r takes the r-th part of these samples. Therefore, no two ranks train on the same position
/// in the stream, an epoch contains every sample, and a run needs only its step number to resume.
pub(crate) struct Sampler {
    sample_count: usize,
    global_batch: usize,
    rank: usize,
    world_size: usize,
    seed: u64,
}

impl Sampler {
    /// Creates the sampler of `rank`. `world_size` must divide `global_batch`.
    pub(crate) fn new(
        sample_count: usize,
        global_batch: usize,
        rank: usize,
        world_size: usize,
        seed: u64,
    ) -> Self {
        assert_eq!(
            global_batch % world_size,
            0,
            "the number of ranks must divide the batch"
        );
        Sampler {
            sample_count,
            global_batch,
            rank,
            world_size,
            seed,
        }
    }

    /// Returns the samples on which this rank trains in `step`.
    pub(crate) fn samples(&self, step: usize) -> impl Iterator<Item = usize> + '_ {
        let share = self.global_batch / self.world_size;
        let start = step * self.global_batch + self.rank * share;
        (start..start + share).map(|position| self.sample_at(position))
    }

    /// Returns the sample at `position` in the stream.
    fn sample_at(&self, position: usize) -> usize {
        let epoch = (position / self.sample_count) as u64;
        let key = mix(self.seed.wrapping_add(mix(epoch)));
        shuffled(position % self.sample_count, self.sample_count, key)
    }
}

/// Returns the position of `index` in the permutation of `0..count` that `key` determines.
///
/// A Feistel network permutes all numbers that have a given even number of bits, no matter what its
/// mixing function is (Luby, Rackoff, 1988). A result outside the range is permuted again until it
/// is inside (Black, Rogaway, 2002, "cycle walking"). This needs no memory, no matter how long the
/// text is.
fn shuffled(index: usize, count: usize, key: u64) -> usize {
    let bits = usize::BITS - (count - 1).leading_zeros();
    let half_bits = bits.div_ceil(2);
    let mask = (1u64 << half_bits) - 1;
    let mut value = index as u64;
    loop {
        let (mut high, mut low) = (value >> half_bits, value & mask);
        for round in 0..4 {
            let mixed = mix(key ^ mix(low << 2 | round)) & mask;
            (high, low) = (low, high ^ mixed);
        }
        value = high << half_bits | low;
        if value < count as u64 {
            return value as usize;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the samples of all ranks in `step`, in rank order.
    fn global(samples: usize, batch: usize, ranks: usize, seed: u64, step: usize) -> Vec<usize> {
        (0..ranks)
            .flat_map(|rank| {
                let sampler = Sampler::new(samples, batch, rank, ranks, seed);
                sampler.samples(step).collect::<Vec<_>>()
            })
            .collect()
    }

    proptest! {
        /// If the steps make up complete epochs, each epoch contains every sample exactly once: no
        /// sample occurs twice (the ranks' shares are disjoint), and none is missing (together the
        /// shares are complete).
        #[test]
        fn epoch_contains_every_sample_once(
            share in 1..9usize, ranks in 1..9usize, steps in 1..40usize, epoch in 0..3usize,
            seed: u64,
        ) {
            let batch = share * ranks;
            let samples = batch * steps;
            let mut seen: Vec<usize> = (epoch * steps..(epoch + 1) * steps)
                .flat_map(|step| global(samples, batch, ranks, seed, step))
                .collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..samples).collect::<Vec<_>>());
        }

        /// If the batch does not divide the epoch, the stream still contains every sample.
        #[test]
        fn epochs_follow_each_other_without_gap(
            samples in 1..300usize, share in 1..9usize, ranks in 1..9usize, seed: u64,
        ) {
            let batch = share * ranks;
            let steps = (2 * samples).div_ceil(batch);
            let stream: Vec<usize> = (0..steps)
                .flat_map(|step| global(samples, batch, ranks, seed, step))
                .collect();
            for epoch in stream.chunks_exact(samples) {
                let mut epoch = epoch.to_vec();
                epoch.sort_unstable();
                prop_assert_eq!(epoch, (0..samples).collect::<Vec<_>>());
            }
        }

        /// The global batch of a step does not depend on the number of ranks that share it.
        #[test]
        fn global_batch_is_independent_of_number_of_ranks(
            samples in 1..5000usize, seed: u64, step in 0..100usize,
        ) {
            let alone = global(samples, 24, 1, seed, step);
            for ranks in [2, 3, 4, 6, 8, 12, 24] {
                prop_assert_eq!(&global(samples, 24, ranks, seed, step), &alone);
            }
        }
    }

    #[test]
    fn every_epoch_and_seed_has_a_different_order() {
        let order = |seed, epoch| global(1000, 1000, 1, seed, epoch);
        let in_order: Vec<usize> = (0..1000).collect();
        let orders = [in_order, order(1, 0), order(1, 1), order(2, 0), order(2, 1)];
        for (place, one) in orders.iter().enumerate() {
            for other in &orders[..place] {
                let equal = one.iter().zip(other).filter(|(one, other)| one == other);
                assert!(equal.count() < 20, "two orders are too similar");
            }
        }
    }

    #[test]
    fn samples_are_windows_of_text() {
        let text = Text::new(b"banana", 2).unwrap();
        assert_eq!((text.vocabulary_size(), text.sample_count()), (3, 4));
        let words: Vec<String> = (0..text.sample_count())
            .map(|sample| {
                let (context, target) = text.sample(sample);
                let all = context.iter().chain([&target]);
                all.map(|token| char::from(text.byte(*token))).collect()
            })
            .collect();
        assert_eq!(words, ["ban", "ana", "nan", "ana"]);
    }

    #[test]
    fn too_short_text_returns_an_error() {
        let message = Text::new(b"ab", 2).err().unwrap();
        assert!(message.contains("2 bytes") && message.contains("at least 3"));
    }

    #[test]
    fn default_text_is_this_project() {
        let text = Text::load(None, 16).unwrap();
        assert!(text.sample_count() > 10_000);
    }
}
