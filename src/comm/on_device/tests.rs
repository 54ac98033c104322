//! Tests every algorithm on mapped streams that advance in any order that the streams' entries
//! allow.

use crate::device::numbering::{MESSAGES_MAX, Numbering, Order};
use crate::dtype::Dtype;
use crate::engine::bind::Placement;
use crate::engine::cache::{Cache, Key};
use crate::engine::medium::enqueued::{Entry, Place, PlaceMemory, Script, fits, script};
use crate::limits::{DEVICE_FRAME_BYTES, DEVICE_FRAMES, DEVICE_SOURCES_MAX};
use crate::plan::internal::algorithms::pairs;
use crate::plan::internal::layout::part_start;
use crate::plan::internal::spec::whole_count;
use crate::plan::internal::topology::together;
use crate::plan::{Algorithm, Collective, TuningTable};
use crate::protocol::call::Call;
use std::collections::{HashMap, VecDeque};

const RANKS_MAX: usize = 16;
/// Number of consecutive operations. One in three is of a different kind, so that links are used
/// unevenly.
const OPERATIONS: usize = 7;

/// An entry in a stream's queue. A move also contains the index of its operation and that of its
/// frame.
enum Queued {
    Wait(usize, u32),
    Write(usize, usize, u32),
    Move(Entry, usize, usize),
}

/// A rank's streams, words and frames, and its buffer for each operation.
struct Rank {
    streams: Vec<VecDeque<Queued>>,
    words: HashMap<usize, u32>,
    frames: Vec<Vec<u8>>,
    buffers: Vec<Vec<u8>>,
}

struct Calls {
    calls: Vec<Call>,
    scripts: Vec<Vec<Script>>,
}

/// Returns the chosen call and the script of each rank, or `None` if the algorithm does not support
/// `world_size` ranks.
fn prepare(call: Call, world_size: usize) -> Option<(Call, Vec<Script>)> {
    let topology = together(world_size);
    let mut cache = Cache::new(0, topology, TuningTable::default(), Vec::new());
    let key = Key {
        call,
        placement: Placement::InPlace,
        is_exposed: false,
    };
    let chosen = Call {
        pieces: 1,
        ..cache.get(key).ok()?.call
    };
    let programs = cache.of_all_ranks(&chosen).unwrap();
    let in_place = |at: usize| at;
    let (bytes, operands) = (DEVICE_FRAME_BYTES, DEVICE_SOURCES_MAX);
    assert!(fits(&programs, &in_place, bytes, MESSAGES_MAX, operands));
    let scripts = (0..world_size).map(|rank| script(&programs, &in_place, rank));
    Some((chosen, scripts.collect()))
}

fn input(operation: usize, rank: usize, at: usize) -> u8 {
    (operation * 31 + rank * 7 + at * 3) as u8
}

fn ranks(calls: &Calls, world_size: usize, streams: usize) -> Vec<Rank> {
    let rank = |rank| {
        let mut numbering = Numbering::new(rank, world_size);
        let mut queues: Vec<_> = (0..streams).map(|_| VecDeque::new()).collect();
        for (operation, scripts) in calls.scripts.iter().enumerate() {
            let frame = numbering.frame();
            let queue: &mut VecDeque<_> = &mut queues[frame % streams];
            let queued = numbering.operation(&scripts[rank], |order| {
                queue.push_back(match order {
                    Order::Wait { at, number } => Queued::Wait(at, number),
                    Order::Write { peer, at, number } => Queued::Write(peer, at, number),
                    Order::Move(entry) => Queued::Move(entry.clone(), operation, frame),
                });
                Ok::<_, ()>(())
            });
            queued.unwrap();
        }
        let buffer = |(operation, call): (usize, &Call)| {
            let bytes = 0..call.count;
            bytes.map(|at| input(operation, rank, at)).collect()
        };
        Rank {
            streams: queues,
            words: HashMap::new(),
            frames: vec![vec![0x5a; 1 << 16]; DEVICE_FRAMES],
            buffers: calls.calls.iter().enumerate().map(buffer).collect(),
        }
    };
    (0..world_size).map(rank).collect()
}

fn read(all: &[Rank], rank: usize, place: &Place, at: (usize, usize), bytes: usize) -> Vec<u8> {
    let (operation, frame) = at;
    let memory = match place.memory {
        PlaceMemory::Buffer => &all[rank].buffers[operation],
        PlaceMemory::Frame => &all[rank].frames[frame],
        PlaceMemory::Peer(peer) => &all[peer].frames[frame],
    };
    memory[place.at..place.at + bytes].to_vec()
}

fn execute(all: &mut [Rank], rank: usize, entry: &Entry, at: (usize, usize)) {
    let (result, to) = match entry {
        Entry::Copy { from, to, bytes } => (read(all, rank, from, at, *bytes), to),
        Entry::Reduce {
            from, to, bytes, ..
        } => {
            let mut sum = vec![0u8; *bytes];
            for place in from {
                let operand = read(all, rank, place, at, *bytes);
                for (one, other) in sum.iter_mut().zip(operand) {
                    *one = one.wrapping_add(other);
                }
            }
            (sum, to)
        }
        Entry::Await { .. } | Entry::Notify { .. } => {
            unreachable!("waits and writes of words are not moves")
        }
    };
    let memory = match to.memory {
        PlaceMemory::Buffer => &mut all[rank].buffers[at.0],
        PlaceMemory::Frame => &mut all[rank].frames[at.1],
        PlaceMemory::Peer(_) => panic!("a stream writes to a peer's frame"),
    };
    memory[to.at..to.at + result.len()].copy_from_slice(&result);
}

