//! Many ranks on few cores, calls at random.

use crate::long::short_or_long;
use crate::world::{Case, Random, Rank, Way, on_every_rank, pairs, world};
use ringtree::{Dtype, ReduceOp};
use std::time::{Duration, Instant};

const RANKS: usize = 16;
const CALLS_AT_ONCE: usize = 40;

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

/// Sixteen ranks call at random for a few seconds, for a minute if `RINGTREE_TEST_LONG` is set. One
/// world serves throughout, so that counts, slots and links age.
#[test]
fn sixteen_ranks_call_whatever_however_and_the_results_are_right() {
    let duration = Duration::from_secs(short_or_long(2, 60));
    let seed = std::process::id().into();
    println!("seed {seed}");
    let mut ranks = world(RANKS);
    let mut random = Random(seed);
    let begin = Instant::now();
    let mut calls = 0;
    while begin.elapsed() < duration {
        let cases: Vec<_> = (0..CALLS_AT_ONCE).map(|_| case(&mut random)).collect();
        let seed = random.draw();
        on_every_rank(&mut ranks, |rank: &mut Rank| {
            rank.be_patient_again();
            let mut random = Random(seed ^ (rank.rank as u64) << 40);
            for case in &cases {
                rank.call(case, Way::Mixed, &mut random);
            }
            rank.finish(0);
        });
        calls += CALLS_AT_ONCE;
    }
    println!("{calls} calls of {RANKS} ranks");
}
