//! Chooses, builds and caches a communicator's programs.

use super::bind::{Lengths, Placement};
use super::program::{Arithmetic, Program};
use super::stats::{Class, Transport};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::event::{AlgorithmChosen, Event, EventQueue};
use crate::limits::{EXPOSED_BYTES_MIN, EXPOSED_OVERWRITTEN_BYTES_MIN, PROGRAMS_CACHED_MAX};
use crate::op::ReduceOp;
use crate::plan::internal::algorithms::{REGISTRY, guarded, is_own, prove};
use crate::plan::internal::select::{self, Choice, TuningTable};
use crate::plan::internal::spec::whole_count;
use crate::plan::{Algorithm, Collective, Layout, Plan, Request, Topology, plan};
use crate::protocol::call::{Call, Split};
use crate::reduce::Kernel;
use std::collections::HashMap;
use std::sync::Arc;

/// A call that is ready to start under any sequence number.
#[derive(Debug)]
pub struct Prepared {
    /// The call, including the chosen algorithm and number of pieces.
    pub call: Call,
    /// Digest of the call.
    pub digest: u32,
    /// Lengths of the blocks, if the caller passed them and all ranks know them.
    pub counts: Option<Arc<[usize]>>,
    /// The program that this rank runs.
    pub program: Program,
    /// The arithmetic that the program performs.
    pub arithmetic: Arithmetic,
    /// Predicted time of the call in seconds.
    pub predicted_s: f64,
    /// This rank's end of the message; `None` for a collective.
    pub end: Option<MessageEnd>,
    /// The links over which this rank exchanges the call's messages.
    pub transport: Transport,
}

/// One rank's end of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageEnd {
    /// A send to this rank.
    To(usize),
    /// A receive from this rank.
    From(usize),
    /// A receive from any rank, in a group of this size.
    FromAny(usize),
}

/// Everything that determines a program, except for properties that are the same for all programs
/// in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The call, without a sequence number. Its algorithm is set only if the caller forces one.
    pub call: Call,
    /// Placement of the input and the output.
    pub placement: Placement,
    /// `true` if the ranks on the host can read the memory.
    pub is_exposed: bool,
}

/// The programs that one rank of a communicator runs.
#[derive(Debug)]
pub struct Cache {
    rank: usize,
    topology: Topology,
    tuning: TuningTable,
    /// `true` if the cache may choose only algorithms that reduce in rank order.
    in_rank_order: bool,
    /// The other ranks on this host that share memory, in ascending order.
    local: Vec<usize>,
    /// Plans for this rank. A plan does not depend on lengths, so the key consists of the parts of
    /// a request that vary: collective, algorithm, root and pieces.
    plans: HashMap<(Collective, Algorithm, usize, usize), Arc<Plan>>,
    /// Programs for all calls except those with counts.
    all: HashMap<Key, Arc<Prepared>>,
    /// The program that was returned last, because a loop requests the same program repeatedly.
    last: Option<(Key, Arc<Prepared>)>,
    /// The queue for the cache's events, and the world rank.
    events: Option<(EventQueue, usize)>,
    /// The last program for a call with counts. It is never reused, because the counts differ from
    /// call to call.
    once: Option<Arc<Prepared>>,
}

impl Cache {
    /// Creates the cache for `rank`, which shares memory with the ranks in `local`. These must be
    /// in ascending order.
    #[must_use]
    pub fn new(rank: usize, topology: Topology, tuning: TuningTable, local: Vec<usize>) -> Self {
        Self {
            rank,
            topology,
            tuning,
            in_rank_order: false,
            local,
            plans: HashMap::new(),
            all: HashMap::new(),
            last: None,
            events: None,
            once: None,
        }
    }

    /// Reports each new choice of an algorithm to `events`, as a choice of world rank `rank`.
    #[must_use]
    pub(crate) fn reporting_to(mut self, events: Option<EventQueue>, rank: usize) -> Self {
        self.events = events.map(|events| (events, rank));
        self
    }

    fn push_chosen(&self, prepared: &Prepared) {
        let call = &prepared.call;
        if let Some(((events, rank), algorithm)) = self.events.as_ref().zip(call.algorithm) {
            events.push(Event::AlgorithmChosen(Box::new(AlgorithmChosen {
                rank: *rank,
                collective: call.kind.name(),
                count: call.count,
                dtype: call.dtype.to_string(),
                algorithm: algorithm.to_string(),
                pieces: call.pieces,
                predicted_us: prepared.predicted_s * 1e6,
            })));
        }
    }

    /// Restricts the cache to algorithms that reduce in rank order, if `wanted`.
    #[must_use]
    pub fn in_rank_order(mut self, wanted: bool) -> Self {
        self.in_rank_order = wanted;
        self
    }

    /// Returns the program for the call on an evenly divided buffer. See [`Cache::laid`].
    ///
    /// # Errors
    /// Returns the same errors as [`Cache::laid`].
    pub fn get(&mut self, key: Key) -> Result<&Arc<Prepared>> {
        self.laid(key, Lengths::from(key.call.count))
    }

