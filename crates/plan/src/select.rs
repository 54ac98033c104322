//! The choice of an algorithm: a pure function of what every rank of a communicator shares.
//!
//! Ranks that choose differently deadlock, so nothing local (clock, load, buffer address) enters:
//! the collective, the bytes, the element size, the ranks, which of them share a host, and one
//! [`TuningTable`], which the ranks compare when they connect.

use super::algorithms::{Entry, Offer, REGISTRY, Stages, entry, required};
use super::cost::{payload_bytes, reuse, shared, sites};
use super::ir::Request;
use super::parts::Parts;
use super::price::{LinkCost, Question};
use super::reproducible;
use super::spec::{Algorithm, Collective};
use super::topology::{Hosts, Sharing, Topology};
use super::units::{Bytes, Seconds};
use crate::limits::{PIECES_MAX, SCRATCH_BYTES_MAX, SHARED_SEGMENT_BYTES, SITES_COUNTED_RANKS_MAX};

pub use super::tuning::TuningTable;

/// What was chosen, and what it was chosen over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// What was to be done.
    pub collective: Collective,
    /// How many ranks.
    pub world_size: usize,
    /// Bytes of the whole buffer.
    pub bytes: usize,
    /// How it will be done.
    pub algorithm: Algorithm,
    /// In how many pieces a block.
    pub pieces: usize,
    /// Rounds of messages.
    pub rounds: usize,
    /// The predicted time in seconds.
    pub predicted_s: f64,
    /// The best of the others and its time; none where the algorithm was forced or is the only one.
    pub runner_up: Option<(Algorithm, f64)>,
    /// Whether the caller named the algorithm.
    pub is_forced: bool,
}

impl Choice {
    /// One line: what was chosen, for how long, and over what.
    #[must_use]
    pub fn explain(&self) -> String {
        let size = match payload_bytes(self.collective, self.bytes) {
            0 => String::new(),
            bytes => format!(" of {}", Bytes(bytes as f64)),
        };
        let what = format!(
            "{}{size} over {} ranks: {}",
            self.collective, self.world_size, self.algorithm
        );
        if self.world_size == 1 {
            return format!("{what}, since one rank has no peer");
        }
        let pieces = match self.pieces {
            1 => String::new(),
            pieces => format!(", {pieces} pieces a block"),
        };
        let time = format!(
            "predicted {} in {}{pieces}",
            Seconds(self.predicted_s),
            match self.rounds {
                1 => "1 round".to_owned(),
                rounds => format!("{rounds} rounds"),
            }
        );
        match self.runner_up {
            _ if self.is_forced => format!("{what}, as asked; {time}"),
            None => format!("{what}, the only one; {time}"),
            Some((next, next_s)) => {
                let more_percent = 100.0 * (next_s / self.predicted_s - 1.0);
                let other = format!("at {} ({more_percent:+.0} %)", Seconds(next_s));
                match next_s * (1.0 + A_TIE) < self.predicted_s {
                    true => {
                        format!("{what}, {time}; {next} {other} counts as no faster on such links")
                    }
                    false => format!("{what}, {time}; next best {next} {other}"),
                }
            }
        }
    }

    /// As [`Choice::explain`], and what the predicted time is made of.
    ///
    /// # Errors
    /// Those of [`predicted_s`].
    pub fn explain_parts(&self, hosts: &Hosts, table: &TuningTable) -> Result<String, String> {
        if self.world_size == 1 {
            return Ok(self.explain());
        }
        let request = Request {
            collective: self.collective,
            algorithm: self.algorithm,
            world_size: self.world_size,
            rank: 0,
            root: 0,
            pieces: self.pieces,
            hosts: hosts.clone(),
        };
        let parts = Parts::of(&request, self.bytes, table)?;
        Ok(format!(
            "{}; of the {} {parts}",
            self.explain(),
            Seconds(self.predicted_s)
        ))
    }
}

