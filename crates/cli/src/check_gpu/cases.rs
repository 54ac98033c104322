//! Checks collectives on device buffers with inputs for which the exact results are known.

use super::said::{Rank, Said};
use crate::expected::exact::Inputs;
use crate::expected::promise::Promise;
use ringtree::cuda::DeviceBuffer;
use ringtree::plan::internal::spec::{reduces, whole_count};
use ringtree::plan::{Algorithm, Collective, REGISTRY};
use ringtree::with_element;
use ringtree::{Dtype, Element, Layout, ReduceOp, Result};

/// Maximum number of wrong calls that a rank describes. Any others are only counted.
const TOLD_MAX: usize = 3;
/// Numbers of elements in small buffers.
const COUNTS: [usize; 4] = [1001, 0, 1, 37];
/// Size of a large buffer that has many pieces and unequal blocks.
const LARGE_BYTES: usize = (40 << 20) + 6;
/// Number of elements in a buffer whose blocks begin at odd addresses and are long enough for
/// vector accesses. (The buffer itself begins at an address that the driver chooses.)
const ODD_COUNT: usize = (128 << 10) + 5;

/// A call, which is the same on all ranks.
#[derive(Clone, Copy, Debug)]
struct Case {
    collective: Collective,
    algorithm: Option<Algorithm>,
    dtype: Dtype,
    op: ReduceOp,
    count: usize,
    root: usize,
    seed: u64,
}

/// Returns calls that run every collective with every algorithm, type and operator, calls whose
/// blocks begin at odd addresses, and a large call of each collective. Four consecutive turns cover
/// all [`COUNTS`].
fn cases(world_size: usize, turn: usize, bytes_max: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for entry in REGISTRY {
        let collectives = entry.collectives.iter();
        for collective in collectives.filter(|one| **one != Collective::Barrier) {
            let pairs = pairs(*collective).enumerate();
            cases.extend(pairs.map(|(nth, (dtype, op))| Case {
                collective: *collective,
                algorithm: Some(entry.algorithm),
                dtype,
                op,
                count: COUNTS[(nth + turn) % COUNTS.len()],
                root: nth % world_size,
                seed: nth as u64,
            }));
            cases.extend([Dtype::I8, Dtype::F16].map(|dtype| Case {
                collective: *collective,
                algorithm: Some(entry.algorithm),
                dtype,
                op: ReduceOp::Max,
                count: ODD_COUNT,
                root: turn % world_size,
                seed: turn as u64,
            }));
        }
    }
    let all = Collective::ALL.iter();
    cases.extend(
        all.filter(|one| **one != Collective::Barrier)
            .map(|one| Case {
                collective: *one,
                algorithm: None,
                dtype: Dtype::F16,
                op: ReduceOp::Max,
                count: LARGE_BYTES.min(bytes_max) / 2,
                root: turn % world_size,
                seed: turn as u64,
            }),
    );
    cases
}

/// Returns the pairs of type and operator that make a difference to `collective`.
fn pairs(collective: Collective) -> impl Iterator<Item = (Dtype, ReduceOp)> {
    let all = Dtype::ALL.iter();
    let all = all.flat_map(|dtype| ReduceOp::ALL.iter().map(move |op| (*dtype, *op)));
    all.filter(move |(dtype, op)| match reduces(collective) {
        true => op.supports(*dtype),
        false => *op == ReduceOp::Max,
    })
}

/// Issues all calls and reports wrong results.
pub(super) fn check(rank: &Rank, turn: usize, bytes_max: usize) -> Result<()> {
    let cases = cases(rank.comm.world_size(), turn, bytes_max);
    let mut wrong_calls = 0;
    for case in &cases {
        let wrong = call(rank, case)?;
        wrong_calls += usize::from(wrong > 0);
        if wrong > 0 && wrong_calls <= TOLD_MAX {
            rank.found(&format!("{wrong} wrong elements: {case:?}"));
        }
    }
    if wrong_calls > TOLD_MAX {
        rank.found(&format!("{wrong_calls} calls were wrong"));
    }
    rank.comm.synchronize()?;
    Said::Checked(cases.len()).say();
    rank.comm.barrier()
}

fn call(rank: &Rank, case: &Case) -> Result<usize> {
    with_element!(case.dtype, T => call_as::<T>(rank, case))
}

/// Issues a call and returns the number of wrong elements on this rank.
fn call_as<T: Element>(rank: &Rank, case: &Case) -> Result<usize> {
    let Rank {
        comm,
        device,
        stream,
    } = rank;
    let inputs = Inputs::new(case.dtype, case.op, comm.world_size(), case.seed);
    let count = whole_count(case.collective, case.count, comm.world_size());
    let mut content = vec![T::zeroed(); count];
    inputs.fill(comm.rank(), 0, bytemuck::cast_slice_mut(&mut content));
    let mut buffer = DeviceBuffer::new(device, stream, &content)?;
    comm.use_algorithm(case.algorithm)?;
    ringtree::internal::calls::collective(comm, case.collective, &mut buffer, case.op, case.root)?;
    let promise = Promise {
        collective: case.collective,
        root: case.root,
        inputs,
        rank: comm.rank(),
        world_size: comm.world_size(),
        layout: Layout::Even,
    };
    // Only the stream orders this read after the collective.
    Ok(promise.count_wrong(bytemuck::cast_slice(&buffer.read()?)))
}
