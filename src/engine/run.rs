//! Interprets programs.
//!
//! A [`Run`] records the progress of one operation and consists only of counters. Two drivers
//! advance it:
//!
//! - [`Run::block`] finishes the steps in sequence while the caller waits. It is as fast as code
//!   that is written for a specific algorithm. It requires links that accept each message of the
//!   program completely.
//! - [`Run::poll`] advances every step until a link or a dependency stops it. So a segment is
//!   reduced and forwarded while later segments are in flight.
//!
//! Both drivers advance steps through [`Run::step`] and share the counters. So if an operation
//! exceeds its caller's spin budget, polling can continue it from its current state.
//!
#![doc = include_str!("progress.md")]

use super::cache::MessageEnd;
use super::medium::{Broken, Medium, Moved, Operands, Part};
use super::program::{Action, Endpoint, Lane, Piece, Program, ProgramStep, rest};
use super::reservations::Reservations;
use crate::limits::SEND_GRAIN_BYTES;

/// Minimum number of bytes in a long step. Before each long step, the caller is asked whether to
/// continue. Asking takes less time than running the step.
const LONG_STEP_BYTES: usize = 32 << 10;

/// The progress of an operation. A finished run is reused together with its allocations.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// All counters are in a single vector, because every operation begins by clearing it. It has
    /// four sections: the number of bytes that each step has processed; from index `sends`, the
    /// index of the current message in each send lane; from index `receives`, the index of the
    /// current message in each receive lane; and from index `readers`, for each reader of exposed
    /// bytes, the position of these bytes on the reader's link.
    counters: Vec<usize>,
    sends: usize,
    receives: usize,
    readers: usize,
    /// Index of the next local step.
    local_at: usize,
    /// Index of the current step in [`Program::order`], if the steps run in sequence.
    at: usize,
    steps_left: usize,
}

impl Run {
    /// Resets the progress to the beginning of `program`.
    #[inline]
    pub(super) fn start(&mut self, program: &Program) {
        self.sends = program.steps.len();
        self.receives = self.sends + program.sends.len();
        self.readers = self.receives + program.receives.len();
        let length = self.readers + program.readers;
        if self.counters.len() == length {
            self.counters.fill(0);
        } else {
            self.counters.clear();
            self.counters.resize(length, 0);
        }
        self.local_at = 0;
        self.at = 0;
        self.steps_left = program.steps.len();
    }

    /// Returns the number of bytes that a step has processed.
    #[inline]
    fn done(&self, step: usize) -> usize {
        self.counters[step]
    }

    /// Returns the index of the current message in a send lane.
    #[inline]
    fn send_at(&self, lane: usize) -> usize {
        self.counters[self.sends + lane]
    }

    /// Returns the index of the current message in a receive lane.
    #[inline]
    fn receive_at(&self, lane: usize) -> usize {
        self.counters[self.receives + lane]
    }

    pub(super) fn is_done(&self) -> bool {
        self.steps_left == 0
    }

    /// Returns the byte up to which the dependencies of a step allow it to advance.
    fn limit(&self, step: &ProgramStep) -> usize {
        let mut limit = step.bytes;
        for dependency in &step.dependencies {
            if dependency.at >= limit {
                break;
            }
            let done = self.done(dependency.step).saturating_sub(dependency.from);
            if done < dependency.bytes {
                limit = limit.min(dependency.at + done);
            }
        }
        limit
    }

    /// Advances a step up to byte `limit`, or until its links stop it. Returns the number of bytes
    /// by which it advanced.
    #[inline]
    fn step<M: Medium>(
        &mut self,
        program: &Program,
        medium: &mut M,
        index: usize,
        limit: usize,
    ) -> Moved {
        let step = &program.steps[index];
        let from = self.done(index);
        let mut done = from;
        if from == 0 {
            medium.tries();
        }
        while done < limit {
            let piece = rest(&step.pieces, done, limit - done);
            let bytes = match &step.action {
                // If the bytes are in several pieces, offer all of these pieces together.
                Action::Send { to, exposed: None }
                    if to.len() == 1 && piece.bytes < limit - done =>
                {
                    let part = part_of(step, done);
                    medium.send_pieces(to[0], part, &step.pieces, limit - done)?
                }
                _ => self.part(step, medium, done, piece)?,
            };
            done += bytes;
            // A link that accepted less than it was offered is full. A link that provided less than
            // a reduction needed may have more bytes.
            if bytes == 0 || (bytes < piece.bytes && matches!(step.action, Action::Send { .. })) {
                break;
            }
        }
        if done > from {
            self.counters[index] = done;
            medium.moved(index, from == 0, done == step.bytes);
            if done == step.bytes {
                self.finish(step, medium);
            }
        }
        Ok(done - from)
    }

