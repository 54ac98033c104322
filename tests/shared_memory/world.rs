//! Ranks in one process, each a thread with an engine and regions of its own, and calls whose
//! results are known exactly.

use ringtree::engine::group::{ChannelKind, Group};
use ringtree::engine::posting::Arithmetic;
use ringtree::engine::posting::{Posting, Prepared, Progress};
use ringtree::engine::program::Program;
use ringtree::engine::{Engine, Ticket};
use ringtree::plan::layout::part_start;
use ringtree::plan::{Algorithm, Collective, REGISTRY, Request, plan};
use ringtree::protocol::call::Call;
use ringtree::reduce::Kernel;
use ringtree::reduce::exact::Inputs;
use ringtree::sys::memory::{Region, lend};
use ringtree::sys::shared::OwnRegion;
use ringtree::transport::shm::lent::{Allocation, Own, memory, peer_memory};
use ringtree::transport::shm::{SharedTransport, peer_region, region};
use ringtree::transport::{Addressee, LinkError, Message, Transport};
use ringtree::{Dtype, Error, ReduceOp};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A script that takes longer is stuck.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes that a rank can lend, and the least that it lends of a message.
const LENDABLE_BYTES: usize = 1 << 20;
const LENT_BYTES_MIN: usize = 50;
/// Calls that a rank has under way at most.
const UNDER_WAY_MAX: usize = 3;

/// Every algorithm with every collective it carries out.
pub(crate) fn pairs() -> Vec<(Collective, Algorithm)> {
    let all = REGISTRY.iter().flat_map(|entry| {
        let collectives = entry.collectives.iter();
        collectives.map(|collective| (*collective, entry.algorithm))
    });
    all.collect()
}

/// Numbers drawn from a seed.
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

/// One call of all ranks.
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
            ranks_per_host: world_size,
        }
    }

    pub(crate) fn prepared(&self, rank: usize, world_size: usize) -> Prepared {
        let plan = plan(&self.request(rank, world_size)).expect("the registry has it");
        let call = Call {
            sequence: 0,
            collective: self.collective.name().into(),
            algorithm: self.algorithm.name().into(),
            pieces: self.pieces as u32,
            count: self.count as u64,
            dtype: self.dtype,
            op: Some(self.op),
            root: Some((self.root % world_size) as u32),
        };
        let element_bytes = self.dtype.size();
        Prepared {
            digest: call.digest(),
            call,
            program: Arc::new(Program::bind(&plan, self.count, element_bytes)),
            arithmetic: Arithmetic {
                kernel: Kernel::new(self.dtype, self.op),
                element_bytes,
                divisor: (self.op == ReduceOp::Avg).then_some(world_size),
            },
        }
    }

    fn inputs(&self, world_size: usize) -> Inputs {
        Inputs::new(self.dtype, self.op, world_size, self.seed)
    }

    /// What `rank` gives to the call.
    pub(crate) fn input(&self, rank: usize, world_size: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.count * self.dtype.size()];
        self.inputs(world_size).fill(rank, 0, &mut bytes);
        bytes
    }

    /// Elements that are not what the collective promises `rank`, where it promises anything.
    pub(crate) fn count_wrong(&self, rank: usize, world_size: usize, bytes: &[u8]) -> usize {
        let inputs = self.inputs(world_size);
        let root = self.root % world_size;
        let size = self.dtype.size();
        let part = |rank| part_start(self.count, world_size, rank);
        let block = |rank| &bytes[part(rank) * size..part(rank + 1) * size];
        match self.collective {
            Collective::AllReduce => inputs.count_wrong(0, bytes),
            Collective::Reduce if rank == root => inputs.count_wrong(0, bytes),
            Collective::Reduce | Collective::Barrier => 0,
            Collective::Broadcast => inputs.count_wrong_input(root, 0, bytes),
            Collective::ReduceScatter => inputs.count_wrong(part(rank), block(rank)),
            Collective::AllGather => (0..world_size)
                .map(|from| inputs.count_wrong_input(from, part(from), block(from)))
                .sum(),
        }
    }
}

/// How a rank makes its calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Way {
    /// Step by step, however long it takes.
    Patient,
    /// Step by step for a while, then as an operation.
    Impatient,
    /// As an operation.
    Polled,
    /// As an operation, while earlier ones are still under way.
    Several,
    /// Another one for each call.
    Mixed,
}

