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
use crate::transport::{Addressee, LinkError, Message, Transport};
use links::{DeviceLinks, TOKEN_BYTES, Token};
use std::collections::VecDeque;
use std::ops::Range;
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
    /// What a peer with the same GPU is told, and how many tokens that takes.
    token: Token,
    tokens: usize,
    /// Bytes that the link has taken.
    taken: usize,
}

/// What has come of the message that a lane is at.
#[derive(Clone, Copy, Default)]
struct Incoming {
    /// Whole segments, and where the first of them that was not read lies.
    segments: usize,
    first_slot: usize,
    /// Bytes of the next one, or of its token.
    bytes: usize,
    token: [u8; TOKEN_BYTES],
    /// Where all of it lies, if it needs no slots.
    lent: Option<Token>,
}

/// One collective under way on a device.
pub(super) struct DeviceOperation {
    prepared: Arc<Prepared>,
    sequence: u64,
    on: OnDevice,
    /// The registration that the buffer lies in.
    registered: Option<u64>,
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
    pub(super) fn new(
        prepared: Arc<Prepared>,
        sequence: u64,
        on: OnDevice,
        links: &DeviceLinks,
    ) -> Self {
        let program = &prepared.program;
        let (sends, receives) = (program.sends.len(), program.receives.len());
        Self {
            sequence,
            registered: links.registered(on.buffer.memory()),
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
            moved |= self.releases(&program, links);
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
            true => step.bytes.div_ceil(links.segment_bytes()) * TOKEN_BYTES,
            false => step.bytes,
        };
        self.message(number, bytes)
    }

    /// The message in which the tokens of a step are acknowledged.
    fn receipt(&self, step: &ProgramStep, number: u32, links: &DeviceLinks) -> Message {
        self.message(number, step.bytes.div_ceil(links.segment_bytes()))
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
                let token = self.loan(step, *peer, links);
                let to = match token {
                    Some(_) => step.bytes,
                    None => step.bytes.min(from + links.segment_bytes()),
                };
                if self.limit(step) < to {
                    break;
                }
                let mut flying = Flying {
                    step: index,
                    // Far fewer messages than 2^32.
                    number: self.send_at[lane] as u32,
                    segment: from / links.segment_bytes(),
                    bytes: to - from,
                    slot: 0,
                    event: None,
                    token: token.unwrap_or_default(),
                    tokens: (to - from).div_ceil(links.segment_bytes()),
                    taken: 0,
                };
                let event = if token.is_some() {
                    links.take_none(*peer, flying.tokens);
                    links.recorded()
                } else if let Some(slot) = links.take_slot(*peer) {
                    flying.slot = slot;
                    self.copy_out(step, (from, to), *peer, slot, links)
                } else {
                    break;
                };
                flying.event = Some(event.map_err(Failure::Own)?);
                self.flying[lane].push_back(flying);
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

    /// Where `peer` can read a step's bytes, if it can and they are to be lent.
    fn loan(&self, step: &ProgramStep, peer: usize, links: &DeviceLinks) -> Option<Token> {
        let number = self.registered.filter(|_| step.is_lent)?;
        let [piece] = step.pieces.as_slice() else {
            return None;
        };
        links.lends(number, peer).then(|| Token {
            number,
            start: self.on.buffer.offset() + piece.offset,
        })
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
                    token,
                    tokens,
                    taken,
                    ..
                } = first;
                let step = &program.steps[step];
                let message = self.carrier(step, number, peer, links);
                let is_mapped = links.is_mapped(peer);
                let (sent, of) = if is_mapped {
                    // The first token says it all.
                    let mut said = vec![0; tokens * TOKEN_BYTES];
                    said[..TOKEN_BYTES].copy_from_slice(&token.encode());
                    let offset = segment * TOKEN_BYTES + taken;
                    let sent = transport.send(peer, &message, offset, &said[taken..]);
                    (sent, said.len())
                } else {
                    let data = links.outgoing(peer, slot).map_err(Failure::Own)?;
                    let offset = segment * data.len() + taken;
                    let sent = transport.send(peer, &message, offset, &data[taken..bytes]);
                    (sent, bytes)
                };
                let sent = sent.map_err(|error| Failure::Link(Broken { peer, error }))?;
                if sent == 0 {
                    break;
                }
                advanced = true;
                if taken + sent == of {
                    self.flying[lane].pop_front();
                    let receipt = self.receipt(step, number, links);
                    links.sent(peer, is_mapped.then_some(receipt));
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
            while !turns.is_receiving_held(peer)
                && self.take_one(step, lane, peer, &message, transport, links)?
            {
                advanced = true;
            }
        }
        Ok(advanced)
    }