    /// Returns the program for the call on blocks of these `lengths`. Builds the program if it is
    /// not cached. For a call with counts, always binds a new program from a plan that may be
    /// cached.
    ///
    /// # Errors
    /// Returns the same errors as [`Cache::choice`]. Also returns `ErrorKind::Usage` if a custom
    /// algorithm fails verification, or if the operator is not defined for the type.
    #[inline]
    pub fn laid(&mut self, key: Key, lengths: Lengths) -> Result<&Arc<Prepared>> {
        if let Split::Counts(_) = key.call.split {
            let prepared = Arc::new(self.make(key, lengths)?);
            return Ok(self.once.insert(prepared));
        }
        let is_last = self.last.as_ref().is_some_and(|(last, _)| *last == key);
        if !is_last {
            let prepared = match self.all.get(&key) {
                Some(prepared) => Arc::clone(prepared),
                None => {
                    if self.all.len() >= PROGRAMS_CACHED_MAX {
                        self.all.clear();
                    }
                    let prepared = Arc::new(self.make(key, lengths)?);
                    self.all.insert(key, Arc::clone(&prepared));
                    self.push_chosen(&prepared);
                    prepared
                }
            };
            self.last = Some((key, prepared));
        }
        let last = self.last.as_ref().map(|(_, prepared)| prepared);
        Ok(last.expect("invariant: the last one was just set"))
    }

    /// Chooses the algorithm of a collective.
    ///
    /// # Errors
    /// Returns `ErrorKind::Usage` if the call is a message, if the collective does not accept its
    /// count, if the elements do not fit in memory, or if the call specifies an algorithm that does
    /// not support it.
    pub fn choice(&self, call: Call) -> Result<Choice> {
        let Some(collective) = call.collective() else {
            return Err(Error::usage("cannot choose an algorithm for a message"));
        };
        let bytes = bytes_of(call.count, call.dtype)?;
        let is_even = call.split == Split::Even;
        if is_even && whole_count(collective, call.count, self.topology.world_size) != call.count {
            return Err(Error::usage(format!(
                "cannot split {1} elements into {0} equal blocks; pad the buffer, or use \
                 all_to_all_into with counts",
                self.topology.world_size, call.count
            )));
        }
        let algorithm = match call.is_counted_by_pairs() {
            true => direct(collective, call.algorithm),
            false => call.algorithm,
        };
        let choose = match self.in_rank_order {
            true => select::choose_in_rank_order,
            false => select::choose,
        };
        let element_bytes = call.dtype.size();
        let choice = guarded(algorithm, || {
            let (topology, tuning) = (&self.topology, &self.tuning);
            choose(
                collective,
                topology,
                bytes,
                element_bytes,
                tuning,
                algorithm,
            )
        });
        choice.flatten().map_err(Error::usage)
    }

    fn make(&mut self, key: Key, lengths: Lengths) -> Result<Prepared> {
        let Key {
            call,
            placement,
            is_exposed,
        } = key;
        let choice = self.choice(call)?;
        let bytes = choice.bytes;
        let call = Call {
            algorithm: Some(choice.algorithm),
            pieces: choice.pieces,
            ..call
        };
        let request = self.request(&call, self.rank)?;
        let plan = self.planned(&request)?;
        let kernel = call.op.map(|op| kernel(call.dtype, op)).transpose()?;
        let is_local = |peer| self.local.binary_search(&peer).is_ok();
        let element_bytes = call.dtype.size();
        let mut program = Program::bind(&plan, lengths, element_bytes, placement, &is_local);
        if is_exposed {
            let overwritten_too = bytes >= EXPOSED_OVERWRITTEN_BYTES_MIN;
            program = program.exposing(EXPOSED_BYTES_MIN, overwritten_too);
        }
        let counts = match lengths.output {
            Layout::Counts(counts) if !call.is_counted_by_pairs() => Some(Arc::from(counts)),
            _ => None,
        };
        Ok(Prepared {
            transport: Transport::to(program.peers(), is_local),
            digest: call.digest(),
            call,
            counts,
            program,
            arithmetic: Arithmetic {
                kernel,
                element_bytes,
                divisor: (call.op == Some(ReduceOp::Avg)).then_some(self.topology.world_size),
            },
            predicted_s: choice.predicted_s,
            end: None,
        })
    }

    /// Returns the programs of all ranks for an in-place call whose algorithm has been chosen. All
    /// ranks count as local, because each can read the memory that the others write.
    ///
    /// # Errors
    /// Returns `ErrorKind::Usage` if the algorithm does not support the call.
    pub fn of_all_ranks(&self, call: &Call) -> Result<Vec<Program>> {
        let program = |rank| {
            let (count, element_bytes) = (call.count, call.dtype.size());
            let plan = plan(&self.request(call, rank)?).map_err(Error::usage)?;
            let is_local = |peer| peer != rank;
            Ok(Program::bind(
                &plan,
                count,
                element_bytes,
                Placement::InPlace,
                &is_local,
            ))
        };
        (0..self.topology.world_size).map(program).collect()
    }

