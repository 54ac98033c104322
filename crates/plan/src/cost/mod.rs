//! The price of a plan.
//!
//! *Purpose.* Over a network the price follows the LogGP model: of a message of m bytes the
//! sender's port is busy for o + m·G, then it is on its way for L, and the receiver's port is busy
//! for m·G + o. A port sends and receives at the same time, one message after another each way.
//! Bytes pass through: the first leaves for the receiver as the second leaves the sender. Folding
//! takes the rank γ a byte. The o of a rank that sends and receives is paid on both ways at once:
//! what is measured is such an exchange, so it contains both.
//!
//! Between sites messages pass the uplinks besides, which all ranks of a site share.
//!
//! There are two prices of one thing. [`longest_path_s`] follows the messages of real plans;
//! [`Cost`] is the closed form of an algorithm's analysis, good for any number of ranks at once.
//! Tests hold the one against the other. [`shared`] prices plans in shared memory, [`sites`] those
//! whose ranks are at several sites. `reuse` says how soon a call can follow another.
//! [`schedule()`] says when each message passes, [`Traffic`] counts what a plan sends, one rank's
//! plan at a time.
//!
//! Source: Culler, Karp, Patterson, Sahay, Schauser, Santos, Subramonian, von Eicken, "LogP" (PPoPP
//! 1993), §3; Alexandrov, Ionescu, Schauser, Scheiman, "LogGP" (SPAA 1995), §2.
//!
//! *Invariants.* A price is a pure function of the request, the bytes and the links.
//!
//! *May import* the plan's own files and `limits`.

mod path;
pub(crate) mod reuse;
mod schedule;
pub mod shared;
pub mod sites;

pub use path::{longest_path_between_sites_s, longest_path_s};
pub use schedule::schedule;

use super::algorithms::{Entry, plan, required};
use super::ir::{ChunkRange, Plan, Request, Step};
use super::layout::Division;
use super::price::Cost;
use super::spec::Collective;
use crate::limits::TRAFFIC_STEPS_MAX;

/// A message, and when it passes; times are seconds from the common start of all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MessageTimes {
    /// The plan's round, from 0. Two ranks send each other at most one message a round.
    pub round: usize,
    /// The sender.
    pub from: usize,
    /// The receiver.
    pub to: usize,
    /// How long it is.
    pub bytes: usize,
    /// From when to when it keeps its sender busy.
    pub sends_s: [f64; 2],
    /// From when to when it keeps its receiver busy.
    pub receives_s: [f64; 2],
}

/// What a call is predicted to do when.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schedule {
    /// Every message, also one without elements.
    pub messages: Vec<MessageTimes>,
    /// When the last rank is through.
    pub end_s: f64,
}

/// The bytes of a call's buffer that travel: none in a barrier, whose messages are bare headers.
#[must_use]
pub fn payload_bytes(collective: Collective, bytes: usize) -> usize {
    match collective {
        Collective::Barrier => 0,
        _ => bytes,
    }
}

/// Plans of more pieces are not counted out: the price goes on as it does between the second and
/// the first of these, every further piece costing the same.
const PIECES_COUNTED: [usize; 2] = [8, 16];

/// The price of `request`, from the prices that `counted_s` finds with fewer pieces where it has
/// many.
fn few_pieces(
    entry: &Entry,
    request: &Request,
    bytes: usize,
    counted_s: impl Fn(&Request, usize) -> Result<f64, String>,
) -> Result<f64, String> {
    let [few, many] = PIECES_COUNTED;
    if request.pieces <= many {
        return counted_s(request, bytes);
    }
    let with = |pieces, bytes| {
        let request = Request {
            pieces,
            ..request.clone()
        };
        counted_s(&request, bytes)
    };
    if !(entry.is_pipelined)(request.collective) {
        return with(many, bytes);
    }
    let of_pieces =
        |pieces: usize| (bytes as f64 * (pieces as f64 / request.pieces as f64)) as usize;
    let (few_s, many_s) = (with(few, of_pieces(few))?, with(many, of_pieces(many))?);
    let piece_s = (many_s - few_s) / (many - few) as f64;
    Ok(few_s + piece_s * (request.pieces - few) as f64)
}

/// How long each chunk of a plan is, for one buffer of bytes.
#[derive(Clone, Copy, Debug)]
struct ChunkBytes {
    division: Division<'static>,
    chunks: usize,
    /// Bytes that are not torn apart.
    element_bytes: usize,
}

impl ChunkBytes {
    /// As if bytes could be cut anywhere: what the few elements of a small buffer cannot be cut
    /// into would make prices jump.
    fn of_plan(plan: &Plan, bytes: usize) -> Self {
        Self::of_elements(plan, bytes, 1)
    }

