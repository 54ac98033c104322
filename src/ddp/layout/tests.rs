use super::*;
use proptest::prelude::*;

fn parameters(counts: &[(usize, bool)]) -> Vec<Parameter> {
    let one = |(count, is_half): &(usize, bool)| {
        let dtype = if *is_half { Dtype::Bf16 } else { Dtype::F32 };
        Parameter::new("any", &[*count], dtype)
    };
    counts.iter().map(one).collect()
}

proptest! {
    #[test]
    fn parameters_have_one_place_and_buckets_keep_limits(
        counts in prop::collection::vec((0usize..300, any::<bool>()), 1..40),
        first in 1usize..2000,
        rest in 1usize..4000,
        seed in any::<u64>(),
    ) {
        let parameters = parameters(&counts);
        let mut order: Vec<_> = (0..parameters.len()).collect();
        order.sort_by_key(|number| (*number as u64 + 1).wrapping_mul(seed | 1));
        let limits = Limits { first_bytes: first, bytes: rest };
        let layout = Layout::new(&parameters, &order, limits);
        let mut seen = vec![0; parameters.len()];
        for (index, bucket) in layout.buckets.iter().enumerate() {
            let filled = bucket.parameters.iter().filter(|one| parameters[**one].count() > 0);
            prop_assert!(bucket.bytes <= first.max(rest) || filled.count() == 1);
            let mut end = 0;
            for number in &bucket.parameters {
                seen[*number] += 1;
                let place = &layout.places[*number];
                prop_assert_eq!(place.bucket, index);
                prop_assert_eq!(place.range.start, end);
                prop_assert_eq!(place.range.len(), parameters[*number].count());
                prop_assert_eq!(parameters[*number].dtype, bucket.dtype);
                end = place.range.end;
            }
            prop_assert_eq!(end, bucket.count);
        }
        prop_assert!(seen.iter().all(|times| *times == 1));
    }
}

#[test]
fn buckets_follow_order_and_first_is_smaller() {
    let parameters = parameters(&[(100, false), (100, false), (100, false), (100, false)]);
    let limits = Limits {
        first_bytes: 400,
        bytes: 800,
    };
    let layout = Layout::new(&parameters, &[3, 2, 1, 0], limits);
    let numbers: Vec<_> = layout.buckets.iter().map(|one| &one.parameters).collect();
    assert_eq!(numbers, [&vec![3], &vec![2, 1], &vec![0]]);
}

#[test]
fn buckets_are_ordered_by_last_parameter() {
    let parameters = parameters(&[(10, true), (10, false), (10, false), (10, true)]);
    let limits = Limits {
        first_bytes: 1000,
        bytes: 1000,
    };
    let layout = Layout::new(&parameters, &[0, 1, 2, 3], limits);
    let numbers: Vec<_> = layout.buckets.iter().map(|one| &one.parameters).collect();
    assert_eq!(numbers, [&vec![1, 2], &vec![0, 3]]);
}
