//! The registry: one file an algorithm, with its [`Entry`], and one row of the table below.
//!
//! The headers state costs as their sources do, with α a message (L + 2o where it waits for the one
//! before, o where it does not), β a byte (G) and γ a reduced byte; each entry's `cost` is in L, o
//! and G.
//!
//! Verification, property tests, the simulator, `ringtree plan`, `ringtree bench`, `check-gpu` and
//! the chooser iterate over the registry.

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

#[doc(hidden)]
pub use own::guarded;
pub use own::prove;

use super::ir::{Plan, Request, Round};
use super::price::{Cost, LinkCost};
use super::spec::{Algorithm, Collective};
use super::topology::Topology;
use super::tuning::TuningTable;

/// One algorithm: its name, what it can do, and the functions that build and price it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The name used on the command line, in messages and in results.
    pub name: &'static str,
    /// The definition of the name, in one or two sentences for people who do not know it; may be
    /// empty.
    pub meaning: &'static str,
    /// The constant of the registry's row, which sets it.
    pub algorithm: Algorithm,
    /// The collectives it carries out.
    pub collectives: &'static [Collective],
    /// Where it comes from: paper and section.
    pub source: &'static str,
    /// Whether every rank's plan is rank 0's, renumbered: then the totals are those of one plan
    /// times the ranks.
    pub is_symmetric: fn(Collective) -> bool,
    /// Whether a rank may exchange more than one message a round in this collective, so that there
    /// are fewer rounds.
    pub has_radix: fn(Collective) -> bool,
    /// Whether every block of an all-to-all goes straight from its sender to its receiver, so that
    /// blocks may have any lengths.
    pub is_direct: bool,
    /// Whether every rank receives from one and the same peer throughout. Where ranks turn from
    /// peer to peer they do not do so at once, and two streams meet in a port now and then.
    pub has_one_sender: bool,
    /// How many chunks the buffer is split into: the same for every rank and root.
    pub chunks: fn(&Request) -> usize,
    /// How many chunks of scratch a rank needs: those of the buffer times the ranks at most, and no
    /// more than the buffer's where the algorithm is to serve buffers of any size.
    pub scratch: fn(&Request) -> usize,
    /// The rounds of one rank.
    pub build: fn(&Request) -> Vec<Round>,
    /// The closed form of the cited analysis.
    pub cost: fn(&Request) -> Cost,
    /// The best number of pieces for a message of so many bytes on such links.
    pub pieces: fn(&super::price::Question) -> usize,
    /// Whether every message is one chunk: then more pieces make shorter messages, and one is
    /// worked on while the next is under way.
    pub is_pipelined: fn(Collective) -> bool,
    /// Whether pieces are slices, each of which goes through all rounds: with several, ranks that
    /// are not in step send few bytes to the same port.
    pub is_sliced: fn(Collective) -> bool,
    /// What is done inside hosts, between them and between sites, where the algorithm is
    /// hierarchical.
    pub stages: Option<fn(&Request) -> Stages>,
    /// Whether `auto` considers it for such a call; by name it may be asked for anywhere.
    pub is_offered: fn(&Offer) -> bool,
}

impl Entry {
    /// What most algorithms have in common. The rest is for each to say: its name and its meaning,
    /// its collectives and their source, its chunks, its rounds and their cost.
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

    /// Whether it has a radix for any of its collectives.
    #[must_use]
    pub fn has_any_radix(&self) -> bool {
        self.collectives.iter().any(|one| (self.has_radix)(*one))
    }

    /// The algorithm with each of these radixes, or by itself where it has none.
    ///
    /// ```
    /// use ringtree::plan::{Algorithm, Collective, algorithms::required};
    ///
    /// let entry = required(Collective::AllReduce, Algorithm::Binomial)?;
    /// let names: Vec<_> = entry.forms(&[2, 4]).iter().map(ToString::to_string).collect();
    /// assert_eq!(names, ["binomial", "binomial/4"]);
    /// # Ok::<(), String>(())
    /// ```
    #[must_use]
    pub fn forms(&self, radixes: &[usize]) -> Vec<Algorithm> {
        if !self.has_any_radix() {
            return vec![self.algorithm];
        }
        let form = |radix: &usize| self.algorithm.with_radix(*radix).ok();
        radixes.iter().filter_map(form).collect()
    }
}

/// What an algorithm is considered for.
#[derive(Clone, Debug)]
pub struct Offer {
    /// What is to be done.
    pub collective: Collective,
    /// How many ranks there are, and which share a host.
    pub topology: Topology,
    /// Bytes of the whole buffer.
    pub bytes: usize,
    /// Whether algorithms that fold in another order than that of the ranks are refused.
    pub in_rank_order: bool,
}

