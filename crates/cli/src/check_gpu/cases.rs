//! Checks collectives on device buffers with inputs for which the exact results are known.

use super::messages::{Message, Rank};
use crate::expected::exact::Inputs;
use crate::expected::result::ExpectedResult;
use ringtree::cuda::DeviceBuffer;
use ringtree::plan::internal::spec::{reduces, whole_count};
use ringtree::plan::{Algorithm, Collective, REGISTRY};
use ringtree::with_element;
use ringtree::{Dtype, Element, Layout, ReduceOp, Result};

/// Maximum number of wrong calls that a rank describes. The rank only counts the others.
const TOLD_MAX: usize = 3;
/// Numbers of elements in small buffers.
const COUNTS: [usize; 4] = [1001, 0, 1, 37];
/// Size of a large buffer that has many pieces and unequal blocks.
const LARGE_BYTES: usize = (40 << 20) + 6;
/// Number of elements in a buffer whose blocks begin at odd addresses and are long enough for
/// vector accesses. (The buffer itself begins at an address that the driver chooses.)
const ODD_COUNT: usize = (128 << 10) + 5;

/// A call, with the arguments that all ranks pass.
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
    let case = |(collective, algorithm), (dtype, op), count, nth: usize| Case {
        collective,
        algorithm,
        dtype,
        op,
        count,
        root: nth % world_size,
        seed: nth as u64,
    };
    let moves_data = |one: &&Collective| **one != Collective::Barrier;
    let mut cases = Vec::new();
    for entry in REGISTRY {
        for &collective in entry.collectives.iter().filter(moves_data) {
            let call = (collective, Some(entry.algorithm));
            for (nth, pair) in pairs(collective).enumerate() {
                cases.push(case(call, pair, COUNTS[(nth + turn) % COUNTS.len()], nth));
            }
            for dtype in [Dtype::I8, Dtype::F16] {
                cases.push(case(call, (dtype, ReduceOp::Max), ODD_COUNT, turn));
            }
        }
    }
    let large = LARGE_BYTES.min(bytes_max) / 2;
    for &collective in Collective::ALL.iter().filter(moves_data) {
        let halves = (Dtype::F16, ReduceOp::Max);
        cases.push(case((collective, None), halves, large, turn));
    }
    cases
}

/// Returns the pairs of type and operator to test with `collective`: all valid pairs if it reduces,
/// and otherwise one pair per type, because the operator has no effect.
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
    Message::Checked(cases.len()).print();
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
    let promise = ExpectedResult {
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