    /// Advances the part of a step that `piece` covers, which begins at byte `offset` of the step.
    /// Returns the number of bytes by which it advanced.
    #[inline(always)]
    fn part<M: Medium>(
        &self,
        step: &ProgramStep,
        medium: &mut M,
        offset: usize,
        piece: Piece,
    ) -> Moved {
        let part = part_of(step, offset);
        match &step.action {
            Action::Send { to, exposed } => medium.send(to, part, piece, exposed.is_some()),
            Action::Store(one) => medium.store(*one, part, piece),
            Action::Reduce {
                from,
                own,
                completes,
            } => {
                let operands = Operands {
                    from,
                    own: *own,
                    completes: *completes,
                };
                if step.own.is_empty() {
                    medium.reduce(operands, part, piece)
                } else {
                    let own = rest(&step.own, offset, piece.bytes);
                    medium.reduce_from(operands, own, part, piece)
                }
            }
            Action::Complete { to, first_reader } => {
                let positions = &self.counters[self.readers + first_reader..];
                let mut readers = to.iter().zip(positions);
                let are_acknowledged =
                    readers.all(|(one, position)| medium.is_acknowledged(one.peer, *position));
                Ok(if are_acknowledged { piece.bytes } else { 0 })
            }
            Action::Copy(source) => {
                let source = rest(source, offset, piece.bytes);
                medium.copy(source, piece.shortened(source.bytes));
                Ok(source.bytes)
            }
            Action::Fold { from, completes } => {
                let bytes = |one: &Vec<Piece>| rest(one, offset, piece.bytes).bytes;
                let into = piece.shortened(from.iter().map(bytes).min().unwrap_or(0));
                medium.fold(from, offset, into, *completes);
                Ok(into.bytes)
            }
        }
    }

    /// Finishes a step and advances its lanes to their next messages.
    #[inline]
    fn finish<M: Medium>(&mut self, step: &ProgramStep, medium: &M) {
        self.steps_left -= 1;
        match &step.action {
            Action::Send { to, exposed } => {
                for one in to {
                    self.counters[self.sends + one.lane] += 1;
                }
                if let Some(first) = exposed {
                    let readers = &mut self.counters[self.readers + first..];
                    for (reader, one) in readers.iter_mut().zip(to) {
                        *reader = medium.position(one.peer);
                    }
                }
            }
            Action::Store(one) => self.counters[self.receives + one.lane] += 1,
            Action::Reduce { from, .. } => {
                for one in from {
                    self.counters[self.receives + one.lane] += 1;
                }
            }
            Action::Copy(_) | Action::Fold { .. } => self.local_at += 1,
            Action::Complete { .. } => {}
        }
    }
}

/// Returns the rest of a step's message, starting at byte `offset`.
#[inline]
fn part_of(step: &ProgramStep, offset: usize) -> Part {
    Part {
        message_bytes: step.bytes,
        offset,
    }
}

