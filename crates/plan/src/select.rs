//! Chooses an algorithm as a pure function of values that are the same on all ranks of a
//! communicator.
//!
//! Ranks that choose different algorithms deadlock. The choice therefore does not depend on
//! anything local, such as the clock, the load or the buffer's address. It depends only on the
//! collective, the number of bytes, the element size, the number of ranks, which of them share a
//! host, and a [`TuningTable`], which the ranks compare when they connect.

use super::algorithms::{Entry, Offer, REGISTRY, Stages, entry, required};
use super::choice::TIE_TOLERANCE;
use super::cost::{payload_bytes, reuse, shared, sites};
use super::ir::Request;
use super::parts::Parts;
use super::price::{Number, Question};
use super::reproducible;
use super::spec::{Algorithm, Collective};
use super::topology::{Sharing, Topology, sharing};
use super::units::Bytes;
use crate::algorithms::forms;
use crate::error::PlanError;
use crate::limits::{PIECES_MAX, SCRATCH_BYTES_MAX, SHARED_SEGMENT_BYTES, SITES_COUNTED_RANKS_MAX};
use crate::tuning::between_sites;

pub use super::choice::Choice;
pub use super::tuning::TuningTable;

/// Returns the algorithm with the shortest predicted time for a buffer of `bytes` bytes whose
/// elements have `dtype_size` bytes, or the `forced` algorithm. If predictions are equal, the
/// algorithm that comes first in the registry is chosen.
///
/// If all ranks share a host, predictions are for shared memory (see [`shared`]). For buffers
/// longer than a segment, a pipelined plan is chosen if its predicted time is within 50 % of the
/// shortest time.
///
/// Otherwise, predictions are for TCP, the slowest link on the path, except for the stages that a
/// hierarchical plan runs inside hosts. If there are several sites, predictions include the
/// uplinks, which are shared by the ranks at a site (see [`sites`]). If there are more than two
/// ranks on several hosts, the best plan whose streams avoid each other (a ring or a sliced plan)
/// is chosen if its predicted time is within 10 % of the shortest time.
///
/// ```
/// use ringtree::plan::{Algorithm, Collective, Topology};
/// use ringtree::plan::{TuningTable, choose};
///
/// let table = TuningTable::default();
/// let choice = choose(Collective::AllReduce, &Topology::apart(6), 25 << 20, 4, &table, None)?;
/// println!("{choice}");
/// assert!(choice.runner_up.is_some_and(|(_, seconds)| seconds >= 0.9 * choice.predicted_s));
///
/// let choice = choose(Collective::AllReduce, &Topology::of(&[0; 6]), 25 << 20, 4, &table, None)?;
/// assert_eq!(choice.algorithm, Algorithm::TwoShot);
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
/// Returns an error if no algorithm implements the collective, if the forced algorithm does
/// not implement it or needs too much scratch (see [`scratch_bytes`]), or if the hosts do not match
/// the number of ranks (see [`Topology::check`]).
pub fn choose(
    collective: Collective,
    topology: &Topology,
    bytes: usize,
    dtype_size: usize,
    table: &TuningTable,
    forced: Option<Algorithm>,
) -> Result<Choice, PlanError> {
    let comparison = Comparison::new(collective, topology, bytes, dtype_size, table)?;
    comparison.choose(forced)
}

/// Like [`choose`], but considers only algorithms that reduce in rank order, so that neither the
/// choice nor the length of the buffer affects the bits of the result.
///
/// ```
/// use ringtree::plan::{Algorithm, Collective, Topology};
/// use ringtree::plan::TuningTable;
/// use ringtree::plan::internal::select::choose_in_rank_order;
///
/// let (table, six) = (TuningTable::default(), Topology::apart(6));
/// let of = |bytes, forced| {
///     choose_in_rank_order(Collective::AllReduce, &six, bytes, 4, &table, forced)
/// };
/// assert_eq!(of(8, None)?.algorithm, Algorithm::Flat);
/// assert_eq!(of(25 << 20, None)?.algorithm, Algorithm::TwoShot);
/// let refusal = of(8, Some(Algorithm::Ring)).unwrap_err().to_string();
/// assert!(refusal.ends_with("flat, two-shot, bruck-fold"));
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
/// Returns the same errors as [`choose`], and an error if the forced algorithm reduces in a
/// different order.
pub fn choose_in_rank_order(
    collective: Collective,
    topology: &Topology,
    bytes: usize,
    dtype_size: usize,
    table: &TuningTable,
    forced: Option<Algorithm>,
) -> Result<Choice, PlanError> {
    let mut comparison = Comparison::new(collective, topology, bytes, dtype_size, table)?;
    comparison.in_rank_order = true;
    comparison.choose(forced)
}

