//! A reference interpreter for plans, which shares no code with the verifier or the engine. Ranks
//! send single chunks over links that hold one chunk, in any order that the data dependencies
//! allow. A step waits for its links, and for earlier steps of its rank that access the same
//! chunks.

use ringtree::plan::internal::spec::{Demand, moves_blocks};
use ringtree::plan::internal::spec::{contributes, demands, is_union};
use ringtree::plan::{ChunkRange, Plan, Source, Step};
use std::collections::HashMap;

/// Maximum number of steps that a rank may have in flight, counted from its first unfinished step.
/// A round of 16 ranks has fewer steps.
const WINDOW: usize = 40;

/// The failure of a run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Steps remain, but none can proceed.
    Hang,
    /// A result is wrong, or a message is not the one that its receiver expects.
    Wrong(String),
}

fn wrong<T>(what: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Wrong(what.into()))
}

/// A pseudo-random number generator, initialized with a seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % bound as u64) as usize
    }
}

/// The value of a chunk: the sum or union of contributions, and how many times it was divided.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Held {
    number: u64,
    divisions: u32,
}

/// One step of a plan. A send to several peers becomes several steps.
struct Work {
    /// Chunks that each local operand reads. A receive has such an operand if it reduces into its
    /// own chunks.
    reads: Vec<Vec<usize>>,
    writes: Vec<usize>,
    send_to: Option<usize>,
    /// Operands of a receive or a local step.
    sources: Vec<Source>,
    completes: bool,
    chunks: usize,
    done: usize,
}

impl Work {
    fn is_complete(&self) -> bool {
        self.done == self.chunks
    }

    fn receives_from(&self, peer: usize) -> bool {
        self.sources.contains(&Source::Peer(peer))
    }

    /// Returns `true` if a later step must not read (or write, if `writes` is set) `chunk` until
    /// the rest of this step is complete.
    fn forbids(&self, chunk: usize, writes: bool) -> bool {
        let left = |chunks: &Vec<usize>| chunks[self.done..].contains(&chunk);
        (!self.writes.is_empty() && left(&self.writes)) || (writes && self.reads.iter().any(left))
    }
}

/// A chunk in flight.
struct Parcel {
    held: Held,
    /// Position of the chunk in its block, or in the buffer if the collective does not move blocks.
    /// The chunk may replace only chunks at the same position.
    place: usize,
    index: usize,
    message_chunks: usize,
}

struct Machine<'a> {
    plans: &'a [Plan],
    work: Vec<Vec<Work>>,
    /// The first unfinished step of each rank.
    first: Vec<usize>,
    chunks: Vec<Vec<Option<Held>>>,
    links: HashMap<(usize, usize), Parcel>,
}

/// Runs the plans in an order drawn from `seed`.
pub(crate) fn interpret(plans: &[Plan], seed: u64) -> Result<(), Failure> {
    let mut machine = Machine::new(plans)?;
    let mut random = Random(seed);
    let mut awake: Vec<usize> = (0..plans.len()).collect();
    while !awake.is_empty() {
        let at = random.below(awake.len());
        let rank = awake[at];
        match machine.advance(rank, &mut random)? {
            // This rank and its peers may be able to proceed now.
            Some(peers) => {
                let new = peers.into_iter().filter(|peer| !awake.contains(peer));
                let new: Vec<_> = new.collect();
                awake.extend(new);
            }
            None => drop(awake.swap_remove(at)),
        }
    }
    machine.check()
}

fn flat(ranges: &[ChunkRange], limit: usize) -> Result<Vec<usize>, Failure> {
    let mut chunks = Vec::new();
    for range in ranges {
        let end = range.first.checked_add(range.count);
        match end.filter(|end| *end <= limit) {
            Some(end) => chunks.extend(range.first..end),
            None => return wrong("a chunk that does not exist"),
        }
    }
    Ok(chunks)
}

impl<'a> Machine<'a> {
    fn new(plans: &'a [Plan]) -> Result<Self, Failure> {
        let work = plans.iter().map(work_of);
        let held = |(rank, plan): (usize, &Plan)| {
            let mut chunks = vec![None; plan.chunks + plan.scratch];
            for (chunk, held) in chunks[..plan.chunks].iter_mut().enumerate() {
                let request = &plan.request;
                let block = block_of(plan, chunk);
                let contributes = contributes(request.collective, rank, request.root, block);
                *held = contributes.then(|| contribution(plan, rank, chunk));
            }
            chunks
        };
        Ok(Self {
            plans,
            work: work.collect::<Result<_, Failure>>()?,
            first: vec![0; plans.len()],
            chunks: plans.iter().enumerate().map(held).collect(),
            links: HashMap::new(),
        })
    }