/// The algorithm with the least predicted time for `bytes` bytes of elements of `dtype_size`
/// bytes; `forced` names it instead. Ties go to the first in the registry's order.
///
/// Where all ranks share a host, plans are priced in shared memory ([`shared`]), and above a
/// segment's length one in pieces is taken if its prediction is within 50 % of the least. Otherwise
/// they are priced over TCP, the slowest link on the way, except for what a hierarchical plan does
/// inside hosts; and where there are several sites, over the uplinks that each site's ranks share
/// ([`sites`]). Among more than two ranks of several hosts the best of those whose streams keep out
/// of each other's way, a ring or slices, is taken if it is within 10 % of the least.
///
/// ```
/// use ringtree::plan::{Algorithm, Collective, Topology};
/// use ringtree::plan::select::{TuningTable, choose};
///
/// let table = TuningTable::default();
/// let choice = choose(Collective::AllReduce, &Topology::apart(6), 25 << 20, 4, &table, None)?;
/// println!("{}", choice.explain());
/// assert!(choice.runner_up.is_some_and(|(_, seconds)| seconds >= 0.9 * choice.predicted_s));
///
/// let choice = choose(Collective::AllReduce, &Topology::together(6), 25 << 20, 4, &table, None)?;
/// assert_eq!(choice.algorithm, Algorithm::TwoShot);
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
/// A sentence: nothing carries out the collective, or the forced algorithm does not or needs too
/// much scratch ([`scratch_bytes`]), or the ranks do not fill their hosts.
pub fn choose(
    collective: Collective,
    topology: &Topology,
    bytes: usize,
    dtype_size: usize,
    table: &TuningTable,
    forced: Option<Algorithm>,
) -> Result<Choice, String> {
    let offers = Offers::new(collective, topology, bytes, dtype_size, table)?;
    offers.choose(forced)
}

/// As [`choose`], among the algorithms that fold in rank order ([`reproducible`]), so that neither
/// the choice nor the length of the buffer changes a bit.
///
/// ```
/// use ringtree::plan::{Algorithm, Collective, Topology};
/// use ringtree::plan::select::{TuningTable, choose_in_rank_order};
///
/// let (table, six) = (TuningTable::default(), Topology::apart(6));
/// let of = |bytes, forced| {
///     choose_in_rank_order(Collective::AllReduce, &six, bytes, 4, &table, forced)
/// };
/// assert_eq!(of(8, None)?.algorithm, Algorithm::Flat);
/// assert_eq!(of(25 << 20, None)?.algorithm, Algorithm::TwoShot);
/// assert!(of(8, Some(Algorithm::Ring)).unwrap_err().ends_with("flat, two-shot, bruck-fold"));
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
/// As [`choose`]; and that the forced algorithm folds in another order.
pub fn choose_in_rank_order(
    collective: Collective,
    topology: &Topology,
    bytes: usize,
    dtype_size: usize,
    table: &TuningTable,
    forced: Option<Algorithm>,
) -> Result<Choice, String> {
    let mut offers = Offers::new(collective, topology, bytes, dtype_size, table)?;
    offers.in_rank_order = true;
    offers.choose(forced)
}

/// Like [`choose`], but for `calls` identical calls that are in flight simultaneously. Returns the
/// algorithm with the least predicted time for all of them, and that time.
///
/// Concurrent calls share the ports, and they use each link in the order of issue. The best
/// algorithm for a single call is therefore often not the best for several.
///
/// ```
/// use ringtree::plan::{Algorithm, Collective, Topology};
/// use ringtree::plan::select::{TuningTable, choose, choose_concurrent};
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
/// As [`choose`].
pub fn choose_concurrent(
    calls: usize,
    collective: Collective,
    topology: &Topology,
    bytes: usize,
    dtype_size: usize,
    table: &TuningTable,
) -> Result<Choice, String> {
    let mut offers = Offers::new(collective, topology, bytes, dtype_size, table)?;
    offers.calls = calls.max(1);
    offers.choose(None)
}

/// By how much of the least prediction a plan in pieces may be dearer in shared memory and still
/// count as faster than one whose messages are longer than a segment: that one is not run step by
/// step, and its bytes leave the cache before they are folded. For 256 MiB between two ranks it
/// took 1.4 times as long, of which the model knows nothing.
const LONG_MESSAGES: f64 = 0.5;

/// Radixes that `auto` looks at. Few ranks have few different plans, and among many the price
/// changes little from one of these to the next.
const RADIXES: &[usize] = &[
    2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 32, 48, 64, 128,
];

/// Predictions that differ by no more than this share of the least are equal but for rounding.
const A_TIE: f64 = 1e-4;

/// Of plans whose predictions differ by less than this share, the best one whose streams do not
/// meet in a port for long is taken: every rank has one sender ([`Entry::has_one_sender`]), or goes
/// through short slices ([`Entry::is_sliced`]). Long streams that meet share the port unevenly, and
/// overflow its queue; over TCP that costs large messages up to half of the speed, which the model
/// does not know.
const NO_DIFFERENCE: f64 = 0.1;