/// What one collective is made of, where ranks share hosts, or hosts sites.
#[derive(Clone, Debug)]
pub struct Stages {
    /// What the ranks of one host do with the whole buffer: one for each number of ranks, above 1,
    /// that hosts have.
    pub inside: Vec<Request>,
    /// The cost of what ranks of different hosts of a site do.
    pub between: Cost,
    /// What ranks of different sites do, where there are several.
    pub across: Option<Across>,
}

/// What ranks of different sites do in one collective.
#[derive(Clone, Copy, Debug)]
pub struct Across {
    /// Its cost at the ranks' ports.
    pub cost: Cost,
    /// Fraction of the buffer that passes a site's uplink one way, for all ranks of the site
    /// together.
    pub uplink_volume: f64,
}

impl Across {
    /// Seconds for a buffer of `bytes`: the bytes take as long as at the ports or as at an uplink,
    /// whichever is slower.
    pub(super) fn time_s(&self, bytes: usize, table: &TuningTable) -> f64 {
        let (cost, uplink) = (&self.cost, table.between_sites());
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

/// Makes the registry: for each algorithm its constant and the file that has its entry.
macro_rules! registry {
    ($($(#[$doc:meta])* $constant:ident $file:ident,)*) => {
        #[repr(u8)]
        enum Number { $($constant,)* }

        #[allow(non_upper_case_globals)]
        impl Algorithm {
            $($(#[$doc])* pub const $constant: Self = Self::numbered(Number::$constant as u8);)*

            /// Every one, in the order of the registry, where it has a radix with radix 2.
            pub const ALL: &'static [Self] = &[$(Self::$constant,)*];
        }

        /// Every algorithm. If predictions are equal, the choice takes the first in this order.
        pub const REGISTRY: &[&Entry] = &[$(&Entry {
            algorithm: Algorithm::$constant,
            ..$file::ENTRY
        },)*];
    };
}

registry! {
    /// Every contribution straight to the ranks that need it, one round.
    Flat flat,
    /// Flat reduce-scatter, then flat all-gather.
    TwoShot two_shot,
    /// Divide and conquer.
    Binomial binomial,
    /// Scatter by a binomial tree, then all-gather.
    ScatterAllgather scatter_allgather,
    /// Pairwise exchange of whole buffers at doubling distance.
    RecursiveDoubling recursive_doubling,
    /// Recursive halving, then recursive doubling of blocks.
    Rabenseifner rabenseifner,
    /// Neighbour to neighbour.
    Ring ring,
    /// Circulant graphs: round-optimal and volume-optimal for every number of ranks.
    Circulant circulant,
    /// Token exchange at doubling distance.
    Dissemination dissemination,
    /// Exchanges with the two ranks at every distance, one distance after the other.
    Pairwise pairwise,
    /// Inside the hosts first, then between them, then inside again.
    Hierarchical hierarchical,
    /// Blocks at doubling distance.
    Bruck bruck,
    /// Every contribution to every rank at doubling distance, then one fold.
    BruckFold bruck_fold,
    /// Piece after piece along one line of ranks.
    Chain chain,
    /// Half of the pieces along each of two binary trees.
    DoubleTree double_tree,
}

/// Every algorithm, with each of these radixes where it has one, with every collective that it
/// carries out so.
///
/// ```
/// use ringtree::plan::{Algorithm, Collective, algorithms::pairs};
///
/// let by_four = Algorithm::Circulant.with_radix(4)?;
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
    let forms = REGISTRY.iter().flat_map(|entry| entry.forms(radixes));
    forms.flat_map(of_form).collect()
}

/// The entry of `algorithm` if it carries out `collective`.
#[must_use]
pub fn entry(collective: Collective, algorithm: Algorithm) -> Option<&'static Entry> {
    own::entry_of(algorithm).filter(|entry| {
        let is_plain = algorithm == entry.algorithm;
        entry.collectives.contains(&collective) && (is_plain || (entry.has_radix)(collective))
    })
}

/// The entry of `algorithm`, which must carry out `collective`.
///
/// # Errors
/// A sentence: it does not.
pub fn required(collective: Collective, algorithm: Algorithm) -> Result<&'static Entry, String> {
    entry(collective, algorithm)
        .ok_or_else(|| format!("{algorithm} does not carry out {collective}"))
}

/// The plan that `request` asks for, or why there is none.
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
/// A sentence: the algorithm does not carry out the collective, a number is out of range, or the
/// ranks do not fill their hosts.
pub fn plan(request: &Request) -> Result<Plan, String> {
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
        return Err(format!(
            "rank {rank} and root {root} must be below {world_size} ranks, and pieces at least 1"
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

/// The plans of all ranks, whatever the rank of `request`.
///
/// ```
/// use ringtree::plan::algorithms::plans;
/// use ringtree::plan::{Algorithm, Collective, Hosts, Request};
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
/// Those of [`plan`].
pub fn plans(request: &Request) -> Result<Vec<Plan>, String> {
    let of_rank = |rank| {
        plan(&Request {
            rank,
            ..request.clone()
        })
    };
    (0..request.world_size).map(of_rank).collect()
}