    /// Moves one chunk of one step of the rank. Returns the ranks that may be able to proceed now,
    /// or `None` if this rank cannot.
    fn advance(&mut self, rank: usize, random: &mut Random) -> Result<Option<Vec<usize>>, Failure> {
        let work = &self.work[rank];
        while work.get(self.first[rank]).is_some_and(Work::is_complete) {
            self.first[rank] += 1;
        }
        let first = self.first[rank];
        let window = WINDOW.min(work.len() - first);
        let turn = random.below(window.max(1));
        for step in (0..window).map(|step| first + (step + turn) % window) {
            if self.may_move(rank, step) {
                let peers = self.step(rank, step)?;
                return Ok(Some(peers));
            }
        }
        Ok(None)
    }

    fn may_move(&self, rank: usize, step: usize) -> bool {
        let work = &self.work[rank][step];
        if work.is_complete() {
            return false;
        }
        let reads = || work.reads.iter().map(|chunks| (chunks[work.done], false));
        let writes = work.writes.get(work.done).map(|chunk| (*chunk, true));
        let is_free = |earlier: &Work| {
            let mut touched = reads().chain(writes);
            let links = work
                .send_to
                .is_some_and(|peer| earlier.send_to == Some(peer))
                || peers(work).any(|peer| earlier.receives_from(peer));
            !links && !touched.any(|(chunk, writes)| earlier.forbids(chunk, writes))
        };
        let mut earlier = self.work[rank][self.first[rank]..step].iter();
        earlier.all(|earlier| earlier.is_complete() || is_free(earlier))
            && work
                .send_to
                .is_none_or(|peer| !self.links.contains_key(&(rank, peer)))
            && peers(work).all(|peer| self.links.contains_key(&(peer, rank)))
    }

    /// Moves the next chunk of a step. Returns the ranks that may be able to proceed now.
    fn step(&mut self, rank: usize, step: usize) -> Result<Vec<usize>, Failure> {
        let plan = &self.plans[rank];
        let place = |chunk: usize| place_of(plan, chunk);
        let work = &self.work[rank][step];
        let at = work.done;
        if let Some(peer) = work.send_to {
            let chunk = work.reads[0][at];
            let Some(held) = self.chunks[rank][chunk] else {
                return wrong("a send of a chunk without a value");
            };
            let parcel = Parcel {
                held,
                place: place(chunk),
                index: at,
                message_chunks: work.chunks,
            };
            self.links.insert((rank, peer), parcel);
            self.work[rank][step].done += 1;
            return Ok(vec![rank, peer]);
        }
        let target = work.writes[at];
        let mut operands = Vec::new();
        let mut may_move = vec![rank];
        let mut read = work.reads.iter().map(|chunks| chunks[at]);
        for source in &work.sources {
            let Source::Peer(peer) = *source else {
                let chunk = read.next().unwrap();
                if place(chunk) != place(target) {
                    return wrong("a chunk with a different length");
                }
                operands.push(self.chunks[rank][chunk]);
                continue;
            };
            let Some(parcel) = self.links.remove(&(peer, rank)) else {
                return wrong("one message for two operands");
            };
            let is_expected = (parcel.message_chunks, parcel.index) == (work.chunks, at);
            if !is_expected || parcel.place != place(target) {
                return wrong("a message that is not expected");
            }
            operands.push(Some(parcel.held));
            may_move.push(peer);
        }
        let union = is_union(plan.request.collective);
        let folds = operands.len() > 1;
        let held = operands.into_iter().reduce(|one, other| {
            let (one, other) = (one?, other?);
            Some(Held {
                number: match union {
                    true => one.number | other.number,
                    false => one.number.wrapping_add(other.number),
                },
                divisions: one.divisions + other.divisions,
            })
        });
        let Some(mut held) = held.flatten() else {
            return wrong("an operand without a value");
        };
        held.divisions += u32::from(folds && work.completes);
        self.chunks[rank][target] = Some(held);
        self.work[rank][step].done += 1;
        Ok(may_move)
    }

