//! An all-reduce of two ranks through shared memory, as the engine runs it: two threads, each with
//! an engine and a region of its own.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ringtree::engine::Engine;
use ringtree::engine::group::Group;
use ringtree::engine::posting::Arithmetic;
use ringtree::engine::posting::{Prepared, Progress};
use ringtree::engine::program::Program;
use ringtree::plan::{Algorithm, Collective, Request, plan};
use ringtree::protocol::call::Call;
use ringtree::reduce::Kernel;
use ringtree::transport::shm::{SharedTransport, peer_region, region};
use ringtree::{Dtype, ReduceOp};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Instant;

const RANKS: usize = 2;

/// A rank's engine, and the call it repeats.
struct Rank {
    engine: Engine,
    prepared: Prepared,
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
            let has_ended = self.engine.run(
                0,
                &self.prepared,
                self.sequence,
                bytemuck::cast_slice_mut(&mut self.buffer),
                &mut Progress::default(),
                &mut patience,
            );
            assert!(has_ended, "nothing fails and patience has no end");
        }
    }
}

fn ranks(algorithm: Algorithm, pieces: usize, count: usize) -> Vec<Rank> {
    let transports = [0, 1].map(|_| {
        let mut regions = Vec::new();
        let mut files = Vec::new();
        for _ in 0..RANKS {
            let (own, file) = region(RANKS).expect("memory can be shared");
            regions.push(own);
            files.push(file);
        }
        let transport = |(rank, own)| {
            let peers = (0..RANKS).filter(|peer| *peer != rank);
            let theirs = peers.map(|peer| {
                let region = peer_region(RANKS, &files[peer]).expect("it is one");
                (peer, region)
            });
            let wake = Box::new(|_| {});
            let theirs = theirs.collect();
            SharedTransport::new((0, 0), RANKS, &[0, 1], rank, own, theirs, wake)
        };
        let made: Vec<_> = regions.into_iter().enumerate().map(transport).collect();
        made
    });
    let [collectives, pairs] = transports;
    let channels = collectives.into_iter().zip(pairs).enumerate();
    channels
        .map(|(rank, (collectives, pairs))| {
            let mut engine = Engine::default();
            let group = Group::new(rank, RANKS, Box::new(collectives), Box::new(pairs));
            engine.add_group(0, group);
            Rank {
                engine,
                prepared: prepared(algorithm, pieces, rank, count),
                buffer: apart(count),
                sequence: 0,
            }
        })
        .collect()
}

/// Zeros that share no cache line with another rank's, as those of processes do not.
fn apart(count: usize) -> Vec<f32> {
    let mut zeros = Vec::with_capacity(count.max(4096));
    zeros.resize(count, 0.0);
    zeros
}

fn prepared(algorithm: Algorithm, pieces: usize, rank: usize, count: usize) -> Prepared {
    let plan = plan(&Request {
        collective: Collective::AllReduce,
        algorithm,
        world_size: RANKS,
        rank,
        root: 0,
        pieces,
        ranks_per_host: RANKS,
    });
    Prepared {
        call: Call {
            sequence: 0,
            collective: "all-reduce".into(),
            algorithm: algorithm.name().into(),
            pieces: 1,
            count: count as u64,
            dtype: Dtype::F32,
            op: Some(ReduceOp::Sum),
            root: None,
        },
        digest: 1,
        program: Arc::new(Program::bind(&plan.expect("it is registered"), count, 4)),
        arithmetic: Arithmetic {
            kernel: Kernel::new(Dtype::F32, ReduceOp::Sum),
            element_bytes: 4,
            divisor: None,
        },
    }
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
        let mut ranks = ranks(algorithm, 1, bytes / 4);
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
                orders.send(times).expect("invariant: the partner lives");
                barrier.wait();
                let start = Instant::now();
                own.repeat(times);
                start.elapsed()
            });
        });
        drop(orders);
        partner.join().expect("invariant: it does not panic");
    }
    group.finish();
}

criterion_group!(benches, all_reduce);
criterion_main!(benches);
