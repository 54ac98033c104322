//! A collective run step by step while its caller waits.
//!
//! Where every message of a program is taken whole by its link, its steps can be carried out
//! strictly in [`Program::order`], each to its end before the next: what [`super::operation`] finds
//! out by its counters the order already says. That is as fast as code written for the one
//! algorithm. What takes longer than the caller has patience goes on as an operation, which starts
//! from a [`Progress`].

use super::fold::Fold;
use super::posting::{Arithmetic, Broken, Prepared, Progress};
use super::program::{Action, Operand, Program, ProgramStep};
use crate::transport::{Addressee, LinkError, Message, Transport};
use std::ops::Range;

/// A step of so many bytes takes longer than asking whether to go on.
const LONG_STEP_BYTES: usize = 32 << 10;

/// Why a run ends early.
enum Stop {
    /// The caller has no more patience.
    Patience,
    /// A link failed.
    Broken(Broken),
}

/// One run.
struct Run<'a> {
    sequence: u64,
    digest: u32,
    arithmetic: Arithmetic,
    buffer: &'a mut [u8],
    transport: &'a mut dyn Transport,
    progress: &'a mut Progress,
    patience: &'a mut dyn FnMut(u32) -> bool,
    /// How often nothing was found since something was.
    fruitless: u32,
}

type Done = Result<(), Stop>;

/// Runs the call from `progress` on. False when patience has ended, `progress` telling where.
///
/// # Errors
/// A link is broken, or what came is not what was expected.
pub(super) fn run(
    prepared: &Prepared,
    sequence: u64,
    buffer: &mut [u8],
    progress: &mut Progress,
    transport: &mut dyn Transport,
    patience: &mut dyn FnMut(u32) -> bool,
) -> Result<bool, Broken> {
    let mut run = Run {
        sequence,
        digest: prepared.digest,
        arithmetic: prepared.arithmetic,
        buffer,
        transport,
        progress,
        patience,
        fruitless: 0,
    };
    match run.all(&prepared.program) {
        Ok(()) => Ok(true),
        Err(Stop::Patience) => Ok(false),
        Err(Stop::Broken(broken)) => Err(broken),
    }
}

impl Run<'_> {
    fn all(&mut self, program: &Program) -> Done {
        for step in &program.order[self.progress.at..] {
            let step = &program.steps[*step];
            // A long call lets others in between its steps.
            if step.bytes >= LONG_STEP_BYTES && !(self.patience)(0) {
                return Err(Stop::Patience);
            }
            match &step.action {
                Action::Send { to, .. } => self.send(step, to)?,
                Action::Release { to, .. } => self.release(to)?,
                Action::Store(operand) => self.store(step, operand)?,
                Action::Fold {
                    operands,
                    own,
                    completes,
                } => self.fold(step, operands, *own, *completes)?,
                // Programs with such steps have scratch, and are not run in order.
                Action::Copy(_) | Action::Reduce { .. } => {}
            }
            self.progress.at += 1;
            self.progress.flow = None;
            self.progress.bytes = 0;
        }
        self.transport.settle();
        Ok(())
    }

    /// What a link did: `bytes` of the step, or a failure.
    #[inline]
    fn moved(&mut self, peer: usize, result: Result<usize, LinkError>) -> Result<usize, Stop> {
        let bytes = result.map_err(|error| Stop::Broken(Broken { peer, error }))?;
        self.progress.bytes += bytes;
        Ok(bytes)
    }

    /// Nothing moved: waits for a message from `awaited`, or for room.
    fn wait(&mut self, awaited: Option<usize>) -> Done {
        if self.fruitless == 0 {
            // While there is nothing else to do.
            self.transport.settle();
        }
        loop {
            self.fruitless += 1;
            if !(self.patience)(self.fruitless) {
                return Err(Stop::Patience);
            }
            if awaited.is_none_or(|peer| self.transport.may_have_arrived(peer)) {
                return Ok(());
            }
        }
    }

    #[inline]
    fn message(&self, step: &ProgramStep, number: u32) -> Message {
        Message {
            sequence: self.sequence,
            digest: self.digest,
            number,
            bytes: step.bytes,
        }
    }

    /// Where the rest of the step's one run of bytes lies.
    #[inline]
    fn rest(&self, step: &ProgramStep) -> Range<usize> {
        let piece = step.pieces[0];
        piece.offset + self.progress.bytes..piece.offset + piece.bytes
    }

    fn send(&mut self, step: &ProgramStep, to: &[Addressee]) -> Done {
        let is_one_by_one = self.progress.flow.is_some();
        if to.len() == 1 || (!is_one_by_one && self.transport.publishes(to)) {
            return self.send_at_once(step, to);
        }
        for flow in self.progress.flow.unwrap_or(0)..to.len() {
            if self.progress.flow != Some(flow) {
                self.progress.flow = Some(flow);
                self.progress.bytes = 0;
            }
            self.send_at_once(step, &to[flow..=flow])?;
        }
        Ok(())
    }

    #[inline]
    fn send_at_once(&mut self, step: &ProgramStep, to: &[Addressee]) -> Done {
        let message = self.message(step, to[0].number);
        while self.progress.bytes < step.bytes {
            let data = &self.buffer[self.rest(step)];
            let done = self.progress.bytes;
            let taken = match to {
                _ if step.is_lent && self.transport.lends(to, data) => {
                    self.transport.lend(to, &message, done, data)
                }
                [one] => self.transport.send(one.peer, &message, done, data),
                _ => self.transport.publish(to, &message, done, data),
            };
            match self.moved(to[0].peer, taken)? {
                0 => self.wait(None)?,
                _ => self.fruitless = 0,
            }
        }
        Ok(())
    }

    fn release(&mut self, to: &[Addressee]) -> Done {
        for one in to {
            while !self.transport.is_released(*one, self.sequence) {
                self.wait(None)?;
            }
            self.fruitless = 0;
        }
        Ok(())
    }

    #[inline]
    fn store(&mut self, step: &ProgramStep, operand: &Operand) -> Done {
        let peer = operand.peer;
        let message = self.message(step, operand.number);
        while self.progress.bytes < step.bytes {
            let rest = self.rest(step);
            let done = self.progress.bytes;
            let into = &mut self.buffer[rest];
            let stored = self.transport.receive(peer, &message, done, into);
            match self.moved(peer, stored)? {
                0 => self.wait(Some(peer))?,
                _ => self.fruitless = 0,
            }
        }
        Ok(())
    }

    #[inline]
    fn fold(
        &mut self,
        step: &ProgramStep,
        operands: &[Operand],
        own: Option<usize>,
        completes: bool,
    ) -> Done {
        while self.progress.bytes < step.bytes {
            let mut peers = operands.iter().map(|operand| operand.peer);
            if let Some(peer) = peers.find(|peer| !self.transport.may_have_arrived(*peer)) {
                self.wait(Some(peer))?;
                continue;
            }
            let rest = self.rest(step);
            let done = self.progress.bytes;
            let (sequence, digest) = (self.sequence, self.digest);
            let message = |number| Message {
                sequence,
                digest,
                number,
                bytes: step.bytes,
            };
            let fold = Fold::new(operands, own, completes, &self.arithmetic, done);
            let into = &mut self.buffer[rest];
            match fold.arrived(self.transport, &self.arithmetic, into, message) {
                Err(broken) => return Err(Stop::Broken(broken)),
                Ok(0) => self.wait(None)?,
                Ok(bytes) => {
                    self.progress.bytes += bytes;
                    self.fruitless = 0;
                }
            }
        }
        Ok(())
    }
}
