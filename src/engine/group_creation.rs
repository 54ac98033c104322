//! Creates groups. This module holds the requests of this process and, on rank 0 of the world, the
//! registrar.

use crate::error::{Error, Result};
use crate::limits::CONTROL_QUEUE_BYTES_MAX;
use crate::protocol::group_creation::{Notice, PROCESSES, RELAY, Registrar};
use crate::protocol::members::Members;
use crate::protocol::message::encode;
use crate::protocol::session::To;
use std::collections::VecDeque;
use std::time::Duration;

/// A control message: the ID of its group, its sender or its receivers as world ranks, and its
/// bytes.
type Relayed<Rank> = (u32, Rank, Vec<u8>);

/// A group that this process has requested and is waiting for.
struct GroupRequest {
    serial: u32,
    members: Members,
    /// `true` once rank 0 has been notified that this process is no longer waiting.
    has_withdrawn: bool,
    /// The error with which this process has aborted the request, if it has done so.
    cause: Option<Error>,
    answer: Option<Result<u32>>,
}

/// A process's requests for groups, and its early messages for groups that do not exist yet.
#[derive(Default)]
pub(super) struct GroupCreation {
    registrar: Registrar,
    requests: Vec<GroupRequest>,
    serials: u32,
    /// Messages from members that have run ahead and know the group's ID before this process does.
    early: Vec<Relayed<usize>>,
    early_bytes: usize,
    /// The reason why rank 0 no longer relays messages; `None` as long as this process does not
    /// know that it has stopped.
    relay_gone: Option<String>,
    pub(super) outbox: VecDeque<Relayed<To>>,
}

impl GroupCreation {
    pub(super) fn send(&mut self, to: To, notice: &Notice) {
        self.outbox.push_back((PROCESSES, to, encode(notice)));
    }

    fn send_answers(&mut self, answers: Vec<(usize, Notice)>) {
        for (rank, notice) in answers {
            self.send(To::Rank(rank), &notice);
        }
    }

    /// Requests a group of `members` from group `parent`. Returns the ID of the request.
    pub(super) fn request(&mut self, parent: u32, members: &Members) -> u32 {
        let serial = self.serials;
        self.serials = self.serials.wrapping_add(1);
        let answer = self
            .relay_gone
            .as_ref()
            .map(|why| Err(no_relay(members, why)));
        if answer.is_none() {
            // A rank fits in 32 bits (`limits::WORLD_SIZE_MAX`).
            let ranks = members.world_ranks().map(|rank| rank as u32).collect();
            let join = Notice::Join {
                serial,
                parent,
                members: ranks,
            };
            self.send(To::Rank(RELAY), &join);
        }
        self.requests.push(GroupRequest {
            serial,
            members: members.clone(),
            has_withdrawn: false,
            cause: None,
            answer,
        });
        serial
    }

    /// Returns the answer to a request, if the answer has arrived.
    pub(super) fn answer(&self, serial: u32) -> Option<Result<u32>> {
        let mut requests = self.requests.iter();
        let request = requests.find(|one| one.serial == serial)?;
        // If this process aborted the request, rank 0 does not know why.
        let why = |error| request.cause.clone().unwrap_or(error);
        request.answer.clone().map(|answer| answer.map_err(why))
    }

    /// Aborts all requests of this process with `cause`.
    pub(super) fn give_up(&mut self, cause: &Error) {
        for GroupRequest {
            cause: own,
            members,
            ..
        } in &mut self.requests
        {
            own.get_or_insert_with(|| members.of_the_world(cause.clone()));
        }
    }

    /// Returns the error with which this process aborted a request, or `None` if the request was
    /// not aborted.
    pub(super) fn cause(&self, serial: u32) -> Option<Error> {
        let mut requests = self.requests.iter();
        requests.find(|one| one.serial == serial)?.cause.clone()
    }