/// Like [`choose`], but considers `calls` identical calls that are in flight at the same time.
/// Returns the algorithm with the shortest predicted time for all of the calls together, and that
/// time.
///
/// Concurrent calls share the ports and use each link in the order in which they were issued. The
/// best algorithm for a single call is therefore often not the best one for several calls.
///
/// ```
/// use ringtree::plan::{Algorithm, Collective, Topology};
/// use ringtree::plan::{TuningTable, choose, choose_concurrent};
///
/// let mut table = TuningTable::default();
/// table.tcp.alpha_s = 13e-3;
/// table.tcp.beta_s_per_byte = 425e-9;
/// let (sum, four) = (Collective::AllReduce, Topology::apart(4));
/// let alone = choose(sum, &four, 32 << 10, 4, &table, None)?;
/// assert_eq!(alone.algorithm, Algorithm::TwoShot);
/// let three = choose_concurrent(3, sum, &four, 32 << 10, 4, &table)?;
/// assert_eq!(three.algorithm, Algorithm::RecursiveDoubling);
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
/// Returns the same errors as [`choose`].
pub fn choose_concurrent(
    calls: usize,
    collective: Collective,
    topology: &Topology,
    bytes: usize,
    dtype_size: usize,
    table: &TuningTable,
) -> Result<Choice, PlanError> {
    let mut comparison = Comparison::new(collective, topology, bytes, dtype_size, table)?;
    comparison.calls = calls.max(1);
    comparison.choose(None)
}

/// In shared memory, a pipelined plan is preferred to a plan whose messages are longer than a
/// segment if the pipelined plan's predicted time exceeds the shortest predicted time by at most
/// this fraction. A plan with such long messages does not run step by step, and its bytes leave the
/// cache before they are reduced. For 256 MiB between two ranks, such a plan took 1.4 times as
/// long, which the model does not predict.
const LONG_MESSAGES: f64 = 0.5;

/// Radixes that `auto` considers. With few ranks, there are few different plans. With many ranks,
/// the prediction changes little from one of these radixes to the next.
const RADIXES: &[usize] = &[
    2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 32, 48, 64, 128,
];

/// Largest relative difference between predictions at which `auto` prefers plans whose streams do
/// not meet at a port for long. In such plans, every rank receives from a single sender
/// ([`Entry::has_one_sender`]), or the buffer is sent in short slices ([`Entry::is_sliced`]). Long
/// streams that meet at a port share it unevenly and overflow its queue. Over TCP, this can cost
/// large messages up to half of their speed, which the model does not predict.
const NEAR_TIE: f64 = 0.1;

/// Returns whether the plan prevents its streams from meeting at a port for long.
fn avoids_port_sharing(entry: &Entry, choice: &Choice) -> bool {
    let is_sliced = (entry.is_sliced)(choice.collective) && choice.pieces > 1;
    entry.has_one_sender || (is_sliced && choice.algorithm.radix() == 2)
}

/// Returns the predicted time, in seconds, of the plans for `request` on a buffer of `bytes` bytes.
///
/// # Errors
/// Returns an error if there is no plan for `request`.
pub fn predicted_s(request: &Request, bytes: usize, table: &TuningTable) -> Result<f64, PlanError> {
    let collective = request.collective;
    let entry = required(collective, request.algorithm)?;
    let payload = payload_bytes(collective, bytes);
    let topology = request.topology();
    let (sharing, is_at_one_site) = (sharing(&topology), topology.site_count() == 1);
    let is_beyond_counting = !is_at_one_site && request.world_size > SITES_COUNTED_RANKS_MAX;
    match entry.stages {
        _ if request.world_size == 1 => Ok(0.0),
        _ if sharing == Sharing::All => shared::time_s(request, bytes, &table.shm),
        Some(stages) if sharing == Sharing::Some || is_beyond_counting => {
            let Stages {
                inside,
                between,
                across,
            } = stages(request);
            let of_host = |inside| shared::time_s(inside, bytes, &table.shm);
            let times_s: Vec<f64> = inside.iter().map(of_host).collect::<Result<_, _>>()?;
            let inside_s = times_s.into_iter().fold(0.0, f64::max);
            let across_s = across.map_or(0.0, |across| across.time_s(payload, table));
            Ok(inside_s + between.time_s(payload, &table.tcp) + across_s)
        }
        _ if is_at_one_site => Ok((entry.cost)(request).time_s(payload, &table.tcp)),
        _ => sites::time_s(request, bytes, table),
    }
}

