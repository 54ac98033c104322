//! The registry of algorithms, and the functions that build their plans.
//!
//! Each algorithm consists of a file, which contains its [`Entry`], and a row in the table below.
//! Verification, property tests, the simulator, `ringtree plan`, `ringtree bench`, `check-gpu` and
//! algorithm selection all iterate over the registry.
//!
//! The file headers state costs in the notation of their sources: α per message (L + 2o if the
//! message waits for the previous one, o if it does not), β per byte (G), and γ per reduced byte.
//! The `cost` of an entry is expressed in terms of L, o and G.

mod algorithm;
mod binomial;
mod blocks;
mod bruck;
mod bruck_fold;
mod chain;
mod circulant;
mod dissemination;
mod double_tree;
mod extras;
mod flat;
mod hierarchical;
pub(super) mod own;
mod pairwise;
mod rabenseifner;
mod recursive_doubling;
mod ring;
mod scatter_allgather;
mod two_shot;

pub use own::prove;
#[doc(hidden)]
pub use own::{guarded, is_own};

use super::ir::{Plan, Request, Round};
use super::price::{Cost, LinkCost};
use super::spec::{Algorithm, Collective};
use super::topology::Topology;
use super::tuning::TuningTable;
use crate::error::PlanError;
use crate::tuning::between_sites;

/// A description of an algorithm: its name, its capabilities, and the functions that build its
/// plans and predict their cost.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The name used on the command line, in messages and in results.
    pub name: &'static str,
    /// Explanation of the name in one or two sentences, for readers who do not know the algorithm.
    /// It may be empty.
    pub meaning: &'static str,
    /// The algorithm's constant, which the registry sets.
    pub algorithm: Algorithm,
    /// The collectives that the algorithm implements.
    pub collectives: &'static [Collective],
    /// The publication that describes the algorithm, given as a paper and a section.
    pub source: &'static str,
    /// Returns whether every rank's plan is rank 0's plan with the ranks renumbered. If so, the
    /// totals for all ranks are those of a single plan times the number of ranks.
    pub is_symmetric: fn(Collective) -> bool,
    /// Returns whether a rank may exchange more than one message per round in this collective in
    /// order to reduce the number of rounds.
    pub has_radix: fn(Collective) -> bool,
    /// `true` if every block of an all-to-all goes directly from its sender to its receiver. If so,
    /// blocks may have arbitrary lengths.
    pub is_direct: bool,
    /// `true` if every rank always receives from the same peer. If it is `false`, ranks switch
    /// peers but not all at the same moment, so two streams sometimes meet at a port.
    pub has_one_sender: bool,
    /// Returns the number of chunks in the buffer, which is the same for every rank and root.
    pub chunks: fn(&Request) -> usize,
    /// Returns the number of scratch chunks that a rank needs. This number must not exceed the
    /// number of chunks in the buffer times the number of ranks. To support buffers of any size, it
    /// must not exceed the number of chunks in the buffer.
    pub scratch: fn(&Request) -> usize,
    /// Builds the rounds of one rank.
    pub build: fn(&Request) -> Vec<Round>,
    /// Returns the cost in closed form, according to the cited analysis.
    pub cost: fn(&Request) -> Cost,
    /// Returns the best number of pieces for the given buffer length and link costs.
    pub pieces: fn(&super::price::Question) -> usize,
    /// Returns whether every message consists of a single chunk. If so, using more pieces makes
    /// messages shorter, and a rank can process one piece while the next is in flight.
    pub is_pipelined: fn(Collective) -> bool,
    /// Returns whether each piece is a slice that goes through all rounds. If there are several
    /// slices, ranks that are out of step send only a few bytes to the same port.
    pub is_sliced: fn(Collective) -> bool,
    /// Returns the stages inside hosts, between hosts and between sites, if the algorithm is
    /// hierarchical.
    pub stages: Option<fn(&Request) -> Stages>,
    /// Returns whether `auto` considers the algorithm for a call. Even if it does not, the
    /// algorithm can be requested by name.
    pub is_offered: fn(&Offer) -> bool,
}

impl Entry {
    /// Defaults that suit most algorithms. Each algorithm sets its name and meaning, its
    /// collectives and source, and the functions for its chunks, rounds and cost.
    pub const PLAIN: Self = Self {
        name: "",
        meaning: "",
        algorithm: Algorithm::Flat,
        collectives: &[],
        source: "",
        is_symmetric: |_| false,
        has_radix: |_| false,
        is_direct: false,
        has_one_sender: false,
        chunks: |request| request.pieces,
        scratch: |_| 0,
        build: |_| Vec::new(),
        cost: |_| blocks::FREE,
        pieces: |_| 1,
        is_pipelined: |_| false,
        is_sliced: |_| false,
        stages: None,
        is_offered: |_| true,
    };
}

