use super::*;
use crate::ddp::layout::Limits;
use crate::ddp::parameter::Parameter;
use crate::dtype::Dtype;
use proptest::prelude::*;

proptest! {
    #[test]
    fn buckets_launch_in_order_once_earlier_ones_are_full(
        counts in prop::collection::vec(1usize..200, 1..30),
        keys in prop::collection::vec(any::<u32>(), 30),
        stop in 0usize..31,
    ) {
        let parameters: Vec<_> = counts
            .iter()
            .map(|count| Parameter::new("any", &[*count], Dtype::F32))
            .collect();
        let mut order: Vec<_> = (0..parameters.len()).collect();
        let limits = Limits { first_bytes: 300, bytes: 900 };
        let layout = Layout::new(&parameters, &order, limits);
        order.sort_by_key(|number| keys[*number]);
        let mut readiness = Readiness::default();
        readiness.begin(&layout);
        let mut launched = 0;
        for (done, number) in order.iter().copied().enumerate().take(stop) {
            let now = readiness.ready(number, &layout).unwrap();
            prop_assert_eq!(readiness.ready(number, &layout), None);
            prop_assert_eq!(now.start, launched);
            launched = now.end;
            let full = |bucket: &usize| layout.buckets[*bucket]
                .parameters
                .iter()
                .all(|each| order[..=done].contains(each));
            let expected = (0..layout.buckets.len()).take_while(full).count();
            prop_assert_eq!(launched, expected);
        }
        prop_assert_eq!(readiness.rest(), launched..layout.buckets.len());
        prop_assert!(readiness.rest().is_empty());
    }
}