/// Implements the driver that runs the steps in sequence.
impl Run {
    /// Runs the steps in [`Program::order`], and finishes each step before the next one begins.
    /// Returns `true` when all steps are done.
    ///
    /// After each poll that moved nothing, calls `patience` with the number of consecutive polls of
    /// this kind. Before a long step, calls `patience` with 0. If `patience` returns `false`, stops
    /// and returns `false`. In this case, call [`Run::poll`] next.
    ///
    /// # Errors
    /// Returns [`Broken`] if a link is broken or delivers unexpected data.
    #[inline]
    pub(super) fn block<M: Medium>(
        &mut self,
        program: &Program,
        medium: &mut M,
        patience: &mut dyn FnMut(u32) -> bool,
    ) -> Result<bool, Broken> {
        let mut fruitless = 0;
        while let Some(index) = program.order.get(self.at).copied() {
            let step = &program.steps[index];
            // Between the steps of a long call, other threads may use the engine.
            if step.bytes >= LONG_STEP_BYTES && !patience(0) {
                return Ok(false);
            }
            while self.done(index) < step.bytes {
                if may_advance(step, medium) && self.step(program, medium, index, step.bytes)? > 0 {
                    fruitless = 0;
                    continue;
                }
                if fruitless == 0 {
                    // Wake peers now, because this rank has nothing else to do.
                    medium.flush();
                }
                fruitless += 1;
                if !patience(fruitless) {
                    return Ok(false);
                }
            }
            self.at += 1;
        }
        medium.flush();
        Ok(true)
    }
}

/// Returns `false` if the step cannot advance because bytes that it needs have not arrived.
#[inline]
fn may_advance<M: Medium>(step: &ProgramStep, medium: &M) -> bool {
    match &step.action {
        Action::Store(one) => medium.is_ready(one.peer),
        Action::Reduce { from, .. } => from.iter().all(|one| medium.is_ready(one.peer)),
        _ => true,
    }
}

/// Implements the driver that polls an operation alongside others.
impl Run {
    /// Advances every step until links or dependencies stop it. Returns `true` if anything moved.
    ///
    /// # Errors
    /// Returns the same errors as [`Run::block`].
    pub(super) fn poll<M: Medium>(
        &mut self,
        program: &Program,
        medium: &mut M,
        reservations: &mut Reservations,
    ) -> Result<bool, Broken> {
        let mut advanced = self.poll_sends(program, medium, reservations)?;
        loop {
            let completed = self.poll_completions(program, medium)?;
            let received = self.poll_receives(program, medium, reservations)?;
            let moved = completed | received | self.poll_locals(program, medium)?;
            if !moved {
                break;
            }
            advanced = true;
            self.poll_sends(program, medium, reservations)?;
        }
        medium.flush();
        Ok(advanced)
    }

    /// Reserves the links that this operation still needs, so that later operations do not use
    /// them.
    pub(super) fn reserve(&self, program: &Program, reservations: &mut Reservations) {
        for (lane, at) in program.sends.iter().zip(&self.counters[self.sends..]) {
            if *at < lane.steps.len() {
                reservations.reserve(MessageEnd::To(lane.peer));
            }
        }
        for (lane, at) in program.receives.iter().zip(&self.counters[self.receives..]) {
            if *at < lane.steps.len() {
                reservations.reserve(MessageEnd::From(lane.peer));
            }
        }
    }

    /// Returns the current send of a lane if bytes of it can be sent now. The result consists of
    /// the send's round, its step index, and the byte up to which it can be sent.
    fn ready<M: Medium>(
        &self,
        program: &Program,
        lane: usize,
        medium: &M,
        reservations: &Reservations,
    ) -> Option<(usize, usize, usize)> {
        let index = *program.sends[lane].steps.get(self.send_at(lane))?;
        let step = &program.steps[index];
        let Action::Send { to, .. } = &step.action else {
            return None;
        };
        // A message to several peers is sent from the first peer's lane once the lanes for all
        // these peers have reached the message.
        let is_at = |one: &Endpoint| {
            self.send_at(one.lane) == one.number as usize
                && !reservations.is_reserved(MessageEnd::To(one.peer))
        };
        if to[0].lane != lane || !to.iter().all(is_at) {
            return None;
        }
        let limit = self.limit(step);
        // Offer only complete elements, because links forward the accepted bytes segment by
        // segment.
        let limit = limit - limit % medium.element_bytes();
        let (ready, left) = (limit - self.done(index), step.bytes - self.done(index));
        // Wait until more bytes are ready, unless no more bytes will follow.
        (ready >= left.min(SEND_GRAIN_BYTES)).then_some((step.round, index, limit))
    }

