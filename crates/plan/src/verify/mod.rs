//! Verifies plans by symbolic execution.
//!
//! *Purpose.* [`verify`] runs the plans of all ranks for a request on symbols instead of data. Each
//! chunk holds an association tree whose leaves are ranks. `shape` checks each rank's plan
//! separately, and `matching` checks that every message has a matching receive. `run` executes all
//! plans together, `values` interns the trees, and `outcome` compares the final state with what the
//! collective demands.
//!
//! *What verification guarantees.*
//! - Every demanded chunk holds exactly the demanded contributions. Each contribution is combined
//!   exactly once (or, in a barrier, at least once). Content moves only between chunks that always
//!   have the same length.
//! - Every message has a matching receive of the same length in the same round, and messages
//!   between two ranks are received in order.
//! - There are no conflicts within a round. Sends precede receives. `completes` is `true` exactly
//!   where a reduction adds the last contribution. Every index is in bounds.
//! - There is no deadlock, even if a rank executes its steps strictly in order, a send waits until
//!   its channel is empty, and a channel between two ranks holds only one message.
//! - There is no deadlock in an engine that overlaps rounds either, even on links that hold only a
//!   single element.
//!
//! *Why every execution order gives the same result.* Each channel is a first-in, first-out queue
//! with one writer and one reader, and no rank tests whether a message has arrived. The ranks
//! therefore form a Kahn network, in which the content of a chunk does not depend on the order in
//! which the ranks run.
//!
//! *Why nothing deadlocks.* The engine guarantees only the following order. An element of a step's
//! stream waits for the elements before it, for earlier steps that write or read the same chunk,
//! and for its link, which is a first-in, first-out queue. Sends in a later round wait while an
//! earlier round has sends that are ready. Let r be the first round that is not done on all ranks.
//! Everything that r needs from earlier rounds is done, and links hold only messages from r, at
//! most one message per link. Within r:
//! - A send of element p waits at most for the send of element p − 1 and for space in the link. If
//!   windows hold at least one element, the availability of space depends at most on the peer's
//!   receive of element p − 1.
//! - A receive of element p waits for the receive of element p − 1, for the sends of element p at
//!   its peers and, if its rank sends the same chunk in r, until that chunk has left. `shape`
//!   demands that everything that precedes the chunk in the send also precedes it in the receive.
//!   The elements that must have left are therefore at position p or earlier in their stream, no
//!   matter how long the chunks are.
//!
//! Consider the remaining element of r with the lowest p, with sends coming before receives. It
//! does not wait for anything, so it makes progress. Local steps in r wait only for earlier rounds.
//!
//! *Invariants.* The verifier does not trust any step, so plans from any source can be verified.
//!
//! *May import* `plan::{ir, spec}`.

mod matching;
mod outcome;
mod run;
mod shape;
mod values;

use super::ir::Plan;
use std::fmt;

/// Properties of verified plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// Number of rounds that contain messages.
    pub rounds: usize,
    /// Total number of messages that all ranks send. A message with several ranges counts once, and
    /// a message to several peers counts once per peer.
    pub messages: usize,
    /// Number of chunks that the busiest rank sends.
    pub max_chunks_sent: usize,
    /// Total number of chunks that all ranks send.
    pub chunks_sent: usize,
    /// `true` if, for each chunk, all ranks end up with the same association tree and therefore
    /// with the same bits.
    pub bits_agree: bool,
    /// `true` if all chunks end up with the same association tree, so that an element's position in
    /// the buffer does not affect its bits.
    pub position_independent: bool,
    /// `true` if every combined value in the final buffers comes from a single reduction of all
    /// contributions, in rank order and rounded once. Also `true` if the plan combines nothing. Any
    /// two such plans produce the same bits, regardless of the collective, the algorithm, the root,
    /// the buffer length and the position in the buffer.
    pub is_in_rank_order: bool,
    /// Hash of the association tree, or of all trees if the trees depend on the position in the
    /// buffer. Equal trees have equal hashes, even in different plans. The hash is 0 if nothing is
    /// combined.
    pub fingerprint: u64,
}

/// A fault in a plan, together with its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The rank whose plan is wrong.
    pub rank: usize,
    /// The round, or `None` if the plan as a whole or its final state is wrong.
    pub round: Option<usize>,
    /// The step within the round.
    pub step: Option<usize>,
    /// The chunk in the rank's array.
    pub chunk: Option<usize>,
    /// Description of the fault.
    pub problem: String,
    /// The rank, round and step index of a different step that could be changed instead, such as
    /// the other end of the message.
    pub other: Option<(usize, usize, usize)>,
}

