//! What a collective costs beside moving its bytes: plans, choices, and the engine over links that
//! are plain memory.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ringtree::engine::Engine;
use ringtree::engine::group::{ChannelKind, Group};
use ringtree::engine::posting::Arithmetic;
use ringtree::engine::posting::{Posting, Prepared, Progress};
use ringtree::engine::program::Program;
use ringtree::plan::select::{TuningTable, choose};
use ringtree::plan::{Algorithm, Collective, Plan, Request, Topology, plan};
use ringtree::protocol::call::Call;
use ringtree::reduce::Kernel;
use ringtree::sys::memory::Region;
use ringtree::transport::Connector;
use ringtree::transport::stream::StreamTransport;
use ringtree::{Dtype, ReduceOp};
use std::collections::VecDeque;
use std::hint::black_box;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One direction of a link between two engines of this thread.
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

struct MemoryConnector(Option<(usize, MemoryStream)>);

impl Connector for MemoryConnector {
    type Stream = MemoryStream;

    fn name(&self) -> &'static str {
        "memory"
    }

    fn request(&mut self, _peer: usize) {}

    fn ready(&mut self) -> Option<(usize, MemoryStream)> {
        self.0.take()
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
        ranks_per_host: 1,
    }
}

fn planned(algorithm: Algorithm, world_size: usize, rank: usize) -> Plan {
    plan(&request(algorithm, world_size, rank)).expect("invariant: the algorithm is registered")
}

/// Two engines, one for each rank of a world of two.
fn pair() -> [Engine; 2] {
    let (there, back): (Pipe, Pipe) = Default::default();
    let ends = [(Arc::clone(&back), Arc::clone(&there)), (there, back)];
    let mut rank = 0;
    ends.map(|(incoming, outgoing)| {
        let stream = MemoryStream { incoming, outgoing };
        let links = MemoryConnector(Some((1 - rank, stream)));
        let transport = Box::new(StreamTransport::new(links, 0, 0, 2));
        let unused = Box::new(StreamTransport::new(MemoryConnector(None), 1, 0, 2));
        let mut engine = Engine::default();
        engine.add_group(0, Group::new(rank, 2, transport, unused));
        rank += 1;
        engine
    })
}

fn engine(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("all-reduce of two engines over memory");
    for count in [2usize, 4096] {
        let arithmetic = Arithmetic {
            kernel: Kernel::new(Dtype::F32, ReduceOp::Sum),
            element_bytes: 4,
            divisor: None,
        };
        let calls: Vec<_> = (0..2)
            .map(|rank| {
                let plan = planned(Algorithm::RecursiveDoubling, 2, rank);
                Arc::new(Prepared {
                    call: call(count),
                    digest: 1,
                    program: Arc::new(Program::bind(&plan, count, 4)),
                    arithmetic,
                })
            })
            .collect();
        let mut engines = pair();
        let mut buffers = [0, 1].map(|_| Some(Region::own(vec![0f32; count])));
        let mut sequence = 0;
        group.throughput(Throughput::Bytes(count as u64 * 4));
        group.bench_function(BenchmarkId::from_parameter(count * 4), |bencher| {
            bencher.iter(|| {
                sequence += 1;
                let mut tickets = Vec::with_capacity(2);
                for rank in 0..2 {
                    let posting = Posting {
                        prepared: Arc::clone(&calls[rank]),
                        sequence,
                        buffer: buffers[rank].take().expect("invariant: it was given back"),
                        progress: Progress::default(),
                        timeout: Duration::from_secs(1),
                        gate: None,
                    };
                    let posted = engines[rank].post(0, ChannelKind::Collectives, posting);
                    tickets.push(
                        posted
                            .map_err(|(error, _)| error)
                            .expect("invariant: healthy"),
                    );
                }
                while engines[0].poll() | engines[1].poll() {}
                for rank in 0..2 {
                    let (buffer, result) = engines[rank]
                        .take(tickets[rank])
                        .expect("invariant: it has ended");
                    result.expect("invariant: nothing fails");
                    buffers[rank] = Some(buffer);
                }
            });
        });
    }
    group.finish();
}

fn call(count: usize) -> Call {
    Call {
        sequence: 0,
        collective: "all-reduce".into(),
        algorithm: "recursive-doubling".into(),
        pieces: 1,
        count: count as u64,
        dtype: Dtype::F32,
        op: Some(ReduceOp::Sum),
        root: None,
    }
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
        bencher.iter(|| black_box(Program::bind(&plan, black_box(1 << 20), 4)));
    });
    let table = TuningTable::default();
    criterion.bench_function("choose an all-reduce", |bencher| {
        bencher.iter(|| {
            choose(
                Collective::AllReduce,
                Topology::apart(8),
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
