//! Collectives on device buffers: the host drives, the device copies and folds.
//!
//! *Purpose.* `DeviceOperation` runs a program on memory of a device. What the host's operation
//! does at once is told to a stream here, and what a stream was told in an order is done in it: so
//! a step counts as done, for the steps that depend on it, as soon as it is enqueued. Only what
//! leaves the rank, or comes, waits for events; or, between ranks whose streams wait for each other
//! ([`signals`]), for nothing. [`links`] says how segments travel.
//!
//! *Invariants.* Nothing here waits. What is reported good was seen done by an event behind the
//! last fold. The user's stream goes on when the operation is dropped ([`Gate`]), however it ended.

mod gate;
pub mod links;
mod receive;
pub mod registered;
mod send;
pub mod signals;
#[cfg(test)]
mod tests;

pub use gate::Gate;

use super::pieces::rest;
use super::posting::{Broken, Failure, Prepared};
use super::program::{Action, Lane, Program, ProgramStep, Space};
use super::turns::Turns;
use crate::device::{Event, Span, Stream};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::op::ReduceOp;
use crate::transport::{Addressee, LinkError, Message, Transport};
use links::{ALIGNMENT_BYTES, DeviceLinks};
use registered::{TOKEN_BYTES, Token};
use std::collections::VecDeque;
use std::sync::Arc;

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
    /// Whole segments, and how many had come over the link before the first of them.
    segments: usize,
    before: usize,
    /// Where segments begin in their slots.
    lead: usize,
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
    /// Which does all this.
    stream: Arc<dyn Stream>,
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
    /// Whose memory was read where it lies.
    lenders: Vec<usize>,
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
            registered: links.number_of(on.buffer.memory()),
            on,
            stream: Arc::clone(links.stream()),
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
            lenders: Vec::new(),
            is_over: false,
            prepared,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.is_over
    }

    /// Whether the buffer's stream has come to the call.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
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
            moved |= self.releases(&program, links).map_err(Failure::Own)?;
            moved |= self.locals(&program, links).map_err(Failure::Own)?;
            if !moved {
                break;
            }
            advanced = true;
        }
        Ok(advanced | self.end(&program, transport, links)?)
    }

    /// Once all is enqueued and sent: sees the last of it done, and the peers' slots given back.
    fn end(
        &mut self,
        program: &Program,
        transport: &dyn Transport,
        links: &mut DeviceLinks,
    ) -> Moved {
        let flies = self.flying.iter().any(|flying| !flying.is_empty());
        if self.is_over || self.steps_left > 0 || flies {
            return Ok(false);
        }
        let event = match self.last.take() {
            Some(event) => event,
            None => links.recorded().map_err(Failure::Own)?,
        };
        let reads = |lane: &Lane| links.is_reading(lane.peer);
        let is_done = event.is_done().map_err(Failure::Own)?;
        if !is_done || program.receives.iter().any(reads) {
            self.last = Some(event);
            return Ok(false);
        }
        links.recycle(event);
        self.check_lenders(transport, links)?;
        self.is_over = true;
        Ok(true)
    }

    /// Whether what was read so far is what was sent, now that an event says that it was read:
    /// whoever gave up had its stream go on, and write where this one may have been reading.
    fn check_lenders(
        &self,
        transport: &dyn Transport,
        links: &DeviceLinks,
    ) -> std::result::Result<(), Failure> {
        let withdrawn = match links.has_signals() {
            // Streams hand on what they made of it.
            true => (0..links.world_size()).find(|peer| transport.is_withdrawn(*peer)),
            false => {
                let mut lenders = self.lenders.iter().copied();
                lenders.find(|peer| transport.is_withdrawn(*peer))
            }
        };
        let Some(peer) = withdrawn else {
            return Ok(());
        };
        let error = LinkError::Closed("it has given up and taken back what it lent".into());
        Err(Failure::Link(Broken { peer, error }))
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
    pub(super) fn awaited(&self, links: &DeviceLinks) -> Vec<usize> {
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
        if peers.is_empty() {
            peers = self.borrowers();
        }
        if peers.is_empty() {
            peers = links.behind();
        }
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// Who has not given back what was lent to it.
    fn borrowers(&self) -> Vec<usize> {
        let program = &self.prepared.program;
        let open = program.releases.iter();
        let open = open.filter(|index| self.done[**index] < program.steps[**index].bytes);
        open.flat_map(|index| match &program.steps[*index].action {
            Action::Release { to, .. } => to.iter().map(|one| one.peer).collect(),
            _ => Vec::new(),
        })
        .collect()
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

    /// How a step's bytes lie in what kernels read at once.
    fn lead(&self, step: &ProgramStep) -> usize {
        let first = step.pieces.first().map_or(0, |piece| piece.offset);
        (self.on.buffer.offset() + first) % ALIGNMENT_BYTES
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

impl Drop for DeviceOperation {
    /// The user's stream goes on: where the operation was cut short, not before what it enqueued
    /// is done, which would be written over what comes then.
    fn drop(&mut self) {
        let is_cut_short = self.has_begun && !self.is_over;
        if let Some(gate) = self.on.gate.take().filter(|_| is_cut_short) {
            gate.open_behind(&*self.stream);
        }
    }
}

/// What moves no segment.
impl DeviceOperation {
    /// Counts as done the releases of what peers are through with.
    fn releases(&mut self, program: &Program, links: &mut DeviceLinks) -> Result<bool> {
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
                for one in to {
                    links.await_readers(one.peer)?;
                }
                self.advance(*index, step.bytes, step.bytes);
                advanced = true;
            }
        }
        Ok(advanced)
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
