//! Tests random calls of many ranks on few cores.

use crate::long::short_or_long;
use crate::world::{Case, Random, Rank, Way, on_every_rank, pairs, world};
use ringtree::{Dtype, ReduceOp};
use std::time::{Duration, Instant};

const RANKS: usize = 16;
const CALLS_PER_BATCH: usize = 40;

fn case(random: &mut Random) -> Case {
    let (collective, algorithm) = random.one_of(&pairs());
    let bits = random.below(17);
    Case {
        collective,
        algorithm,
        pieces: 1 + random.below(6),
        count: random.below(1 << bits),
        root: random.below(RANKS),
        dtype: random.one_of(&[Dtype::U8, Dtype::F32, Dtype::F64]),
        op: random.one_of(&[ReduceOp::Sum, ReduceOp::Min, ReduceOp::Prod]),
        seed: random.draw(),
    }
}

/// Sixteen ranks make random calls for a few seconds, or for a minute if `RINGTREE_TEST_LONG` is
/// set. They use the same world throughout, so that counts, slots and links age.
#[test]
fn random_calls_of_sixteen_ranks_give_right_results() {
    let duration = Duration::from_secs(short_or_long(2, 60));
    let seed = std::process::id().into();
    println!("seed {seed}");
    let mut ranks = world(RANKS);
    let mut random = Random(seed);
    let begin = Instant::now();
    let mut calls = 0;
    while begin.elapsed() < duration {
        let cases: Vec<_> = (0..CALLS_PER_BATCH).map(|_| case(&mut random)).collect();
        let seed = random.draw();
        on_every_rank(&mut ranks, |rank: &mut Rank| {
            let mut random = Random(seed ^ (rank.rank as u64) << 40);
            for case in &cases {
                rank.call(case, Way::Mixed, &mut random);
            }
            rank.finish(0);
        });
        calls += CALLS_PER_BATCH;
    }
    println!("{calls} calls of {RANKS} ranks");
}