/// Returns the number of scratch bytes that the plans for `request` need on a buffer of `bytes`
/// bytes.
///
/// # Errors
/// Returns an error if there is no plan for `request`, or if the plan's scratch exceeds
/// both the size of the buffer and [`SCRATCH_BYTES_MAX`].
pub fn scratch_bytes(request: &Request, bytes: usize) -> Result<usize, PlanError> {
    let (algorithm, world_size) = (request.algorithm, request.world_size);
    let entry = required(request.collective, algorithm)?;
    let chunks = (entry.chunks)(request).max(1);
    let buffers = (entry.scratch)(request) as f64 / chunks as f64;
    let scratch = (buffers * bytes as f64).ceil();
    if buffers <= 1.0 || scratch <= SCRATCH_BYTES_MAX as f64 {
        return Ok(scratch as usize);
    }
    Err(refused!(
        TooLarge,
        "{algorithm} needs {} of scratch space for {} over {world_size} ranks, which exceeds the \
         limit of {}; use a different algorithm, or auto",
        Bytes(scratch),
        Bytes(bytes as f64),
        Bytes(SCRATCH_BYTES_MAX as f64)
    ))
}

/// A call for which algorithms are compared.
struct Comparison<'a> {
    topology: &'a Topology,
    table: &'a TuningTable,
    /// The inputs for choosing the number of pieces over TCP.
    question: Question,
    dtype_size: usize,
    /// `true` if only algorithms that reduce in rank order are allowed.
    in_rank_order: bool,
    /// Number of calls that are in flight at the same time.
    calls: usize,
}

impl<'a> Comparison<'a> {
    fn new(
        collective: Collective,
        topology: &'a Topology,
        bytes: usize,
        dtype_size: usize,
        table: &'a TuningTable,
    ) -> Result<Self, PlanError> {
        topology.check()?;
        Ok(Self {
            topology,
            table,
            question: Question {
                collective,
                world_size: topology.world_size,
                bytes,
                link: table.tcp,
            },
            dtype_size,
            in_rank_order: false,
            calls: 1,
        })
    }

    /// Returns the best candidate, or the forced algorithm.
    fn choose(&self, forced: Option<Algorithm>) -> Result<Choice, PlanError> {
        let Question {
            collective, bytes, ..
        } = self.question;
        if let Some(algorithm) = forced {
            let mut choice = self.of(required(collective, algorithm)?, algorithm)?;
            if self.in_rank_order {
                reproducible::check(&self.request(algorithm, 1))?;
            }
            self.scratch_bytes(&choice)?;
            choice.is_forced = true;
            return Ok(choice);
        }
        let sharing = sharing(self.topology);
        let mut candidates = self.candidates()?;
        let least = |candidates: &[Choice]| {
            let times = candidates
                .iter()
                .map(|one| (one.algorithm, one.predicted_s));
            times.min_by(|(_, one_s), (_, other_s)| one_s.total_cmp(other_s))
        };
        let (_, least_s) = least(&candidates)
            .ok_or_else(|| refused!(Unsupported, "no algorithm implements {collective}"))?;
        let within = |share: f64, one: &Choice| one.predicted_s <= least_s * (1.0 + share);
        let is_calm = |candidate: &Choice| {
            let entry = entry(collective, candidate.algorithm);
            self.topology.world_size > 2
                && sharing != Sharing::All
                && entry.is_some_and(|entry| avoids_port_sharing(entry, candidate))
                && within(NEAR_TIE, candidate)
        };
        let calm = candidates
            .iter()
            .enumerate()
            .filter(|(_, candidate)| is_calm(candidate))
            .min_by(|(_, one), (_, other)| one.predicted_s.total_cmp(&other.predicted_s))
            .map(|(at, _)| at);
        // In shared memory, many plans for two ranks differ only in their names and in how they
        // split the buffer, so rounding must not decide between them.
        let tie = if sharing == Sharing::All {
            TIE_TOLERANCE
        } else {
            0.0
        };
        let in_pieces = candidates.iter().position(|candidate| {
            let entry = entry(collective, candidate.algorithm);
            sharing == Sharing::All
                && bytes > SHARED_SEGMENT_BYTES
                && entry.is_some_and(|entry| (entry.is_pipelined)(collective))
                && within(LONG_MESSAGES, candidate)
        });
        let first = in_pieces.or(candidates.iter().position(|one| within(tie, one)));
        let mut choice = candidates.remove(calm.or(first).unwrap_or(0));
        choice.runner_up = least(&candidates);
        Ok(choice)
    }