    /// Checks that all steps are complete and that each rank has the collective's result.
    fn check(&self) -> Result<(), Failure> {
        if !self.work.iter().flatten().all(Work::is_complete) {
            return Err(Failure::Hang);
        }
        if !self.links.is_empty() {
            return wrong("a message that is never received");
        }
        for (rank, plan) in self.plans.iter().enumerate() {
            let request = &plan.request;
            for chunk in 0..plan.chunks {
                let block = block_of(plan, chunk);
                let all = || {
                    let numbers = (0..self.plans.len()).map(|one| contribution(plan, one, chunk));
                    let numbers = numbers.map(|held| held.number);
                    match is_union(request.collective) {
                        true => numbers.reduce(|one, other| one | other),
                        false => numbers.reduce(u64::wrapping_add),
                    }
                };
                let held = self.chunks[rank][chunk];
                let is_right = match demands(request.collective, rank, request.root, block) {
                    Demand::Anything => true,
                    Demand::Of(owner) if moves_blocks(request.collective) => {
                        let pieces = plan.chunks / request.world_size;
                        let left = rank * pieces + chunk % pieces;
                        held == Some(contribution(plan, owner, left))
                    }
                    Demand::Of(owner) => held == Some(contribution(plan, owner, chunk)),
                    Demand::Everyone => held.is_some_and(|held| {
                        Some(held.number) == all()
                            && (held.divisions == 1
                                || is_union(request.collective)
                                || self.plans.len() == 1)
                    }),
                };
                if !is_right {
                    return wrong(format!(
                        "rank {rank} ends with a wrong value in chunk {chunk}"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Returns the ranks that a step receives from.
fn peers(work: &Work) -> impl Iterator<Item = usize> {
    work.sources.iter().filter_map(|source| match *source {
        Source::Peer(peer) => Some(peer),
        Source::Own => None,
    })
}

/// Returns the position of a chunk in its block, or in the buffer if the collective does not move
/// blocks. Chunks at the same position have the same length.
fn place_of(plan: &Plan, chunk: usize) -> usize {
    let request = &plan.request;
    match moves_blocks(request.collective) {
        true => chunk % (plan.chunks / request.world_size),
        false => chunk % plan.chunks,
    }
}

fn block_of(plan: &Plan, chunk: usize) -> usize {
    chunk * plan.request.world_size / plan.chunks
}

fn contribution(plan: &Plan, rank: usize, chunk: usize) -> Held {
    let number = match is_union(plan.request.collective) {
        true => 1 << rank,
        false => Random((rank * 1_000_003 + chunk) as u64).below(usize::MAX) as u64,
    };
    Held {
        number,
        divisions: 0,
    }
}

/// Returns a rank's steps in order.
fn work_of(plan: &Plan) -> Result<Vec<Work>, Failure> {
    let limit = plan.chunks + plan.scratch;
    let mut all = Vec::new();
    for step in plan.rounds.iter().flatten() {
        let mut push = |reads: Vec<Vec<usize>>,
                        writes: Vec<usize>,
                        send_to: Option<usize>,
                        sources,
                        completes| {
            let chunks = writes.len().max(reads.first().map_or(0, Vec::len));
            let fits = |one: &Vec<usize>| one.len() == chunks;
            if !reads.iter().all(fits) || (send_to.is_none() && !fits(&writes)) {
                return wrong("operands of different lengths");
            }
            all.push(Work {
                reads,
                writes,
                send_to,
                sources,
                completes,
                chunks,
                done: 0,
            });
            Ok(())
        };
        match step {
            Step::Send { peers, ranges } => {
                for peer in peers {
                    if *peer >= plan.request.world_size {
                        return wrong("a peer that does not exist");
                    }
                    push(
                        vec![flat(ranges, limit)?],
                        vec![],
                        Some(*peer),
                        vec![],
                        false,
                    )?;
                }
            }
            Step::Receive {
                sources,
                ranges,
                completes,
            } => {
                let chunks = flat(ranges, limit)?;
                let own = sources.iter().filter(|one| **one == Source::Own);
                let reads = own.map(|_| chunks.clone()).collect();
                push(reads, chunks, None, sources.clone(), *completes)?;
            }
            Step::Copy { from, to } => {
                let (from, to) = (flat(&[*from], limit)?, flat(&[*to], limit)?);
                push(vec![from], to, None, vec![Source::Own], false)?;
            }
            Step::Reduce {
                from,
                to,
                completes,
            } => {
                let reads = from.iter().map(|one| flat(&[*one], limit));
                let reads: Vec<_> = reads.collect::<Result<_, Failure>>()?;
                let sources = vec![Source::Own; from.len()];
                push(reads, flat(&[*to], limit)?, None, sources, *completes)?;
            }
        }
    }
    Ok(all)
}