    /// Takes a token, or what has come of a segment; false if nothing has.
    fn take_one(
        &mut self,
        step: &ProgramStep,
        lane: usize,
        peer: usize,
        message: &Message,
        transport: &mut dyn Transport,
        links: &mut DeviceLinks,
    ) -> Moved {
        let broken = |error| Failure::Link(Broken { peer, error });
        let incoming = &mut self.incoming[lane];
        let start = incoming.segments * links.segment_bytes();
        if start >= step.bytes {
            return Ok(false);
        }
        // What is lent needs no slot.
        let slot = match (incoming.lent, links.room(peer)) {
            (Some(_), _) => 0,
            (None, Some(slot)) => slot,
            (None, None) => return Ok(false),
        };
        let (came, of) = if links.is_mapped(peer) {
            let offset = incoming.segments * TOKEN_BYTES + incoming.bytes;
            let into = &mut incoming.token[incoming.bytes..];
            (transport.receive(peer, message, offset, into), TOKEN_BYTES)
        } else {
            let length = links.segment_bytes().min(step.bytes - start);
            let into = links.incoming(peer, slot).map_err(Failure::Own)?;
            let into = &mut into[incoming.bytes..length];
            let came = transport.receive(peer, message, start + incoming.bytes, into);
            (came, length)
        };
        let came = came.map_err(broken)?;
        incoming.bytes += came;
        if came > 0 && incoming.bytes == of {
            let slot = links.came(peer);
            if incoming.segments == 0 {
                incoming.first_slot = slot;
                let token = Token::decode(&incoming.token);
                let is_lent = links.is_mapped(peer) && token.number > 0;
                incoming.lent = is_lent.then_some(token);
                if is_lent && links.lent(peer, token, step.bytes).is_none() {
                    let why = format!("it lends memory that is not registered: {token:?}");
                    return Err(broken(LinkError::Garbage(why)));
                }
            }
            incoming.segments += 1;
            incoming.bytes = 0;
        }
        Ok(came > 0)
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
                let is_lent = |one: &Operand| self.incoming[one.lane].lent.is_some();
                let to = match operands.iter().all(is_lent) {
                    true => step.bytes,
                    false => step.bytes.min(from + links.segment_bytes()),
                };
                let last = to.div_ceil(links.segment_bytes()) - 1;
                // A fold of several messages is done on the lane of its first.
                let is_due = operands[0].lane == lane
                    && self.limit(step) >= to
                    && operands
                        .iter()
                        .all(|one| self.has_come(one, segment, turns));
                if !is_due {
                    break;
                }
                let read = self.read(step, operands, segment..last + 1, (from, to), links);
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

    /// Enqueues the store or the fold of what `tokens` tell of.
    fn read(
        &self,
        step: &ProgramStep,
        operands: &[Operand],
        tokens: Range<usize>,
        (from, to): (usize, usize),
        links: &mut DeviceLinks,
    ) -> Result<()> {
        for (at, span) in self.runs(step, from, to)? {
            let mut sources = Vec::with_capacity(operands.len() + 1);
            for one in operands {
                let incoming = &self.incoming[one.lane];
                let slot = (incoming.first_slot + tokens.start) % links::SLOTS;
                let lent = incoming.lent.and_then(|token| {
                    let whole = links.lent(one.peer, token, step.bytes)?;
                    whole.part(from + at, span.bytes()).ok()
                });
                match (&step.action, lent) {
                    (Action::Fold { .. }, Some(source)) => sources.push(source),
                    (Action::Fold { .. }, None) => {
                        sources.push(links.landed(one.peer, slot, at, span.bytes())?);
                    }
                    (_, Some(source)) => links.stream().copy(&source, &span)?,
                    (_, None) => links.copy_in(one.peer, slot, at, &span)?,
                }
            }
            if let Action::Fold { own, completes, .. } = &step.action {
                self.fold(sources, *own, &span, *completes, links)?;
            }
        }
        let event = links.recorded()?;
        for one in operands {
            let receipt = self.receipt(step, one.number, links);
            links.reads(one.peer, receipt, tokens.clone(), event.clone());
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

    /// Counts as done the releases of what peers are through with.
    fn releases(&mut self, program: &Program, links: &DeviceLinks) -> bool {
        let mut advanced = false;
        for index in &program.releases {
            let step = &program.steps[*index];
            let Action::Release { to, .. } = &step.action else {
                continue;
            };
            let is_due = self.done[*index] < step.bytes && self.limit(step) == step.bytes;
            let flies = |one: &Addressee| {
                let mut lanes = program.sends.iter().zip(&self.flying);
                lanes.any(|(lane, flying)| {
                    lane.peer == one.peer && flying.iter().any(|each| each.number == one.number)
                })
            };
            let is_back =
                |one: &Addressee| !flies(one) && links.is_back(one.peer, self.sequence, one.number);
            if is_due && to.iter().all(is_back) {
                self.advance(*index, step.bytes, step.bytes);
                advanced = true;
            }
        }
        advanced
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