    fn request(&self, algorithm: Algorithm, pieces: usize) -> Request {
        Request {
            pieces,
            ..Request::new(self.question.collective, algorithm, self.topology)
        }
    }

    /// Calls [`scratch_bytes`] for the request of a choice.
    fn scratch_bytes(&self, choice: &Choice) -> Result<usize, PlanError> {
        let request = self.request(choice.algorithm, choice.pieces);
        scratch_bytes(&request, self.question.bytes)
    }

    /// Returns a choice for each algorithm and radix that `auto` considers.
    fn candidates(&self) -> Result<Vec<Choice>, PlanError> {
        let offer = Offer {
            collective: self.question.collective,
            topology: self.topology.clone(),
            bytes: self.question.bytes,
            in_rank_order: self.in_rank_order,
        };
        let is_allowed = |entry: &&&Entry| {
            !self.in_rank_order || reproducible::is_in_rank_order(&self.request(entry.algorithm, 1))
        };
        let has_room = |choice: &Choice| self.scratch_bytes(choice).is_ok();
        REGISTRY
            .iter()
            .filter(|entry| entry.collectives.contains(&offer.collective))
            .filter(|entry| (entry.is_offered)(&offer))
            .filter(is_allowed)
            .flat_map(|entry| self.forms(entry).into_iter().map(move |form| (entry, form)))
            .map(|(entry, form)| self.of(entry, form))
            .filter(|choice| choice.as_ref().map_or(true, has_room))
            .collect()
    }

    /// Returns the forms of the algorithm of `entry` to consider, one per radix. In shared memory,
    /// only the default radix is considered, because messages do not wait for a port and flat plans
    /// achieve what a larger radix would.
    fn forms(&self, entry: &Entry) -> Vec<Algorithm> {
        let has_radix = (entry.has_radix)(self.question.collective);
        if !has_radix || sharing(self.topology) == Sharing::All {
            return vec![entry.algorithm];
        }
        let ranks = self.topology.world_size.max(2);
        let mut forms = forms(entry, RADIXES);
        forms.retain(|form| form.radix() <= ranks);
        forms
    }

    /// Returns the choice for `algorithm`, which is the algorithm of `entry` with a given radix.
    fn of(&self, entry: &Entry, algorithm: Algorithm) -> Result<Choice, PlanError> {
        let world_size = self.topology.world_size;
        let Question {
            collective, bytes, ..
        } = self.question;
        let mut request = self.request(algorithm, 1);
        request.pieces = self.pieces(entry, &request);
        let is_alone = world_size == 1;
        Ok(Choice {
            collective,
            world_size,
            bytes,
            algorithm,
            pieces: request.pieces,
            rounds: if is_alone {
                0
            } else {
                (entry.cost)(&request).rounds
            },
            predicted_s: self.predicted_s(&request)?,
            runner_up: None,
            is_forced: false,
            breakdown: None,
        })
    }

    /// Returns the predicted time, in seconds, until all concurrent calls are complete.
    fn predicted_s(&self, request: &Request) -> Result<f64, PlanError> {
        let bytes = self.question.bytes;
        let alone_s = predicted_s(request, bytes, self.table)?;
        if self.calls == 1 || sharing(self.topology) == Sharing::All {
            return Ok(self.calls as f64 * alone_s);
        }
        let mut at_once = *self.table;
        at_once.tcp.alpha_s = 0.0;
        if let Some(uplink) = &mut at_once.uplink {
            uplink.alpha_s = 0.0;
        }
        // A link is free again when its last message has been sent, not when it has arrived.
        let ports_s = predicted_s(request, bytes, &at_once)?;
        let links_s = reuse::reused_part(request)? * alone_s - self.table.tcp.alpha_s;
        Ok(alone_s + (self.calls - 1) as f64 * ports_s.max(links_s))
    }

