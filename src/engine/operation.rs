//! One collective under way: a program, its buffer, and how far each step has come.

use super::program::{Action, Operand, Piece, Program, ProgramStep, Space};
use crate::limits::SEND_GRAIN_BYTES;
use crate::protocol::call::Call;
use crate::reduce::Kernel;
use crate::sys::memory::Region;
use crate::transport::{LinkError, Message, Transport};
use std::sync::Arc;

/// A link that failed an operation.
pub(super) struct Broken {
    pub(super) peer: usize,
    pub(super) error: LinkError,
}

type Moved = Result<bool, Broken>;

/// Which links earlier operations of the channel still use in this pass.
#[derive(Debug, Default)]
pub(super) struct Turns {
    pass: u64,
    sending: Vec<u64>,
    receiving: Vec<u64>,
    /// An earlier operation has bytes ready that its link does not take: nothing may overtake.
    pub(super) is_blocked: bool,
}

impl Turns {
    pub(super) fn new(world_size: usize) -> Self {
        let none = vec![0; world_size];
        Self {
            pass: 0,
            sending: none.clone(),
            receiving: none,
            is_blocked: false,
        }
    }

    pub(super) fn begin_pass(&mut self) {
        self.pass += 1;
        self.is_blocked = false;
    }
}

/// What an operation does to bytes: its kernel, its element size and what `avg` divides by.
#[derive(Clone, Copy)]
pub struct Arithmetic {
    /// The kernel, where the collective reduces.
    pub kernel: Option<Kernel>,
    /// Bytes per element.
    pub element_bytes: usize,
    /// What the complete result is divided by.
    pub divisor: Option<usize>,
}

/// One operation. Finished ones are reused, with everything they have allocated.
#[derive(Default)]
pub(super) struct Operation {
    pub(super) call: Option<Call>,
    program: Arc<Program>,
    digest: u32,
    buffer: Option<Region>,
    scratch: Vec<u8>,
    arithmetic: Option<Arithmetic>,
    /// Bytes of each step that are done.
    done: Vec<usize>,
    /// Bytes of each flow that were taken by its link.
    sent: Vec<usize>,
    /// The message each send lane, each receive lane and the local steps are at.
    send_at: Vec<usize>,
    receive_at: Vec<usize>,
    local_at: usize,
    steps_left: usize,
    /// Room for the operands of a fold; empty between folds.
    views: Vec<&'static [u8]>,
}

impl Operation {
    /// Makes the operation ready to run `program` on `buffer`.
    pub(super) fn start(
        &mut self,
        call: Call,
        digest: u32,
        program: Arc<Program>,
        buffer: Region,
        arithmetic: Arithmetic,
    ) {
        reset(&mut self.done, program.steps.len());
        reset(&mut self.sent, program.flows);
        reset(&mut self.send_at, program.sends.len());
        reset(&mut self.receive_at, program.receives.len());
        if self.scratch.len() < program.scratch_bytes {
            self.scratch.resize(program.scratch_bytes, 0);
        }
        self.local_at = 0;
        self.steps_left = program.steps.len();
        self.call = Some(call);
        self.digest = digest;
        self.program = program;
        self.buffer = Some(buffer);
        self.arithmetic = Some(arithmetic);
    }

    pub(super) fn is_done(&self) -> bool {
        self.steps_left == 0
    }

    pub(super) fn take_buffer(&mut self) -> Option<Region> {
        self.buffer.take()
    }

