//! Custom algorithms that a program adds to those in the registry.

use super::{Entry, REGISTRY, plans};
use crate::error::PlanError;
use crate::ir::Request;
use crate::limits::{OWN_ALGORITHM_PROVEN_RANKS, VERIFY_RANKS_MAX};
use crate::spec::Algorithm;
use crate::topology::Topology;
use crate::verify::verify;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{PoisonError, RwLock};

/// Entries of custom algorithms, in the order of registration. Their indexes follow those of the
/// registry.
static OWN: RwLock<Vec<&'static Entry>> = RwLock::new(Vec::new());

/// Returns the entry of an algorithm, or `None` if this process does not know the algorithm.
pub(crate) fn entry_of(algorithm: Algorithm) -> Option<&'static Entry> {
    let number = algorithm.number();
    REGISTRY.get(number).copied().or_else(|| {
        let own = OWN.read().unwrap_or_else(PoisonError::into_inner);
        own.get(number - REGISTRY.len()).copied()
    })
}

/// Returns the algorithm with this name, or `None` if this process does not know it.
pub(crate) fn named(name: &str) -> Option<Algorithm> {
    let own = OWN.read().unwrap_or_else(PoisonError::into_inner);
    let mut all = REGISTRY.iter().chain(own.iter());
    all.find(|entry| entry.name == name)
        .map(|entry| entry.algorithm)
}

impl Algorithm {
    /// Registers a custom algorithm in this process under the name given in its entry, so that
    /// `Communicator::use_algorithm` accepts it.
    ///
    /// `auto` never chooses a custom algorithm. All ranks must register the same algorithms in the
    /// same order. If a custom algorithm with the same name has already been registered, the
    /// existing entry is kept.
    ///
    /// This function verifies the algorithm's plans for up to eight ranks. In addition, the plans
    /// for every new call are verified. The functions in the entry must not use a communicator
    /// because they run within a call.
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// use ringtree::plan::Entry;
    /// use ringtree::plan::{Algorithm, ChunkRange, Collective, Request, Step};
    ///
    /// /// Each rank passes the sum to the next rank, and the last rank passes it back.
    /// fn build(request: &Request) -> Vec<Vec<Step>> {
    ///     let (n, rank) = (request.world_size, request.rank);
    ///     let all = || vec![ChunkRange::new(0, request.pieces)];
    ///     let round = |edge: usize| match (edge < n - 1, edge % (n - 1)) {
    ///         (true, from) if rank == from => vec![Step::send(from + 1, all())],
    ///         (true, from) if rank == from + 1 => vec![Step::reduce(from, all(), rank == n - 1)],
    ///         (false, back) if rank == n - 1 - back => vec![Step::send(rank - 1, all())],
    ///         (false, back) if rank + 2 + back == n => vec![Step::store(rank + 1, all())],
    ///         _ => vec![],
    ///     };
    ///     (0..2 * (n - 1)).map(round).collect()
    /// }
    ///
    /// let there_and_back = Algorithm::register(Entry {
    ///     name: "there-and-back",
    ///     collectives: &[Collective::AllReduce],
    ///     build,
    ///     ..Entry::PLAIN
    /// })?;
    /// let sums = ringtree::simulate(5, |comm| {
    ///     comm.use_algorithm(Some(there_and_back))?;
    ///     let mut number = [comm.rank() as f32];
    ///     comm.all_reduce(&mut number, ReduceOp::Sum)?;
    ///     Ok::<_, ringtree::Error>(number[0])
    /// });
    /// assert!(sums.into_iter().all(|sum| sum.unwrap() == 10.0));
    /// # Ok::<(), String>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the library has a built-in algorithm with that name, if the
    /// plans are wrong (the message then contains the location of the fault), or if too many
    /// algorithms have been registered.
    pub fn register(entry: Entry) -> Result<Self, PlanError> {
        let mut own = OWN.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = own.iter().find(|known| known.name == entry.name) {
            return Ok(known.algorithm);
        }
        if REGISTRY.iter().any(|known| known.name == entry.name) {
            return Err(refused!(
                Invalid,
                "the library already has an algorithm named {}; use a different name",
                entry.name
            ));
        }
        let number = u8::try_from(REGISTRY.len() + own.len());
        let number =
            number.map_err(|_| refused!(TooLarge, "cannot register more than 256 algorithms"))?;
        let entry: &'static Entry = Box::leak(Box::new(Entry {
            algorithm: Self::numbered(number),
            ..entry
        }));
        let place = own.len();
        own.push(entry);
        drop(own);
        let proven = entry.collectives.iter().try_for_each(|&collective| {
            (1..=OWN_ALGORITHM_PROVEN_RANKS).try_for_each(|world_size| {
                let ranks = Topology::apart(world_size);
                prove(&Request {
                    root: if collective.is_rooted() {
                        world_size - 1
                    } else {
                        0
                    },
                    pieces: 2,
                    ..Request::new(collective, entry.algorithm, &ranks)
                })
            })
        });
        if proven.is_err() {
            let mut own = OWN.write().unwrap_or_else(PoisonError::into_inner);
            own[place] = &Entry::PLAIN;
        }
        proven.map(|()| entry.algorithm)
    }
}

/// Returns whether `algorithm` is a custom algorithm.
#[must_use]
pub fn is_own(algorithm: Algorithm) -> bool {
    algorithm.number() >= REGISTRY.len()
}

/// Calls `act`, which in turn calls functions in the entry of `algorithm`. Converts a panic in a
/// custom algorithm to an error.
///
/// # Errors
/// Returns an error if the algorithm is custom and one of its functions panicked.
#[doc(hidden)]
pub fn guarded<R>(algorithm: Option<Algorithm>, act: impl FnOnce() -> R) -> Result<R, PlanError> {
    match algorithm.filter(|one| is_own(*one)) {
        None => Ok(act()),
        Some(own) => catch_unwind(AssertUnwindSafe(act)).map_err(|_| {
            refused!(
                Faulty,
                "a function of algorithm {own} panicked; see standard error"
            )
        }),
    }
}

/// Verifies the plans of all ranks for a request, and checks that all ranks end up with the same
/// bits.
///
/// # Errors
/// Returns an error if there is no plan for `request`, if the plans are wrong (the message
/// then contains the location of the fault), or if there are more than [`VERIFY_RANKS_MAX`] ranks.
pub fn prove(request: &Request) -> Result<(), PlanError> {
    if request.world_size > VERIFY_RANKS_MAX {
        return Err(refused!(
            TooLarge,
            "cannot verify plans for {} ranks: the limit is {VERIFY_RANKS_MAX}",
            request.world_size
        ));
    }
    let plans = guarded(Some(request.algorithm), || plans(request))??;
    let why = match verify(&plans) {
        Ok(proof) if proof.bits_agree => return Ok(()),
        Ok(_) => "ranks would end up with different bits".to_owned(),
        Err(fault) => fault.to_string(),
    };
    let Request {
        collective,
        algorithm,
        world_size,
        ..
    } = request;
    Err(refused!(
        Faulty,
        "{collective} by {algorithm} over {world_size} ranks fails verification: {why}"
    ))
}
