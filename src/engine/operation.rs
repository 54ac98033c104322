//! One collective under way: a program, its buffer, and how far each step has come.

use super::fold::Fold;
use super::pieces::{pair, read, rest, whole, write};
use super::posting::{Arithmetic, Broken, Posting, Prepared, Progress};
use super::program::{Action, Lane, Operand, Piece, Program, ProgramStep};
use super::turns::Turns;
use crate::limits::SEND_GRAIN_BYTES;
use crate::protocol::call::Call;
use crate::sys::memory::Region;
use crate::transport::{Addressee, Message, Transport};
use std::sync::Arc;

type Moved = Result<bool, Broken>;

/// One operation. Finished ones are reused, with everything they have allocated.
#[derive(Default)]
pub(super) struct Operation {
    prepared: Option<Arc<Prepared>>,
    sequence: u64,
    program: Arc<Program>,
    digest: u32,
    arithmetic: Option<Arithmetic>,
    buffer: Option<Region>,
    scratch: Vec<u8>,
    /// Bytes of each step that are done.
    done: Vec<usize>,
    /// Bytes of each flow that were taken by its link.
    sent: Vec<usize>,
    /// Bytes of each flow that were lent and are released.
    released: Vec<usize>,
    /// The message each send lane, each receive lane and the local steps are at.
    send_at: Vec<usize>,
    receive_at: Vec<usize>,
    local_at: usize,
    steps_left: usize,
}

impl Operation {
    /// Makes the operation ready to run what is posted, from where it is already.
    pub(super) fn start(&mut self, posting: Posting) {
        let program = Arc::clone(&posting.prepared.program);
        reset(&mut self.done, program.steps.len());
        reset(&mut self.sent, program.flows);
        if !program.releases.is_empty() {
            reset(&mut self.released, program.flows);
        }
        reset(&mut self.send_at, program.sends.len());
        reset(&mut self.receive_at, program.receives.len());
        if self.scratch.len() < program.scratch_bytes {
            self.scratch.resize(program.scratch_bytes, 0);
        }
        self.local_at = 0;
        self.steps_left = program.steps.len();
        if posting.progress != Progress::default() {
            self.go_to(&program, posting.progress);
        }
        self.program = program;
        self.digest = posting.prepared.digest;
        self.arithmetic = Some(posting.prepared.arithmetic);
        self.prepared = Some(posting.prepared);
        self.sequence = posting.sequence;
        self.buffer = Some(posting.buffer);
    }

    /// Makes room for the counters of a program of this size.
    pub(super) fn reserve(&mut self, size: usize) {
        for counters in [
            &mut self.done,
            &mut self.sent,
            &mut self.released,
            &mut self.send_at,
            &mut self.receive_at,
        ] {
            counters.reserve(size.saturating_sub(counters.len()));
        }
    }

    /// Counts as done what was done in order.
    fn go_to(&mut self, program: &Program, progress: Progress) {
        let Progress { at, flow, bytes } = progress;
        let now = program.order.get(at).copied();
        for step in &program.order[..at] {
            self.done[*step] = program.steps[*step].bytes;
            let (flows, first_flow, to) = match &program.steps[*step].action {
                Action::Send { first_flow, to } => (&mut self.sent, first_flow, to),
                Action::Release { first_flow, to } => (&mut self.released, first_flow, to),
                _ => continue,
            };
            flows[*first_flow..first_flow + to.len()].fill(self.done[*step]);
        }
        self.steps_left -= at;
        if let Some(step) = now {
            let Action::Send { first_flow, to } = &program.steps[step].action else {
                self.done[step] = bytes;
                self.step_lanes(program);
                return;
            };
            let flows = *first_flow..first_flow + to.len();
            match flow {
                // All of them got the same.
                None => self.sent[flows.clone()].fill(bytes),
                Some(flow) => {
                    self.sent[flows.start..flows.start + flow].fill(program.steps[step].bytes);
                    self.sent[flows.start + flow] = bytes;
                }
            }
            self.done[step] = self.sent[flows].iter().min().copied().unwrap_or(0);
        }
        self.step_lanes(program);
    }

