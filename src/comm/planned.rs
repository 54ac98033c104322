//! Choosing, building and remembering programs.

use crate::dtype::Dtype;
use crate::engine::group::Posting;
use crate::engine::operation::Arithmetic;
use crate::engine::program::Program;
use crate::error::{Error, Result};
use crate::limits::PROGRAMS_CACHED_MAX;
use crate::op::ReduceOp;
use crate::plan::ir::{ChunkRange, Request, Step};
use crate::plan::select::{self, Choice, TuningTable};
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
}

/// A call, ready to be posted but for its sequence number.
#[derive(Clone)]
pub(crate) struct Planned {
    pub(crate) call: Call,
    pub(crate) digest: u32,
    pub(crate) program: Arc<Program>,
    pub(crate) arithmetic: Arithmetic,
    pub(crate) algorithm: Algorithm,
    /// What the chooser expects it to take.
    pub(crate) predicted_s: f64,
}

impl Planned {
    /// The call, with the number it was given, on `buffer`.
    pub(crate) fn posting(self, buffer: Region, timeout: Duration) -> Posting {
        Posting {
            call: self.call,
            digest: self.digest,
            program: self.program,
            buffer,
            arithmetic: self.arithmetic,
            timeout,
        }
    }

    /// The call under number `sequence`, on bytes that become the operation's own.
    pub(crate) fn owning(mut self, sequence: u64, data: Vec<u8>, timeout: Duration) -> Posting {
        self.call.sequence = sequence;
        self.posting(Region::own(data), timeout)
    }
}

/// The programs of a communicator.
#[derive(Default)]
pub(crate) struct Cache(HashMap<Wanted, Planned>);

impl Cache {
    /// The planned form of `wanted`, made if need be.
    pub(crate) fn get(
        &mut self,
        wanted: Wanted,
        rank: usize,
        topology: Topology,
        tuning: &TuningTable,
    ) -> Result<&Planned> {
        if !self.0.contains_key(&wanted) {
            if self.0.len() >= PROGRAMS_CACHED_MAX {
                self.0.clear();
            }
            let planned = make(wanted, rank, topology, tuning)?;
            self.0.insert(wanted, planned);
        }
        self.0
            .get(&wanted)
            .ok_or_else(|| Error::Usage("no program was made".into()))
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
        forced,
    } = wanted;
    let bytes = count
        .checked_mul(dtype.size())
        .filter(|bytes| isize::try_from(*bytes).is_ok())
        .ok_or_else(|| Error::Usage(format!("no memory holds {count} elements of {dtype}")))?;
    let Choice {
        algorithm,
        pieces,
        predicted_s,
        ..
    } = select::choose(collective, topology, bytes, dtype.size(), tuning, forced)
        .map_err(Error::Usage)?;
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
    let kernel = match op {
        Some(op) => Some(kernel(dtype, op)?),
        None => None,
    };
    let divisor = (op == Some(ReduceOp::Avg)).then_some(world_size);
    Ok(Planned {
        digest: call.digest(),
        call,
        program: Arc::new(Program::bind(&plan, count, dtype.size())),
        arithmetic: Arithmetic {
            kernel,
            element_bytes: dtype.size(),
            divisor,
        },
        algorithm,
        predicted_s,
    })
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
    Planned {
        digest: call.digest(),
        call,
        program: Arc::new(Program::bind(&plan, count, dtype.size())),
        arithmetic: Arithmetic {
            kernel: None,
            element_bytes: dtype.size(),
            divisor: None,
        },
        algorithm: Algorithm::Flat,
        predicted_s: 0.0,
    }
}

/// Ranks and pieces are far below 2^32 (`limits::WORLD_SIZE_MAX`).
fn narrow(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
