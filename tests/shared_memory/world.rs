//! Runs ranks as threads of one process, each with a separate engine and regions. Provides calls
//! whose results are known exactly.

use crate::links::{Channel, channel};
use crate::shares::{memory, peer_memory};
use crate::stingy::Stingy;
use ringtree::internal::compute::{Kernel, Region, lend, lend_both};
use ringtree::internal::engine::{
    Arithmetic, End, Engine, Group, Links, Memory, Order, Placement, Prepared, Program, Start,
    Transport,
};
use ringtree::internal::link::Link;
use ringtree::internal::link::shm::{Allocation, Own, OwnRegion};
use ringtree::internal::protocol::call::Call;
use ringtree::plan::internal::algorithms;
use ringtree::plan::internal::layout::part_start;
use ringtree::plan::internal::spec::whole_count;
use ringtree::plan::{Algorithm, Collective, Hosts, Request, plan};
use ringtree::{Dtype, Error, ErrorKind, Layout, ReduceOp};
use ringtree_kit::expected::exact::Inputs;
use ringtree_kit::expected::result::ExpectedResult;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A call that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(120);
/// Size of the memory that a rank can expose, in bytes.
const EXPOSABLE_BYTES: usize = 2 << 20;
/// Minimum length of an exposed message, in bytes.
const EXPOSED_BYTES_MIN: usize = 50;
/// Maximum number of calls that a rank has in flight.
const IN_FLIGHT_MAX: usize = 3;

/// Returns every algorithm with every collective that it implements.
pub(crate) fn pairs() -> Vec<(Collective, Algorithm)> {
    algorithms::pairs(&[2, 4])
}

/// Random numbers that depend only on a seed.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.draw() % bound as u64) as usize
    }

    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// The properties of a call that each rank chooses for itself. Other ranks may choose differently.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    pub(crate) placement: Placement,
    /// `true` if data for several ranks is written only once.
    pub(crate) is_local: bool,
    /// `None` if messages are not exposed. Otherwise, `true` if messages are exposed even in memory
    /// that is overwritten later.
    pub(crate) exposes: Option<bool>,
}

/// The form of most calls, which are in place.
pub(crate) const PLAIN: Form = Form {
    placement: Placement::InPlace,
    is_local: true,
    exposes: None,
};

/// A call that all ranks make.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Case {
    pub(crate) collective: Collective,
    pub(crate) algorithm: Algorithm,
    pub(crate) pieces: usize,
    pub(crate) count: usize,
    pub(crate) root: usize,
    pub(crate) dtype: Dtype,
    pub(crate) op: ReduceOp,
    pub(crate) seed: u64,
}

impl Case {
    pub(crate) fn request(&self, rank: usize, world_size: usize) -> Request {
        Request {
            collective: self.collective,
            algorithm: self.algorithm,
            world_size,
            rank,
            root: self.root % world_size,
            pieces: self.pieces,
            hosts: Hosts::each(world_size),
        }
    }

    /// Returns the number of elements of the complete buffer.
    fn count(&self, world_size: usize) -> usize {
        whole_count(self.collective, self.count, world_size)
    }

    /// Returns the call's program for `rank`.
    pub(crate) fn prepared(&self, rank: usize, world_size: usize, form: Form) -> Arc<Prepared> {
        let plan = plan(&self.request(rank, world_size)).expect("the registry has the algorithm");
        let call = Call {
            pieces: self.pieces,
            ..Call::new(self.collective, self.count(world_size))
                .dtype(self.dtype)
                .op(self.op)
                .root(self.root % world_size)
                .by(self.algorithm)
        };
        let element_bytes = self.dtype.size();
        let is_local = |_| form.is_local;
        let program = Program::bind(
            &plan,
            self.count(world_size),
            element_bytes,
            form.placement,
            &is_local,
        );
        Arc::new(Prepared {
            counts: None,
            digest: call.digest(),
            call,
            program: match form.exposes {
                Some(overwritten_too) => program.exposing(EXPOSED_BYTES_MIN, overwritten_too),
                None => program,
            },
            arithmetic: Arithmetic {
                kernel: Kernel::new(self.dtype, self.op),
                element_bytes,
                divisor: (self.op == ReduceOp::Avg).then_some(world_size),
            },
            predicted_s: 0.0,
            end: None,
            transport: Transport::SharedMemory,
        })
    }

    fn inputs(&self, world_size: usize) -> Inputs {
        Inputs::new(self.dtype, self.op, world_size, self.seed)
    }

