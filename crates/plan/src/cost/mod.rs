//! Predicts how long plans take.
//!
//! *Purpose.* Over a network, times follow the LogGP model. A message of m bytes occupies its
//! sender's port for o + m·G, then travels for L, and then occupies its receiver's port for m·G +
//! o. A port can send and receive at the same time, but handles the messages in each direction in
//! sequence. Bytes are forwarded immediately: the first byte travels to the receiver while the
//! second byte leaves the sender. A rank needs γ to reduce a byte. A rank that sends and receives
//! incurs o in both directions at the same time. Measurements time such an exchange, so a measured
//! time includes the overheads in both directions.
//!
//! Messages between sites also pass through the uplinks, which are shared by the ranks at a site.
//!
//! There are two ways to predict the same time. [`longest_path_s`] follows the messages of actual
//! plans. [`Cost`] is the closed form from an algorithm's analysis, which applies to any number of
//! ranks. Tests compare the two. [`shared`] predicts the times of plans in shared memory, and
//! [`sites`] predicts the times of plans whose ranks are at several sites. `reuse` determines how
//! soon one call can follow another. [`schedule()`] returns the times of each message, and
//! [`Traffic`] counts messages and bytes, one rank's plan at a time.
//!
//! Source: Culler, Karp, Patterson, Sahay, Schauser, Santos, Subramonian, von Eicken, "LogP" (PPoPP
//! 1993), §3; Alexandrov, Ionescu, Schauser, Scheiman, "LogGP" (SPAA 1995), §2.
//!
//! *Invariants.* A predicted time is a pure function of the request, the number of bytes and the
//! link costs.
//!
//! *May import* the plan's own files and `limits`.

mod path;
pub(crate) mod reuse;
mod schedule;
pub mod shared;
pub mod sites;

pub use path::{longest_path_between_sites_s, longest_path_s};
pub use schedule::schedule;

use super::algorithms::{Entry, plan_of, required};
use super::ir::{ChunkRange, Plan, Request, Step};
use super::layout::Division;
use super::price::Cost;
use super::spec::Collective;
use crate::error::PlanError;
use crate::limits::TRAFFIC_STEPS_MAX;

/// A message and the times at which it is sent and received, in seconds from the common start of
/// all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MessageTimes {
    /// The round in the plan, counted from 0. In each round, a rank sends at most one message to
    /// any other rank.
    pub round: usize,
    /// The sender.
    pub from: usize,
    /// The receiver.
    pub to: usize,
    /// Length of the message, in bytes.
    pub bytes: usize,
    /// Start and end of the interval during which the message occupies its sender.
    pub sends_s: [f64; 2],
    /// Start and end of the interval during which the message occupies its receiver.
    pub receives_s: [f64; 2],
}

/// The predicted times of a call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schedule {
    /// All messages, including those that contain no elements.
    pub messages: Vec<MessageTimes>,
    /// Time at which the last rank completes the call.
    pub end_s: f64,
}

/// Returns the number of bytes in a call's buffer that are sent. This is 0 for a barrier because
/// its messages consist only of headers.
#[must_use]
pub fn payload_bytes(collective: Collective, bytes: usize) -> usize {
    match collective {
        Collective::Barrier => 0,
        _ => bytes,
    }
}

/// Numbers of pieces from which times are extrapolated. Plans with more pieces are not counted,
/// because every additional piece takes as long as a piece between these two numbers.
const PIECES_COUNTED: [usize; 2] = [8, 16];

/// Returns the predicted time of `request`. If the request has many pieces, the time is
/// extrapolated from the times that `counted_s` returns for fewer pieces.
fn few_pieces(
    entry: &Entry,
    request: &Request,
    bytes: usize,
    counted_s: impl Fn(&Request, usize) -> Result<f64, PlanError>,
) -> Result<f64, PlanError> {
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

/// The length of each chunk of a plan for a given buffer.
#[derive(Clone, Copy, Debug)]
struct ChunkBytes {
    division: Division<'static>,
    chunks: usize,
    /// Size of an element in bytes. Elements are not split.
    element_bytes: usize,
}

impl ChunkBytes {
    /// Creates the lengths for a buffer that can be split between any two bytes. If only complete
    /// elements were sent, times would jump for small buffers, whose few elements cannot be split
    /// evenly.
    fn of_plan(plan: &Plan, bytes: usize) -> Self {
        Self::of_elements(plan, bytes, 1)
    }

    fn of_elements(plan: &Plan, count: usize, element_bytes: usize) -> Self {
        let (collective, ranks) = (plan.request.collective, plan.request.world_size);
        let payload = payload_bytes(collective, count);
        Self {
            division: Division::new(collective, ranks, plan.chunks, payload),
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

/// The traffic of a collective, counted from its plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Number of chunks in a rank's buffer.
    pub chunks: usize,
    /// Number of scratch chunks on the rank that needs the most.
    pub scratch: usize,
    /// Number of rounds that contain messages.
    pub rounds: usize,
    /// Total number of messages that all ranks send. A message with several ranges counts once.
    /// `None` if counting would take more than [`TRAFFIC_STEPS_MAX`] steps.
    pub messages: Option<usize>,
    /// Number of bytes sent by the busiest rank.
    pub max_bytes_sent_per_rank: usize,
}

impl Traffic {
    /// Counts the traffic in the plans of all ranks for a buffer of `bytes` bytes. Only one plan is
    /// kept in memory at a time. If the algorithm is symmetric, one rank represents all ranks, so
    /// the number of bytes is exact up to the rounding of a block. If counting would take too many
    /// steps, the numbers of rounds and bytes come from the closed form.
    ///
    /// # Errors
    /// Returns an error if there is no plan for `request`.
    pub fn of(request: &Request, bytes: usize) -> Result<Self, PlanError> {
        let (world_size, root) = (request.world_size, request.root);
        let entry = required(request.collective, request.algorithm)?;
        let first = plan_of(request, root)?;
        let mut count = Count::new(&first, bytes);
        count.add(&first);
        if (entry.is_symmetric)(request.collective) {
            count.messages *= world_size;
        } else if first.rounds.len().saturating_mul(world_size) <= TRAFFIC_STEPS_MAX {
            for rank in (0..world_size).filter(|rank| *rank != root) {
                count.add(&plan_of(request, rank)?);
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