impl Fault {
    fn new(at: At, problem: impl Into<String>) -> Self {
        Self {
            rank: at.rank,
            round: at.round,
            step: at.step,
            chunk: at.chunk,
            problem: problem.into(),
            other: None,
        }
    }

    /// Adds the step at `at`, which could be at fault instead.
    fn or(self, at: At) -> Self {
        let place = at.round.zip(at.step);
        Self {
            other: place.map(|(round, step)| (at.rank, round, step)),
            ..self
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "rank {}", self.rank)?;
        for (what, number) in [
            ("round", self.round),
            ("step", self.step),
            ("chunk", self.chunk),
        ] {
            if let Some(number) = number {
                write!(formatter, ", {what} {number}")?;
            }
        }
        write!(formatter, ": {}", self.problem)?;
        match self.other {
            Some((rank, round, step)) => {
                write!(formatter, " (or rank {rank}, round {round}, step {step})")
            }
            None => Ok(()),
        }
    }
}

impl std::error::Error for Fault {}

/// A location in the plans, as precisely as it is known.
#[derive(Clone, Copy)]
struct At {
    rank: usize,
    round: Option<usize>,
    step: Option<usize>,
    chunk: Option<usize>,
}

impl At {
    const fn rank(rank: usize) -> Self {
        Self {
            rank,
            round: None,
            step: None,
            chunk: None,
        }
    }

    const fn step(rank: usize, round: usize, step: usize) -> Self {
        Self {
            rank,
            round: Some(round),
            step: Some(step),
            chunk: None,
        }
    }

    const fn chunk(self, chunk: usize) -> Self {
        Self {
            chunk: Some(chunk),
            ..self
        }
    }
}

/// Verifies the plans of all ranks for a request. The plans must be in rank order.
///
/// ```
/// use ringtree::plan::{Algorithm, Collective, Hosts, Request, plan, verify};
///
/// let request = |rank| Request {
///     collective: Collective::AllReduce,
///     algorithm: Algorithm::Circulant,
///     world_size: 6,
///     rank,
///     root: 0,
///     pieces: 1,
///     hosts: Hosts::APART,
/// };
/// let plans: Vec<_> = (0..6).map(|rank| plan(&request(rank)).unwrap()).collect();
/// let proof = verify(&plans).unwrap();
/// assert_eq!(proof.rounds, 6); // 2⌈log₂ 6⌉
/// assert_eq!(proof.max_chunks_sent, 10); // 2(n − 1) of n = 6 chunks
/// assert!(proof.bits_agree);
/// ```
///
/// # Errors
/// Returns the first fault that is found.
pub fn verify(plans: &[Plan]) -> Result<Proof, Fault> {
    shape::check(plans)?;
    matching::check(plans)?;
    outcome::check(plans, run::execute(plans)?)
}

/// Runs `plans` to completion and returns, for each chunk, a list of the ranks whose contributions
/// the chunk holds. The result is indexed by rank and chunk, including scratch chunks. A list is
/// empty if nothing was written to the chunk. For plans that stop after the same number of rounds
/// on all ranks, the result describes the state after these rounds.
///
/// ```
/// use ringtree::plan::internal::verify::contributors;
/// use ringtree::plan::{Algorithm, Collective, Hosts, Request, plan};
///
/// let request = |rank| Request {
///     collective: Collective::Reduce,
///     algorithm: Algorithm::Binomial,
///     world_size: 4,
///     rank,
///     root: 0,
///     pieces: 1,
///     hosts: Hosts::APART,
/// };
/// let mut plans: Vec<_> = (0..4).map(|rank| plan(&request(rank)).unwrap()).collect();
/// assert_eq!(contributors(&plans).unwrap()[0], [[0, 1, 2, 3]]);
/// plans.iter_mut().for_each(|plan| plan.rounds.truncate(1));
/// assert_eq!(contributors(&plans).unwrap()[0], [[0, 1]]);
/// ```
///
/// # Errors
/// Returns the first fault that is found in a step. The collective's final requirements
/// (postconditions) are not checked.
pub fn contributors(plans: &[Plan]) -> Result<Vec<Vec<Vec<usize>>>, Fault> {
    shape::check(plans)?;
    matching::check(plans)?;
    let run::Finished { values, chunks, .. } = run::execute(plans)?;
    let ranks_in = |value: Option<values::Value>| {
        value.map_or_else(Vec::new, |value| values.contributors(value).collect())
    };
    let of_rank = |chunks: Vec<_>| chunks.into_iter().map(ranks_in).collect();
    Ok(chunks.into_iter().map(of_rank).collect())
}
