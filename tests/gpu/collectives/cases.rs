//! Tests collectives on device buffers against exactly known results.

use super::world::{Act, Rank};
use ringtree::cuda::DeviceBuffer;
use ringtree::plan::internal::algorithms::pairs;
use ringtree::plan::internal::spec::whole_count;
use ringtree::plan::{Algorithm, Collective};
use ringtree::{Dtype, Element, Layout, ReduceOp, Result, with_element};
use ringtree_kit::expected::exact::Inputs;
use ringtree_kit::expected::result::ExpectedResult;

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

pub(crate) fn act(role: &str) -> Option<Act> {
    Some(match role {
        "algorithms" => |rank| check_all(rank, every_algorithm(rank.comm.world_size())),
        "types" => |rank| check_all(rank, every_type()),
        "large" => |rank| check_all(rank, large(rank.comm.world_size())),
        _ => return None,
    })
}

fn check_all(rank: &Rank, cases: Vec<Case>) -> Result<String> {
    for case in cases {
        let wrong = check(rank, &case)?;
        if wrong > 0 {
            return Ok(format!("{wrong} wrong elements in {case:?}"));
        }
    }
    rank.comm.synchronize()?;
    rank.comm.barrier()?;
    Ok("ok".into())
}

/// Returns every algorithm with every collective that device buffers support, with counts of zero,
/// one and more elements.
fn every_algorithm(world_size: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for (collective, algorithm) in pairs(&[2, 3]) {
        if collective == Collective::Barrier {
            continue;
        }
        for (nth, count) in [0, 1, 3, 1025, 30_001].into_iter().enumerate() {
            cases.push(Case {
                collective,
                algorithm: Some(algorithm),
                dtype: Dtype::F32,
                op: [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max][nth % 3],
                count,
                root: nth % world_size,
                seed: cases.len() as u64,
            });
        }
    }
    cases
}

/// Returns every type with every operator that it supports.
fn every_type() -> Vec<Case> {
    let types = Dtype::ALL.iter();
    let pairs = types.flat_map(|dtype| ReduceOp::ALL.iter().map(move |op| (*dtype, *op)));
    let supported = pairs.filter(|(dtype, op)| op.supports(*dtype));
    let case = |(dtype, op)| Case {
        collective: Collective::AllReduce,
        algorithm: None,
        dtype,
        op,
        count: 2501,
        root: 0,
        seed: 1,
    };
    supported.map(case).collect()
}

fn large(world_size: usize) -> Vec<Case> {
    let all = Collective::ALL.iter().copied();
    let counts = [1_500_001, 3_000_005, 40_000_007];
    let pairs = all
        .filter(|one| *one != Collective::Barrier)
        .flat_map(|one| counts.map(|count| (one, count)));
    let case = |(collective, count)| Case {
        collective,
        algorithm: None,
        dtype: Dtype::I16,
        op: ReduceOp::Sum,
        count,
        root: world_size - 1,
        seed: 5,
    };
    pairs.map(case).collect()
}

fn check(rank: &Rank, case: &Case) -> Result<usize> {
    with_element!(case.dtype, T => check_as::<T>(rank, case))
}

/// Issues the call and returns the number of elements on this rank that differ from the expected
/// result.
fn check_as<T: Element>(rank: &Rank, case: &Case) -> Result<usize> {
    let Rank {
        comm,
        device,
        stream,
    } = rank;
    let (own, world_size) = (comm.rank(), comm.world_size());
    let inputs = Inputs::new(case.dtype, case.op, world_size, case.seed);
    let count = whole_count(case.collective, case.count, world_size);
    let mut content = vec![T::zeroed(); count];
    inputs.fill(own, 0, bytemuck::cast_slice_mut(&mut content));
    let mut buffer = DeviceBuffer::new(device, stream, &content)?;
    comm.use_algorithm(case.algorithm)?;
    ringtree::internal::calls::collective(comm, case.collective, &mut buffer, case.op, case.root)?;
    // Only the stream's order makes this read wait for the result.
    let result = buffer.read()?;
    let result: &[u8] = bytemuck::cast_slice(&result);
    let promise = ExpectedResult {
        collective: case.collective,
        root: case.root,
        inputs,
        rank: own,
        world_size,
        layout: Layout::Even,
    };
    Ok(promise.count_wrong(result))
}