    /// Returns `true` if this process is waiting for a group.
    pub(super) fn is_awaited(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Notifies rank 0 that this process is no longer waiting, unless it has already been notified.
    /// Rank 0 still answers the request.
    pub(super) fn withdraw(&mut self, serial: u32, waited: Duration) {
        let mut requests = self.requests.iter_mut();
        let its = requests.find(|one| one.serial == serial && !one.has_withdrawn);
        if let Some(request) = its {
            request.has_withdrawn = true;
            let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            self.send(To::Rank(RELAY), &Notice::Withdraw { serial, waited_ms });
        }
    }

    /// Removes a request. If its group was created, the group must already have been added.
    pub(super) fn close(&mut self, serial: u32) {
        self.requests.retain(|one| one.serial != serial);
        if self.requests.is_empty() {
            // The remaining messages are for groups that no longer exist.
            self.early.clear();
            self.early_bytes = 0;
        }
    }

    /// Stores a message for a group that this process may add soon.
    pub(super) fn keep(&mut self, group: u32, from: usize, payload: &[u8]) {
        let bytes = self.early_bytes + payload.len();
        if !self.requests.is_empty() && bytes <= CONTROL_QUEUE_BYTES_MAX {
            self.early_bytes = bytes;
            self.early.push((group, from, payload.to_vec()));
        }
    }

    /// Removes and returns the stored messages for a group.
    pub(super) fn take_early(&mut self, group: u32) -> Vec<Relayed<usize>> {
        let its = |one: &mut Relayed<usize>| one.0 == group;
        let taken: Vec<_> = self.early.extract_if(.., its).collect();
        let bytes: usize = taken.iter().map(|one| one.2.len()).sum();
        self.early_bytes -= bytes;
        taken
    }

    /// Processes a notice. If the notice reports a lost process, returns the rank of the process
    /// and the cause.
    pub(super) fn receive(&mut self, from: usize, notice: Notice) -> Option<(usize, String)> {
        let (serial, answer) = match notice {
            Notice::Made { serial, number } if from == RELAY => (serial, Ok(number)),
            Notice::Refused { serial, why } if from == RELAY => (serial, Err(why)),
            Notice::Lost { rank, why } if from == RELAY => return Some((rank as usize, why)),
            Notice::Left if from == RELAY => {
                self.relay_gone("it has left".to_owned());
                return None;
            }
            Notice::Join { .. } | Notice::Withdraw { .. } | Notice::Left => {
                let answers = self.registrar.receive(from, notice);
                self.send_answers(answers);
                return None;
            }
            Notice::Made { .. } | Notice::Refused { .. } | Notice::Lost { .. } => return None,
        };
        let mut requests = self.requests.iter_mut();
        if let Some(request) = requests.find(|one| one.serial == serial) {
            request.answer.get_or_insert(answer);
        }
        None
    }

    /// Records why rank 0 no longer relays messages, and fails all requests that have not been
    /// answered.
    pub(super) fn relay_gone(&mut self, why: String) {
        let why = self.relay_gone.get_or_insert(why);
        for request in &mut self.requests {
            request
                .answer
                .get_or_insert(Err(no_relay(&request.members, why)));
        }
    }

    /// Returns `false` if this process knows that rank 0 no longer relays messages.
    pub(super) fn has_relay(&self) -> bool {
        self.relay_gone.is_none()
    }

    /// Reports to all ranks that the control connection to another process is lost, unless that
    /// process left after a goodbye. Called only on rank 0.
    pub(super) fn announce(&mut self, rank: usize, why: &str) {
        if self.registrar.has_left(rank) {
            return;
        }
        let answers = self.registrar.lost(rank, why);
        self.send_answers(answers);
        let lost = Notice::Lost {
            // A rank fits in 32 bits (`limits::WORLD_SIZE_MAX`).
            rank: rank as u32,
            why: why.to_owned(),
        };
        self.send(To::All, &lost);
    }

    /// Announces that this process is leaving, so that rank 0 does not report it as lost. If this
    /// process is rank 0, the other processes learn that it no longer relays messages.
    pub(super) fn leave(&mut self, is_relay: bool) {
        let to = if is_relay { To::All } else { To::Rank(RELAY) };
        if self.has_relay() {
            self.send(to, &Notice::Left);
        }
    }
}

/// Returns the error of a request for a group that rank 0 can no longer create.
fn no_relay(members: &Members, why: &str) -> Error {
    let rank = members.rank_of(RELAY);
    let name = rank.map_or("rank 0 of the world".to_owned(), |rank| members.name(rank));
    let message = format!(
        "{name} is gone, so no group can be created: {why}; create all groups while that rank is \
         running"
    );
    match rank {
        Some(rank) => Error::peer_lost(rank, message),
        None => Error::system(message),
    }
}