    /// Returns the contribution of `rank` to the call.
    pub(crate) fn input(&self, rank: usize, world_size: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.count(world_size) * self.dtype.size()];
        self.inputs(world_size).fill(rank, 0, &mut bytes);
        bytes
    }

    /// Returns the bytes of the complete buffer that the input of `rank` holds, and those that its
    /// output holds.
    fn places(&self, placement: Placement, rank: usize, world_size: usize) -> [Range<usize>; 2] {
        let whole = 0..self.count(world_size) * self.dtype.size();
        let start = |rank| part_start(self.count(world_size), world_size, rank) * self.dtype.size();
        let block = start(rank)..start(rank + 1);
        let root = self.root % world_size;
        match (placement, self.collective) {
            (Placement::Into, Collective::AllGather) => [block, whole],
            (Placement::Into, Collective::Gather) if rank == root => [block, whole],
            (Placement::Into, Collective::Gather) => [block, 0..0],
            (Placement::Into, Collective::ReduceScatter) => [whole, block],
            (Placement::Into, Collective::Scatter) => [whole, block],
            _ => [whole.clone(), whole],
        }
    }

    /// Returns the number of elements that differ from what the collective promises `rank`.
    /// Elements without a promise do not count.
    pub(crate) fn count_wrong(&self, rank: usize, world_size: usize, bytes: &[u8]) -> usize {
        let promise = ExpectedResult {
            collective: self.collective,
            root: self.root % world_size,
            inputs: self.inputs(world_size),
            rank,
            world_size,
            layout: Layout::Even,
        };
        promise.count_wrong(bytes)
    }
}

/// How a rank makes its calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Way {
    /// Step by step, no matter how long the call takes.
    Patient,
    /// Step by step for a while, and then as an operation.
    Impatient,
    /// As an operation.
    Polled,
    /// As an operation, while earlier operations are still in flight.
    Several,
    /// In a different way for each call.
    Mixed,
}

/// A call in flight on memory that no peer can read.
#[derive(Clone, Copy, Debug)]
struct Pending {
    slot: usize,
    case: Case,
    placement: Placement,
}

/// A rank of a world.
pub(crate) struct Rank {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    engine: Engine,
    sequence: u64,
    until: Instant,
    is_local: bool,
    /// Memory that this rank can expose.
    memory: Option<OwnRegion>,
    in_flight: VecDeque<Pending>,
}

pub(crate) fn world(world_size: usize) -> Vec<Rank> {
    world_over(world_size, true, |link| link)
}

/// Creates ranks over stingy links. If `is_local`, data for several ranks is written once;
/// otherwise, it is written for each rank.
pub(crate) fn stingy_world(world_size: usize, is_local: bool) -> Vec<Rank> {
    world_over(world_size, is_local, |link| {
        Box::new(Stingy::new(link, Random(world_size as u64)))
    })
}

fn world_over(
    world_size: usize,
    is_local: bool,
    over: impl Fn(Box<dyn Link>) -> Box<dyn Link>,
) -> Vec<Rank> {
    let [collectives, pairs] = [channel(world_size), channel(world_size)];
    let made = (0..world_size).map(|_| memory(EXPOSABLE_BYTES));
    let (memories, files): (Vec<_>, Vec<_>) = made.unzip();
    let ranks = collectives.into_iter().zip(pairs).zip(memories);
    type Parts = ((Channel, Channel), OwnRegion);
    let rank = |(rank, (((links, local), pairs), memory)): (usize, Parts)| {
        let wrapped = links.into_iter().map(|(peer, link)| (peer, over(link)));
        let collectives = connected(world_size, (wrapped.collect(), local));
        let mut group = Group::new(rank, world_size, collectives, connected(world_size, pairs));
        let peers = (0..world_size).filter(|peer| *peer != rank);
        let map = |peer: usize| {
            let theirs = peer_memory(EXPOSABLE_BYTES, &files[peer]);
            (peer, theirs)
        };
        group.admit(Allocation {
            number: 1,
            own: Own::new(&memory),
            theirs: peers.map(map).collect(),
        });
        let mut engine = Engine::default();
        engine.add_group(0, group);
        Rank {
            rank,
            world_size,
            engine,
            sequence: 0,
            until: Instant::now() + PATIENCE,
            is_local,
            memory: Some(memory),
            in_flight: VecDeque::new(),
        }
    };
    ranks.enumerate().map(rank).collect()
}

/// Returns links to the ranks of this host, and to no other ranks.
pub(crate) fn connected(world_size: usize, (links, local): Channel) -> Links {
    let never = |peer| panic!("rank {peer} is on this host");
    Links::new(world_size, Box::new(never)).with_local(links, local)
}

/// Runs `script` on every rank, each in a thread.
pub(crate) fn on_every_rank(ranks: &mut [Rank], script: impl Fn(&mut Rank) + Sync) {
    std::thread::scope(|scope| {
        for rank in ranks {
            let script = &script;
            scope.spawn(move || script(rank));
        }
    });
}

impl Rank {
    fn form(&self, placement: Placement) -> Form {
        Form {
            placement,
            is_local: self.is_local,
            exposes: None,
        }
    }