/// Runs entries in an order drawn from `random` until none are left. Returns `false` if streams
/// wait forever.
fn run(all: &mut [Rank], random: &mut impl FnMut(usize) -> usize) -> bool {
    let streams = all[0].streams.len();
    let mut idle = 0;
    let mut left: usize = all
        .iter()
        .flat_map(|one| &one.streams)
        .map(VecDeque::len)
        .sum();
    while left > 0 {
        // Try all streams before concluding that they wait forever.
        let start = random(all.len() * streams);
        let mut moved = false;
        for nth in 0..all.len() * streams {
            let at = (start + nth) % (all.len() * streams);
            let (rank, stream) = (at / streams, at % streams);
            let mut burst = 1 + random(4);
            while burst > 0 {
                let Some(front) = all[rank].streams[stream].front() else {
                    break;
                };
                if let Queued::Wait(at, number) = front {
                    let word = all[rank].words.get(at).copied().unwrap_or(0);
                    if word.wrapping_sub(*number).cast_signed() < 0 {
                        break;
                    }
                }
                match all[rank].streams[stream].pop_front() {
                    Some(Queued::Write(peer, at, number)) => {
                        all[peer].words.insert(at, number);
                    }
                    Some(Queued::Move(entry, operation, frame)) => {
                        execute(all, rank, &entry, (operation, frame));
                    }
                    Some(Queued::Wait(..)) | None => {}
                }
                left -= 1;
                burst -= 1;
                moved = true;
            }
            if moved {
                break;
            }
        }
        idle = if moved { 0 } else { idle + 1 };
        if idle > 0 {
            return false;
        }
    }
    true
}

fn check(all: &[Rank], calls: &Calls) {
    let n = all.len();
    for (operation, call) in calls.calls.iter().enumerate() {
        let sum = |at| {
            let operands = (0..n).map(|rank| input(operation, rank, at));
            operands.fold(0, u8::wrapping_add)
        };
        let part = |rank| part_start(call.count, n, rank);
        for (rank, own) in all.iter().enumerate() {
            let is = |at: usize, expected: u8| {
                let found = own.buffers[operation][at];
                assert_eq!(found, expected, "rank {rank} of {n}, byte {at}: {call}");
            };
            match call.collective().unwrap() {
                Collective::AllReduce => (0..call.count).for_each(|at| is(at, sum(at))),
                Collective::Reduce if rank != call.root => {}
                Collective::Reduce => (0..call.count).for_each(|at| is(at, sum(at))),
                Collective::Broadcast => {
                    (0..call.count).for_each(|at| is(at, input(operation, call.root, at)));
                }
                Collective::ReduceScatter => {
                    (part(rank)..part(rank + 1)).for_each(|at| is(at, sum(at)));
                }
                Collective::Gather if rank != call.root => {}
                Collective::AllGather | Collective::Gather => (0..n).for_each(|from| {
                    let bytes = part(from)..part(from + 1);
                    bytes.for_each(|at| is(at, input(operation, from, at)));
                }),
                Collective::Scatter => {
                    let bytes = part(rank)..part(rank + 1);
                    bytes.for_each(|at| is(at, input(operation, call.root, at)));
                }
                Collective::AllToAll => (0..n).for_each(|from| {
                    let bytes = (part(from)..part(from + 1)).zip(part(rank)..);
                    bytes.for_each(|(to, at)| is(to, input(operation, from, at)));
                }),
                Collective::Barrier => {}
            }
        }
    }
}

fn check_all(streams: usize) {
    let mut seed = 1u64;
    let mut random = move |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % below
    };
    for (collective, algorithm) in pairs(&[2, 3]) {
        for n in 1..=RANKS_MAX {
            let count = whole_count(collective, 5 * n + 2, n);
            let call = Call::new(collective, count);
            let call = match collective {
                Collective::Barrier => call,
                one if one.is_rooted() => call.dtype(Dtype::U8).root(n - 1),
                _ => call.dtype(Dtype::U8),
            };
            let Some(one) = prepare(call.by(algorithm), n) else {
                continue;
            };
            let other = Call::new(Collective::Broadcast, 9).dtype(Dtype::U8);
            let other = prepare(other.by(Algorithm::Binomial), n).unwrap();
            let mut calls = Calls {
                calls: Vec::new(),
                scripts: Vec::new(),
            };
            for nth in 0..OPERATIONS {
                let (call, scripts) = if nth % 3 == 1 { &other } else { &one };
                calls.calls.push(*call);
                calls.scripts.push(scripts.clone());
            }
            let mut all = ranks(&calls, n, streams);
            assert!(
                run(&mut all, &mut random),
                "{call} of {n} ranks waits forever"
            );
            check(&all, &calls);
        }
    }
}

#[test]
fn streams_compute_correct_results_in_any_order() {
    check_all(DEVICE_FRAMES);
}

#[test]
fn streams_sharing_one_queue_compute_correct_results() {
    check_all(1);
}