    /// The ranks whose bytes, or whose room for ours, this operation waits for now.
    pub(super) fn awaited(&self) -> Vec<usize> {
        let program = &self.program;
        let waits = |lane: &super::program::Lane, at: usize| {
            let (step, _) = *lane.messages.get(at)?;
            (self.limit(step) > self.done[step]).then_some(lane.peer)
        };
        let receives = program.receives.iter().zip(&self.receive_at);
        let mut peers: Vec<_> = receives.filter_map(|(lane, at)| waits(lane, *at)).collect();
        if peers.is_empty() {
            let sends = program.sends.iter().zip(&self.send_at);
            peers = sends.filter_map(|(lane, at)| waits(lane, *at)).collect();
        }
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// Whether this operation exchanges messages with `peer`.
    pub(super) fn needs(&self, peer: usize) -> bool {
        self.program.peers().any(|each| each == peer)
    }

    /// Advances as far as links and dependencies allow.
    pub(super) fn poll(&mut self, transport: &mut dyn Transport, turns: &mut Turns) -> Moved {
        let mut advanced = self.poll_sends(transport, turns)?;
        loop {
            let moved = self.poll_receives(transport, turns)? | self.poll_locals();
            if !moved {
                break;
            }
            advanced = true;
            self.poll_sends(transport, turns)?;
        }
        Ok(advanced)
    }

    /// Marks the links this operation still needs, so that later ones keep off.
    pub(super) fn claim(&self, turns: &mut Turns) {
        for (lane, at) in self.program.sends.iter().zip(&self.send_at) {
            if *at < lane.messages.len() {
                turns.sending[lane.peer] = turns.pass;
            }
        }
        for (lane, at) in self.program.receives.iter().zip(&self.receive_at) {
            if *at < lane.messages.len() {
                turns.receiving[lane.peer] = turns.pass;
            }
        }
    }

    /// How far a step's stream may go, by what it depends on.
    fn limit(&self, step: usize) -> usize {
        let ProgramStep {
            bytes,
            dependencies,
            ..
        } = &self.program.steps[step];
        let mut limit = *bytes;
        for dependency in dependencies {
            if dependency.at >= limit {
                break;
            }
            let done = self.done[dependency.step].saturating_sub(dependency.from);
            if done < dependency.bytes {
                limit = limit.min(dependency.at + done);
            }
        }
        limit
    }

    fn message(&self, step: usize, number: u32) -> Message {
        Message {
            sequence: self.call.as_ref().map_or(0, |call| call.sequence),
            digest: self.digest,
            number,
            bytes: self.program.steps[step].bytes,
        }
    }

    fn advance(&mut self, step: usize, bytes: usize) {
        self.done[step] += bytes;
        if self.done[step] == self.program.steps[step].bytes {
            self.steps_left -= 1;
        }
    }
}

/// Sending.
impl Operation {
    /// Bytes of a send lane's present message that could go now, and the message's round.
    fn ready(&self, lane: usize, turns: &Turns) -> Option<(usize, usize)> {
        let Lane { peer, messages } = &self.program.sends[lane];
        let (step, flow) = *messages.get(self.send_at[lane])?;
        if turns.sending[*peer] == turns.pass {
            return None;
        }
        let left = self.program.steps[step].bytes - self.sent[flow];
        let ready = self.limit(step) - self.sent[flow];
        // Wait for a decent amount, unless it is all there is.
        (ready >= left.min(SEND_GRAIN_BYTES)).then(|| (self.program.steps[step].round, ready))
    }

    /// Offers what is ready, round after round: a round's bytes only once the earlier rounds have
    /// none left.
    fn poll_sends(&mut self, transport: &mut dyn Transport, turns: &mut Turns) -> Moved {
        let mut advanced = false;
        while !turns.is_blocked {
            let lanes = 0..self.send_at.len();
            let first = lanes
                .clone()
                .filter_map(|lane| self.ready(lane, turns))
                .min();
            let Some((round, _)) = first else { break };
            for lane in lanes {
                match self.ready(lane, turns) {
                    Some((each, ready)) if each == round => {
                        let taken = self.offer(transport, lane, ready)?;
                        advanced |= taken > 0;
                        turns.is_blocked |= taken < ready;
                    }
                    _ => {}
                }
            }
        }
        Ok(advanced)
    }