    /// Makes the call. Checks the results of this call and of earlier calls once they are
    /// available.
    pub(crate) fn call(&mut self, case: &Case, way: Way, random: &mut Random) {
        let several = [Way::Patient, Way::Impatient, Way::Polled, Way::Several];
        let way = match way {
            Way::Mixed => random.one_of(&several),
            other => other,
        };
        let placement = random.one_of(&[Placement::InPlace, Placement::Into]);
        let patience = match way {
            Way::Patient => Some(u32::MAX),
            Way::Impatient => Some(random.below(4) as u32),
            _ => None,
        };
        if way != Way::Several && random.below(2) == 0 {
            let exposed = random.one_of(&[[true, true], [true, false], [false, true]]);
            self.call_exposing(case, placement, exposed, patience);
            self.finish(0);
            return;
        }
        self.call_unexposed(case, placement, patience);
        let keep = match way {
            Way::Several => 1 + random.below(IN_FLIGHT_MAX),
            _ => 0,
        };
        self.finish(keep);
    }

    /// Makes the call on memory that no peer can read. It runs step by step for as long as
    /// `patience` allows, or immediately as an operation if `patience` is `None`.
    pub(crate) fn call_unexposed(
        &mut self,
        case: &Case,
        placement: Placement,
        patience: Option<u32>,
    ) {
        let prepared = case.prepared(self.rank, self.world_size, self.form(placement));
        let [input, output] = case.places(placement, self.rank, self.world_size);
        let given = case.input(self.rank, self.world_size)[input].to_vec();
        let memory = match placement {
            Placement::InPlace => Memory::in_place(Region::own(given)),
            Placement::Into => Memory {
                input: Some(Region::own(given)),
                output: Some(Region::own(vec![0x5au8; output.len()])),
            },
        };
        match self.start(case, &prepared, memory, patience) {
            Ok(end) => self.check_end(case, placement, end),
            Err(slot) => self.in_flight.push_back(Pending {
                slot,
                case: *case,
                placement,
            }),
        }
    }

    fn group(&mut self) -> &mut Group {
        self.engine.group(0).expect("group 0 exists")
    }

    /// Starts the call. Returns its result if it ends within `patience`, and otherwise its slot
    /// among the operations in flight.
    fn start(
        &mut self,
        case: &Case,
        prepared: &Arc<Prepared>,
        mut memory: Memory,
        patience: Option<u32>,
    ) -> Result<End, usize> {
        self.sequence += 1;
        self.until = Instant::now() + PATIENCE;
        let mut start = Start {
            prepared,
            sequence: self.sequence,
            memory: &mut memory,
            timeout: PATIENCE,
            gate: None,
        };
        let until = self.until;
        let Some(most) = patience else {
            let posted = self.group().post(Order::Collectives, &mut start);
            return Err(posted.expect("nothing has failed"));
        };
        let mut patience = |polls| {
            std::thread::yield_now();
            assert!(Instant::now() < until, "stuck in {case:?}");
            polls < most
        };
        match self.group().run(&mut start, &mut patience) {
            Ok(None) => Ok((memory, Ok(()))),
            Ok(Some(place)) => Err(place),
            Err(error) => Ok((memory, Err(error))),
        }
    }

    /// Makes the call and runs it until it ends.
    fn complete(
        &mut self,
        case: &Case,
        prepared: &Arc<Prepared>,
        memory: Memory,
        patience: Option<u32>,
    ) -> End {
        match self.start(case, prepared, memory, patience) {
            Ok(end) => end,
            Err(slot) => self.poll_for(slot, case),
        }
    }

    /// Makes the call with an input, an output, or both in memory that peers can read. Overwrites
    /// this memory afterwards.
    pub(crate) fn call_exposing(
        &mut self,
        case: &Case,
        placement: Placement,
        exposed: [bool; 2],
        patience: Option<u32>,
    ) {
        let form = Form {
            exposes: Some(case.seed.is_multiple_of(3)),
            ..self.form(placement)
        };
        let prepared = case.prepared(self.rank, self.world_size, form);
        let mut memory = self.memory.take().expect("the previous call returned it");
        let [input, output] = case.places(placement, self.rank, self.world_size);
        let given = case.input(self.rank, self.world_size)[input].to_vec();
        // The data is not at the start of the memory, and is aligned for any element.
        let start = 8 * (case.seed as usize % 100);
        let second = given.len().next_multiple_of(8);
        let exposable = memory.bytes_mut(start, second + output.len());
        let (first, second) = exposable.split_at_mut(second);
        let mut unexposed = (vec![0; given.len()], vec![0; output.len()]);
        let input = if exposed[0] {
            &mut first[..given.len()]
        } else {
            &mut unexposed.0
        };
        let output = if exposed[1] { second } else { &mut unexposed.1 };
        input.copy_from_slice(&given);
        output.fill(0x5a);
        let end = match placement {
            Placement::InPlace => {
                output.copy_from_slice(&given);
                lend(output, |region| {
                    let memory = Memory::in_place(region);
                    let (memory, end) = self.complete(case, &prepared, memory, patience);
                    (memory.output, end)
                })
            }
            Placement::Into => lend_both(input, output, |input, output| {
                let memory = Memory {
                    input: Some(input),
                    output: Some(output),
                };
                let (memory, end) = self.complete(case, &prepared, memory, patience);
                (memory.input, memory.output, end)
            }),
        };
        assert_eq!(end, Ok(()), "{case:?}");
        self.check(case, placement, input, output);
        // A peer that still reads this memory gets nonsense.
        exposable.fill(0xa5);
        self.memory = Some(memory);
    }

