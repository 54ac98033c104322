//! The one interpreter of programs.
//!
//! A [`Run`] is how far an operation has come: counters, and nothing else. Two drivers advance it.
//! [`Run::block`] carries out the steps one after the other while the caller waits, which is as
//! fast as code written for the one algorithm; it is for programs whose messages every link takes
//! whole. [`Run::poll`] does as much of every step as links and dependencies allow, so that a
//! segment is reduced and sent on while later ones are in flight. Both do a step in the same
//! function ([`Run::step`]) over the same counters, so that an operation that outlasts its caller's
//! spin budget is polled from where it is.
//!
#![doc = include_str!("progress.md")]

use super::medium::{Broken, Medium, Moved, Operands, Part};
use super::program::{Action, Endpoint, Lane, Piece, Program, ProgramStep, rest};
use super::reservations::Reservations;
use crate::limits::SEND_GRAIN_BYTES;

/// A step of so many bytes takes longer than asking whether to go on.
const LONG_STEP_BYTES: usize = 32 << 10;

/// How far an operation has come. Finished ones are used again, with what they have allocated.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// In one piece, because every operation starts by clearing them: bytes of each step that are
    /// done; from `sends` on, the message that each send lane is at; from `receives` on, that of
    /// each receive lane; from `readers` on, where each reader of exposed bytes is sent them.
    counters: Vec<usize>,
    sends: usize,
    receives: usize,
    readers: usize,
    /// The local step that is next.
    local_at: usize,
    /// The place in the program's order, as long as the steps are done one after the other.
    at: usize,
    steps_left: usize,
}

impl Run {
    /// Begins `program`.
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

    /// Bytes of a step that are done.
    #[inline]
    fn done(&self, step: usize) -> usize {
        self.counters[step]
    }

    /// The message that a send lane is at.
    #[inline]
    fn send_at(&self, lane: usize) -> usize {
        self.counters[self.sends + lane]
    }

    /// The message that a receive lane is at.
    #[inline]
    fn receive_at(&self, lane: usize) -> usize {
        self.counters[self.receives + lane]
    }

    pub(super) fn is_done(&self) -> bool {
        self.steps_left == 0
    }

    /// How far a step may go, by what it depends on.
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

    /// Does as much of a step as links allow, up to byte `limit`; returns how much.
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
                // What lies in several places is written at once.
                Action::Send { to, exposed: None }
                    if to.len() == 1 && piece.bytes < limit - done =>
                {
                    let part = part_of(step, done);
                    medium.send_pieces(to[0], part, &step.pieces, limit - done)?
                }
                _ => self.part(step, medium, done, piece)?,
            };
            done += bytes;
            // A link that took less than it was offered is full; one that gave less than a
            // reduction wanted may have more.
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

    /// Does what can be done of `piece`, which is byte `offset` of the step and what follows.
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
                let are_through =
                    readers.all(|(one, position)| medium.is_through(one.peer, *position));
                Ok(if are_through { piece.bytes } else { 0 })
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

    /// A step is done: its lanes come to their next messages.
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

/// What follows byte `offset` of a step.
#[inline]
fn part_of(step: &ProgramStep, offset: usize) -> Part {
    Part {
        message_bytes: step.bytes,
        offset,
    }
}

/// Step by step.
impl Run {
    /// Carries out the steps in [`Program::order`], each to its end before the next. `patience`
    /// is asked after so many fruitless looks whether to look once more, and before a long step.
    /// False when its patience ended first; then poll.
    ///
    /// # Errors
    /// A link is broken, or what came is not what was expected.
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
            // A long call lets others in between its steps.
            if step.bytes >= LONG_STEP_BYTES && !patience(0) {
                return Ok(false);
            }
            while self.done(index) < step.bytes {
                if may_advance(step, medium) && self.step(program, medium, index, step.bytes)? > 0 {
                    fruitless = 0;
                    continue;
                }
                if fruitless == 0 {
                    // While there is nothing else to do.
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

/// Whether it is worth trying the step.
#[inline]
fn may_advance<M: Medium>(step: &ProgramStep, medium: &M) -> bool {
    match &step.action {
        Action::Store(one) => medium.is_ready(one.peer),
        Action::Reduce { from, .. } => from.iter().all(|one| medium.is_ready(one.peer)),
        _ => true,
    }
}

/// Polled among others.
impl Run {
    /// Advances as far as links and dependencies allow; says whether anything moved.
    ///
    /// # Errors
    /// Those of [`Run::block`].
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

    /// Reserves the links that this operation still needs, so that later ones keep off.
    pub(super) fn reserve(&self, program: &Program, reservations: &mut Reservations) {
        for (lane, at) in program.sends.iter().zip(&self.counters[self.sends..]) {
            if *at < lane.steps.len() {
                reservations.reserve_sending(lane.peer);
            }
        }
        for (lane, at) in program.receives.iter().zip(&self.counters[self.receives..]) {
            if *at < lane.steps.len() {
                reservations.reserve_receiving(lane.peer);
            }
        }
    }

    /// The send that a lane is at, its round, and up to which byte it could go now.
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
        // A message to several peers goes when all their lanes are at it, on that of the first.
        let is_at = |one: &Endpoint| {
            self.send_at(one.lane) == one.number as usize
                && !reservations.is_sending_reserved(one.peer)
        };
        if to[0].lane != lane || !to.iter().all(is_at) {
            return None;
        }
        let limit = self.limit(step);
        // Links that hand on what they get segment by segment get whole elements.
        let limit = limit - limit % medium.element_bytes();
        let (ready, left) = (limit - self.done(index), step.bytes - self.done(index));
        // Wait for a decent amount, unless it is all that is left.
        (ready >= left.min(SEND_GRAIN_BYTES)).then_some((step.round, index, limit))
    }

    /// Offers what is ready, round after round: a round's bytes only once the earlier rounds have
    /// none left.
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
                // A reduction of several messages is done on the lane of its first.
                let is_at = |one: &Endpoint| {
                    self.receive_at(one.lane) == one.number as usize
                        && !reservations.is_receiving_reserved(one.peer)
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

    /// The ranks whose bytes, or whose room for ours, this operation waits for now.
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

    /// The ranks that may still be reading what was exposed to them.
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
