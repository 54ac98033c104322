//! A collective run step by step while its caller waits.
//!
//! Where every message of a program is taken whole by its link, its steps can be carried out
//! strictly in [`Program::order`], each to its end before the next: what [`super::operation`] finds
//! out by its counters the order already says. That is as fast as code written for the one
//! algorithm. What takes longer than the caller has patience goes on as an operation, which starts
//! from a [`Progress`].

use super::fold::Fold;
use super::group::Prepared;
use super::operation::{Arithmetic, Broken};
use super::program::{Action, Operand, Piece, ProgramStep};
use crate::transport::{Addressee, Message, Transport};

/// How far a program has been run in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The place in the order.
    pub(super) at: usize,
    /// For a send to several peers, one by one: which of them it is at.
    pub(super) flow: Option<usize>,
    /// Bytes of this step, or of this flow of it, that are done.
    pub(super) bytes: usize,
}

/// One run.
struct Run<'a> {
    sequence: u64,
    digest: u32,
    arithmetic: Arithmetic,
    buffer: &'a mut [u8],
    transport: &'a mut dyn Transport,
    progress: &'a mut Progress,
}

type Moved = Result<usize, Broken>;

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
    let program = &*prepared.program;
    let mut run = Run {
        sequence,
        digest: prepared.digest,
        arithmetic: prepared.arithmetic,
        buffer,
        transport,
        progress,
    };
    while let Some(step) = program.order.get(run.progress.at) {
        let step = &program.steps[*step];
        let mut fruitless = 0;
        loop {
            let moved = run.go_on(step)?;
            if run.is_over(step) {
                break;
            }
            if moved > 0 {
                fruitless = 0;
                continue;
            }
            if fruitless == 0 {
                // While there is nothing else to do.
                run.transport.settle();
            }
            let awaited = run.awaited(step);
            loop {
                fruitless += 1;
                if !patience(fruitless) {
                    return Ok(false);
                }
                if awaited.is_none_or(|peer| run.transport.may_have_arrived(peer)) {
                    break;
                }
            }
        }
        run.progress.at += 1;
        run.progress.flow = None;
        run.progress.bytes = 0;
    }
    run.transport.settle();
    Ok(true)
}

impl Run<'_> {
    /// Advances the step; returns how many bytes.
    fn go_on(&mut self, step: &ProgramStep) -> Moved {
        match &step.action {
            Action::Send { to, .. } => self.send(step, to),
            Action::Store(operand) => self.store(step, operand),
            Action::Fold {
                operands,
                own,
                completes,
            } => self.fold(step, operands, *own, *completes),
            // Such programs have scratch, and are not run in order.
            Action::Copy(_) | Action::Reduce { .. } => Ok(0),
        }
    }

    fn is_over(&self, step: &ProgramStep) -> bool {
        let is_last = match (&step.action, self.progress.flow) {
            (Action::Send { to, .. }, Some(flow)) => flow + 1 == to.len(),
            _ => true,
        };
        is_last && self.progress.bytes == step.bytes
    }

    /// Whose message the step waits for, if it waits for one.
    fn awaited(&self, step: &ProgramStep) -> Option<usize> {
        let operands = match &step.action {
            Action::Store(operand) => std::slice::from_ref(operand),
            Action::Fold { operands, .. } => operands.as_slice(),
            _ => return None,
        };
        let mut peers = operands.iter().map(|operand| operand.peer);
        peers.find(|peer| !self.transport.may_have_arrived(*peer))
    }

    fn message(&self, step: &ProgramStep, number: u32) -> Message {
        Message {
            sequence: self.sequence,
            digest: self.digest,
            number,
            bytes: step.bytes,
        }
    }

    /// The part of the step's one run of bytes that is not done.
    fn rest(&self, step: &ProgramStep) -> Piece {
        let piece = step.pieces[0];
        Piece {
            offset: piece.offset + self.progress.bytes,
            bytes: piece.bytes - self.progress.bytes,
            ..piece
        }
    }

    fn send(&mut self, step: &ProgramStep, to: &[Addressee]) -> Moved {
        if to.len() == 1 || (self.progress.flow.is_none() && self.transport.publishes(to)) {
            return self.send_at_once(step, to);
        }
        let mut moved = 0;
        for flow in self.progress.flow.unwrap_or(0)..to.len() {
            if self.progress.flow != Some(flow) {
                self.progress.flow = Some(flow);
                self.progress.bytes = 0;
            }
            moved += self.send_at_once(step, &to[flow..=flow])?;
            if self.progress.bytes < step.bytes {
                break;
            }
        }
        Ok(moved)
    }

    fn send_at_once(&mut self, step: &ProgramStep, to: &[Addressee]) -> Moved {
        let message = self.message(step, to[0].number);
        let rest = self.rest(step);
        let data = &self.buffer[rest.offset..rest.offset + rest.bytes];
        let done = self.progress.bytes;
        let taken = match to {
            [one] => self.transport.send(one.peer, &message, done, data),
            _ => self.transport.publish(to, &message, done, data),
        };
        let taken = taken.map_err(|error| Broken {
            peer: to[0].peer,
            error,
        })?;
        self.progress.bytes += taken;
        Ok(taken)
    }

    fn store(&mut self, step: &ProgramStep, operand: &Operand) -> Moved {
        let message = self.message(step, operand.number);
        let rest = self.rest(step);
        let into = &mut self.buffer[rest.offset..rest.offset + rest.bytes];
        let stored = self
            .transport
            .receive(operand.peer, &message, self.progress.bytes, into)
            .map_err(|error| Broken {
                peer: operand.peer,
                error,
            })?;
        self.progress.bytes += stored;
        Ok(stored)
    }

    fn fold(
        &mut self,
        step: &ProgramStep,
        operands: &[Operand],
        own: Option<usize>,
        completes: bool,
    ) -> Moved {
        let rest = self.rest(step);
        let (sequence, digest) = (self.sequence, self.digest);
        let message = |number| Message {
            sequence,
            digest,
            number,
            bytes: step.bytes,
        };
        let from = self.progress.bytes;
        let folded = Fold::new(operands, own, completes, &self.arithmetic, from).arrived(
            self.transport,
            &self.arithmetic,
            &mut self.buffer[rest.offset..rest.offset + rest.bytes],
            message,
        )?;
        self.progress.bytes += folded;
        Ok(folded)
    }
}