/// A rank of a world.
pub(crate) struct Rank {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) engine: Engine,
    sequence: u64,
    until: Instant,
    /// What this rank may lend from.
    memory: Option<OwnRegion>,
    under_way: VecDeque<(Ticket, Case)>,
}

/// The links of every rank over regions of its own: a channel.
pub(crate) fn channel(world_size: usize) -> Vec<SharedTransport> {
    let made = (0..world_size).map(|_| region(world_size).expect("memory can be shared"));
    let (regions, files): (Vec<_>, Vec<_>) = made.unzip();
    let ranks: Vec<_> = (0..world_size).collect();
    let transport = |(rank, own)| {
        let peers = (0..world_size).filter(|peer| *peer != rank);
        let map = |peer: usize| {
            let theirs = peer_region(world_size, &files[peer]).expect("it is one");
            (peer, theirs)
        };
        let theirs = peers.map(map).collect();
        SharedTransport::new(
            (0, 0),
            world_size,
            &ranks,
            rank,
            own,
            theirs,
            Box::new(|_| {}),
        )
    };
    regions.into_iter().enumerate().map(transport).collect()
}

/// Links that often take nothing, give whole elements but few at a time, and write a message to
/// several peers once or once for each. What they take they take whole, as shared memory promises.
struct Stingy {
    links: SharedTransport,
    is_publishing: bool,
    random: Random,
}

impl Stingy {
    /// How many of so many bytes: none, some, or all.
    fn some(&mut self, bytes: usize) -> usize {
        match self.random.below(4) {
            0 => 0,
            1 => bytes,
            _ => self.random.below(bytes + 1) / 8 * 8,
        }
    }
}

type Moved = Result<usize, LinkError>;

impl Transport for Stingy {
    fn name(&self) -> &'static str {
        "stingy"
    }
    fn open(&mut self, peer: usize) {
        self.links.open(peer);
    }
    fn send(&mut self, peer: usize, message: &Message, offset: usize, data: &[u8]) -> Moved {
        if self.random.below(2) == 0 {
            return Ok(0);
        }
        self.links.send(peer, message, offset, data)
    }
    fn receive(&mut self, peer: usize, message: &Message, offset: usize, into: &mut [u8]) -> Moved {
        let bytes = self.some(into.len());
        self.links
            .receive(peer, message, offset, &mut into[..bytes])
    }
    fn fetch(&mut self, peer: usize, message: &Message, offset: usize) -> Moved {
        let visible = self.links.fetch(peer, message, offset)?;
        Ok(self.some(visible))
    }
    fn view(&self, peer: usize, bytes: usize) -> &[u8] {
        self.links.view(peer, bytes)
    }
    fn confirm(&self, peer: usize) -> Result<(), LinkError> {
        self.links.confirm(peer)
    }
    fn consume(&mut self, peer: usize, bytes: usize) {
        self.links.consume(peer, bytes);
    }
    fn holds_bytes(&self, peer: usize) -> usize {
        self.links.holds_bytes(peer)
    }
    fn publishes(&self, to: &[Addressee]) -> bool {
        self.is_publishing && self.links.publishes(to)
    }
    fn publish(
        &mut self,
        to: &[Addressee],
        message: &Message,
        offset: usize,
        data: &[u8],
    ) -> Moved {
        if self.random.below(2) == 0 {
            return Ok(0);
        }
        self.links.publish(to, message, offset, data)
    }
    fn admit(&mut self, allocation: Allocation) {
        self.links.admit(allocation);
    }
    fn lends(&self, to: &[Addressee], data: &[u8]) -> bool {
        (self.is_publishing || to.len() == 1) && self.links.lends(to, data)
    }
    fn lend(&mut self, to: &[Addressee], message: &Message, offset: usize, data: &[u8]) -> Moved {
        if self.random.below(2) == 0 {
            return Ok(0);
        }
        self.links.lend(to, message, offset, data)
    }
    fn is_released(&mut self, to: Addressee, sequence: u64) -> bool {
        self.random.below(2) == 0 && self.links.is_released(to, sequence)
    }
    fn withdraw(&mut self) {
        self.links.withdraw();
    }
    fn settle(&mut self) {
        self.links.settle();
    }
}

pub(crate) fn world(world_size: usize) -> Vec<Rank> {
    world_over(world_size, |links| Box::new(links))
}

/// Ranks over stingy links.
pub(crate) fn stingy_world(world_size: usize, is_publishing: bool) -> Vec<Rank> {
    world_over(world_size, |links| {
        Box::new(Stingy {
            links,
            is_publishing,
            random: Random(world_size as u64),
        })
    })
}