    fn of_elements(plan: &Plan, count: usize, element_bytes: usize) -> Self {
        let Request {
            collective,
            world_size,
            ..
        } = plan.request;
        let payload = payload_bytes(collective, count);
        Self {
            division: Division::new(collective, world_size, plan.chunks, payload),
            chunks: plan.chunks,
            element_bytes,
        }
    }

    fn begin(&self, chunk: usize) -> usize {
        let whole = self.division.start(self.chunks);
        let before = (chunk / self.chunks).saturating_mul(whole);
        let before = before.saturating_add(self.division.start(chunk % self.chunks));
        before.saturating_mul(self.element_bytes)
    }

    fn of(&self, ranges: &[ChunkRange]) -> usize {
        ranges
            .iter()
            .map(|range| self.begin(range.end()) - self.begin(range.first))
            .fold(0, usize::saturating_add)
    }
}

/// What a collective sends, counted from its plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Chunks of a rank's buffer.
    pub chunks: usize,
    /// Chunks of scratch, of the rank that needs most.
    pub scratch: usize,
    /// Rounds with messages.
    pub rounds: usize,
    /// Messages of all ranks together; one of several ranges counts once. None where counting
    /// would take more than [`TRAFFIC_STEPS_MAX`] steps.
    pub messages: Option<usize>,
    /// Bytes that the rank which sends most sends.
    pub max_bytes_sent_per_rank: usize,
}

impl Traffic {
    /// Counts the plans of all ranks for a buffer of `bytes`, holding one plan at a time. In a
    /// symmetric algorithm one rank stands for all, so the bytes are exact up to the rounding of
    /// a block. Where even that is too much, rounds and bytes are those of the closed form.
    ///
    /// # Errors
    /// A sentence, when there is no such plan.
    pub fn of(request: &Request, bytes: usize) -> Result<Self, String> {
        let Request {
            collective,
            algorithm,
            world_size,
            root,
            ..
        } = *request;
        let entry = required(collective, algorithm)?;
        let of_rank = |rank| {
            plan(&Request {
                rank,
                ..request.clone()
            })
        };
        let first = of_rank(root)?;
        let mut count = Count::new(&first, bytes);
        count.add(&first);
        if (entry.is_symmetric)(collective) {
            count.messages *= world_size;
        } else if first.rounds.len().saturating_mul(world_size) <= TRAFFIC_STEPS_MAX {
            for rank in (0..world_size).filter(|rank| *rank != root) {
                count.add(&of_rank(rank)?);
            }
        } else {
            return Ok(count.estimate((entry.cost)(request), bytes));
        }
        Ok(count.finish())
    }
}

/// The running totals of [`Traffic::of`].
struct Count {
    lengths: ChunkBytes,
    scratch: usize,
    has_messages: Vec<bool>,
    messages: usize,
    max_bytes_sent: usize,
}

impl Count {
    fn new(plan: &Plan, bytes: usize) -> Self {
        Self {
            lengths: ChunkBytes::of_plan(plan, bytes),
            scratch: 0,
            has_messages: Vec::new(),
            messages: 0,
            max_bytes_sent: 0,
        }
    }

    fn add(&mut self, plan: &Plan) {
        self.scratch = self.scratch.max(plan.scratch);
        if self.has_messages.len() < plan.rounds.len() {
            self.has_messages.resize(plan.rounds.len(), false);
        }
        let mut bytes_sent = 0;
        for (round, has_messages) in plan.rounds.iter().zip(&mut self.has_messages) {
            *has_messages |= round.iter().any(Step::is_message);
            for step in round {
                if let Step::Send { peers, ranges } = step {
                    self.messages += peers.len();
                    bytes_sent += peers.len() * self.lengths.of(ranges);
                }
            }
        }
        self.max_bytes_sent = self.max_bytes_sent.max(bytes_sent);
    }

    fn finish(self) -> Traffic {
        Traffic {
            chunks: self.lengths.chunks,
            scratch: self.scratch,
            rounds: self.has_messages.iter().filter(|has| **has).count(),
            messages: Some(self.messages),
            max_bytes_sent_per_rank: self.max_bytes_sent,
        }
    }

    fn estimate(self, cost: Cost, bytes: usize) -> Traffic {
        Traffic {
            rounds: cost.rounds,
            messages: None,
            max_bytes_sent_per_rank: (cost.max_sent_per_rank * bytes as f64).ceil() as usize,
            ..self.finish()
        }
    }
}