    /// Moves every lane past the messages that are done.
    fn step_lanes(&mut self, program: &Program) {
        for (lane, at) in program.sends.iter().zip(&mut self.send_at) {
            let is_done =
                |(step, flow): &(usize, usize)| self.sent[*flow] == program.steps[*step].bytes;
            *at = lane.messages.iter().take_while(|one| is_done(one)).count();
        }
        for (lane, at) in program.receives.iter().zip(&mut self.receive_at) {
            let is_done =
                |(step, _): &(usize, usize)| self.done[*step] == program.steps[*step].bytes;
            *at = lane.messages.iter().take_while(|one| is_done(one)).count();
        }
        let is_done = |step: &usize| self.done[*step] == program.steps[*step].bytes;
        self.local_at = program.locals.iter().take_while(|one| is_done(one)).count();
    }

    /// The call that is carried out.
    pub(super) fn call(&self) -> Option<Call> {
        let prepared = self.prepared.as_ref()?;
        Some(prepared.numbered(self.sequence))
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
        if peers.is_empty() {
            peers = self.borrowers();
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
            let released = self.poll_releases(transport);
            let moved = released | self.poll_receives(transport, turns)? | self.poll_locals();
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
                turns.hold_sending(lane.peer);
            }
        }
        for (lane, at) in self.program.receives.iter().zip(&self.receive_at) {
            if *at < lane.messages.len() {
                turns.hold_receiving(lane.peer);
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
            sequence: self.sequence,
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
    fn ready(
        &self,
        lane: usize,
        transport: &dyn Transport,
        turns: &Turns,
    ) -> Option<(usize, usize)> {
        let Lane { peer, messages } = &self.program.sends[lane];
        let (step, flow) = *messages.get(self.send_at[lane])?;
        if turns.is_sending_held(*peer) {
            return None;
        }
        let to = self.published(step, transport);
        if to.is_some_and(|to| to[0].peer != *peer || !self.are_at(to, turns)) {
            return None;
        }
        let left = self.program.steps[step].bytes - self.sent[flow];
        let ready = self.whole_elements(self.limit(step)) - self.sent[flow];
        // Wait for a decent amount, unless it is all there is.
        (ready >= left.min(SEND_GRAIN_BYTES)).then(|| (self.program.steps[step].round, ready))
    }

    /// Who gets the step's message, if it is written once for all of them. It is done on the lane
    /// of the first.
    fn published(&self, step: usize, transport: &dyn Transport) -> Option<&[Addressee]> {
        match &self.program.steps[step].action {
            Action::Send { to, .. } if to.len() > 1 && transport.publishes(to) => Some(to),
            _ => None,
        }
    }

    /// Whether every addressee's lane is at this message, and ours to write.
    fn are_at(&self, to: &[Addressee], turns: &Turns) -> bool {
        let is_at = |(lane, at): (&Lane, &usize)| {
            let addressee = to.iter().find(|one| one.peer == lane.peer);
            addressee
                .is_none_or(|one| *at == one.number as usize && !turns.is_sending_held(one.peer))
        };
        self.program.sends.iter().zip(&self.send_at).all(is_at)
    }

    /// `bytes` without the part of an element at their end: links that hand over what they get
    /// piece by piece get whole elements.
    fn whole_elements(&self, bytes: usize) -> usize {
        let element_bytes = self.arithmetic.map_or(1, |one| one.element_bytes);
        bytes - bytes % element_bytes
    }

    /// Offers what is ready, round after round: a round's bytes only once the earlier rounds have
    /// none left.
    fn poll_sends(&mut self, transport: &mut dyn Transport, turns: &mut Turns) -> Moved {
        let mut advanced = false;
        while !turns.is_blocked {
            let lanes = 0..self.send_at.len();
            let first = lanes
                .clone()
                .filter_map(|lane| self.ready(lane, transport, turns))
                .min();
            let Some((round, _)) = first else { break };
            for lane in lanes {
                match self.ready(lane, transport, turns) {
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
        let Action::Send { first_flow, to } = &program.steps[step].action else {
            return Ok(0);
        };
        let is_published = self.published(step, transport).is_some();
        // Far fewer messages than 2^32.
        let message = self.message(step, self.send_at[lane] as u32);
        let from = self.sent[flow];
        let mut taken = 0;
        while taken < ready {
            let piece = rest(&program.steps[step].pieces, from + taken, ready - taken);
            let data = read(&self.buffer, &self.scratch, piece);
            let lent_to = if is_published {
                to
            } else {
                &to[flow - first_flow..=flow - first_flow]
            };
            let bytes = if program.steps[step].is_lent && transport.lends(lent_to, data) {
                transport.lend(lent_to, &message, from + taken, data)
            } else if is_published {
                transport.publish(to, &message, from + taken, data)
            } else {
                transport.send(*peer, &message, from + taken, data)
            };
            let bytes = bytes.map_err(|error| Broken { peer: *peer, error })?;
            taken += bytes;
            if bytes < piece.bytes {
                break;
            }
        }
        let flows = *first_flow..first_flow + to.len();
        if is_published {
            self.sent[flows.clone()].fill(from + taken);
        } else {
            self.sent[flow] += taken;
        }
        if from + taken == message.bytes {
            for (lane, at) in program.sends.iter().zip(&mut self.send_at) {
                let is_through = lane.peer == *peer
                    || (is_published && to.iter().any(|one| one.peer == lane.peer));
                *at += usize::from(is_through);
            }
        }
        let slowest = self.sent[flows].iter().min().copied();
        let done = slowest.unwrap_or(message.bytes) - self.done[step];
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
                && !turns.is_receiving_held(operand.peer)
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
                } => {
                    let Some(arithmetic) = self.arithmetic else {
                        return Ok(());
                    };
                    let (sequence, digest) = (self.sequence, self.digest);
                    let into = write(&mut self.buffer, &mut self.scratch, piece);
                    let message = |number| Message {
                        sequence,
                        digest,
                        number,
                        bytes: program.steps[step].bytes,
                    };
                    Fold::new(operands, *own, *completes, &arithmetic, from).arrived(
                        transport,
                        &arithmetic,
                        into,
                        message,
                    )?
                }
                _ => 0,
            };
            self.advance(step, bytes);
            if bytes == 0 {
                break;
            }
        }
        Ok(())
    }
}

/// Getting back what was lent.
impl Operation {
    fn poll_releases(&mut self, transport: &mut dyn Transport) -> bool {
        let program = Arc::clone(&self.program);
        let mut advanced = false;
        for release in &program.releases {
            let ProgramStep { action, bytes, .. } = &program.steps[*release];
            let Action::Release { first_flow, to } = action else {
                continue;
            };
            if self.done[*release] == *bytes || self.limit(*release) < *bytes {
                continue;
            }
            let flows = *first_flow..first_flow + to.len();
            for (flow, one) in self.released[flows.clone()].iter_mut().zip(to) {
                if *flow < *bytes && transport.is_released(*one, self.sequence) {
                    *flow = *bytes;
                }
            }
            if self.released[flows].iter().all(|flow| flow == bytes) {
                self.advance(*release, *bytes);
                advanced = true;
            }
        }
        advanced
    }

    /// Who has not released what was lent to it.
    fn borrowers(&self) -> Vec<usize> {
        let program = &self.program;
        let mut peers = Vec::new();
        for release in &program.releases {
            let ProgramStep { action, bytes, .. } = &program.steps[*release];
            if let Action::Release { first_flow, to } = action
                && self.limit(*release) == *bytes
            {
                let flows = &self.released[*first_flow..first_flow + to.len()];
                let open = to.iter().zip(flows).filter(|(_, flow)| *flow < bytes);
                peers.extend(open.map(|(one, _)| one.peer));
            }
        }
        peers
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

fn reset(counters: &mut Vec<usize>, length: usize) {
    counters.clear();
    counters.resize(length, 0);
}
