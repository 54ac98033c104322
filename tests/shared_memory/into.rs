//! Checks calls with separate input and output against exactly known results. The calls must only
//! read the input.

use crate::long::short_or_long;
use crate::world::{Case, Rank, on_every_rank, pairs, stingy_world, world};
use proptest::prelude::*;
use ringtree::internal::engine::Placement;
use ringtree::plan::Collective;
use ringtree::{Dtype, ReduceOp};

/// The way in which all ranks make a call: step by step or polled, and whether their peers can read
/// the input and the output in place.
type Manner = (Option<u32>, [bool; 2]);

/// The ways to run a call: step by step until the end, step by step for a few polls and then
/// polled, or polled from the start.
const PATIENCES: [Option<u32>; 3] = [Some(u32::MAX), Some(2), None];
const EXPOSED: [[bool; 2]; 4] = [[false, false], [true, true], [true, false], [false, true]];

fn call(rank: &mut Rank, case: &Case, (patience, exposed): Manner) {
    if exposed == [false, false] {
        rank.call_unexposed(case, Placement::Into, patience);
    } else {
        rank.call_exposing(case, Placement::Into, exposed, patience);
    }
    rank.finish(0);
}

/// Returns cases with counts that the ranks cannot share evenly, or that leave some ranks without a
/// block. Some buffers are shorter than a segment, and some are longer.
fn cases(world_size: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for (collective, algorithm) in pairs() {
        for count in [0, 1, world_size - 1, 8 * world_size + 5, 1003, 33_001] {
            for pieces in [1, 4] {
                cases.push(Case {
                    collective,
                    algorithm,
                    pieces,
                    count,
                    root: count,
                    dtype: Dtype::F32,
                    op: ReduceOp::Sum,
                    seed: count as u64,
                });
            }
        }
    }
    cases
}

#[test]
fn input_is_only_read_and_output_is_right() {
    for world_size in 1..=9 {
        let cases = cases(world_size);
        on_every_rank(&mut world(world_size), |rank| {
            // Neighboring cases differ in their counts and pieces. Each case is called in two ways.
            // Together, the cases call every algorithm in every way.
            for (at, case) in cases.iter().enumerate() {
                for way in [at, at + 5] {
                    let (patience, exposed) = (PATIENCES[way % 3], EXPOSED[way % 4]);
                    call(rank, case, (patience, exposed));
                }
            }
        });
    }
}

fn case() -> impl Strategy<Value = (Case, usize, usize)> {
    let moves_data = |(collective, _): &(Collective, _)| *collective != Collective::Barrier;
    let pairs: Vec<_> = pairs().into_iter().filter(moves_data).collect();
    (
        prop::sample::select(pairs),
        1usize..18,
        prop_oneof![4 => 0usize..200, 2 => 200usize..5_000, 1 => 5_000usize..40_000],
        0usize..60,
        prop::sample::select(vec![
            (Dtype::F32, ReduceOp::Sum),
            (Dtype::I8, ReduceOp::Min),
            (Dtype::F16, ReduceOp::Avg),
            (Dtype::F64, ReduceOp::Prod),
        ]),
        any::<u64>(),
        (0..PATIENCES.len(), 0..EXPOSED.len()),
    )
        .prop_map(
            |((collective, algorithm), pieces, count, root, (dtype, op), seed, (one, other))| {
                let case = Case {
                    collective,
                    algorithm,
                    pieces,
                    count,
                    root,
                    dtype,
                    op,
                    seed,
                };
                (case, one, other)
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(short_or_long(12, 320)))]

    /// Runs over all kinds of links, with elements of all types.
    #[test]
    fn input_is_only_read_over_all_links(
        world_size in 1usize..10,
        cases in prop::collection::vec(case(), 1..10),
        stingy: Option<bool>,
    ) {
        let mut ranks = match stingy {
            None => world(world_size),
            Some(is_local) => stingy_world(world_size, is_local),
        };
        on_every_rank(&mut ranks, |rank| {
            for (case, patience, exposed) in &cases {
                call(rank, case, (PATIENCES[*patience], EXPOSED[*exposed]));
            }
        });
    }
}