    fn offer(
        &mut self,
        transport: &mut dyn Transport,
        lane: usize,
        ready: usize,
    ) -> Result<usize, Broken> {
        let program = Arc::clone(&self.program);
        let Lane { peer, messages } = &program.sends[lane];
        let (step, flow) = messages[self.send_at[lane]];
        // Far fewer messages than 2^32.
        let message = self.message(step, self.send_at[lane] as u32);
        let from = self.sent[flow];
        let mut taken = 0;
        while taken < ready {
            let piece = rest(&program.steps[step].pieces, from + taken, ready - taken);
            let data = read(&self.buffer, &self.scratch, piece);
            let bytes = transport
                .send(*peer, &message, from + taken, data)
                .map_err(|error| Broken { peer: *peer, error })?;
            taken += bytes;
            if bytes < piece.bytes {
                break;
            }
        }
        self.sent[flow] += taken;
        if self.sent[flow] == message.bytes {
            self.send_at[lane] += 1;
        }
        let Action::Send { first_flow, to } = &program.steps[step].action else {
            return Ok(taken);
        };
        let slowest = self.sent[*first_flow..first_flow + to.len()].iter().min();
        let done = slowest.copied().unwrap_or(message.bytes) - self.done[step];
        if done > 0 {
            self.advance(step, done);
        }
        Ok(taken)
    }
}

/// Receiving.
impl Operation {
    fn poll_receives(&mut self, transport: &mut dyn Transport, turns: &Turns) -> Moved {
        let program = Arc::clone(&self.program);
        let mut advanced = false;
        for (index, lane) in program.receives.iter().enumerate() {
            while let Some((step, _)) = lane.messages.get(self.receive_at[index]) {
                let (step, operands) = match &program.steps[*step].action {
                    Action::Store(operand) => (*step, std::slice::from_ref(operand)),
                    Action::Fold { operands, .. } => (*step, operands.as_slice()),
                    _ => break,
                };
                // A fold of several messages is done on the lane of its first.
                if operands[0].lane != index || !self.all_at(operands, turns) {
                    break;
                }
                let before = self.done[step];
                self.advance_receive(transport, step)?;
                advanced |= self.done[step] > before;
                if self.done[step] < program.steps[step].bytes {
                    break;
                }
                for operand in operands {
                    self.receive_at[operand.lane] += 1;
                }
            }
        }
        Ok(advanced)
    }

    /// Whether every operand's lane is at that operand, and ours to read.
    fn all_at(&self, operands: &[Operand], turns: &Turns) -> bool {
        operands.iter().all(|operand| {
            self.receive_at[operand.lane] == operand.number as usize
                && turns.receiving[operand.peer] != turns.pass
        })
    }

