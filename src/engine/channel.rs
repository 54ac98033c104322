//! Operations under way, in the order of their calls.

use super::gate::Gate;
use super::operation::Operation;
use super::posting::{Broken, Posting, Prepared};
use super::program::Program;
use super::turns::Turns;
use crate::error::{Error, Result};
use crate::sys::memory::Region;
use crate::transport::Transport;
use std::collections::VecDeque;
use std::time::Duration;

/// A place for an operation. Places are reused.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) operation: Operation,
    /// What it waits for before it begins, and opens when it has ended.
    gate: Option<Box<dyn Gate>>,
    pub(super) timeout: Duration,
    /// When time first passed over it.
    pub(super) since: Option<Duration>,
    /// How often the peers were told of the waiting.
    pub(super) notices: u32,
    pub(super) is_abandoned: bool,
    pub(super) result: Option<Result<()>>,
    /// When it ended, once a clock was looked at.
    pub(super) ended_at: Option<Duration>,
}

/// Operations that share links and an order.
pub(super) struct Channel {
    pub(super) transport: Box<dyn Transport>,
    /// The longest message that all links take whole.
    holds_bytes: usize,
    /// The largest program that a place was made for.
    room: usize,
    pub(super) slots: Vec<Slot>,
    free: Vec<usize>,
    pub(super) queue: VecDeque<usize>,
    /// Operations that have ended and bear no time yet.
    pub(super) unstamped: usize,
    turns: Turns,
}

impl Channel {
    pub(super) fn new(transport: Box<dyn Transport>, rank: usize, world_size: usize) -> Self {
        let peers = (0..world_size).filter(|peer| *peer != rank);
        let held = peers.map(|peer| transport.holds_bytes(peer)).min();
        Self {
            holds_bytes: held.unwrap_or(0),
            room: 0,
            transport,
            slots: Vec::new(),
            free: Vec::new(),
            queue: VecDeque::new(),
            unstamped: 0,
            turns: Turns::new(world_size),
        }
    }

    /// What is under way, oldest first.
    pub(super) fn operations(&self) -> impl Iterator<Item = &Operation> {
        self.queue.iter().map(|slot| &self.slots[*slot].operation)
    }

    /// Whether the program can be run step by step over these links.
    pub(super) fn allows_order(&self, prepared: &Prepared) -> bool {
        let Program {
            longest_bytes,
            scratch_bytes,
            ..
        } = &*prepared.program;
        *scratch_bytes == 0
            && longest_bytes.is_some_and(|longest| {
                let mut peers = prepared.program.peers();
                longest <= self.holds_bytes
                    || peers.all(|peer| longest <= self.transport.holds_bytes(peer))
            })
    }

    /// Makes a place in which an operation of the program can start without allocating: a call that
    /// is run in order may have to go on as one at any time.
    pub(super) fn make_room(&mut self, program: &Program) {
        let size = program.size();
        if size <= self.room {
            return;
        }
        self.room = size;
        if self.free.is_empty() {
            self.slots.push(Slot::default());
            self.free.push(self.slots.len() - 1);
        }
        if let Some(next) = self.free.last() {
            self.slots[*next].operation.reserve(size);
        }
        self.queue.reserve(1);
    }

    /// Starts an operation, which may have come some way already.
    pub(super) fn start(&mut self, mut posting: Posting) -> usize {
        for peer in posting.prepared.program.peers() {
            self.transport.open(peer);
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let slot = &mut self.slots[index];
        slot.timeout = posting.timeout;
        slot.gate = posting.gate.take();
        slot.operation.start(posting);
        slot.since = None;
        slot.notices = 0;
        slot.is_abandoned = false;
        slot.result = None;
        slot.ended_at = None;
        self.queue.push_back(index);
        index
    }

    pub(super) fn poll(&mut self) -> std::result::Result<bool, (usize, Broken)> {
        let mut advanced = false;
        self.turns.begin_pass();
        let mut at = 0;
        while let Some(index) = self.queue.get(at).copied() {
            let slot = &mut self.slots[index];
            let polled = match slot.has_begun() {
                true => slot.operation.poll(&mut *self.transport, &mut self.turns),
                false => Ok(false),
            };
            self.transport.settle();
            match polled {
                Ok(moved) => advanced |= moved,
                Err(failure) => return Err((index, failure)),
            }
            if slot.has_begun() && slot.operation.is_done() {
                self.queue.remove(at);
                self.finish(index, Ok(()));
                advanced = true;
            } else {
                at += 1;
                if at < self.queue.len() {
                    slot.operation.claim(&mut self.turns);
                }
            }
        }
        Ok(advanced)
    }

    pub(super) fn finish(&mut self, index: usize, result: Result<()>) {
        let slot = &mut self.slots[index];
        if let Some(gate) = slot.gate.take() {
            gate.open(result.is_ok());
        }
        slot.result = Some(result);
        self.unstamped += 1;
        if slot.is_abandoned {
            self.take(index);
        }
    }

    pub(super) fn stamp(&mut self, now: Duration) {
        if self.unstamped == 0 {
            return;
        }
        self.unstamped = 0;
        for slot in self.slots.iter_mut().filter(|slot| slot.result.is_some()) {
            slot.ended_at.get_or_insert(now);
        }
    }

    pub(super) fn fail(&mut self, error: &Error) -> bool {
        let ended = !self.queue.is_empty();
        while let Some(index) = self.queue.pop_front() {
            self.finish(index, Err(error.clone()));
        }
        ended
    }

    pub(super) fn take(&mut self, index: usize) -> Option<(Region, Result<()>)> {
        let slot = &mut self.slots[index];
        let result = slot.result.take()?;
        self.unstamped -= usize::from(slot.ended_at.is_none());
        self.free.push(index);
        slot.operation.take_buffer().map(|buffer| (buffer, result))
    }
}

impl Slot {
    /// Whether the operation may begin: it has no gate, or its gate is ready.
    pub(super) fn has_begun(&self) -> bool {
        self.gate.as_ref().is_none_or(|gate| gate.is_ready())
    }

    /// The ranks that the operation waits for now; none before it has begun.
    pub(super) fn awaited(&self) -> Vec<usize> {
        match self.has_begun() {
            true => self.operation.awaited(),
            false => Vec::new(),
        }
    }
}