/// Whether the streams of so planned a call keep out of each other's way.
fn keeps_apart(entry: &Entry, choice: &Choice) -> bool {
    let is_sliced = (entry.is_sliced)(choice.collective) && choice.pieces > 1;
    entry.has_one_sender || (is_sliced && choice.algorithm.radix() == 2)
}

/// Seconds that the plans of `request` are predicted to take for a buffer of `bytes`.
///
/// # Errors
/// A sentence, when there is no such plan.
pub fn predicted_s(request: &Request, bytes: usize, table: &TuningTable) -> Result<f64, String> {
    let collective = request.collective;
    let entry = required(collective, request.algorithm)?;
    let payload = payload_bytes(collective, bytes);
    let topology = request.topology();
    let (sharing, is_at_one_site) = (topology.sharing(), topology.site_count() == 1);
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

/// Bytes of scratch that the plans of `request` need beside a buffer of `bytes`.
///
/// # Errors
/// A sentence, when there is no such plan, or when it needs more than one buffer and more than
/// [`SCRATCH_BYTES_MAX`].
pub fn scratch_bytes(request: &Request, bytes: usize) -> Result<usize, String> {
    let Request {
        collective,
        algorithm,
        world_size,
        ..
    } = *request;
    let entry = required(collective, algorithm)?;
    let chunks = (entry.chunks)(request).max(1);
    let buffers = (entry.scratch)(request) as f64 / chunks as f64;
    let scratch = (buffers * bytes as f64).ceil();
    if buffers <= 1.0 || scratch <= SCRATCH_BYTES_MAX as f64 {
        return Ok(scratch as usize);
    }
    Err(format!(
        "{algorithm} needs {} of scratch for {} over {world_size} ranks; {} is the most: \
         name another algorithm, or auto",
        Bytes(scratch),
        Bytes(bytes as f64),
        Bytes(SCRATCH_BYTES_MAX as f64)
    ))
}

/// What the algorithms are asked to offer for.
struct Offers<'a> {
    topology: &'a Topology,
    table: &'a TuningTable,
    /// Over TCP.
    question: Question,
    dtype_size: usize,
    /// Whether algorithms that fold in another order are refused.
    in_rank_order: bool,
    /// Calls that are in flight simultaneously.
    calls: usize,
}

impl<'a> Offers<'a> {
    fn new(
        collective: Collective,
        topology: &'a Topology,
        bytes: usize,
        dtype_size: usize,
        table: &'a TuningTable,
    ) -> Result<Self, String> {
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

    /// The best of the candidates, or the forced one.
    fn choose(&self, forced: Option<Algorithm>) -> Result<Choice, String> {
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
        let sharing = self.topology.sharing();
        let mut candidates = self.candidates()?;
        let least = |candidates: &[Choice]| {
            let times = candidates
                .iter()
                .map(|one| (one.algorithm, one.predicted_s));
            times.min_by(|(_, one_s), (_, other_s)| one_s.total_cmp(other_s))
        };
        let (_, least_s) =
            least(&candidates).ok_or_else(|| format!("no algorithm carries out {collective}"))?;
        let within = |share: f64, one: &Choice| one.predicted_s <= least_s * (1.0 + share);
        let is_calm = |candidate: &Choice| {
            let entry = entry(collective, candidate.algorithm);
            self.topology.world_size > 2
                && sharing != Sharing::All
                && entry.is_some_and(|entry| keeps_apart(entry, candidate))
                && within(NO_DIFFERENCE, candidate)
        };
        let calm = candidates
            .iter()
            .enumerate()
            .filter(|(_, candidate)| is_calm(candidate))
            .min_by(|(_, one), (_, other)| one.predicted_s.total_cmp(&other.predicted_s))
            .map(|(at, _)| at);
        // In shared memory many plans of two ranks are the same but for their names and cuts.
        let tie = if sharing == Sharing::All { A_TIE } else { 0.0 };
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
            collective: self.question.collective,
            algorithm,
            world_size: self.topology.world_size,
            rank: 0,
            root: 0,
            pieces,
            hosts: self.topology.hosts.clone(),
        }
    }

    /// See [`scratch_bytes`].
    fn scratch_bytes(&self, choice: &Choice) -> Result<usize, String> {
        let request = self.request(choice.algorithm, choice.pieces);
        scratch_bytes(&request, self.question.bytes)
    }

