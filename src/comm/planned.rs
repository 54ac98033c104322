//! Choosing, building and remembering programs.

use crate::dtype::Dtype;
use crate::engine::posting::Arithmetic;
use crate::engine::posting::{Posting, Prepared, Progress};
use crate::engine::program::Program;
use crate::error::{Error, Result};
use crate::limits::{LENT_BYTES_MIN, LENT_OVERWRITTEN_BYTES_MIN, PROGRAMS_CACHED_MAX};
use crate::op::ReduceOp;
use crate::plan::ir::{ChunkRange, Request, Step};
use crate::plan::select::{self, TuningTable};
use crate::plan::spec::{Algorithm, Collective};
use crate::plan::{Plan, Topology, plan};
use crate::protocol::call::{Call, PAIR};
use crate::reduce::Kernel;
use crate::sys::memory::Region;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// What a program depends on, beside the communicator's own rank, topology and tuning table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Wanted {
    pub(crate) collective: Collective,
    pub(crate) count: usize,
    pub(crate) dtype: Dtype,
    pub(crate) op: Option<ReduceOp>,
    pub(crate) root: usize,
    /// The algorithm and the pieces, where the caller chooses.
    pub(crate) forced: Option<Algorithm>,
    /// Whether the buffer lies where peers can read it.
    pub(crate) lends: bool,
}

/// A call, ready to be posted but for its sequence number.
#[derive(Clone)]
pub(crate) struct Planned {
    pub(crate) prepared: Arc<Prepared>,
    pub(crate) algorithm: Algorithm,
    /// What the chooser expects it to take.
    pub(crate) predicted_s: f64,
}

impl Planned {
    /// The call under number `sequence`, on `buffer`.
    pub(crate) fn posting(self, sequence: u64, buffer: Region, timeout: Duration) -> Posting {
        Posting {
            prepared: self.prepared,
            sequence,
            buffer,
            progress: Progress::default(),
            timeout,
            gate: None,
        }
    }

    /// The call under number `sequence`, on bytes that become the operation's own.
    pub(crate) fn owning(self, sequence: u64, data: Vec<u8>, timeout: Duration) -> Posting {
        self.posting(sequence, Region::own(data), timeout)
    }
}

/// The programs of a communicator.
#[derive(Default)]
pub(crate) struct Cache {
    all: HashMap<Wanted, Planned>,
    /// The one asked for last: a loop asks for the same again and again.
    last: Option<(Wanted, Planned)>,
}

impl Cache {
    /// The planned form of `wanted`, made if need be.
    pub(crate) fn get(
        &mut self,
        wanted: Wanted,
        rank: usize,
        topology: Topology,
        tuning: &TuningTable,
    ) -> Result<&Planned> {
        let is_last = self.last.as_ref().is_some_and(|(last, _)| *last == wanted);
        if !is_last {
            let planned = match self.all.get(&wanted) {
                Some(planned) => planned.clone(),
                None => {
                    if self.all.len() >= PROGRAMS_CACHED_MAX {
                        self.all.clear();
                    }
                    let planned = make(wanted, rank, topology, tuning)?;
                    self.all.insert(wanted, planned.clone());
                    planned
                }
            };
            self.last = Some((wanted, planned));
        }
        let last = self.last.as_ref().map(|(_, planned)| planned);
        last.ok_or_else(|| Error::Usage("no program was made".into()))
    }
}