/// Returns the algorithm of `entry` with each of the given radixes, or only the algorithm itself if
/// it has no radix.
///
/// ```
/// use ringtree::plan::{Algorithm, Collective, internal::algorithms::forms, required};
///
/// let entry = required(Collective::AllReduce, Algorithm::Binomial)?;
/// let names: Vec<_> = forms(entry, &[2, 4]).iter().map(ToString::to_string).collect();
/// assert_eq!(names, ["binomial", "binomial/4"]);
/// # Ok::<(), String>(())
/// ```
#[must_use]
pub fn forms(entry: &Entry, radixes: &[usize]) -> Vec<Algorithm> {
    if !has_any_radix(entry) {
        return vec![entry.algorithm];
    }
    let form = |radix: &usize| entry.algorithm.with_radix(*radix).ok();
    radixes.iter().filter_map(form).collect()
}

/// Returns whether the algorithm of `entry` has a radix for any of the collectives that it
/// implements.
#[must_use]
pub fn has_any_radix(entry: &Entry) -> bool {
    entry.collectives.iter().any(|one| (entry.has_radix)(*one))
}

/// A call for which an algorithm is considered.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The collective.
    pub collective: Collective,
    /// The number of ranks, and their hosts.
    pub topology: Topology,
    /// Size of the complete buffer, in bytes.
    pub bytes: usize,
    /// `true` if only algorithms that reduce in rank order are allowed.
    pub in_rank_order: bool,
}

/// The stages of a hierarchical collective.
#[derive(Clone, Debug)]
pub struct Stages {
    /// The collectives that run inside hosts on the complete buffer. There is one for each distinct
    /// number of ranks per host that is greater than 1.
    pub inside: Vec<Request>,
    /// Cost of the stage between the hosts at a site.
    pub between: Cost,
    /// The stage between sites, if there is more than one site.
    pub across: Option<Across>,
}

/// The stage of a collective between sites.
#[derive(Clone, Copy, Debug)]
pub struct Across {
    /// Cost at the ranks' ports.
    pub cost: Cost,
    /// Fraction of the buffer that passes through a site's uplink in one direction, summed over all
    /// ranks at the site.
    pub uplink_volume: f64,
}

impl Across {
    /// Returns the predicted time, in seconds, for a buffer of `bytes` bytes. The bytes take as
    /// long as they need at the ports or at an uplink, whichever is longer.
    pub(super) fn time_s(&self, bytes: usize, table: &TuningTable) -> f64 {
        let (cost, uplink) = (&self.cost, between_sites(table));
        let port_s = cost.volume_on_path * table.tcp.beta_s_per_byte;
        let uplink_s = self.uplink_volume * uplink.beta_s_per_byte;
        let others = Cost {
            volume_on_path: 0.0,
            ..self.cost
        };
        let link = LinkCost {
            alpha_s: uplink.alpha_s,
            ..table.tcp
        };
        others.time_s(bytes, &link) + bytes as f64 * port_s.max(uplink_s)
    }
}

