//! Collectives on device buffers; ranks as
//! threads and as processes, over the device's memory and through the hosts. The suite runs on the
//! fake, on a GPU where there is one, and through CUDA's calls on a pretended driver.

#![allow(clippy::unwrap_used)]

mod attaching;
mod buffers;
mod cases;
mod ends;
mod peers;
#[path = "../device/pretended.rs"]
mod pretended;
mod processes;
mod ranks;
mod slices;

use cases::Case;
use ranks::{Way, device, on_threads};
use ringtree::device::Device;
use ringtree::device::fake::{Fake, Faults, Options};
use ringtree::plan::{Algorithm, Collective, REGISTRY};
use ringtree::{Dtype, Error, ReduceOp};
use std::sync::Arc;

/// An element: none, one, some; a segment and one more; many segments and a bit.
const COUNTS: [usize; 6] = [0, 1, 3, 1024, 1025, 30_001];
/// Small, so that messages have many.
pub(crate) const SEGMENT_BYTES: usize = 4096;

/// Every algorithm with every collective that device buffers take part in.
fn every_case(world_size: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for entry in REGISTRY {
        for collective in entry.collectives {
            if *collective == Collective::Barrier {
                continue;
            }
            for (nth, count) in COUNTS.into_iter().enumerate() {
                cases.push(Case {
                    collective: *collective,
                    algorithm: Some(entry.algorithm),
                    dtype: Dtype::F32,
                    op: [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max][nth % 3],
                    count,
                    root: nth % world_size,
                    seed: cases.len() as u64,
                    is_registered: cases.len().is_multiple_of(3),
                });
            }
        }
    }
    cases
}

/// Every type with every operator that it has.
fn every_type() -> Vec<Case> {
    let types = Dtype::ALL.iter();
    let pairs = types.flat_map(|dtype| ReduceOp::ALL.iter().map(move |op| (*dtype, *op)));
    let supported = pairs.filter(|(dtype, op)| op.supports(*dtype));
    supported
        .map(|(dtype, op)| Case {
            collective: Collective::AllReduce,
            algorithm: None,
            dtype,
            op,
            count: 2500,
            root: 0,
            seed: 1,
            is_registered: false,
        })
        .collect()
}

fn check_all(world_size: usize, way: Way, options: Options, cases: &[Case]) {
    if let Some(device) = device(options) {
        check_all_on(&device, world_size, way, cases);
    }
}

fn check_all_on(device: &Arc<dyn Device>, world_size: usize, way: Way, cases: &[Case]) {
    let wrong = on_threads(world_size, way, device, |rank| {
        let wrong = |case| rank.check(case).map(|wrong| (wrong, *case));
        let all: Result<Vec<_>, _> = cases.iter().map(wrong).collect();
        rank.comm.synchronize()?;
        all
    });
    for (rank, wrong) in wrong.into_iter().enumerate() {
        for (wrong, case) in wrong.unwrap() {
            assert_eq!(wrong, 0, "rank {rank} of {world_size}, {way:?}: {case:?}");
        }
    }
}

#[test]
fn every_algorithm_over_the_devices_memory() {
    for world_size in [1, 2, 3, 5] {
        for way in [Way::Mapped, Way::Signalled] {
            let cases = every_case(world_size);
            check_all(world_size, way, Options::default(), &cases);
        }
    }
}

#[test]
fn every_algorithm_through_the_hosts() {
    for world_size in [2, 3] {
        check_all(
            world_size,
            Way::Staged,
            Options::default(),
            &every_case(world_size),
        );
    }
}

#[test]
fn every_type_and_operator() {
    check_all(2, Way::Mapped, Options::default(), &every_type());
    check_all(3, Way::Staged, Options::default(), &every_type());
}

/// So that whatever was not waited for is missed.
#[test]
fn streams_that_pause_change_nothing() {
    for (way, seed) in [(Way::Mapped, 3), (Way::Staged, 4), (Way::Signalled, 5)] {
        let options = Options {
            pauses: Some(seed),
            ..Options::default()
        };
        let cases = every_case(3);
        let few: Vec<_> = cases.into_iter().filter(|one| one.seed % 5 == 0).collect();
        check_all(3, way, options, &few);
    }
}

