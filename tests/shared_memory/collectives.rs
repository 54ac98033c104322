//! Checks every algorithm in the registry over shared memory against exactly known results. The
//! ranks make their calls in all ways.

use crate::long::short_or_long;
use crate::world::{Case, Random, Rank, Way, on_every_rank, pairs, stingy_world, world};
use proptest::prelude::*;
use ringtree::plan::{Algorithm, Collective};
use ringtree::{Dtype, ReduceOp};

/// Numbers of elements: none, one, and a few; as many as fit next to a flag, and one more; as many
/// as fit in a segment, and one more; and slightly more than three segments.
const COUNTS: [usize; 9] = [0, 1, 3, 10, 11, 501, 32_768, 32_769, 100_000];

fn make_calls(rank: &mut Rank, cases: &[Case], way: Way, seed: u64) {
    let mut random = Random(seed ^ (rank.rank as u64) << 32);
    for case in cases {
        rank.call(case, way, &mut random);
    }
    rank.finish(0);
}

fn every_case(ranks: &mut [Rank], way: Way) {
    let world_size = ranks.len();
    let mut cases = Vec::new();
    let mut random = Random(world_size as u64);
    for (collective, algorithm) in pairs() {
        for count in COUNTS {
            for pieces in [1, 3] {
                cases.push(Case {
                    collective,
                    algorithm,
                    pieces,
                    count,
                    root: random.below(world_size),
                    dtype: Dtype::F32,
                    op: ReduceOp::Sum,
                    seed: count as u64,
                });
            }
        }
    }
    on_every_rank(ranks, |rank| make_calls(rank, &cases, way, 7));
}

#[test]
fn step_by_step_calls_give_right_results() {
    for world_size in 1..=6 {
        every_case(&mut world(world_size), Way::Patient);
    }
}

#[test]
fn calls_that_become_operations_give_right_results() {
    for world_size in 1..=6 {
        every_case(&mut world(world_size), Way::Impatient);
    }
}

#[test]
fn posted_calls_give_right_results() {
    for world_size in 1..=6 {
        every_case(&mut world(world_size), Way::Polled);
    }
}

#[test]
fn concurrent_calls_give_right_results() {
    for world_size in 1..=6 {
        every_case(&mut world(world_size), Way::Several);
    }
}

/// With these links, a call may become an operation in the middle of any message.
#[test]
fn stingy_links_give_right_results() {
    let several = [
        (2, Way::Patient),
        (3, Way::Impatient),
        (4, Way::Several),
        (5, Way::Mixed),
    ];
    for (world_size, way) in several {
        // Worlds of even size have local links, and the other worlds do not. Long runs test both.
        let is_local = world_size % 2 == 0;
        every_case(&mut stingy_world(world_size, is_local), way);
        if short_or_long(false, true) {
            every_case(&mut stingy_world(world_size, !is_local), way);
        }
    }
}

/// A rank whose call has failed gets its buffer back immediately, and may write to it. A peer that
/// reads the buffer before it learns of the failure must not mistake this data for the result.
#[test]
fn memory_exposed_by_failed_call_is_not_read_as_result() {
    for (collective, algorithm, root) in [
        (Collective::Broadcast, Algorithm::Flat, 0),
        (Collective::Reduce, Algorithm::Flat, 1),
    ] {
        let case = Case {
            collective,
            algorithm,
            pieces: 1,
            count: 1000,
            root,
            dtype: Dtype::F32,
            op: ReduceOp::Sum,
            seed: 1,
        };
        for patience in [0, 3] {
            let mut ranks = world(2);
            ranks[0].abandon_exposing(&case, patience);
            assert_eq!(ranks[1].end_of(&case, patience), None, "{case:?}");
        }
    }
}

fn case() -> impl Strategy<Value = Case> {
    (
        prop::sample::select(pairs()),
        prop::sample::select(vec![1usize, 2, 3, 5, 17]),
        prop_oneof![4 => 0usize..100, 2 => 100usize..20_000, 1 => 20_000usize..80_000],
        0usize..60,
        prop::sample::select(vec![
            (Dtype::F32, ReduceOp::Sum),
            (Dtype::U8, ReduceOp::Max),
            (Dtype::Bf16, ReduceOp::Avg),
            (Dtype::F64, ReduceOp::Prod),
        ]),
        any::<u64>(),
    )
        .prop_map(
            |((collective, algorithm), pieces, count, root, (dtype, op), seed)| {
                // For a barrier, the type and the operator do not matter.
                let is_barrier = collective == Collective::Barrier;
                let (dtype, op) = if is_barrier {
                    (Dtype::U8, ReduceOp::Max)
                } else {
                    (dtype, op)
                };
                Case {
                    collective,
                    algorithm,
                    pieces,
                    count,
                    root,
                    dtype,
                    op,
                    seed,
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(short_or_long(16, 480)))]

    #[test]
    fn mixed_calls_give_right_results(
        world_size in 2usize..8,
        cases in prop::collection::vec(case(), 1..40),
        seed: u64,
        stingy: Option<bool>,
    ) {
        let mut ranks = match stingy {
            None => world(world_size),
            Some(is_local) => stingy_world(world_size, is_local),
        };
        on_every_rank(&mut ranks, |rank| make_calls(rank, &cases, Way::Mixed, seed));
    }
}
