//! Collectives on device buffers: the host drives, the device copies and folds.
//!
//! *Purpose.* [`DeviceOperation`] runs a program on memory of a device. What the host's operation
//! does at once is told to a stream here, and what a stream was told in an order is done in it: so
//! a step counts as done, for the steps that depend on it, as soon as it is enqueued. Only what
//! leaves the rank, or comes, waits for events. [`links`] says how segments travel.
//!
//! *Invariants.* Nothing here waits. What is reported good was seen done by an event behind the
//! last fold. The user's stream goes on when the operation is dropped ([`Gate`]), however it ended.

pub mod links;

use super::pieces::rest;
use super::posting::{Broken, Failure, Prepared};
use super::program::{Action, Lane, Operand, Program, ProgramStep, Space};
use super::turns::Turns;
use crate::device::{Event, Fold, Span, Word};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::op::ReduceOp;
use crate::transport::{Message, Transport};
use links::DeviceLinks;
use std::collections::VecDeque;
use std::sync::Arc;

/// What a user's stream waits for: the word gets the value when this is dropped.
#[derive(Debug)]
pub struct Gate {
    /// The word, which this host can write.
    pub word: Word,
    /// What the stream waits for.
    pub value: u32,
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.word.store(self.value);
    }
}

/// What a collective is done on, beside its posting.
#[derive(Debug)]
pub struct OnDevice {
    /// The buffer.
    pub buffer: Span,
    /// Its elements.
    pub dtype: Dtype,
    /// How they are combined, where the collective reduces.
    pub op: Option<ReduceOp>,
    /// Done when the buffer holds what the caller put into it.
    pub ready: Event,
    /// What the user's stream waits for, if it does.
    pub gate: Option<Gate>,
}

type Moved = std::result::Result<bool, Failure>;

/// A segment that is being copied out, or is on its way.
struct Flying {
    step: usize,
    /// The message's number, and the segment's in it.
    number: u32,
    segment: usize,
    bytes: usize,
    slot: usize,
    event: Option<Event>,
    /// Bytes that the link has taken.
    taken: usize,
}

/// What has come of the message that a lane is at.
#[derive(Clone, Copy, Default)]
struct Incoming {
    /// Whole segments, and where the first of them that was not read lies.
    segments: usize,
    first_slot: usize,
    /// Bytes of the next one.
    bytes: usize,
}

/// One collective under way on a device.
pub(super) struct DeviceOperation {
    prepared: Arc<Prepared>,
    sequence: u64,
    on: OnDevice,
    has_begun: bool,
    /// Bytes of each step, and of each flow, that the stream was told of.
    done: Vec<usize>,
    sent: Vec<usize>,
    send_at: Vec<usize>,
    flying: Vec<VecDeque<Flying>>,
    receive_at: Vec<usize>,
    incoming: Vec<Incoming>,
    local_at: usize,
    steps_left: usize,
    last: Option<Event>,
    is_over: bool,
}

