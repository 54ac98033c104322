//! Tests that 16-bit gradients are rounded only twice, however many ranks there are.

use super::numbers;
use half::f16;
use ringtree::ddp::{DataParallel, HalfHook, Options, Parameter};
use ringtree::plan::Algorithm;
use ringtree::{Dtype, Error, ReduceOp};

const RANKS: usize = 64;
const COUNT: usize = 1000;

/// Returns values between 0.5 and 1.5. Their partial sums grow, so that later operands are small
/// compared with the partial sum.
fn gradient(rank: usize) -> Vec<f32> {
    let values = numbers(&[rank as u64], COUNT);
    values.iter().map(|one| (1.0 + one / 2.0) as f32).collect()
}

/// Returns the largest error of `means` as a multiple of the error bound of two roundings with unit
/// roundoff u.
///
/// A rank's x becomes x(1 + a) with |a| ≤ u. The mean of the rounded values differs from the mean m
/// of the x by at most u·s, where s is the mean of the magnitudes. Rounding this mean adds at most
/// u·(|m| + u·s). In f32, n additions and a division add at most (n + 1)·2⁻²⁴·s(1 + u).
fn worst(means: &[f32], unit: f64) -> f64 {
    let ranks: Vec<_> = (0..RANKS).map(gradient).collect();
    let error = |at: usize| {
        let mean = |value: fn(f64) -> f64| {
            let values = ranks.iter().map(|rank| value(f64::from(rank[at])));
            values.sum::<f64>() / RANKS as f64
        };
        let (mean, magnitude) = (mean(|one| one), mean(f64::abs));
        let in_f32 = (RANKS + 1) as f64 * 2f64.powi(-24) * magnitude * (1.0 + unit);
        let bound = unit * magnitude + unit * (mean.abs() + unit * magnitude) + in_f32;
        (f64::from(means[at]) - mean).abs() / bound
    };
    (0..COUNT).map(error).fold(0.0, f64::max)
}

/// Returns the averages that `hook` computes on all ranks.
fn averages_with(hook: HalfHook) -> Vec<f32> {
    let ends = ringtree::simulate(RANKS, |comm| {
        let parameters = vec![Parameter::new("weight", &[COUNT], Dtype::F32)];
        let options = Options::new().hook(hook.clone());
        let mut model = DataParallel::new(comm, parameters, options)?;
        // The second step reuses the memory of the first step.
        for scale in [3.0, 1.0] {
            let gradient: Vec<_> = gradient(comm.rank())
                .iter()
                .map(|one| one * scale)
                .collect();
            model.report(0, &gradient)?;
            model.wait()?;
        }
        Ok::<_, Error>(model.gradient::<f32>(0)?.unwrap().to_vec())
    });
    let first = ends[0].clone().unwrap();
    assert!(
        ends.iter().all(|end| end.as_ref() == Ok(&first)),
        "all ranks have the same bits"
    );
    first
}

#[test]
fn error_on_64_ranks_is_that_of_two_roundings_unlike_a_ring() {
    let bf16 = averages_with(HalfHook::bf16());
    assert!(
        bf16.iter()
            .all(|one| half::bf16::from_f32(*one).to_f32() == *one)
    );
    let error = worst(&bf16, 2f64.powi(-8));
    assert!(error <= 1.0, "bf16: {error} of the bound");
    let error = worst(&averages_with(HalfHook::f16()), 2f64.powi(-11));
    assert!(error <= 1.0, "f16: {error} of the bound");

    let rings = ringtree::simulate(RANKS, |comm| {
        let gradient = gradient(comm.rank());
        let mut narrow: Vec<_> = gradient.into_iter().map(half::bf16::from_f32).collect();
        comm.use_algorithm(Some(Algorithm::Ring))?;
        comm.all_reduce(&mut narrow, ReduceOp::Avg)?;
        Ok::<_, Error>(
            narrow
                .into_iter()
                .map(half::bf16::to_f32)
                .collect::<Vec<_>>(),
        )
    });
    let error = worst(rings[0].as_ref().unwrap(), 2f64.powi(-8));
    assert!(
        error > 1.0,
        "a ring rounds every partial sum, but its error is {error} of the bound"
    );
}

#[test]
fn f16_overflows_for_large_gradients_but_not_for_large_sums() {
    let means = ringtree::simulate(4, |comm| {
        let parameters = vec![Parameter::new("weight", &[3], Dtype::F32)];
        let options = Options::new().hook(HalfHook::f16());
        let mut model = DataParallel::new(comm, parameters, options)?;
        let large = if comm.rank() == 2 { 70_000.0f32 } else { 0.0 };
        model.report(0, &[large, 65_504.0, 2e-8])?;
        model.wait()?;
        Ok::<_, Error>(model.gradient::<f32>(0)?.unwrap().to_vec())
    });
    assert_eq!(
        means,
        vec![Ok(vec![f32::INFINITY, f16::MAX.to_f32(), 0.0]); 4]
    );
}
