//! Algorithms of a program's own, beside those of the registry.

use super::{Entry, REGISTRY, plans};
use crate::ir::Request;
use crate::limits::{OWN_ALGORITHM_PROVEN_RANKS, VERIFY_RANKS_MAX};
use crate::spec::Algorithm;
use crate::topology::Hosts;
use crate::verify::verify;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{PoisonError, RwLock};

/// In the order in which they were registered; their numbers go on where the registry's end.
static OWN: RwLock<Vec<&'static Entry>> = RwLock::new(Vec::new());

/// The entry of an algorithm, if this process knows it.
pub(crate) fn entry_of(algorithm: Algorithm) -> Option<&'static Entry> {
    let number = algorithm.number();
    REGISTRY.get(number).copied().or_else(|| {
        let own = OWN.read().unwrap_or_else(PoisonError::into_inner);
        own.get(number - REGISTRY.len()).copied()
    })
}

/// The algorithm of this name, if this process knows it.
pub(crate) fn named(name: &str) -> Option<Algorithm> {
    let own = OWN.read().unwrap_or_else(PoisonError::into_inner);
    let mut all = REGISTRY.iter().chain(own.iter());
    all.find(|entry| entry.name == name)
        .map(|entry| entry.algorithm)
}

impl Algorithm {
    /// Makes an algorithm of the program's own known to this process, under the name of its entry:
    /// `Communicator::use_algorithm` takes it then. `auto`
    /// never chooses it. All ranks register the same ones in the same order. A name that was
    /// registered before keeps its first entry.
    ///
    /// The plans are proven here for up to eight ranks, and again for every call that is new. The
    /// entry's functions must not call a communicator: they run within a call.
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// use ringtree::plan::algorithms::Entry;
    /// use ringtree::plan::{Algorithm, ChunkRange, Collective, Request, Round, Step};
    ///
    /// /// Everybody hands the sum on to the next, and the last one hands it back.
    /// fn build(request: &Request) -> Vec<Round> {
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
    /// A sentence: the library has an algorithm of that name, or the plans are wrong, and where, or
    /// there are too many algorithms.
    pub fn register(entry: Entry) -> Result<Self, String> {
        let mut own = OWN.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = own.iter().find(|known| known.name == entry.name) {
            return Ok(known.algorithm);
        }
        if REGISTRY.iter().any(|known| known.name == entry.name) {
            return Err(format!("the library has an algorithm {}", entry.name));
        }
        let number = u8::try_from(REGISTRY.len() + own.len());
        let number = number.map_err(|_| "256 algorithms are the most".to_owned())?;
        let entry: &'static Entry = Box::leak(Box::new(Entry {
            algorithm: Self::numbered(number),
            ..entry
        }));
        let place = own.len();
        own.push(entry);
        drop(own);
        let proven = entry.collectives.iter().try_for_each(|&collective| {
            (1..=OWN_ALGORITHM_PROVEN_RANKS).try_for_each(|world_size| {
                prove(&Request {
                    collective,
                    algorithm: entry.algorithm,
                    world_size,
                    rank: 0,
                    root: if collective.is_rooted() {
                        world_size - 1
                    } else {
                        0
                    },
                    pieces: 2,
                    hosts: Hosts::APART,
                })
            })
        });
        if proven.is_err() {
            let mut own = OWN.write().unwrap_or_else(PoisonError::into_inner);
            own[place] = &Entry::PLAIN;
        }
        proven.map(|()| entry.algorithm)
    }

    /// Whether it is a program's own.
    #[must_use]
    pub fn is_own(self) -> bool {
        self.number() >= REGISTRY.len()
    }
}

/// Calls `act`, which calls functions of this algorithm.
///
/// # Errors
/// A sentence, if the algorithm is a program's own and one of its functions panicked.
#[doc(hidden)]
pub fn guarded<R>(algorithm: Option<Algorithm>, act: impl FnOnce() -> R) -> Result<R, String> {
    match algorithm.filter(|one| one.is_own()) {
        None => Ok(act()),
        Some(own) => catch_unwind(AssertUnwindSafe(act))
            .map_err(|_| format!("a function of the algorithm {own} panicked, as told above")),
    }
}

/// Proves the plans of a request for all ranks.
///
/// # Errors
/// A sentence: there is no such plan, or what is wrong with it, and where, or there are more ranks
/// than [`VERIFY_RANKS_MAX`].
pub fn prove(request: &Request) -> Result<(), String> {
    if request.world_size > VERIFY_RANKS_MAX {
        return Err(format!(
            "plans are proven for up to {VERIFY_RANKS_MAX} ranks, not for {}",
            request.world_size
        ));
    }
    let plans = guarded(Some(request.algorithm), || plans(request))??;
    let why = match verify(&plans) {
        Ok(proof) if proof.bits_agree => return Ok(()),
        Ok(_) => "not all ranks would end with the same bits".to_owned(),
        Err(fault) => fault.to_string(),
    };
    let Request {
        collective,
        algorithm,
        world_size,
        ..
    } = request;
    Err(format!(
        "{collective} by {algorithm} over {world_size} ranks is not proven: {why}"
    ))
}
