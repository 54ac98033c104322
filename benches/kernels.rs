//! Measures the reduction kernels in cache and in memory.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ringtree::internal::compute::Kernel;
use ringtree::{Dtype, ReduceOp};
use ringtree_kit::expected::exact::Inputs;

/// Measures a fold of `ranks` operands into the first one. Checks one fold exactly, and then times
/// folds of zeros, which leave the operands unchanged.
fn bench_fold(
    criterion: &mut Criterion,
    group: &str,
    (dtype, op): (Dtype, ReduceOp),
    ranks: usize,
    bytes: usize,
) {
    let kernel = Kernel::new(dtype, op).expect("the operator is defined for the type");
    let divisor = (op == ReduceOp::Avg).then_some(ranks);
    let inputs = Inputs::new(dtype, op, ranks, 1);
    let mut operands = vec![vec![0; bytes]; ranks];
    for (rank, operand) in operands.iter_mut().enumerate() {
        inputs.fill(rank, 0, operand);
    }
    let (destination, sources) = operands.split_first_mut().expect("a fold has operands");
    let sources_checked: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
    kernel.fold(destination, Some(0), &sources_checked, divisor);
    assert_eq!(
        inputs.count_wrong(0, destination),
        0,
        "{dtype} {op} is wrong"
    );

    for operand in &mut operands {
        operand.fill(0);
    }
    let (destination, sources) = operands.split_first_mut().expect("a fold has operands");
    let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
    let name = format!("{dtype}_{op}_{ranks}_operands");
    let mut group = criterion.benchmark_group(group);
    group.throughput(Throughput::Bytes(bytes as u64));
    group.bench_function(BenchmarkId::new(name, bytes), |bencher| {
        bencher.iter(|| kernel.fold(destination, Some(0), &sources, divisor));
    });
    group.finish();
}

fn sizes(criterion: &mut Criterion) {
    for bytes in [8 << 10, 256 << 10, 4 << 20, 64 << 20] {
        bench_fold(criterion, "sizes", (Dtype::F32, ReduceOp::Sum), 2, bytes);
    }
}

fn types(criterion: &mut Criterion) {
    for &dtype in Dtype::ALL {
        for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max] {
            bench_fold(criterion, "types", (dtype, op), 2, 256 << 10);
        }
    }
}

fn operands(criterion: &mut Criterion) {
    for sources in 2..=8 {
        bench_fold(
            criterion,
            "operands",
            (Dtype::F32, ReduceOp::Sum),
            sources + 1,
            256 << 10,
        );
    }
}

criterion_group!(benches, sizes, types, operands);
criterion_main!(benches);