    /// What each algorithm that `auto` considers would make of it.
    fn candidates(&self) -> Result<Vec<Choice>, String> {
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

    /// With which radixes `entry` is considered: in shared memory messages do not wait for a port,
    /// and flat plans do what a larger radix would.
    fn forms(&self, entry: &Entry) -> Vec<Algorithm> {
        let has_radix = (entry.has_radix)(self.question.collective);
        if !has_radix || self.topology.sharing() == Sharing::All {
            return vec![entry.algorithm];
        }
        let ranks = self.topology.world_size.max(2);
        let mut forms = entry.forms(RADIXES);
        forms.retain(|form| form.radix() <= ranks);
        forms
    }

    /// What `entry` would make of it as `algorithm`, which has a radix.
    fn of(&self, entry: &Entry, algorithm: Algorithm) -> Result<Choice, String> {
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
        })
    }

    /// Seconds until all concurrent calls are complete.
    fn predicted_s(&self, request: &Request) -> Result<f64, String> {
        let bytes = self.question.bytes;
        let alone_s = predicted_s(request, bytes, self.table)?;
        if self.calls == 1 || self.topology.sharing() == Sharing::All {
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

    /// As many pieces as suit the links that pieces are for.
    fn pieces(&self, entry: &Entry, request: &Request) -> usize {
        let bytes = self.question.bytes;
        let wanted = match (self.topology.sharing(), entry.stages) {
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
        // More chunks than elements would only send empty messages.
        let elements = (bytes / self.dtype_size.max(1)).max(1);
        let chunks_of_one_piece = (entry.chunks)(request).max(1);
        let pieces_max = (elements / chunks_of_one_piece).clamp(1, PIECES_MAX);
        wanted.clamp(1, pieces_max)
    }
}

/// By what share a number of the links is made larger and smaller, to see what hangs on it.
const NUDGE: f64 = 1.0 / 64.0;
/// The same where the order in which messages come to an uplink may change with it, and the time by
/// a jump.
const NUDGE_BETWEEN_SITES: f64 = 1.0 / 4.0;

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Way,
    Messages,
    Bytes,
    Folds,
}

/// The table with one of its numbers, of every class of link, times `factor`.
fn nudged(table: &TuningTable, part: Part, factor: f64) -> TuningTable {
    let times = |number: f64, of: Part| if of == part { number * factor } else { number };
    let link = |link: LinkCost| LinkCost {
        alpha_s: times(link.alpha_s, Part::Way),
        overhead_s: times(link.overhead_s, Part::Messages),
        beta_s_per_byte: times(link.beta_s_per_byte, Part::Bytes),
        gamma_s_per_byte: times(link.gamma_s_per_byte, Part::Folds),
    };
    let mut uplink = table.between_sites();
    uplink.alpha_s = times(uplink.alpha_s, Part::Way);
    uplink.beta_s_per_byte = times(uplink.beta_s_per_byte, Part::Bytes);
    TuningTable {
        tcp: link(table.tcp),
        shm: link(table.shm),
        uplink: Some(uplink),
    }
}

impl Parts {
    /// Those of what [`predicted_s`] says.
    ///
    /// # Errors
    /// Those of [`predicted_s`].
    pub fn of(request: &Request, bytes: usize, table: &TuningTable) -> Result<Self, String> {
        let nudge = match request.topology().site_count() {
            1 => NUDGE,
            _ => NUDGE_BETWEEN_SITES,
        };
        let hangs_on = |part: Part| {
            let with = |factor| predicted_s(request, bytes, &nudged(table, part, factor));
            let (more_s, less_s) = (with(1.0 + nudge)?, with(1.0 - nudge)?);
            Ok::<_, String>(((more_s - less_s) / (2.0 * nudge)).max(0.0))
        };
        let parts = Self {
            way_s: hangs_on(Part::Way)?,
            messages_s: hangs_on(Part::Messages)?,
            bytes_s: hangs_on(Part::Bytes)?,
            folds_s: hangs_on(Part::Folds)?,
        };
        let sum_s = parts.sum_s();
        let share = match sum_s > 0.0 {
            true => predicted_s(request, bytes, table)? / sum_s,
            false => 1.0,
        };
        Ok(Self {
            way_s: parts.way_s * share,
            messages_s: parts.messages_s * share,
            bytes_s: parts.bytes_s * share,
            folds_s: parts.folds_s * share,
        })
    }
}
