//! Measures the overhead of a collective, which is its cost without moving bytes: creating and
//! choosing plans, and running the engine over in-memory links.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ringtree::internal::compute::Region;
use ringtree::internal::engine::{
    Cache, Engine, Group, Key, Links, Memory, Order, Placement, Program, Start,
};
use ringtree::internal::link::{Link, StreamLink};
use ringtree::internal::protocol::call::Call;
use ringtree::plan::{
    Algorithm, Collective, Hosts, Plan, Request, Topology, TuningTable, choose, plan,
};
use std::collections::VecDeque;
use std::hint::black_box;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One direction of a link between two engines on this thread.
type Pipe = Arc<Mutex<VecDeque<u8>>>;

struct MemoryStream {
    incoming: Pipe,
    outgoing: Pipe,
}

impl Read for MemoryStream {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        let mut pipe = self
            .incoming
            .lock()
            .expect("invariant: one thread, no panic");
        if pipe.is_empty() {
            return Err(Error::from(ErrorKind::WouldBlock));
        }
        pipe.read(into)
    }
}

impl Write for MemoryStream {
    fn write(&mut self, from: &[u8]) -> Result<usize> {
        self.outgoing
            .lock()
            .expect("invariant: one thread, no panic")
            .write(from)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

fn request(algorithm: Algorithm, world_size: usize, rank: usize) -> Request {
    let collective = Collective::AllReduce;
    Request {
        collective,
        algorithm,
        world_size,
        rank,
        root: 0,
        pieces: 1,
        hosts: Hosts::APART,
    }
}

fn planned(algorithm: Algorithm, world_size: usize, rank: usize) -> Plan {
    plan(&request(algorithm, world_size, rank)).expect("invariant: the algorithm is registered")
}

/// Creates two engines, one for each rank of a world of two.
fn pair() -> [Engine; 2] {
    let (there, back): (Pipe, Pipe) = Default::default();
    let ends = [(Arc::clone(&back), Arc::clone(&there)), (there, back)];
    let mut rank = 0;
    ends.map(|(incoming, outgoing)| {
        let collectives = links(Some(MemoryStream { incoming, outgoing }));
        let mut engine = Engine::default();
        engine.add_group(0, Group::new(rank, 2, collectives, links(None)));
        rank += 1;
        engine
    })
}

/// Creates links to the other engine over `stream`, or links that never connect if that is `None`.
fn links(mut stream: Option<MemoryStream>) -> Links {
    let connect = move |_| -> Box<dyn Link> {
        let mut stream = stream.take();
        Box::new(StreamLink::new((0, 0), Box::new(move || stream.take())))
    };
    Links::new(2, Box::new(connect))
}

fn engine(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("all-reduce of two engines over memory");
    for count in [2usize, 4096] {
        let calls = [0, 1].map(|rank| {
            let table = TuningTable::default();
            let mut cache = Cache::new(rank, Topology::apart(2), table, Vec::new());
            let key = Key {
                call: Call::new(Collective::AllReduce, count).by(Algorithm::RecursiveDoubling),
                placement: Placement::InPlace,
                is_exposed: false,
            };
            let prepared = cache
                .get(key)
                .expect("invariant: the algorithm is registered");
            Arc::clone(prepared)
        });
        let mut engines = pair();
        let mut buffers = [0, 1].map(|_| Some(Region::own(vec![0f32; count])));
        let mut sequence = 0;
        group.throughput(Throughput::Bytes(count as u64 * 4));
        group.bench_function(BenchmarkId::from_parameter(count * 4), |bencher| {
            bencher.iter(|| {
                sequence += 1;
                let mut slots = [0; 2];
                for rank in 0..2 {
                    let mut memory = Memory {
                        input: None,
                        output: buffers[rank].take(),
                    };
                    let mut start = Start {
                        prepared: &calls[rank],
                        sequence,
                        memory: &mut memory,
                        timeout: Duration::from_secs(1),
                        gate: None,
                    };
                    let group = group_of(&mut engines[rank]);
                    let posted = group.post(Order::Collectives, &mut start);
                    slots[rank] = posted.expect("invariant: the group accepts calls");
                }
                while engines[0].poll() | engines[1].poll() {}
                for rank in 0..2 {
                    let taken = group_of(&mut engines[rank]).take(Order::Collectives, slots[rank]);
                    let (memory, result) = taken.expect("invariant: the call has completed");
                    result.expect("invariant: nothing fails");
                    buffers[rank] = memory.output;
                }
            });
        });
    }
    group.finish();
}

fn group_of(engine: &mut Engine) -> &mut Group {
    engine.group(0).expect("invariant: the group was added")
}

fn plans(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan of one rank");
    for algorithm in [
        Algorithm::Circulant,
        Algorithm::RecursiveDoubling,
        Algorithm::Ring,
    ] {
        for world_size in [8usize, 64, 1024] {
            let id = BenchmarkId::new(algorithm.name(), world_size);
            group.bench_function(id, |bencher| {
                bencher.iter(|| black_box(planned(algorithm, world_size, world_size / 2)));
            });
        }
    }
    group.finish();
    let plan = planned(Algorithm::Circulant, 64, 5);
    criterion.bench_function("bind a circulant all-reduce of 64 ranks", |bencher| {
        bencher.iter(|| {
            let count = black_box(1 << 20);
            black_box(Program::bind(&plan, count, 4, Placement::InPlace, &|_| {
                false
            }))
        });
    });
    let table = TuningTable::default();
    criterion.bench_function("choose an all-reduce", |bencher| {
        bencher.iter(|| {
            choose(
                Collective::AllReduce,
                &Topology::apart(8),
                black_box(1 << 20),
                4,
                &table,
                None,
            )
        });
    });
}

criterion_group!(benches, engine, plans);
criterion_main!(benches);