    /// Makes the call on memory that peers can read, abandons it, and overwrites the memory.
    pub(crate) fn abandon_exposing(&mut self, case: &Case, patience: u32) {
        let form = Form {
            exposes: Some(true),
            ..PLAIN
        };
        let prepared = case.prepared(self.rank, self.world_size, form);
        let mut memory = self.memory.take().expect("the previous call returned it");
        let input = case.input(self.rank, self.world_size);
        let buffer = memory.bytes_mut(0, input.len());
        buffer.copy_from_slice(&input);
        let cause = Error::new(ErrorKind::Deadline, "it takes too long");
        lend(buffer, |region| {
            let started = self.start(case, &prepared, Memory::in_place(region), Some(patience));
            let slot = started.expect_err("no peer answers");
            while self.engine.poll() {}
            self.group().give_up(cause.clone());
            let taken = self.group().take(Order::Collectives, slot);
            let (memory, end) = taken.expect("the call has failed");
            assert_eq!(end, Err(cause));
            (memory.output, ())
        });
        memory.bytes_mut(0, input.len()).fill(0xa5);
        self.memory = Some(memory);
    }

    /// Makes the call and advances it for a limited number of polls. Returns its result if it has
    /// ended.
    pub(crate) fn end_of(&mut self, case: &Case, patience: u32) -> Option<Result<(), Error>> {
        let prepared = case.prepared(self.rank, self.world_size, PLAIN);
        let buffer = Region::own(case.input(self.rank, self.world_size));
        let slot = match self.start(case, &prepared, Memory::in_place(buffer), Some(patience)) {
            Ok((_, end)) => return Some(end),
            Err(slot) => slot,
        };
        for _ in 0..100 {
            self.engine.poll();
        }
        let taken = self.group().take(Order::Collectives, slot);
        taken.map(|(_, end)| end)
    }

    fn poll_for(&mut self, slot: usize, case: &Case) -> End {
        loop {
            if !self.engine.poll() {
                std::thread::yield_now();
                assert!(Instant::now() < self.until, "stuck in {case:?}");
            }
            if let Some(end) = self.group().take(Order::Collectives, slot) {
                return end;
            }
        }
    }

    /// Polls until at most `keep` calls are in flight, and checks the earliest calls first.
    pub(crate) fn finish(&mut self, keep: usize) {
        while self.in_flight.len() > keep {
            if !self.engine.poll() {
                std::thread::yield_now();
                assert!(Instant::now() < self.until, "stuck in {:?}", self.in_flight);
            }
            while let Some(first) = self.in_flight.front().copied() {
                let Some(end) = self.group().take(Order::Collectives, first.slot) else {
                    break;
                };
                self.in_flight.pop_front();
                self.check_end(&first.case, first.placement, end);
            }
        }
    }

    /// Checks a call that has ended on memory that no peer can read.
    fn check_end(&self, case: &Case, placement: Placement, (memory, end): End) {
        assert_eq!(end, Ok(()), "{case:?}");
        let bytes = |region: Option<Region>| {
            let region = region.unwrap_or_else(|| Region::own(Vec::<u8>::new()));
            region.into_vector::<u8>().expect("the region holds bytes")
        };
        self.check(case, placement, &bytes(memory.input), &bytes(memory.output));
    }

    /// Checks that the output is what the collective promises and that the input has not changed.
    fn check(&self, case: &Case, placement: Placement, input: &[u8], output: &[u8]) {
        let (rank, world_size) = (self.rank, self.world_size);
        let [given, taken] = case.places(placement, rank, world_size);
        let mut whole = case.input(rank, world_size);
        if placement == Placement::Into {
            assert!(
                input == &whole[given],
                "rank {rank} of {world_size}: the input of {case:?} has changed"
            );
        }
        whole[taken].copy_from_slice(output);
        let wrong = case.count_wrong(rank, world_size, &whole);
        assert_eq!(
            wrong, 0,
            "rank {rank} of {world_size}, {placement:?}: {case:?}"
        );
    }
}
