//! Executes the plans of all ranks together on symbols, under the strictest rules: each rank
//! executes its steps in order, and each channel holds one message.

use super::matching::place;
use super::shape::peers_of;
use super::values::{Value, Values};
use super::{At, Fault};
use crate::ir::{ChunkRange, Plan, Source, Step};
use crate::spec::{contributes, is_union, moves_blocks, reduces};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

/// The state after all ranks have run.
pub(super) struct Finished {
    pub(super) values: Values,
    /// Values, indexed by rank and chunk; `None` if the chunk never held a value.
    pub(super) chunks: Vec<Vec<Option<Value>>>,
    /// Round and step of the last write, indexed by rank and chunk.
    writers: Vec<Vec<Option<(usize, usize)>>>,
    /// Writes that replaced a value with one that lacks some of its contributions. Each entry
    /// contains the location and the old value. Such a write is correct if the contribution is held
    /// elsewhere or is not demanded.
    overwritten: Vec<(At, Value)>,
    pub(super) traffic: Traffic,
}

impl Finished {
    /// Returns a fault which states that `value` at `at` lacks contributions. If a step overwrote
    /// one of the missing contributions, the first such step is likely at fault and becomes the
    /// fault's location.
    pub(super) fn lacking(&self, plan: &Plan, at: At, value: Value, problem: String) -> Fault {
        let is_concerned = |(lost, old): &&(At, Value)| {
            let places = [lost.chunk, at.chunk].map(|chunk| chunk.map(|one| place(plan, one)));
            places[0] == places[1] && !self.values.includes(value, *old)
        };
        let earliest = self.overwritten.iter().filter(is_concerned);
        match earliest.min_by_key(|(lost, _)| (lost.round, lost.step, lost.rank)) {
            None => Fault::new(at, problem),
            Some((lost, old)) => {
                let gone = self.values.describe(*old);
                let problem = format!(
                    "the contribution of rank {gone} is overwritten here; later, on rank {}: \
                     {problem}",
                    at.rank
                );
                Fault::new(*lost, problem).or(at)
            }
        }
    }

    /// Returns the step that last wrote to the chunk of `at`.
    pub(super) fn writer(&self, at: At) -> Option<At> {
        let (round, step) = self.writers[at.rank][at.chunk?]?;
        Some(At::step(at.rank, round, step))
    }

    fn write(&mut self, at: At, chunk: usize, value: Value) {
        let old = self.chunks[at.rank][chunk].replace(value);
        self.writers[at.rank][chunk] = at.round.zip(at.step);
        let lost = old.filter(|old| !self.values.includes(value, *old));
        self.overwritten
            .extend(lost.map(|old| (at.chunk(chunk), old)));
    }
}

/// The traffic over the channels.
pub(super) struct Traffic {
    pub(super) round_has_message: Vec<bool>,
    pub(super) messages: usize,
    /// Number of chunks that each rank has sent.
    pub(super) chunks_sent: Vec<usize>,
}

/// A message in flight: the values of its chunks.
type Message = Rc<[Value]>;

/// The position of a rank in its plan.
#[derive(Clone, Copy, Default)]
struct Position {
    round: usize,
    step: usize,
    /// Number of peers to which the current send has already sent.
    served: usize,
}

struct Run<'a> {
    plans: &'a [Plan],
    positions: Vec<Position>,
    channels: HashMap<(usize, usize), Message>,
    ready: VecDeque<usize>,
    is_ready: Vec<bool>,
    state: Finished,
}

/// Runs plans whose shape and messages have been checked, which guarantees that they run to
/// completion.
pub(super) fn execute(plans: &[Plan]) -> Result<Finished, Fault> {
    let ranks = plans.len();
    let mut run = Run {
        plans,
        positions: vec![Position::default(); ranks],
        channels: HashMap::new(),
        ready: (0..ranks).collect(),
        is_ready: vec![true; ranks],
        state: at_the_start(plans),
    };
    while let Some(rank) = run.ready.pop_front() {
        run.is_ready[rank] = false;
        while run.advance(rank)? {}
    }
    let is_done = (0..ranks).all(|rank| run.positions[rank].round == plans[rank].rounds.len());
    assert!(
        is_done,
        "invariant: plans whose messages match run to their ends"
    );
    Ok(run.state)
}