    /// Returns a number of pieces that suits the links over which the pieces are sent.
    fn pieces(&self, entry: &Entry, request: &Request) -> usize {
        let bytes = self.question.bytes;
        let wanted = match (sharing(self.topology), entry.stages) {
            _ if request.world_size == 1 => 1,
            (Sharing::All, _) => shared::pieces(entry, request, bytes, self.dtype_size),
            (Sharing::Some, Some(stages)) => {
                let of_host = |inside: &Request| {
                    let entry = self::entry(inside.collective, inside.algorithm)?;
                    Some(shared::pieces(entry, inside, bytes, self.dtype_size))
                };
                let pieces = stages(request).inside.iter().filter_map(of_host).max();
                pieces.unwrap_or(1)
            }
            _ => (entry.pieces)(&self.question),
        };
        // With more chunks than elements, some messages would be empty.
        let elements = (bytes / self.dtype_size.max(1)).max(1);
        let chunks_of_one_piece = (entry.chunks)(request).max(1);
        let pieces_max = (elements / chunks_of_one_piece).clamp(1, PIECES_MAX);
        wanted.clamp(1, pieces_max)
    }
}

/// Relative amount by which a cost is raised and lowered to determine how much the predicted time
/// depends on it.
const COST_STEP: f64 = 1.0 / 64.0;
/// Like [`COST_STEP`], but used with several sites, where a change may reorder the messages at an
/// uplink and make the predicted time jump.
const COST_STEP_BETWEEN_SITES: f64 = 1.0 / 4.0;

/// Returns the table with one of its costs multiplied by `factor` in every class of link.
fn scaled_cost(table: &TuningTable, number: Number, factor: f64) -> TuningTable {
    let (mut scaled, mut uplink) = (*table, between_sites(table));
    *number.of(&mut scaled.tcp) *= factor;
    *number.of(&mut scaled.shm) *= factor;
    match number {
        Number::Alpha => uplink.alpha_s *= factor,
        Number::Beta => uplink.beta_s_per_byte *= factor,
        Number::Overhead | Number::Gamma => {}
    }
    scaled.uplink = Some(uplink);
    scaled
}

/// Returns `choice` with the components of its predicted time.
///
/// # Errors
/// Returns the same errors as [`predicted_s`](super::select::predicted_s).
pub fn with_breakdown(
    choice: Choice,
    topology: &Topology,
    table: &TuningTable,
) -> Result<Choice, PlanError> {
    if choice.world_size == 1 {
        return Ok(choice);
    }
    let request = Request {
        pieces: choice.pieces,
        ..Request::new(choice.collective, choice.algorithm, topology)
    };
    let breakdown = Some(parts(&request, choice.bytes, table)?);
    Ok(Choice {
        breakdown,
        ..choice
    })
}

/// Returns the components of the time that [`predicted_s`] returns.
///
/// # Errors
/// Returns the same errors as [`predicted_s`].
pub fn parts(request: &Request, bytes: usize, table: &TuningTable) -> Result<Parts, PlanError> {
    let step = match request.topology().site_count() {
        1 => COST_STEP,
        _ => COST_STEP_BETWEEN_SITES,
    };
    let mut parts_s = [0.0; 4];
    for (part_s, number) in parts_s.iter_mut().zip(Number::ALL) {
        let with = |factor| predicted_s(request, bytes, &scaled_cost(table, number, factor));
        let (more_s, less_s) = (with(1.0 + step)?, with(1.0 - step)?);
        *part_s = f64::max((more_s - less_s) / (2.0 * step), 0.0);
    }
    let sum_s: f64 = parts_s.iter().sum();
    let share = match sum_s > 0.0 {
        true => predicted_s(request, bytes, table)? / sum_s,
        false => 1.0,
    };
    let [way_s, messages_s, bytes_s, folds_s] = parts_s.map(|part_s| part_s * share);
    Ok(Parts {
        way_s,
        messages_s,
        bytes_s,
        folds_s,
    })
}
