//! Measures an all-reduce between two ranks through shared memory. Each rank is a thread with its
//! own engine and region.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ringtree::internal::compute::lend;
use ringtree::internal::engine::{Cache, Group, Key, Links, Memory, Placement, Prepared, Start};
use ringtree::internal::link::shm::{Wake, links};
use ringtree::internal::protocol::call::Call;
use ringtree::internal::unchecked::{peer_region, region};
use ringtree::plan::internal::topology::together;
use ringtree::plan::{Algorithm, Collective, TuningTable};
use std::sync::{Arc, Barrier, mpsc};
use std::time::{Duration, Instant};

const RANKS: usize = 2;

/// A rank: its group, and the all-reduce that it repeats.
struct Rank {
    group: Group,
    prepared: Arc<Prepared>,
    buffer: Vec<f32>,
    sequence: u64,
}

impl Rank {
    fn repeat(&mut self, times: u64) {
        for _ in 0..times {
            self.sequence += 1;
            let mut patience = |_| {
                std::hint::spin_loop();
                true
            };
            lend(&mut self.buffer, |region| {
                let mut memory = Memory::in_place(region);
                let mut start = Start {
                    prepared: &self.prepared,
                    sequence: self.sequence,
                    memory: &mut memory,
                    timeout: Duration::MAX,
                    gate: None,
                };
                let ran = self.group.run(&mut start, &mut patience);
                assert_eq!(ran, Ok(None), "the call must complete without an error");
                (memory.output, ())
            });
        }
    }
}

fn ranks(algorithm: Algorithm, count: usize) -> Vec<Rank> {
    let collectives = channel().into_iter().zip(channel()).enumerate();
    let rank = |(rank, (collectives, pairs))| Rank {
        group: Group::new(rank, RANKS, collectives, pairs),
        prepared: prepared(algorithm, rank, count),
        buffer: apart(count),
        sequence: 0,
    };
    collectives.map(rank).collect()
}

/// Creates the links of both ranks.
fn channel() -> Vec<Links> {
    // SAFETY: only the links access the region.
    let own = || unsafe { region(RANKS) }.expect("shared memory must be available");
    let made = (0..RANKS).map(|_| own());
    let (regions, files): (Vec<_>, Vec<_>) = made.unzip();
    let wake: Wake = Arc::new(|_| {});
    let of_rank = |(rank, own)| {
        let peer = 1 - rank;
        // SAFETY: only the links access the region.
        let theirs =
            unsafe { peer_region(RANKS, &files[peer]) }.expect("the file must be a region");
        let (links, local) = links((0, 0), &[0, 1], rank, own, vec![(peer, theirs)], &wake);
        let never = |peer| panic!("rank {peer} must be reached through shared memory");
        Links::new(RANKS, Box::new(never)).with_local(links, local)
    };
    regions.into_iter().enumerate().map(of_rank).collect()
}

/// Returns zeros in memory that shares no cache line with another rank's buffer, as if each rank
/// were a process.
fn apart(count: usize) -> Vec<f32> {
    let mut zeros = Vec::with_capacity(count.max(4096));
    zeros.resize(count, 0.0);
    zeros
}

fn prepared(algorithm: Algorithm, rank: usize, count: usize) -> Arc<Prepared> {
    let topology = together(RANKS);
    let mut cache = Cache::new(rank, topology, TuningTable::default(), vec![1 - rank]);
    let key = Key {
        call: Call::new(Collective::AllReduce, count).by(algorithm),
        placement: Placement::InPlace,
        is_exposed: false,
    };
    let prepared = cache
        .get(key)
        .expect("invariant: the algorithm is registered");
    Arc::clone(prepared)
}

fn all_reduce(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("all-reduce of two engines over shared memory");
    for (algorithm, bytes) in [
        (Algorithm::Flat, 8usize),
        (Algorithm::Flat, 1 << 10),
        (Algorithm::TwoShot, 1 << 10),
        (Algorithm::TwoShot, 16 << 10),
        (Algorithm::TwoShot, 256 << 10),
    ] {
        let mut ranks = ranks(algorithm, bytes / 4);
        let mut own = ranks.remove(0);
        let mut other = ranks.remove(0);
        let barrier = Arc::new(Barrier::new(RANKS));
        let (orders, taken) = mpsc::channel::<u64>();
        let there = Arc::clone(&barrier);
        let partner = std::thread::spawn(move || {
            for times in taken {
                there.wait();
                other.repeat(times);
            }
        });
        group.throughput(Throughput::Bytes(bytes as u64));
        let id = BenchmarkId::new(algorithm.name(), bytes);
        group.bench_function(id, |bencher| {
            bencher.iter_custom(|times| {
                orders
                    .send(times)
                    .expect("invariant: the partner is running");
                barrier.wait();
                let start = Instant::now();
                own.repeat(times);
                start.elapsed()
            });
        });
        drop(orders);
        partner
            .join()
            .expect("invariant: the partner does not panic");
    }
    group.finish();
}

criterion_group!(benches, all_reduce);
criterion_main!(benches);