fn at_the_start(plans: &[Plan]) -> Finished {
    let request = &plans[0].request;
    let moves_blocks = moves_blocks(request.collective);
    let blocks = if moves_blocks { plans.len() } else { 1 };
    let values = Values::new(plans.len(), blocks, is_union(request.collective));
    let held = |(rank, plan): (usize, &Plan)| {
        let pieces = plan.chunks / plan.request.world_size;
        let mut chunks = vec![None; plan.chunks + plan.scratch];
        for (chunk, content) in chunks[..plan.chunks].iter_mut().enumerate() {
            let block = chunk.checked_div(pieces).unwrap_or(0);
            let contributes = contributes(request.collective, rank, request.root, block);
            *content = contributes.then(|| values.leaf(rank, block));
        }
        chunks
    };
    let writers = |plan: &Plan| vec![None; plan.chunks + plan.scratch];
    Finished {
        writers: plans.iter().map(writers).collect(),
        overwritten: Vec::new(),
        chunks: plans.iter().enumerate().map(held).collect(),
        values,
        traffic: Traffic {
            round_has_message: vec![false; plans[0].rounds.len()],
            messages: 0,
            chunks_sent: vec![0; plans.len()],
        },
    }
}

impl<'a> Run<'a> {
    /// Returns the current step of a rank, or `None` at the end of a round or of the plan.
    fn current(&self, rank: usize) -> Option<&'a Step> {
        let position = self.positions[rank];
        self.plans[rank]
            .rounds
            .get(position.round)?
            .get(position.step)
    }

    /// Executes one step, sends to one peer, or enters the next round. Returns `false` if the rank
    /// must wait or is done.
    fn advance(&mut self, rank: usize) -> Result<bool, Fault> {
        let position = self.positions[rank];
        let at = At::step(rank, position.round, position.step);
        let Some(step) = self.current(rank) else {
            let is_over = position.round >= self.plans[rank].rounds.len();
            if !is_over {
                self.positions[rank] = Position {
                    round: position.round + 1,
                    ..Position::default()
                };
            }
            return Ok(!is_over);
        };
        match step {
            Step::Send { peers, ranges } => {
                let peer = peers[position.served];
                if self.channels.contains_key(&(rank, peer)) {
                    return Ok(false);
                }
                self.send(at, peer, ranges)?;
                self.positions[rank].served += 1;
                if self.positions[rank].served < peers.len() {
                    return Ok(true);
                }
            }
            Step::Receive {
                sources,
                ranges,
                completes,
            } => {
                let peers = peers_of(sources);
                if !peers
                    .iter()
                    .all(|&peer| self.channels.contains_key(&(peer, rank)))
                {
                    return Ok(false);
                }
                self.receive(at, sources, ranges, *completes)?;
            }
            Step::Copy { from, to } => {
                for (source, target) in (from.first..from.end()).zip(to.first..) {
                    let value = self.content(at, source)?;
                    self.same_place(at, target, source)?;
                    self.state.write(at, target, value);
                }
            }
            Step::Reduce {
                from,
                to,
                completes,
            } => {
                let mut operands = Vec::with_capacity(from.len());
                for (place, target) in (to.first..to.end()).enumerate() {
                    operands.clear();
                    for source in from.iter().map(|one| one.first + place) {
                        self.same_place(at, target, source)?;
                        operands.push(self.content(at, source)?);
                    }
                    self.fold(at.chunk(target), &operands, *completes)?;
                }
            }
        }
        self.positions[rank] = Position {
            step: position.step + 1,
            served: 0,
            ..position
        };
        Ok(true)
    }

    fn wake(&mut self, rank: usize) {
        if !std::mem::replace(&mut self.is_ready[rank], true) {
            self.ready.push_back(rank);
        }
    }

    fn send(&mut self, at: At, peer: usize, ranges: &[ChunkRange]) -> Result<(), Fault> {
        let chunks = ranges.iter().flat_map(|range| range.first..range.end());
        let content = chunks.map(|chunk| self.content(at, chunk));
        let content: Message = content.collect::<Result<_, Fault>>()?;
        let round = self.positions[at.rank].round;
        let traffic = &mut self.state.traffic;
        traffic.round_has_message[round] = true;
        traffic.messages += 1;
        traffic.chunks_sent[at.rank] += content.len();
        self.channels.insert((at.rank, peer), content);
        self.wake(peer);
        Ok(())
    }

    fn receive(
        &mut self,
        at: At,
        sources: &[Source],
        ranges: &[ChunkRange],
        completes: bool,
    ) -> Result<(), Fault> {
        let mut arrived = Vec::with_capacity(sources.len());
        for source in sources {
            arrived.push(match *source {
                Source::Own => None,
                Source::Peer(peer) => Some(self.take(peer, at.rank)),
            });
        }
        let mut operands = Vec::with_capacity(sources.len());
        let chunks = ranges.iter().flat_map(|range| range.first..range.end());
        for (index, chunk) in chunks.enumerate() {
            operands.clear();
            for content in &arrived {
                operands.push(match content {
                    None => self.content(at, chunk)?,
                    Some(content) => content[index],
                });
            }
            self.fold(at.chunk(chunk), &operands, completes)?;
        }
        Ok(())
    }

    /// Takes the message out of a channel, and wakes the sender.
    fn take(&mut self, from: usize, to: usize) -> Message {
        let message = self.channels.remove(&(from, to));
        self.wake(from);
        message.expect("invariant: a receive runs when all its messages have arrived")
    }

    /// Reduces the operands in a single reduction, and writes the result to the chunk at `at`. A
    /// single operand is stored unchanged.
    fn fold(&mut self, at: At, operands: &[Value], completes: bool) -> Result<(), Fault> {
        let chunk = at.chunk.expect("invariant: a fold names its chunk");
        let values = &mut self.state.values;
        let (value, is_complete) = match *operands {
            [stored] => (stored, false),
            _ if !reduces(self.plans[at.rank].request.collective) => {
                return Err(Fault::new(
                    at,
                    "this collective must not combine contributions",
                ));
            }
            _ => {
                let value = values.fold(operands).map_err(|rank| {
                    Fault::new(
                        at,
                        format!("the contribution of rank {rank} is combined twice"),
                    )
                })?;
                (value, values.is_complete(value))
            }
        };
        if completes != is_complete {
            let has = values.describe(value);
            let problem = match completes {
                true => format!("`completes` is true, but the contributions are from ranks {has}"),
                false => "`completes` is false, but all ranks have contributed".to_owned(),
            };
            let plan = &self.plans[at.rank];
            return Err(match completes {
                true => self.state.lacking(plan, at, value, problem),
                false => Fault::new(at, problem),
            });
        }
        self.state.write(at, chunk, value);
        Ok(())
    }

    fn content(&self, at: At, chunk: usize) -> Result<Value, Fault> {
        let nothing = || Fault::new(at.chunk(chunk), "the chunk is still empty");
        self.state.chunks[at.rank][chunk].ok_or_else(nothing)
    }

    fn same_place(&self, at: At, one: usize, other: usize) -> Result<(), Fault> {
        let plan = &self.plans[at.rank];
        if place(plan, one) == place(plan, other) {
            return Ok(());
        }
        let problem = format!("chunk {other} may have a different length");
        Err(Fault::new(at.chunk(one), problem))
    }
}