impl DeviceOperation {
    pub(super) fn new(prepared: Arc<Prepared>, sequence: u64, on: OnDevice) -> Self {
        let program = &prepared.program;
        let (sends, receives) = (program.sends.len(), program.receives.len());
        Self {
            sequence,
            on,
            has_begun: false,
            done: vec![0; program.steps.len()],
            sent: vec![0; program.flows],
            send_at: vec![0; sends],
            flying: std::iter::repeat_with(VecDeque::new).take(sends).collect(),
            receive_at: vec![0; receives],
            incoming: vec![Incoming::default(); receives],
            local_at: 0,
            steps_left: program.steps.len(),
            last: None,
            is_over: false,
            prepared,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.is_over
    }

    /// Advances as far as links, events and dependencies allow.
    pub(super) fn poll(
        &mut self,
        transport: &mut dyn Transport,
        turns: &Turns,
        links: &mut DeviceLinks,
    ) -> Moved {
        if !self.has_begun {
            self.has_begun = self.on.ready.is_done().map_err(Failure::Own)?;
            if !self.has_begun {
                return Ok(false);
            }
        }
        let program = Arc::clone(&self.prepared.program);
        let mut advanced = false;
        loop {
            let mut moved = self.enqueue_sends(&program, turns, links)?;
            moved |= self.hand_over(&program, transport, links)?;
            moved |= self.take_in(&program, transport, turns, links)?;
            moved |= self.consume(&program, turns, links)?;
            moved |= self.locals(&program, links).map_err(Failure::Own)?;
            if !moved {
                break;
            }
            advanced = true;
        }
        Ok(advanced | self.end(&program, links).map_err(Failure::Own)?)
    }

    /// Once all is enqueued and sent: sees the last of it done, and the peers' slots given back.
    fn end(&mut self, program: &Program, links: &mut DeviceLinks) -> Result<bool> {
        let flies = self.flying.iter().any(|flying| !flying.is_empty());
        if self.is_over || self.steps_left > 0 || flies {
            return Ok(false);
        }
        let event = match self.last.take() {
            Some(event) => event,
            None => links.recorded()?,
        };
        let reads = |lane: &Lane| links.is_reading(lane.peer);
        if event.is_done()? && !program.receives.iter().any(reads) {
            links.recycle(event);
            self.is_over = true;
            return Ok(true);
        }
        self.last = Some(event);
        Ok(false)
    }

    /// Marks the links this operation still needs, so that later ones keep off.
    pub(super) fn claim(&self, turns: &mut Turns) {
        let program = &self.prepared.program;
        let sends = self.send_at.iter().zip(&self.flying);
        for (lane, (at, flying)) in program.sends.iter().zip(sends) {
            if *at < lane.messages.len() || !flying.is_empty() {
                turns.hold_sending(lane.peer);
            }
        }
        for (lane, at) in program.receives.iter().zip(&self.receive_at) {
            if *at < lane.messages.len() {
                turns.hold_receiving(lane.peer);
            }
        }
    }

    /// The ranks whose segments this operation waits for now, or who keep its slots.
    pub(super) fn awaited(&self) -> Vec<usize> {
        let program = &self.prepared.program;
        let is_open = |(lane, at): &(&Lane, &usize)| **at < lane.messages.len();
        let receives = program.receives.iter().zip(&self.receive_at);
        let mut peers: Vec<_> = receives
            .filter(is_open)
            .map(|(lane, _)| lane.peer)
            .collect();
        if peers.is_empty() {
            let sends = program.sends.iter().zip(&self.send_at);
            peers = sends.filter(is_open).map(|(lane, _)| lane.peer).collect();
        }
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// How far a step's stream may go, by what the stream was told.
    fn limit(&self, step: &ProgramStep) -> usize {
        let mut limit = step.bytes;
        for dependency in &step.dependencies {
            let done = self.done[dependency.step].saturating_sub(dependency.from);
            if done < dependency.bytes {
                limit = limit.min(dependency.at + done);
            }
        }
        limit
    }

    fn message(&self, number: u32, bytes: usize) -> Message {
        Message {
            sequence: self.sequence,
            digest: self.prepared.digest,
            number,
            bytes,
        }
    }

    /// The message in which `peer` is told of a step's segments, or sent them.
    fn carrier(
        &self,
        step: &ProgramStep,
        number: u32,
        peer: usize,
        links: &DeviceLinks,
    ) -> Message {
        let bytes = match links.is_mapped(peer) {
            true => step.bytes.div_ceil(links.segment_bytes()),
            false => step.bytes,
        };
        self.message(number, bytes)
    }

    /// The runs of the buffer that bytes `from..to` of a step's stream are: (place in the segment,
    /// span).
    fn runs(&self, step: &ProgramStep, from: usize, to: usize) -> Result<Vec<(usize, Span)>> {
        let mut runs = Vec::with_capacity(1);
        let mut at = from;
        while at < to {
            let piece = rest(&step.pieces, at, to - at);
            if piece.space == Space::Scratch || piece.bytes == 0 {
                return Err(Error::Usage(
                    "plans with scratch do not run on devices; choose another algorithm".into(),
                ));
            }
            runs.push((at - from, self.on.buffer.part(piece.offset, piece.bytes)?));
            at += piece.bytes;
        }
        Ok(runs)
    }

    fn advance(&mut self, step: usize, bytes: usize, of: usize) {
        self.done[step] += bytes;
        if bytes > 0 && self.done[step] == of {
            self.steps_left -= 1;
        }
    }
}

/// Sending.
impl DeviceOperation {
    /// Has segments copied into slots, as far as they are complete and slots are free.
    fn enqueue_sends(
        &mut self,
        program: &Program,
        turns: &Turns,
        links: &mut DeviceLinks,
    ) -> Moved {
        let mut advanced = false;
        for (lane, Lane { peer, messages }) in program.sends.iter().enumerate() {
            if turns.is_sending_held(*peer) {
                continue;
            }
            while let Some((index, flow)) = messages.get(self.send_at[lane]).copied() {
                let step = &program.steps[index];
                let from = self.sent[flow];
                let to = step.bytes.min(from + links.segment_bytes());
                if self.limit(step) < to {
                    break;
                }
                let Some(slot) = links.take_slot(*peer) else {
                    break;
                };
                let event = self.copy_out(step, (from, to), *peer, slot, links);
                self.flying[lane].push_back(Flying {
                    step: index,
                    // Far fewer messages than 2^32.
                    number: self.send_at[lane] as u32,
                    segment: from / links.segment_bytes(),
                    bytes: to - from,
                    slot,
                    event: Some(event.map_err(Failure::Own)?),
                    taken: 0,
                });
                self.sent[flow] = to;
                if let Action::Send { first_flow, to } = &step.action {
                    let flows = &self.sent[*first_flow..first_flow + to.len()];
                    let slowest = flows.iter().min().copied().unwrap_or(step.bytes);
                    self.advance(index, slowest - self.done[index], step.bytes);
                }
                self.send_at[lane] += usize::from(to == step.bytes);
                advanced = true;
            }
        }
        Ok(advanced)
    }

    fn copy_out(
        &self,
        step: &ProgramStep,
        (from, to): (usize, usize),
        peer: usize,
        slot: usize,
        links: &mut DeviceLinks,
    ) -> Result<Event> {
        for (at, span) in self.runs(step, from, to)? {
            links.copy_out(peer, slot, at, &span)?;
        }
        links.recorded()
    }

    /// Tells the peers of segments that are in their slots, or sends them.
    fn hand_over(
        &mut self,
        program: &Program,
        transport: &mut dyn Transport,
        links: &mut DeviceLinks,
    ) -> Moved {
        let mut advanced = false;
        for (lane, Lane { peer, .. }) in program.sends.iter().enumerate() {
            let peer = *peer;
            while let Some(first) = self.flying[lane].front_mut() {
                if let Some(event) = first.event.take() {
                    if !event.is_done().map_err(Failure::Own)? {
                        first.event = Some(event);
                        break;
                    }
                    links.recycle(event);
                }
                let &mut Flying {
                    step,
                    number,
                    segment,
                    bytes,
                    slot,
                    taken,
                    ..
                } = first;
                let message = self.carrier(&program.steps[step], number, peer, links);
                let is_mapped = links.is_mapped(peer);
                let sent = if is_mapped {
                    transport.send(peer, &message, segment, &[0])
                } else {
                    let data = links.outgoing(peer, slot).map_err(Failure::Own)?;
                    let offset = segment * data.len() + taken;
                    transport.send(peer, &message, offset, &data[taken..bytes])
                };
                let sent = sent.map_err(|error| Failure::Link(Broken { peer, error }))?;
                if sent == 0 {
                    break;
                }
                advanced = true;
                let is_whole = is_mapped || taken + sent == bytes;
                if is_whole {
                    self.flying[lane].pop_front();
                    links.sent(peer, is_mapped.then_some(message));
                } else {
                    self.flying[lane][0].taken += sent;
                    break;
                }
            }
        }
        Ok(advanced)
    }
}

/// Receiving.
impl DeviceOperation {
    /// Takes tokens, or the segments themselves.
    fn take_in(
        &mut self,
        program: &Program,
        transport: &mut dyn Transport,
        turns: &Turns,
        links: &mut DeviceLinks,
    ) -> Moved {
        let mut advanced = false;
        for (lane, Lane { peer, messages }) in program.receives.iter().enumerate() {
            let peer = *peer;
            let Some((index, _)) = messages.get(self.receive_at[lane]) else {
                continue;
            };
            let step = &program.steps[*index];
            // Far fewer messages than 2^32.
            let message = self.carrier(step, self.receive_at[lane] as u32, peer, links);
            while !turns.is_receiving_held(peer) {
                let Incoming {
                    segments, bytes, ..
                } = self.incoming[lane];
                let start = segments * links.segment_bytes();
                let Some(slot) = links.room(peer).filter(|_| start < step.bytes) else {
                    break;
                };
                let length = links.segment_bytes().min(step.bytes - start);
                let came = if links.is_mapped(peer) {
                    let token = transport.receive(peer, &message, segments, &mut [0]);
                    token.map(|came| came * length)
                } else {
                    let into = links.incoming(peer, slot).map_err(Failure::Own)?;
                    transport.receive(peer, &message, start + bytes, &mut into[bytes..length])
                };
                let came = came.map_err(|error| Failure::Link(Broken { peer, error }))?;
                if came == 0 {
                    break;
                }
                advanced = true;
                let incoming = &mut self.incoming[lane];
                incoming.bytes += came;
                if incoming.bytes == length {
                    let slot = links.came(peer);
                    if incoming.segments == 0 {
                        incoming.first_slot = slot;
                    }
                    incoming.segments += 1;
                    incoming.bytes = 0;
                }
            }
        }
        Ok(advanced)
    }

    /// Has segments that are there stored or folded.
    fn consume(&mut self, program: &Program, turns: &Turns, links: &mut DeviceLinks) -> Moved {
        let mut advanced = false;
        for (lane, Lane { messages, .. }) in program.receives.iter().enumerate() {
            while let Some((index, _)) = messages.get(self.receive_at[lane]) {
                let step = &program.steps[*index];
                let operands = match &step.action {
                    Action::Store(operand) => std::slice::from_ref(operand),
                    Action::Fold { operands, .. } => operands.as_slice(),
                    _ => break,
                };
                let from = self.done[*index];
                let segment = from / links.segment_bytes();
                let to = step.bytes.min(from + links.segment_bytes());
                // A fold of several messages is done on the lane of its first.
                let is_due = operands[0].lane == lane
                    && self.limit(step) >= to
                    && operands
                        .iter()
                        .all(|one| self.has_come(one, segment, turns));
                if !is_due {
                    break;
                }
                let read = self.read(step, operands, segment, (from, to), links);
                read.map_err(Failure::Own)?;
                self.advance(*index, to - from, step.bytes);
                advanced = true;
                if to == step.bytes {
                    for operand in operands {
                        self.receive_at[operand.lane] += 1;
                        self.incoming[operand.lane] = Incoming::default();
                    }
                }
            }
        }
        Ok(advanced)
    }

    fn has_come(&self, operand: &Operand, segment: usize, turns: &Turns) -> bool {
        self.receive_at[operand.lane] == operand.number as usize
            && self.incoming[operand.lane].segments > segment
            && !turns.is_receiving_held(operand.peer)
    }

    /// Enqueues the store or the fold of one segment.
    fn read(
        &self,
        step: &ProgramStep,
        operands: &[Operand],
        segment: usize,
        (from, to): (usize, usize),
        links: &mut DeviceLinks,
    ) -> Result<()> {
        let slot = |one: &Operand| (self.incoming[one.lane].first_slot + segment) % links::SLOTS;
        for (at, span) in self.runs(step, from, to)? {
            match &step.action {
                Action::Fold { own, completes, .. } => {
                    let mut sources = Vec::with_capacity(operands.len() + 1);
                    for one in operands {
                        let source = links.source(one.peer, slot(one), at, span.bytes())?;
                        if !links.is_mapped(one.peer) {
                            links.copy_in(one.peer, slot(one), at, &source)?;
                        }
                        sources.push(source);
                    }
                    self.fold(sources, *own, &span, *completes, links)?;
                }
                _ => links.copy_in(operands[0].peer, slot(&operands[0]), at, &span)?,
            }
        }
        let event = links.recorded()?;
        for one in operands {
            let message = self.carrier(step, one.number, one.peer, links);
            links.reads(one.peer, message, segment, event.clone());
        }
        Ok(())
    }

    fn fold(
        &self,
        mut sources: Vec<Span>,
        own: Option<usize>,
        into: &Span,
        completes: bool,
        links: &DeviceLinks,
    ) -> Result<()> {
        if let Some(own) = own {
            sources.insert(own, into.clone());
        }
        let divisor = self.prepared.arithmetic.divisor.filter(|_| completes);
        let op = self.on.op.unwrap_or(ReduceOp::Sum);
        let into = std::slice::from_ref(into);
        let fold = Fold::new(self.on.dtype, op, &sources, into, divisor)?;
        links.stream().fold(&fold)
    }

    /// Has local steps done.
    fn locals(&mut self, program: &Program, links: &DeviceLinks) -> Result<bool> {
        let mut advanced = false;
        while let Some(index) = program.locals.get(self.local_at).copied() {
            let step = &program.steps[index];
            if self.limit(step) < step.bytes {
                break;
            }
            let to = self.runs(step, 0, step.bytes)?.remove(0).1;
            let (from, completes) = match &step.action {
                Action::Copy(from) => (from, None),
                Action::Reduce { from, completes } => (from, Some(*completes)),
                _ => break,
            };
            let from = self.on.buffer.part(from.offset, from.bytes)?;
            match completes {
                None => links.stream().copy(&from, &to)?,
                Some(completes) => self.fold(vec![from], Some(0), &to, completes, links)?,
            }
            self.advance(index, step.bytes, step.bytes);
            self.local_at += 1;
            advanced = true;
        }
        Ok(advanced)
    }
}