    fn advance_receive(
        &mut self,
        transport: &mut dyn Transport,
        step: usize,
    ) -> Result<(), Broken> {
        let program = Arc::clone(&self.program);
        let limit = self.limit(step);
        while self.done[step] < limit {
            let from = self.done[step];
            let piece = rest(&program.steps[step].pieces, from, limit - from);
            let bytes = match &program.steps[step].action {
                Action::Store(operand) => {
                    let message = self.message(step, operand.number);
                    let into = write(&mut self.buffer, &mut self.scratch, piece);
                    transport
                        .receive(operand.peer, &message, from, into)
                        .map_err(|error| Broken {
                            peer: operand.peer,
                            error,
                        })?
                }
                Action::Fold {
                    operands,
                    own,
                    completes,
                } => self.fold(transport, step, piece, operands, *own, *completes)?,
                _ => 0,
            };
            self.advance(step, bytes);
            if bytes == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Folds what has come from every operand, at most `piece`; returns the bytes folded.
    fn fold(
        &mut self,
        transport: &mut dyn Transport,
        step: usize,
        piece: Piece,
        operands: &[Operand],
        own: Option<usize>,
        completes: bool,
    ) -> Result<usize, Broken> {
        let from = self.done[step];
        let mut bytes = piece.bytes;
        for operand in operands {
            let message = self.message(step, operand.number);
            let visible = transport
                .fetch(operand.peer, &message, from)
                .map_err(|error| Broken {
                    peer: operand.peer,
                    error,
                })?;
            bytes = bytes.min(visible);
        }
        let Some(Arithmetic {
            kernel: Some(kernel),
            element_bytes,
            divisor,
        }) = self.arithmetic
        else {
            return Ok(0);
        };
        bytes -= bytes % element_bytes;
        if bytes == 0 {
            return Ok(0);
        }
        let into = write(
            &mut self.buffer,
            &mut self.scratch,
            Piece { bytes, ..piece },
        );
        let divisor = divisor.filter(|_| completes);
        if let [operand] = operands {
            kernel.fold(into, own, &[transport.view(operand.peer, bytes)], divisor);
        } else {
            let mut views: Vec<&[u8]> = std::mem::take(&mut self.views);
            views.extend(operands.iter().map(|one| transport.view(one.peer, bytes)));
            kernel.fold(into, own, &views, divisor);
            views.clear();
            // Emptied, it is collected in place: the next fold finds its memory here.
            self.views = views.into_iter().map(|_| &[][..]).collect();
        }
        for operand in operands {
            transport.consume(operand.peer, bytes);
        }
        Ok(bytes)
    }
}

/// Local steps.
impl Operation {
    fn poll_locals(&mut self) -> bool {
        let program = Arc::clone(&self.program);
        let mut advanced = false;
        while let Some(step) = program.locals.get(self.local_at).copied() {
            let ProgramStep {
                action,
                pieces,
                bytes,
                ..
            } = &program.steps[step];
            if self.limit(step) < *bytes {
                break;
            }
            match action {
                Action::Copy(from) => self.copy(*from, pieces[0]),
                Action::Reduce { from, completes } => self.reduce(*from, pieces[0], *completes),
                _ => {}
            }
            self.advance(step, *bytes);
            self.local_at += 1;
            advanced = true;
        }
        advanced
    }

    fn copy(&mut self, from: Piece, to: Piece) {
        if from.space == to.space {
            let whole = whole(&mut self.buffer, &mut self.scratch, from.space);
            whole.copy_within(from.offset..from.offset + from.bytes, to.offset);
        } else {
            let (from, to) = pair(&mut self.buffer, &mut self.scratch, from, to);
            to.copy_from_slice(from);
        }
    }

    fn reduce(&mut self, from: Piece, to: Piece, completes: bool) {
        let Some(Arithmetic {
            kernel: Some(kernel),
            divisor,
            ..
        }) = self.arithmetic
        else {
            return;
        };
        let (from, to) = pair(&mut self.buffer, &mut self.scratch, from, to);
        kernel.fold(to, Some(0), &[from], divisor.filter(|_| completes));
    }
}

use super::program::Lane;

fn reset(counters: &mut Vec<usize>, length: usize) {
    counters.clear();
    counters.resize(length, 0);
}

/// The piece that byte `at` of a stream falls in, from there on, at most `most` bytes of it.
fn rest(pieces: &[Piece], at: usize, most: usize) -> Piece {
    let mut skip = at;
    for piece in pieces {
        if skip < piece.bytes {
            let bytes = (piece.bytes - skip).min(most);
            return Piece {
                space: piece.space,
                offset: piece.offset + skip,
                bytes,
            };
        }
        skip -= piece.bytes;
    }
    Piece {
        space: Space::Buffer,
        offset: 0,
        bytes: 0,
    }
}

fn read<'a>(buffer: &'a Option<Region>, scratch: &'a [u8], piece: Piece) -> &'a [u8] {
    let whole = match (piece.space, buffer) {
        (Space::Buffer, Some(region)) => region.bytes(),
        (Space::Buffer, None) => &[],
        (Space::Scratch, _) => scratch,
    };
    &whole[piece.offset..piece.offset + piece.bytes]
}

fn whole<'a>(buffer: &'a mut Option<Region>, scratch: &'a mut [u8], space: Space) -> &'a mut [u8] {
    match (space, buffer) {
        (Space::Buffer, Some(region)) => region.bytes_mut(),
        (Space::Buffer, None) => &mut [],
        (Space::Scratch, _) => scratch,
    }
}

fn write<'a>(buffer: &'a mut Option<Region>, scratch: &'a mut [u8], piece: Piece) -> &'a mut [u8] {
    &mut whole(buffer, scratch, piece.space)[piece.offset..piece.offset + piece.bytes]
}

/// Two disjoint places of this rank: one to read, one to write.
fn pair<'a>(
    buffer: &'a mut Option<Region>,
    scratch: &'a mut [u8],
    from: Piece,
    to: Piece,
) -> (&'a [u8], &'a mut [u8]) {
    if from.space != to.space {
        let buffer = whole(buffer, &mut [], Space::Buffer);
        return match from.space {
            Space::Buffer => (
                &buffer[from.offset..from.offset + from.bytes],
                &mut scratch[to.offset..to.offset + to.bytes],
            ),
            Space::Scratch => (
                &scratch[from.offset..from.offset + from.bytes],
                &mut buffer[to.offset..to.offset + to.bytes],
            ),
        };
    }
    let whole = whole(buffer, scratch, from.space);
    let (low, high) = whole.split_at_mut(from.offset.max(to.offset));
    if from.offset < to.offset {
        (
            &low[from.offset..from.offset + from.bytes],
            &mut high[..to.bytes],
        )
    } else {
        (
            &high[..from.bytes],
            &mut low[to.offset..to.offset + to.bytes],
        )
    }
}