    /// Offers ready bytes to the links round by round. Bytes of a round are offered only when
    /// earlier rounds have no ready bytes left.
    fn poll_sends<M: Medium>(
        &mut self,
        program: &Program,
        medium: &mut M,
        reservations: &mut Reservations,
    ) -> Result<bool, Broken> {
        let mut advanced = false;
        while !reservations.is_blocked {
            let lanes = 0..program.sends.len();
            let ready = |lane| self.ready(program, lane, medium, reservations);
            let first = lanes
                .clone()
                .filter_map(ready)
                .map(|(round, ..)| round)
                .min();
            let Some(round) = first else { break };
            for lane in lanes {
                match self.ready(program, lane, medium, reservations) {
                    Some((each, index, limit)) if each == round => {
                        let left = limit - self.done(index);
                        let taken = self.step(program, medium, index, limit)?;
                        advanced |= taken > 0;
                        reservations.is_blocked |= taken < left;
                    }
                    _ => {}
                }
            }
        }
        Ok(advanced)
    }

    fn poll_receives<M: Medium>(
        &mut self,
        program: &Program,
        medium: &mut M,
        reservations: &Reservations,
    ) -> Result<bool, Broken> {
        let mut advanced = false;
        for (lane, Lane { steps, .. }) in program.receives.iter().enumerate() {
            while let Some(index) = steps.get(self.receive_at(lane)).copied() {
                let step = &program.steps[index];
                let from = match &step.action {
                    Action::Store(from) => std::slice::from_ref(from),
                    Action::Reduce { from, .. } => from.as_slice(),
                    _ => break,
                };
                // A reduction of several messages runs on the lane of the first message.
                let is_at = |one: &Endpoint| {
                    self.receive_at(one.lane) == one.number as usize
                        && !reservations.is_reserved(MessageEnd::From(one.peer))
                };
                if from[0].lane != lane || !from.iter().all(is_at) {
                    break;
                }
                let limit = self.limit(step);
                advanced |= self.step(program, medium, index, limit)? > 0;
                if self.done(index) < step.bytes {
                    break;
                }
            }
        }
        Ok(advanced)
    }

    fn poll_completions<M: Medium>(
        &mut self,
        program: &Program,
        medium: &mut M,
    ) -> Result<bool, Broken> {
        let mut advanced = false;
        for index in &program.completions {
            let step = &program.steps[*index];
            if self.done(*index) < step.bytes && self.limit(step) == step.bytes {
                advanced |= self.step(program, medium, *index, step.bytes)? > 0;
            }
        }
        Ok(advanced)
    }

    fn poll_locals<M: Medium>(
        &mut self,
        program: &Program,
        medium: &mut M,
    ) -> Result<bool, Broken> {
        let mut advanced = false;
        while let Some(index) = program.locals.get(self.local_at).copied() {
            let step = &program.steps[index];
            if self.limit(step) < step.bytes {
                break;
            }
            advanced |= self.step(program, medium, index, step.bytes)? > 0;
        }
        Ok(advanced)
    }

    /// Returns the ranks that this operation is waiting for now. If the operation is waiting for
    /// messages, these are the senders. Otherwise, they are the ranks whose links are full or, if
    /// there are none, the ranks that are still reading exposed bytes.
    pub(super) fn awaited(&self, program: &Program) -> Vec<usize> {
        let waits = |lane: &Lane, at: usize| {
            let index = *lane.steps.get(at)?;
            (self.limit(&program.steps[index]) > self.done(index)).then_some(lane.peer)
        };
        let receives = program.receives.iter().zip(&self.counters[self.receives..]);
        let mut peers: Vec<_> = receives.filter_map(|(lane, at)| waits(lane, *at)).collect();
        if peers.is_empty() {
            let sends = program.sends.iter().zip(&self.counters[self.sends..]);
            peers = sends.filter_map(|(lane, at)| waits(lane, *at)).collect();
        }
        if peers.is_empty() {
            peers = self.readers(program);
        }
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// Returns the ranks that may still be reading exposed bytes.
    fn readers(&self, program: &Program) -> Vec<usize> {
        let mut peers = Vec::new();
        for index in &program.completions {
            let step = &program.steps[*index];
            if let Action::Complete { to, .. } = &step.action
                && self.limit(step) == step.bytes
                && self.done(*index) < step.bytes
            {
                peers.extend(to.iter().map(|one| one.peer));
            }
        }
        peers
    }
}
