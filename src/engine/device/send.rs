//! Copying segments out, and handing them over.

use super::links::{DeviceLinks, Place};
use super::registered::{TOKEN_BYTES, Token};
use super::{DeviceOperation, Flying, Moved};
use crate::engine::posting::{Broken, Failure};
use crate::engine::program::{Action, Lane, Program, ProgramStep};
use crate::engine::turns::Turns;
use crate::error::Result;
use crate::transport::Transport;

/// Sending.
impl DeviceOperation {
    /// Has segments copied into slots, as far as they are complete and slots are free.
    pub(super) fn enqueue_sends(
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
                    token: token.unwrap_or(Token {
                        number: 0,
                        start: self.lead(step),
                    }),
                    tokens: (to - from).div_ceil(links.segment_bytes()),
                    taken: 0,
                };
                if token.is_some() {
                    links.take_none(*peer, flying.tokens);
                } else if let Some(slot) = links.take_slot(*peer).map_err(Failure::Own)? {
                    flying.slot = slot;
                    let copied = self.copy_out(step, (from, to), *peer, &flying, links);
                    copied.map_err(Failure::Own)?;
                } else {
                    break;
                }
                flying.event = links.filled(*peer).map_err(Failure::Own)?;
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
        flying: &Flying,
        links: &DeviceLinks,
    ) -> Result<()> {
        let (slot, lead) = (flying.slot, flying.token.start);
        for (at, span) in self.runs(step, from, to)? {
            links.copy_out(peer, Place { slot, lead, at }, &span)?;
        }
        Ok(())
    }

    /// Tells the peers of segments that are in their slots, or sends them.
    pub(super) fn hand_over(
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
                    // What is sent on cannot be taken back.
                    self.check_lenders(transport, links)?;
                }
                let first = &mut self.flying[lane][0];
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