fn world_over(
    world_size: usize,
    links: impl Fn(SharedTransport) -> Box<dyn Transport>,
) -> Vec<Rank> {
    let channels = channel(world_size).into_iter().zip(channel(world_size));
    let made = (0..world_size).map(|_| memory(LENDABLE_BYTES).expect("memory can be shared"));
    let (memories, files): (Vec<_>, Vec<_>) = made.unzip();
    let mut memories = memories.into_iter();
    let rank = |(rank, (collectives, pairs))| {
        let mut engine = Engine::default();
        let mut group = Group::new(rank, world_size, links(collectives), links(pairs));
        let memory = memories.next();
        let peers = (0..world_size).filter(|peer| *peer != rank);
        let map = |peer: usize| {
            let theirs = peer_memory(LENDABLE_BYTES, &files[peer]).expect("it is some");
            (peer, theirs)
        };
        group.admit(Allocation {
            number: 1,
            own: Own::new(memory.as_ref().expect("one a rank")),
            theirs: peers.map(map).collect(),
        });
        engine.add_group(0, group);
        Rank {
            rank,
            world_size,
            engine,
            sequence: 0,
            until: Instant::now() + PATIENCE,
            memory,
            under_way: VecDeque::new(),
        }
    };
    channels.enumerate().map(rank).collect()
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
    /// From now on it may take as long as at first.
    pub(crate) fn be_patient_again(&mut self) {
        self.until = Instant::now() + PATIENCE;
    }

    /// The next call.
    pub(crate) fn posting(&mut self, case: &Case) -> Posting {
        self.sequence += 1;
        Posting {
            prepared: Arc::new(case.prepared(self.rank, self.world_size)),
            sequence: self.sequence,
            buffer: Region::own(case.input(self.rank, self.world_size)),
            progress: Progress::default(),
            timeout: PATIENCE,
            gate: None,
        }
    }

    /// Makes the call; its result, or an earlier one's, is checked when it is there.
    pub(crate) fn call(&mut self, case: &Case, way: Way, random: &mut Random) {
        let several = [Way::Patient, Way::Impatient, Way::Polled, Way::Several];
        let way = match way {
            Way::Mixed => random.one_of(&several),
            other => other,
        };
        let patience = match way {
            Way::Patient => Some(u32::MAX),
            Way::Impatient => Some(random.below(4) as u32),
            Way::Polled => Some(0),
            _ => None,
        };
        if let Some(patience) = patience.filter(|_| random.below(2) == 0) {
            self.call_lending(case, patience);
            self.finish(0);
            return;
        }
        let posting = self.posting(case);
        let ticket = match way {
            Way::Patient => self.run(posting, case, u32::MAX),
            Way::Impatient => self.run(posting, case, random.below(4) as u32),
            _ => {
                let posted = self.engine.post(0, ChannelKind::Collectives, posting);
                Some(posted.expect("nothing has failed"))
            }
        };
        self.under_way.extend(ticket.map(|ticket| (ticket, *case)));
        let keep = match way {
            Way::Several => 1 + random.below(UNDER_WAY_MAX),
            _ => 0,
        };
        self.finish(keep);
    }

    fn run(&mut self, posting: Posting, case: &Case, patience: u32) -> Option<Ticket> {
        match self.start(posting, case, patience) {
            Ok(ticket) => Some(ticket),
            Err(buffer) => {
                self.check(case, buffer);
                None
            }
        }
    }

    /// Makes the call step by step for a while; its buffer if it has ended by then.
    fn start(
        &mut self,
        mut posting: Posting,
        case: &Case,
        patience: u32,
    ) -> Result<Ticket, Region> {
        let until = self.until;
        let mut patience = |looks| {
            std::thread::yield_now();
            assert!(Instant::now() < until, "stuck in {case:?}");
            looks < patience
        };
        let has_ended = self.engine.run(
            0,
            &posting.prepared,
            posting.sequence,
            posting.buffer.bytes_mut(),
            &mut posting.progress,
            &mut patience,
        );
        if has_ended {
            return Err(posting.buffer);
        }
        let posted = self.engine.post(0, ChannelKind::Collectives, posting);
        Ok(posted.expect("nothing has failed"))
    }

    /// Makes the call on memory that peers can read, which then bears no trace of it.
    fn call_lending(&mut self, case: &Case, patience: u32) {
        let mut memory = self.memory.take().expect("it is given back");
        let mut prepared = case.prepared(self.rank, self.world_size);
        let program = Arc::unwrap_or_clone(prepared.program);
        prepared.program = Arc::new(program.lending(LENT_BYTES_MIN, case.seed.is_multiple_of(3)));
        let prepared = Arc::new(prepared);
        let input = case.input(self.rank, self.world_size);
        // Not at the start, and aligned for any element.
        let start = 8 * (case.seed as usize % 100);
        let buffer = memory.bytes_mut(start, input.len());
        buffer.copy_from_slice(&input);
        lend(buffer, |mut region| {
            let mut posting = Posting {
                prepared,
                buffer: Region::own(Vec::<u8>::new()),
                ..self.posting(case)
            };
            std::mem::swap(&mut region, &mut posting.buffer);
            let posted = self.start(posting, case, patience);
            let region = match posted {
                Err(region) => region,
                Ok(ticket) => self.poll_for(ticket, case),
            };
            (region, ())
        });
        let wrong = case.count_wrong(self.rank, self.world_size, memory.bytes(start, input.len()));
        let (rank, world_size) = (self.rank, self.world_size);
        assert_eq!(wrong, 0, "rank {rank} of {world_size}, lending: {case:?}");
        // Whoever still reads it gets nonsense.
        memory.bytes_mut(start, input.len()).fill(0xa5);
        self.memory = Some(memory);
    }

    /// Makes the call on memory that peers can read, gives up on it, and writes something else
    /// there.
    pub(crate) fn give_up_lending(&mut self, case: &Case, patience: u32) {
        let mut memory = self.memory.take().expect("it is given back");
        let mut prepared = case.prepared(self.rank, self.world_size);
        let program = Arc::unwrap_or_clone(prepared.program);
        prepared.program = Arc::new(program.lending(LENT_BYTES_MIN, true));
        let input = case.input(self.rank, self.world_size);
        let buffer = memory.bytes_mut(0, input.len());
        buffer.copy_from_slice(&input);
        let cause = Error::Deadline("it takes too long".into());
        lend(buffer, |region| {
            let posting = Posting {
                prepared: Arc::new(prepared),
                buffer: region,
                ..self.posting(case)
            };
            let ticket = self.start(posting, case, patience).expect("nobody answers");
            while self.engine.poll() {}
            self.engine
                .group(0)
                .expect("it is there")
                .give_up(cause.clone());
            let (region, end) = self.engine.take(ticket).expect("it has failed");
            assert_eq!(end, Err(cause));
            (region, ())
        });
        memory.bytes_mut(0, input.len()).fill(0xa5);
        self.memory = Some(memory);
    }

    /// Makes the call and moves what can be moved; how it has ended, if it has.
    pub(crate) fn end_of(&mut self, case: &Case, patience: u32) -> Option<Result<(), Error>> {
        let posting = self.posting(case);
        let Ok(ticket) = self.start(posting, case, patience) else {
            return Some(Ok(()));
        };
        for _ in 0..100 {
            self.engine.poll();
        }
        self.engine.take(ticket).map(|(_, end)| end)
    }

    fn poll_for(&mut self, ticket: Ticket, case: &Case) -> Region {
        loop {
            if !self.engine.poll() {
                std::thread::yield_now();
                assert!(Instant::now() < self.until, "stuck in {case:?}");
            }
            if let Some((region, end)) = self.engine.take(ticket) {
                assert_eq!(end, Ok(()), "{case:?}");
                return region;
            }
        }
    }

    /// Polls until at most `keep` calls are under way, the earliest first.
    pub(crate) fn finish(&mut self, keep: usize) {
        while self.under_way.len() > keep {
            if !self.engine.poll() {
                std::thread::yield_now();
                assert!(Instant::now() < self.until, "stuck in {:?}", self.under_way);
            }
            while let Some((ticket, case)) = self.under_way.front().copied() {
                let Some((buffer, end)) = self.engine.take(ticket) else {
                    break;
                };
                assert_eq!(end, Ok(()), "{case:?}");
                self.under_way.pop_front();
                self.check(&case, buffer);
            }
        }
    }

    fn check(&self, case: &Case, buffer: Region) {
        let bytes = buffer.into_vector::<u8>().expect("it was one of bytes");
        let wrong = case.count_wrong(self.rank, self.world_size, &bytes);
        assert_eq!(
            wrong, 0,
            "rank {} of {}: {case:?}",
            self.rank, self.world_size
        );
    }
}
