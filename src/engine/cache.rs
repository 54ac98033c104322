//! Choosing, building and remembering the programs of a communicator.

use super::bind::{Lengths, Placement};
use super::program::{Arithmetic, Program};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::limits::{EXPOSED_BYTES_MIN, EXPOSED_OVERWRITTEN_BYTES_MIN, PROGRAMS_CACHED_MAX};
use crate::op::ReduceOp;
use crate::plan::algorithms::{REGISTRY, guarded, prove};
use crate::plan::ir::Request;
use crate::plan::layout::Layout;
use crate::plan::select::{self, Choice, TuningTable};
use crate::plan::spec::{Algorithm, Collective};
use crate::plan::{Plan, Topology, plan};
use crate::protocol::call::{Call, Split};
use crate::reduce::Kernel;
use std::collections::HashMap;
use std::sync::Arc;

/// A call, ready to be started under any number.
#[derive(Debug)]
pub struct Prepared {
    /// The call, with the algorithm and the pieces that were chosen.
    pub call: Call,
    /// The call's digest.
    pub digest: u32,
    /// The lengths of its blocks, where the call gives those that all ranks know.
    pub counts: Option<Arc<[usize]>>,
    /// What this rank does.
    pub program: Program,
    /// How it reduces.
    pub arithmetic: Arithmetic,
    /// The seconds that the call is expected to take.
    pub predicted_s: f64,
    /// Which end of a message it is, if it is one.
    pub end: Option<MessageEnd>,
}

/// What one of two ranks does with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageEnd {
    /// It sends to this rank.
    To(usize),
    /// It receives from this rank.
    From(usize),
    /// It receives from the first rank of so many that sends.
    FromAny(usize),
}

/// What a program depends on, beside what a communicator's cache knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The call, without a number; its algorithm is set if the caller forces one.
    pub call: Call,
    /// Whether input and output are one.
    pub placement: Placement,
    /// Whether the memory lies where the ranks of the host can read it.
    pub is_exposed: bool,
}

/// The programs of one rank of a communicator.
#[derive(Debug)]
pub struct Cache {
    rank: usize,
    topology: Topology,
    tuning: TuningTable,
    /// Whether only algorithms that fold in rank order are used.
    in_rank_order: bool,
    /// The other ranks of this host that memory is shared with.
    local: Vec<usize>,
    /// Plans know blocks and no lengths. By what differs between the requests of one rank of one
    /// communicator.
    plans: HashMap<(Collective, Algorithm, usize, usize), Arc<Plan>>,
    /// Programs for even buffers, by their length among others.
    all: HashMap<Key, Arc<Prepared>>,
    /// The last one that was asked for: a loop asks for the same again and again.
    last: Option<(Key, Arc<Prepared>)>,
    /// The last program whose lengths came with the call: the next call has others.
    once: Option<Arc<Prepared>>,
}

impl Cache {
    /// A cache for `rank`, which shares memory with the ranks `local`.
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
            once: None,
        }
    }

    /// The same with algorithms alone that fold in rank order.
    #[must_use]
    pub fn in_rank_order(mut self, wanted: bool) -> Self {
        self.in_rank_order = wanted;
        self
    }

    /// The program of the call on an even buffer, as [`Cache::laid`].
    ///
    /// # Errors
    /// As [`Cache::laid`].
    pub fn get(&mut self, key: Key) -> Result<&Arc<Prepared>> {
        self.laid(key, Lengths::from(key.call.count))
    }

    /// The program of the call on blocks of such `lengths`, made if need be. One by counts is
    /// bound anew for each call, from a plan that is kept.
    ///
    /// # Errors
    /// [`Error::usage`] if no algorithm carries out the call, or no memory holds so much.
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
                    prepared
                }
            };
            self.last = Some((key, prepared));
        }
        let last = self.last.as_ref().map(|(_, prepared)| prepared);
        Ok(last.expect("invariant: the last one was just set"))
    }

    /// What carries out a collective, and what it was chosen over.
    ///
    /// # Errors
    /// A usage error: no such collective of so many elements, or the algorithm that the call names
    /// does not carry it out.
    pub fn choice(&self, call: Call) -> Result<Choice> {
        let Some(collective) = call.collective() else {
            return Err(Error::usage("a message is prepared by `message`"));
        };
        let bytes = bytes_of(call.count, call.dtype)?;
        let is_even = call.split == Split::Even;
        if is_even && collective.whole_count(call.count, self.topology.world_size) != call.count {
            return Err(Error::usage(format!(
                "{} ranks do not divide {} elements into equal blocks; pad them, or use \
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

    /// What every rank does in place in a call of which the algorithm has been chosen, if all of
    /// them read what one of them writes.
    ///
    /// # Errors
    /// [`Error::usage`] if the algorithm does not carry out the call.
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

    /// What this rank does, made if need be.
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
        // What a program's own algorithm makes of the request is trusted once it is proven.
        if algorithm.is_own() {
            prove(request).map_err(Error::usage)?;
        }
        let plan = Arc::new(plan(request).map_err(Error::usage)?);
        self.plans.insert(key, Arc::clone(&plan));
        Ok(plan)
    }

    /// What the plan of `rank` depends on in a collective of which the algorithm has been chosen.
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
    /// What `rank` does with a message of `count` elements.
    ///
    /// # Errors
    /// [`Error::usage`] if no memory holds so much.
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
            // Another rank stands for the sender until the sender is known.
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
        })
    }

    /// The same receive, from `peer`.
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
        }
    }
}

/// The algorithm for blocks of which two ranks alone know the lengths: the one asked for, if every
/// block goes straight to its receiver by it, else the first of that kind.
fn direct(collective: Collective, asked: Option<Algorithm>) -> Option<Algorithm> {
    let entries = REGISTRY.iter().filter(|entry| entry.is_direct);
    let direct = entries.filter(|entry| entry.collectives.contains(&collective));
    let mut direct = direct.map(|entry| entry.algorithm);
    let first = direct.clone().next();
    direct.find(|one| Some(*one) == asked).or(first)
}

/// The bytes of `count` elements.
///
/// # Errors
/// [`Error::usage`] if no memory holds so much.
pub(crate) fn bytes_of(count: usize, dtype: Dtype) -> Result<usize> {
    count
        .checked_mul(dtype.size())
        .filter(|bytes| isize::try_from(*bytes).is_ok())
        .ok_or_else(|| Error::usage(format!("no memory holds {count} elements of {dtype}")))
}

fn kernel(dtype: Dtype, op: ReduceOp) -> Result<Kernel> {
    Kernel::new(dtype, op).ok_or_else(|| {
        Error::usage(format!(
            "{op} is not defined for {dtype}; bit operators are for integers, factors for floats"
        ))
    })
}