#[test]
fn a_device_without_word_operations_waits_in_the_call() {
    let options = Options {
        word_operations: false,
        ..Options::default()
    };
    let cases = every_case(2);
    let few: Vec<_> = cases.into_iter().filter(|one| one.seed % 4 == 0).collect();
    check_all(2, Way::Mapped, options, &few);
    let Some(device) = device(options) else {
        return;
    };
    let ends = on_threads(2, Way::Mapped, &device, |rank| {
        let end = rank
            .comm
            .attach_with(&rank.device, ranks::options(Way::Signalled));
        Ok(end)
    });
    for end in ends {
        assert!(matches!(end, Ok(Err(Error::Usage(_)))), "{end:?}");
    }
}

/// A rank that is through writes over its buffer while the others may be reading it.
#[test]
fn what_is_lent_stays_until_it_is_read() {
    let options = Options {
        pauses: Some(5),
        ..Options::default()
    };
    let long = |one: &Case| one.count == 30_001;
    let cases: Vec<_> = every_case(3).into_iter().filter(long).collect();
    let registered = |one: &Case| Case {
        is_registered: true,
        ..*one
    };
    let cases: Vec<_> = cases.iter().map(registered).collect();
    for way in [Way::Mapped, Way::Signalled] {
        check_all(3, way, options, &cases);
    }
}

/// What a check is for: a fold that is not done shows.
#[test]
fn a_skipped_fold_is_found() {
    let options = Options {
        faults: Faults {
            skip_fold: Some(0),
            ..Faults::default()
        },
        ..Options::default()
    };
    let case = Case {
        count: 3000,
        ..every_type()[0]
    };
    let Some(device) = device(options) else {
        return;
    };
    let wrong = on_threads(2, Way::Mapped, &device, |rank| rank.check(&case));
    let total: usize = wrong.into_iter().map(Result::unwrap).sum();
    assert!(total > 0, "nobody missed the fold");
}

/// A GPU folds buffers fast that lie alike in their 16 bytes, and chunks begin anywhere.
#[test]
fn whatever_the_count_folds_find_their_operands_aligned() {
    let fake = Fake::new();
    let device: Arc<dyn Device> = Arc::new(fake.clone());
    let reducing = REGISTRY
        .iter()
        .filter(|entry| entry.collectives.contains(&Collective::AllReduce));
    let algorithms: Vec<_> = reducing.map(|entry| entry.algorithm).collect();
    let ways = Way::ALL.into_iter();
    for (way, algorithm) in ways.flat_map(|way| algorithms.iter().map(move |one| (way, *one))) {
        let case = |count, is_registered| Case {
            algorithm: Some(algorithm),
            count,
            is_registered,
            ..every_type()[0]
        };
        let cases = [1001, 4999, 30_001].map(|count| [case(count, false), case(count, true)]);
        let before = fake.crooked_folds();
        check_all_on(&device, 3, way, &cases.concat());
        assert_eq!(fake.crooked_folds(), before, "{algorithm}, {way:?}");
    }
    assert!(fake.folds_and_waits().0 > 0);
}

/// A message that is lent is read only when all its tokens came, which here no link holds at once.
#[test]
fn lent_messages_of_more_tokens_than_a_link_holds() {
    for (world_size, algorithm, way) in [
        (2, Algorithm::Circulant, Way::Mapped),
        (3, Algorithm::Ring, Way::Mapped),
        (3, Algorithm::Ring, Way::Signalled),
    ] {
        let device = device(Options::default()).unwrap();
        let sums = on_threads(world_size, way, &device, |rank| {
            let options = ranks::options(way).segment_bytes(16);
            rank.comm.attach_with(&rank.device, options)?;
            rank.comm.use_algorithm(Some(algorithm))?;
            let mut buffer = rank.comm.alloc_on_device(&rank.stream, 500_000)?;
            buffer.write(&vec![1i64; 500_000])?;
            for _ in 0..2 {
                rank.comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
            }
            rank.comm.synchronize()?;
            buffer.read()
        });
        let sum = (world_size * world_size) as i64;
        for read in sums {
            assert!(read.unwrap().iter().all(|element| *element == sum));
        }
    }
}