/// The planned form of `wanted`, made anew.
pub(crate) fn make(
    wanted: Wanted,
    rank: usize,
    topology: Topology,
    tuning: &TuningTable,
) -> Result<Planned> {
    let Wanted {
        collective,
        count,
        dtype,
        op,
        root,
        ..
    } = wanted;
    let bytes = count
        .checked_mul(dtype.size())
        .filter(|bytes| isize::try_from(*bytes).is_ok())
        .ok_or_else(|| Error::Usage(format!("no memory holds {count} elements of {dtype}")))?;
    let (algorithm, pieces, predicted_s) = choose(&wanted, bytes, topology, tuning)?;
    let Topology {
        world_size,
        ranks_per_host,
    } = topology;
    let request = Request {
        collective,
        algorithm,
        world_size,
        rank,
        root,
        pieces,
        ranks_per_host,
    };
    let plan = plan(&request).map_err(Error::Usage)?;
    let call = Call {
        sequence: 0,
        collective: collective.name().into(),
        algorithm: algorithm.name().into(),
        pieces: narrow(pieces),
        count: count as u64,
        dtype,
        op: op.filter(|_| collective != Collective::Barrier),
        root: collective.is_rooted().then(|| narrow(root)),
    };
    let kernel = op.map(|op| kernel(dtype, op)).transpose()?;
    let divisor = (op == Some(ReduceOp::Avg)).then_some(world_size);
    let prepared = Prepared {
        digest: call.digest(),
        call,
        program: Arc::new(program(&plan, &wanted)),
        arithmetic: Arithmetic {
            kernel,
            element_bytes: dtype.size(),
            divisor,
        },
    };
    Ok(Planned {
        prepared: Arc::new(prepared),
        algorithm,
        predicted_s,
    })
}

/// The algorithm, the pieces, and the seconds it is expected to take.
fn choose(
    wanted: &Wanted,
    bytes: usize,
    topology: Topology,
    tuning: &TuningTable,
) -> Result<(Algorithm, usize, f64)> {
    let Wanted {
        collective,
        dtype,
        forced,
        ..
    } = *wanted;
    let choice = select::choose(collective, topology, bytes, dtype.size(), tuning, forced);
    let choice = choice.map_err(Error::Usage)?;
    Ok((choice.algorithm, choice.pieces, choice.predicted_s))
}

fn program(plan: &Plan, wanted: &Wanted) -> Program {
    let program = Program::bind(plan, wanted.count, wanted.dtype.size());
    if wanted.lends {
        let bytes = wanted.count * wanted.dtype.size();
        program.lending(LENT_BYTES_MIN, bytes >= LENT_OVERWRITTEN_BYTES_MIN)
    } else {
        program
    }
}

fn kernel(dtype: Dtype, op: ReduceOp) -> Result<Kernel> {
    Kernel::new(dtype, op).ok_or_else(|| {
        Error::Usage(format!(
            "{op} is not defined for {dtype}; bit operators are for integers"
        ))
    })
}

/// A message of `count` elements between this rank and `peer`, `sends` telling which way.
pub(crate) fn pair(
    sends: bool,
    rank: usize,
    peer: usize,
    world_size: usize,
    count: usize,
    dtype: Dtype,
) -> Planned {
    let (from, to) = if sends { (rank, peer) } else { (peer, rank) };
    let ranges = vec![ChunkRange::new(0, 1)];
    let step = if sends {
        Step::send(peer, ranges)
    } else {
        Step::store(peer, ranges)
    };
    let request = Request {
        // One chunk from one rank to another: the layout of a broadcast.
        collective: Collective::Broadcast,
        algorithm: Algorithm::Flat,
        world_size,
        rank,
        root: from,
        pieces: 1,
        ranks_per_host: 1,
    };
    let plan = Plan {
        request,
        chunks: 1,
        scratch: 0,
        rounds: vec![vec![step]],
    };
    let call = Call {
        sequence: 0,
        collective: PAIR.into(),
        algorithm: "flat".into(),
        pieces: 1,
        count: count as u64,
        dtype,
        op: None,
        root: Some(narrow(to)),
    };
    let prepared = Prepared {
        digest: call.digest(),
        call,
        program: Arc::new(Program::bind(&plan, count, dtype.size())),
        arithmetic: Arithmetic {
            kernel: None,
            element_bytes: dtype.size(),
            divisor: None,
        },
    };
    Planned {
        prepared: Arc::new(prepared),
        algorithm: Algorithm::Flat,
        predicted_s: 0.0,
    }
}

/// Ranks and pieces are far below 2^32 (`limits::WORLD_SIZE_MAX`).
fn narrow(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