    /// Returns this rank's plan. Builds the plan if it is not cached.
    fn planned(&mut self, request: &Request) -> Result<Arc<Plan>> {
        let Request {
            collective,
            algorithm,
            root,
            pieces,
            ..
        } = *request;
        let key = (collective, algorithm, root, pieces);
        if let Some(plan) = self.plans.get(&key) {
            return Ok(Arc::clone(plan));
        }
        if self.plans.len() >= PROGRAMS_CACHED_MAX {
            self.plans.clear();
        }
        // Use the plans of a custom algorithm only after verification.
        if is_own(algorithm) {
            prove(request).map_err(Error::usage)?;
        }
        let plan = Arc::new(plan(request).map_err(Error::usage)?);
        self.plans.insert(key, Arc::clone(&plan));
        Ok(plan)
    }

    /// Returns the request that determines the plan of `rank` for a collective whose algorithm has
    /// been chosen.
    fn request(&self, call: &Call, rank: usize) -> Result<Request> {
        let chosen = call.collective().zip(call.algorithm);
        let Some((collective, algorithm)) = chosen else {
            return Err(Error::usage("no algorithm was chosen"));
        };
        Ok(Request {
            collective,
            algorithm,
            world_size: self.topology.world_size,
            rank,
            root: call.root,
            pieces: call.pieces,
            hosts: self.topology.hosts.clone(),
        })
    }
}

impl Prepared {
    /// Prepares `rank`'s end of a message of `count` elements.
    ///
    /// # Errors
    /// Returns `ErrorKind::Usage` if the message does not fit in memory.
    pub fn message(
        rank: usize,
        end: MessageEnd,
        (count, dtype): (usize, Dtype),
        tag: u32,
    ) -> Result<Self> {
        let bytes = bytes_of(count, dtype)?;
        let (peer, to) = match end {
            MessageEnd::To(peer) => (peer, peer),
            MessageEnd::From(peer) => (peer, rank),
            // This peer is a placeholder until the sender is known.
            MessageEnd::FromAny(_) => (usize::from(rank == 0), rank),
        };
        let call = Call::message(count, dtype, to).tagged(tag);
        Ok(Self {
            digest: call.digest(),
            call,
            counts: None,
            program: Program::message(peer, matches!(end, MessageEnd::To(_)), bytes),
            arithmetic: Arithmetic {
                kernel: None,
                element_bytes: dtype.size(),
                divisor: None,
            },
            predicted_s: 0.0,
            end: Some(end),
            transport: Transport::Tcp,
        })
    }

    /// Returns the class in which the call is counted.
    #[inline]
    pub(super) fn class(&self) -> Option<Class> {
        let sends = matches!(self.end, Some(MessageEnd::To(_)));
        Class::new(self.call.kind, sends, self.transport)
    }

    /// Sets the transport under which the message is counted.
    #[must_use]
    pub(crate) fn over(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// Returns a copy of this receive in which `peer` is the sender.
    #[must_use]
    pub fn received_from(&self, peer: usize) -> Self {
        let bytes = self.program.longest_bytes.unwrap_or(0);
        Self {
            program: Program::message(peer, false, bytes),
            end: Some(MessageEnd::From(peer)),
            call: self.call,
            digest: self.digest,
            counts: None,
            arithmetic: self.arithmetic,
            predicted_s: self.predicted_s,
            transport: self.transport,
        }
    }
}

/// Returns the algorithm to use if only the sender and the receiver of a block know its length. The
/// algorithm must send every block directly to its receiver. Returns `asked` if it does so,
/// otherwise the first algorithm in the registry that does.
fn direct(collective: Collective, asked: Option<Algorithm>) -> Option<Algorithm> {
    let entries = REGISTRY.iter().filter(|entry| entry.is_direct);
    let direct = entries.filter(|entry| entry.collectives.contains(&collective));
    let mut direct = direct.map(|entry| entry.algorithm);
    let first = direct.clone().next();
    direct.find(|one| Some(*one) == asked).or(first)
}

/// Returns the number of bytes that `count` elements occupy.
///
/// # Errors
/// Returns `ErrorKind::Usage` if the elements do not fit in memory.
pub(crate) fn bytes_of(count: usize, dtype: Dtype) -> Result<usize> {
    count
        .checked_mul(dtype.size())
        .filter(|bytes| isize::try_from(*bytes).is_ok())
        .ok_or_else(|| Error::usage(format!("{count} elements of {dtype} cannot fit in memory")))
}

fn kernel(dtype: Dtype, op: ReduceOp) -> Result<Kernel> {
    Kernel::new(dtype, op).ok_or_else(|| {
        Error::usage(format!(
            "{op} is not defined for {dtype}; use bitwise operators only with integers, and \
             factors only with floats"
        ))
    })
}
