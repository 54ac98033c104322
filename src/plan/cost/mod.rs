//! The price of a plan.
//!
//! *Purpose.* Over a network the price follows the α-β-γ model, one full-duplex port a rank, and
//! there are two prices of one thing: [`Cost`] is the closed form of an algorithm's analysis, good
//! for any number of ranks at once; [`simulate_rounds`] adds up the rounds of real plans. Tests
//! hold the one against the other. [`shared`] prices plans in shared memory. [`Traffic`] counts
//! what a plan sends, one rank's plan at a time.
//!
//! *Invariants.* A price is a pure function of the request, the bytes and the links.
//!
//! *May import* the plan's own files and `limits`.

pub mod shared;

use super::algorithms::{plan, required};
use super::ir::{ChunkRange, Plan, Request, Round, Source, Step};
use super::layout::Division;
use super::price::{Cost, LinkCost};
use super::spec::Collective;
use crate::limits::TRAFFIC_STEPS_MAX;

/// The bytes of a call's buffer that travel: none in a barrier, whose messages are bare headers.
#[must_use]
pub fn payload_bytes(collective: Collective, bytes: usize) -> usize {
    match collective {
        Collective::Barrier => 0,
        _ => bytes,
    }
}

/// How long each chunk of a plan is, for one buffer of bytes.
#[derive(Clone, Copy, Debug)]
struct ChunkBytes {
    division: Division<'static>,
    chunks: usize,
}

impl ChunkBytes {
    fn of_plan(plan: &Plan, bytes: usize) -> Self {
        let Request {
            collective,
            world_size,
            ..
        } = plan.request;
        let payload = payload_bytes(collective, bytes);
        Self {
            division: Division::new(collective, world_size, plan.chunks, payload),
            chunks: plan.chunks,
        }
    }

    fn begin(&self, chunk: usize) -> usize {
        let whole = self.division.start(self.chunks);
        (chunk / self.chunks) * whole + self.division.start(chunk % self.chunks)
    }

    fn of(&self, ranges: &[ChunkRange]) -> usize {
        ranges
            .iter()
            .map(|range| self.begin(range.end()) - self.begin(range.first))
            .sum()
    }
}

/// What one rank's port and processor do in one round.
#[derive(Clone, Copy, Debug, Default)]
struct RoundLoad {
    messages_sent: usize,
    bytes_sent: usize,
    messages_received: usize,
    bytes_received: usize,
    bytes_folded: usize,
}

impl RoundLoad {
    fn of(round: &Round, lengths: &ChunkBytes) -> Self {
        let mut load = Self::default();
        for step in round {
            match step {
                Step::Send { peers, ranges } => {
                    load.messages_sent += peers.len();
                    load.bytes_sent += peers.len() * lengths.of(ranges);
                }
                Step::Receive {
                    sources, ranges, ..
                } => {
                    let messages = sources
                        .iter()
                        .filter(|source| matches!(source, Source::Peer(_)))
                        .count();
                    let bytes = lengths.of(ranges);
                    load.messages_received += messages;
                    load.bytes_received += messages * bytes;
                    load.bytes_folded += sources.len().saturating_sub(1) * bytes;
                }
                Step::Reduce { from, to, .. } => {
                    load.bytes_folded += from.len().saturating_sub(1) * lengths.of(&[*to]);
                }
                Step::Copy { .. } => {}
            }
        }
        load
    }

    fn time_s(&self, link: &LinkCost) -> f64 {
        let port = |messages: usize, bytes: usize| {
            messages as f64 * link.alpha_s + bytes as f64 * link.beta_s_per_byte
        };
        let sending = port(self.messages_sent, self.bytes_sent);
        let receiving = port(self.messages_received, self.bytes_received);
        sending.max(receiving) + self.bytes_folded as f64 * link.gamma_s_per_byte
    }
}

/// Seconds that `plans` (one a rank, in rank order) take for a buffer of `bytes` when every rank
/// starts each round together: a round lasts as long as its busiest rank, whose port sends and
/// receives at the same time but one message after another in each direction. Copies are free.
#[must_use]
pub fn simulate_rounds(plans: &[Plan], bytes: usize, link: &LinkCost) -> f64 {
    let rounds = plans.iter().map(|plan| plan.rounds.len()).max();
    (0..rounds.unwrap_or(0))
        .map(|index| {
            plans
                .iter()
                .filter_map(|plan| {
                    let round = plan.rounds.get(index)?;
                    Some(RoundLoad::of(round, &ChunkBytes::of_plan(plan, bytes)).time_s(link))
                })
                .fold(0.0, f64::max)
        })
        .sum()
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
            let load = RoundLoad::of(round, &self.lengths);
            *has_messages |= round.iter().any(Step::is_message);
            self.messages += load.messages_sent;
            bytes_sent += load.bytes_sent;
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
