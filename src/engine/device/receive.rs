//! Taking segments in, and having them stored or folded.

use super::links::{self, ALIGNMENT_BYTES, DeviceLinks, Place};
use super::registered::{TOKEN_BYTES, Token};
use super::{DeviceOperation, Incoming, Moved};
use crate::device::{Fold, Span};
use crate::engine::posting::{Broken, Failure};
use crate::engine::program::{Action, Lane, Operand, Program, ProgramStep};
use crate::engine::turns::Turns;
use crate::error::Result;
use crate::op::ReduceOp;
use crate::transport::{LinkError, Message, Transport};
use std::ops::Range;

/// Receiving.
impl DeviceOperation {
    /// Takes tokens, or the segments themselves.
    pub(super) fn take_in(
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
            let before = links.came(peer);
            incoming.segments += 1;
            incoming.bytes = 0;
            if incoming.segments == 1 {
                incoming.before = before;
                self.begin_message(step, lane, peer, links)
                    .map_err(broken)?;
            }
        }
        Ok(came > 0)
    }

    /// Takes note of where a message lies, whose first token or segment has come.
    fn begin_message(
        &mut self,
        step: &ProgramStep,
        lane: usize,
        peer: usize,
        links: &DeviceLinks,
    ) -> std::result::Result<(), LinkError> {
        let own_lead = self.lead(step);
        let incoming = &mut self.incoming[lane];
        if !links.is_mapped(peer) {
            incoming.lead = own_lead;
            return Ok(());
        }
        let token = Token::decode(&incoming.token);
        let is_there = match token.number {
            0 => token.start < ALIGNMENT_BYTES,
            _ => links.lent(peer, token, step.bytes).is_some(),
        };
        if !is_there {
            let why = format!("it says that a message is where none can be: {token:?}");
            return Err(LinkError::Garbage(why));
        }
        if token.number == 0 {
            incoming.lead = token.start;
        } else {
            incoming.lent = Some(token);
            self.lenders.push(peer);
        }
        Ok(())
    }

    /// Has segments that are there stored or folded.
    pub(super) fn consume(
        &mut self,
        program: &Program,
        turns: &Turns,
        links: &mut DeviceLinks,
    ) -> Moved {
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
                    && operands.iter().all(|one| self.has_come(one, last, turns));
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
        for one in operands {
            let before = self.incoming[one.lane].before;
            links.await_segments(one.peer, before + tokens.end)?;
        }
        for (at, span) in self.runs(step, from, to)? {
            let mut sources = Vec::with_capacity(operands.len() + 1);
            for one in operands {
                let incoming = &self.incoming[one.lane];
                let place = Place {
                    slot: (incoming.before + tokens.start) % links::SLOTS,
                    lead: incoming.lead,
                    at,
                };
                let lent = incoming.lent.and_then(|token| {
                    let whole = links.lent(one.peer, token, step.bytes)?;
                    whole.part(from + at, span.bytes()).ok()
                });
                match (&step.action, lent) {
                    (Action::Fold { .. }, Some(source)) => sources.push(source),
                    (Action::Fold { .. }, None) => {
                        sources.push(links.landed(one.peer, place, span.bytes())?);
                    }
                    (_, Some(source)) => links.stream().copy(&source, &span)?,
                    (_, None) => links.copy_in(one.peer, place, &span)?,
                }
            }
            if let Action::Fold { own, completes, .. } = &step.action {
                self.fold(sources, *own, &span, *completes, links)?;
            }
        }
        let sees_to_it = |one: &Operand| links.is_signalled(one.peer);
        let event = match operands.iter().all(sees_to_it) {
            true => None,
            false => Some(links.recorded()?),
        };
        for one in operands {
            let receipt = self.receipt(step, one.number, links);
            let segments = self.incoming[one.lane].before + tokens.end;
            let read = (receipt, tokens.clone());
            links.reads(one.peer, read, segments, event.as_ref())?;
        }
        Ok(())
    }

    pub(super) fn fold(
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
}
