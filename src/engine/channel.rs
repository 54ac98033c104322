//! Operations under way, in the order of their calls.

use super::device::DeviceOperation;
use super::device::links::DeviceLinks;
use super::operation::Operation;
use super::posting::{Failure, Posting, Prepared};
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
    /// What is done instead, where the buffer is on a device.
    pub(super) on_device: Option<Box<DeviceOperation>>,
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
    /// The way over devices, if there is one.
    pub(super) device: Option<DeviceLinks>,
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
            device: None,
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
    pub(super) fn start(&mut self, posting: Posting) -> usize {
        for peer in posting.prepared.program.peers() {
            self.transport.open(peer);
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let slot = &mut self.slots[index];
        slot.timeout = posting.timeout;
        slot.operation.start(posting);
        slot.since = None;
        slot.notices = 0;
        slot.is_abandoned = false;
        slot.result = None;
        slot.ended_at = None;
        self.queue.push_back(index);
        index
    }

    pub(super) fn poll(&mut self) -> std::result::Result<bool, (usize, Failure)> {
        let mut advanced = false;
        if let Some(links) = self.device.as_mut().filter(|_| self.queue.is_empty()) {
            // What was lent comes back. A link that is broken is told of in the next call.
            advanced = links.poll().unwrap_or(false);
        }
        self.turns.begin_pass();
        let mut at = 0;
        while let Some(index) = self.queue.get(at).copied() {
            let slot = &mut self.slots[index];
            let polled = slot.poll(&mut *self.transport, &mut self.turns, &mut self.device);
            self.transport.settle();
            match polled {
                Ok(moved) => advanced |= moved,
                Err(failure) => return Err((index, failure)),
            }
            if slot.is_done() {
                self.queue.remove(at);
                self.finish(index, Ok(()));
                advanced = true;
            } else {
                at += 1;
                if at < self.queue.len() {
                    slot.claim(&mut self.turns);
                }
            }
        }
        Ok(advanced)
    }

    pub(super) fn finish(&mut self, index: usize, result: Result<()>) {
        let slot = &mut self.slots[index];
        slot.result = Some(result);
        // The user's stream goes on.
        slot.on_device = None;
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
    pub(super) fn poll(
        &mut self,
        transport: &mut dyn Transport,
        turns: &mut Turns,
        device: &mut Option<DeviceLinks>,
    ) -> std::result::Result<bool, Failure> {
        match (&mut self.on_device, device) {
            (Some(operation), Some(links)) => {
                let given_back = links.poll()?;
                let moved = operation.poll(transport, turns, links)?;
                // What was read meanwhile.
                Ok(given_back | moved | links.poll()?)
            }
            _ => Ok(self.operation.poll(transport, turns)?),
        }
    }

    pub(super) fn is_done(&self) -> bool {
        match &self.on_device {
            Some(operation) => operation.is_done(),
            None => self.operation.is_done(),
        }
    }

    /// Whether this rank takes part already.
    pub(super) fn has_begun(&self) -> bool {
        let on_device = self.on_device.as_ref();
        on_device.is_none_or(|operation| operation.has_begun())
    }

    pub(super) fn claim(&self, turns: &mut Turns) {
        match &self.on_device {
            Some(operation) => operation.claim(turns),
            None => self.operation.claim(turns),
        }
    }

    pub(super) fn awaited(&self, device: &Option<DeviceLinks>) -> Vec<usize> {
        match (&self.on_device, device) {
            (Some(operation), Some(links)) => operation.awaited(links),
            _ => self.operation.awaited(),
        }
    }
}
