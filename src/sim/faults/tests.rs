use super::*;

#[test]
fn generator_yields_published_sequence() {
    let mut chance = SplitMix64::new(1_234_567);
    let first: Vec<u64> = (0..2).map(|_| chance.next_u64()).collect();
    assert_eq!(
        first,
        [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]
    );
}

#[test]
fn bounded_draws_cover_the_range() {
    let mut chance = SplitMix64::new(7);
    let mut seen = [0; 3];
    for _ in 0..300 {
        seen[chance.below(3) as usize] += 1;
    }
    assert!(seen.iter().all(|&count| count > 50), "{seen:?}");
}

#[test]
fn short_transfers_move_one_to_all_offered_bytes() {
    let faults = Faults {
        short_io: true,
        ..Faults::default()
    };
    let mut chance = SplitMix64::new(1);
    let moved: Vec<usize> = (0..200)
        .map(|_| faults.accepted_bytes(10, &mut chance))
        .collect();
    assert!(moved.iter().all(|bytes| (1..=10).contains(bytes)));
    assert!(moved.iter().any(|&bytes| bytes < 10));
    assert_eq!(faults.accepted_bytes(0, &mut chance), 0);
}
