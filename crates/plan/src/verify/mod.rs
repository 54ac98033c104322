//! The proof of a plan by symbolic execution.
//!
//! *Purpose.* [`verify`] takes the plans of all ranks of one request and runs them on symbols
//! instead of numbers: a chunk holds an association tree whose leaves are ranks. `shape` checks
//! what one rank's plan says by itself, `matching` that every message
//! has its receive, `run` executes all plans together, `values` interns
//! the trees, `outcome` compares the end with what the collective demands.
//!
//! *What a proof says.*
//! - Every demanded chunk holds exactly the demanded contributions, each combined once (barrier:
//!   at least once), in place: content never moves to a chunk of another index, so lengths agree.
//! - Every message has its receive, in order between two ranks, in the same round, as long.
//! - Nothing conflicts within a round; sends come before receives; `completes` is true exactly
//!   where a fold brings the last contribution in; every index is in bounds.
//! - No deadlock, although a rank takes its steps strictly in order, a send waits until its channel
//!   is empty and a channel between two ranks holds one message.
//! - No deadlock on links that hold a single element either, in an engine that overlaps rounds.
//!
//! *Why every schedule gives the same.* Channels are first-in first-out with one writer and one
//! reader, and no rank asks whether a message is there, so this is a Kahn network: what a chunk
//! holds does not depend on who runs when.
//!
//! *Why nothing gets stuck.* The engine keeps no order but this: an element of a step's stream
//! waits for the elements before it, for what earlier steps write or read of the same chunk, and
//! for its link, first in, first out; sends of a later round wait while an earlier one has any
//! ready. Let r be the first round that is not done on all ranks. Whatever earlier rounds owe to r
//! is done, and no link holds anything but messages of r, at most one each. Within r
//! - a send of element p waits at most for the send of p − 1, and for room: with windows of at
//!   least one element, at most for the peer's receive of p − 1;
//! - a receive of element p waits for that of p − 1, for the sends of p at its peers, and, where
//!   its rank sends the same chunk in r, for that to have left. `shape` demands that whatever such
//!   a send has before the chunk the receive has before it too, so what must have left is at p or
//!   earlier in its stream, however long the chunks are.
//!
//! So take what is left of r with the lowest p, sends before receives: it waits for nothing, and
//! moves. Local steps of r wait for earlier rounds only.
//!
//! *Invariants.* No step is trusted: a plan from anywhere may be verified.
//!
//! *May import* `plan::{ir, spec}`.

mod matching;
mod outcome;
mod run;
mod shape;
mod values;

use super::ir::Plan;
use std::fmt;

/// What has been proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// Rounds with messages.
    pub rounds: usize,
    /// Messages over all ranks; one of several ranges is one, one to several peers is several.
    pub messages: usize,
    /// Chunks sent by the rank that sends most.
    pub max_chunks_sent: usize,
    /// Chunks sent by all ranks.
    pub chunks_sent: usize,
    /// Whether all ranks end with the same association tree for a chunk, hence with the same bits.
    pub bits_agree: bool,
    /// Whether all chunks end with the same association tree, so that the place in the buffer
    /// changes no bit.
    pub position_independent: bool,
    /// Whether every combination at the end is one fold of all ranks' contributions in rank order,
    /// rounded once. Any two plans of which that is so give the same bits, whatever the collective,
    /// the algorithm, the root, the length of the buffer and the place in it. Also where nothing is
    /// combined.
    pub is_in_rank_order: bool,
    /// A hash of the association tree, or of all of them when they depend on the place; equal for
    /// equal trees of any two plans. 0 where nothing is combined.
    pub fingerprint: u64,
}

/// Where a plan is wrong, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Whose plan.
    pub rank: usize,
    /// In which round; `None` for what is wrong with the plan as a whole or at its end.
    pub round: Option<usize>,
    /// At which step of the round.
    pub step: Option<usize>,
    /// In which chunk of the rank's array.
    pub chunk: Option<usize>,
    /// What is wrong.
    pub problem: String,
    /// Another step at which it can be mended as well, such as the other end of the message: rank,
    /// round and step.
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

    /// The same, or else the step `at` is wrong.
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

/// A place in the plans, named ever more closely.
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

/// Proves the plans of all ranks of one request, in rank order.
///
/// ```
/// use ringtree::plan::{Algorithm, Collective, Hosts, Request, plan, verify::verify};
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
/// The first fault found.
pub fn verify(plans: &[Plan]) -> Result<Proof, Fault> {
    shape::check(plans)?;
    matching::check(plans)?;
    let mut finished = run::execute(plans)?;
    let trees = outcome::check(plans, &mut finished)?;
    let traffic = finished.traffic;
    Ok(Proof {
        rounds: traffic.round_has_message.iter().filter(|&&has| has).count(),
        messages: traffic.messages,
        max_chunks_sent: traffic.chunks_sent.iter().copied().max().unwrap_or(0),
        chunks_sent: traffic.chunks_sent.iter().sum(),
        bits_agree: trees.agree_across_ranks,
        position_independent: trees.agree_across_chunks,
        is_in_rank_order: trees.are_in_rank_order,
        fingerprint: trees.fingerprint,
    })
}

/// Returns the ranks whose contributions a chunk holds, for every chunk of every rank, scratch
/// included, when `plans` have run to their ends. The list of a chunk that nothing was written to
/// is empty. Plans that stop early, after the same number of rounds on all ranks, show what the
/// ranks hold by then.
///
/// ```
/// use ringtree::plan::{Algorithm, Collective, Hosts, Request, plan, verify::contributors};
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
/// Returns the first fault of a step. What the collective demands in the end is not checked.
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
