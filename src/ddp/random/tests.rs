use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

#[test]
fn random_numbers_are_stable() {
    // These first outputs for seed 1234567 appear in many publications of the generator.
    let mut generator = SplitMix64(1_234_567);
    assert_eq!(generator.next(), 6_457_827_717_110_365_317);
    assert_eq!(generator.next(), 3_203_168_211_198_807_973);
    assert_eq!(permutation(10, 42, 3), [1, 4, 7, 0, 8, 5, 2, 9, 3, 6]);
    assert_eq!(stream_seed(42, 1000, 3), 6_368_311_414_067_121_054);
}

#[test]
fn permutations_are_equally_likely() {
    // With 48,000 draws, each of the 24 orders is expected 2,000 times, with a standard
    // deviation of 44.
    let mut counts = std::collections::HashMap::new();
    for epoch in 0..48_000 {
        *counts.entry(permutation(4, 7, epoch)).or_insert(0usize) += 1;
    }
    assert_eq!(counts.len(), 24);
    let is_fair = |count: &usize| count.abs_diff(2000) < 5 * 44;
    assert!(counts.values().all(is_fair), "{counts:?}");
}

#[test]
fn stream_seeds_differ_for_every_rank_and_step() {
    let pairs = (0..500).flat_map(|step| (0..500).map(move |rank| (step, rank)));
    let seeds: HashSet<_> = pairs
        .flat_map(|(step, rank)| [0, 1, 42].map(|seed| stream_seed(seed, step, rank)))
        .collect();
    assert_eq!(seeds.len(), 3 * 500 * 500);
}

proptest! {
    #[test]
    fn flipping_an_input_bit_flips_about_half_of_the_seed_bits(
        seed: u64, step in 0u64..1 << 40, rank in 0usize..1 << 16, bit in 0u32..16,
    ) {
        let before = stream_seed(seed, step, rank);
        let flip = 1 << bit;
        for after in [
            stream_seed(seed ^ flip, step, rank),
            stream_seed(seed, step ^ flip, rank),
            stream_seed(seed, step, rank ^ flip as usize),
        ] {
            // 32 of 64 bits are expected, with a standard deviation of 4.
            prop_assert!((8..=56).contains(&(before ^ after).count_ones()));
        }
    }
}