/// Creates the registry from the constant of each algorithm and the file that contains its entry.
macro_rules! registry {
    ($($(#[$doc:meta])* $constant:ident $file:ident,)*) => {
        #[repr(u8)]
        enum Number { $($constant,)* }

        #[allow(non_upper_case_globals)]
        impl Algorithm {
            $($(#[$doc])* pub const $constant: Self = Self::numbered(Number::$constant as u8);)*

            /// All algorithms in registry order. Algorithms that have a radix are listed with radix
            /// 2.
            pub const ALL: &'static [Self] = &[$(Self::$constant,)*];
        }

        /// All algorithms. If several algorithms have the same predicted time, the one that comes
        /// first here is chosen.
        pub const REGISTRY: &[&Entry] = &[$(&Entry {
            algorithm: Algorithm::$constant,
            ..$file::ENTRY
        },)*];
    };
}

registry! {
    /// Contributions that go directly to the ranks that need them, in a single round.
    Flat flat,
    /// A flat reduce-scatter, followed by a flat all-gather.
    TwoShot two_shot,
    /// A tree that grows by the same factor in each round.
    Binomial binomial,
    /// A scatter along a binomial tree, followed by an all-gather.
    ScatterAllgather scatter_allgather,
    /// Pairwise exchange of complete buffers between ranks at doubling distances.
    RecursiveDoubling recursive_doubling,
    /// Recursive halving, followed by recursive doubling of blocks.
    Rabenseifner rabenseifner,
    /// Messages that pass around a ring from neighbor to neighbor.
    Ring ring,
    /// Exchanges over circulant graphs. They are optimal in rounds and in volume for every number
    /// of ranks.
    Circulant circulant,
    /// Exchange of tokens between ranks at doubling distances.
    Dissemination dissemination,
    /// Exchanges of blocks with the two ranks at each distance in turn.
    Pairwise pairwise,
    /// Separate stages inside hosts, between hosts, and again inside hosts.
    Hierarchical hierarchical,
    /// Blocks sent over doubling distances.
    Bruck bruck,
    /// All contributions sent to every rank over doubling distances, followed by a single
    /// reduction.
    BruckFold bruck_fold,
    /// Pieces passed along a single line of ranks in sequence.
    Chain chain,
    /// Pieces passed along two binary trees, with half of the pieces using each tree.
    DoubleTree double_tree,
}

/// Returns all pairs of a collective and an algorithm that implements it. Algorithms that have a
/// radix are listed with each of the given `radixes`.
///
/// ```
/// use ringtree::plan::{Algorithm, Collective, internal::algorithms::pairs};
///
/// let by_four = "circulant/4".parse()?;
/// assert!(pairs(&[2, 4]).contains(&(Collective::AllReduce, by_four)));
/// assert!(!pairs(&[2, 4]).contains(&(Collective::Broadcast, by_four)));
/// # Ok::<(), String>(())
/// ```
#[must_use]
pub fn pairs(radixes: &[usize]) -> Vec<(Collective, Algorithm)> {
    let of_form = |form: Algorithm| {
        let collectives = Collective::ALL.iter().copied();
        let carried_out = collectives.filter(move |one| entry(*one, form).is_some());
        carried_out.map(move |one| (one, form))
    };
    let forms = REGISTRY.iter().flat_map(|entry| forms(entry, radixes));
    forms.flat_map(of_form).collect()
}

/// Returns the entry of `algorithm`, or `None` if it does not implement `collective`.
#[must_use]
pub fn entry(collective: Collective, algorithm: Algorithm) -> Option<&'static Entry> {
    own::entry_of(algorithm).filter(|entry| {
        let is_plain = algorithm == entry.algorithm;
        entry.collectives.contains(&collective) && (is_plain || (entry.has_radix)(collective))
    })
}

/// Returns the entry of `algorithm`, which must implement `collective`.
///
/// # Errors
/// Returns an error if the algorithm does not implement the collective.
pub fn required(collective: Collective, algorithm: Algorithm) -> Result<&'static Entry, PlanError> {
    entry(collective, algorithm)
        .ok_or_else(|| refused!(Unsupported, "{algorithm} does not implement {collective}"))
}

/// Builds the plan for `request`.
///
/// ```
/// use ringtree::plan::{Algorithm, Collective, Hosts, Request, Step, plan};
///
/// let rank_4 = plan(&Request {
///     collective: Collective::Broadcast,
///     algorithm: Algorithm::Binomial,
///     world_size: 8,
///     rank: 4,
///     root: 0,
///     pieces: 1,
///     hosts: Hosts::APART,
/// })?;
/// let peers = |steps: &Vec<Step>| match &steps[0] {
///     Step::Send { peers, .. } => peers.clone(),
///     _ => vec![],
/// };
/// let sends: Vec<_> = rank_4.rounds.iter().map(peers).collect();
/// assert_eq!(sends, [vec![], vec![6], vec![5]]); // it receives first, then 4→6, then 4→5
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
/// Returns an error if the algorithm does not implement the collective, if a value in `request` is
/// out of range, or if the hosts do not match the number of ranks.
pub fn plan(request: &Request) -> Result<Plan, PlanError> {
    let Request {
        collective,
        algorithm,
        world_size,
        rank,
        root,
        pieces,
        ..
    } = *request;
    let entry = required(collective, algorithm)?;
    if world_size == 0 || rank >= world_size || root >= world_size || pieces == 0 {
        return Err(refused!(
            Invalid,
            "rank {rank} and root {root} must be less than the number of ranks ({world_size}), and \
             the number of pieces must be at least 1"
        ));
    }
    request.topology().check()?;
    Ok(Plan {
        request: request.clone(),
        chunks: (entry.chunks)(request),
        scratch: (entry.scratch)(request),
        rounds: (entry.build)(request),
    })
}

/// Builds the plans of all ranks. The rank in `request` is ignored.
///
/// ```
/// use ringtree::plan::{Algorithm, Collective, Hosts, Request, plans};
///
/// let plans = plans(&Request {
///     collective: Collective::Barrier,
///     algorithm: Algorithm::Dissemination,
///     world_size: 3,
///     rank: 0,
///     root: 0,
///     pieces: 1,
///     hosts: Hosts::APART,
/// })?;
/// assert_eq!(plans[2].request.rank, 2);
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
/// Returns the same errors as [`plan`].
pub fn plans(request: &Request) -> Result<Vec<Plan>, PlanError> {
    let of_rank = |rank| plan_of(request, rank);
    (0..request.world_size).map(of_rank).collect()
}

/// Builds the plan of `rank`. The rank in `request` is ignored.
pub(crate) fn plan_of(request: &Request, rank: usize) -> Result<Plan, PlanError> {
    plan(&Request {
        rank,
        ..request.clone()
    })
}
