//! Tests the norm of the averaged gradient and clipping.

use super::*;
use crate::ddp::{BucketSize, Options, Parameter};
use crate::dtype::Dtype;

/// Result of a rank: the norm, the gradients after `wait`, and the number of skipped steps.
type End = Result<(Option<f64>, Vec<f32>, u64)>;

/// Runs one step on `ranks` ranks. Rank r reports `factor` · (r + 1) · (1, 2, 3, …) for each of
/// three parameters.
fn step(ranks: usize, options: fn() -> Options, factor: f32) -> Vec<End> {
    crate::simulate(ranks, move |comm| {
        let counts = [5, 1, 300];
        let parameter =
            |(at, count): (usize, &usize)| Parameter::new(&format!("p{at}"), &[*count], Dtype::F32);
        let parameters = counts.iter().enumerate().map(parameter);
        let options = options().buckets(BucketSize::Bytes(1000));
        let mut model = DataParallel::new(comm, parameters, options)?;
        for (number, count) in counts.into_iter().enumerate() {
            let one = |at: usize| factor * (comm.rank() + 1) as f32 * (at + 1) as f32;
            let gradient: Vec<f32> = (0..count).map(one).collect();
            model.report(number, &gradient)?;
        }
        model.wait()?;
        let mut all = Vec::new();
        for number in 0..counts.len() {
            let gradient = model.gradient::<f32>(number)?;
            all.extend_from_slice(gradient.unwrap_or_default());
        }
        Ok((model.gradient_norm(), all, model.skipped()))
    })
}

fn length(of: &[f32]) -> f64 {
    of.iter()
        .map(|one| f64::from(*one).powi(2))
        .sum::<f64>()
        .sqrt()
}

#[test]
fn clipping_scales_long_gradient_and_keeps_short_one() {
    for ranks in [1, 2, 3, 5] {
        let plain = step(ranks, Options::new, 1.0);
        let (none, full, _) = plain[0].as_ref().unwrap();
        assert_eq!(*none, None);
        let clipped = step(ranks, || Options::new().clip_norm(2.0), 1.0);
        assert!(
            clipped.iter().all(|end| *end == clipped[0]),
            "{ranks} ranks"
        );
        let (norm, short, _) = clipped[0].as_ref().unwrap();
        let norm = norm.unwrap();
        assert!((norm / length(full) - 1.0).abs() < 1e-12, "{norm}");
        assert!(
            (length(short) / 2.0 - 1.0).abs() < 1e-6,
            "{}",
            length(short)
        );
        let scaled = full.iter().map(|one| one * (2.0 / norm) as f32);
        assert_eq!(*short, scaled.collect::<Vec<_>>());
        let same = step(ranks, || Options::new().clip_norm(1e9), 1.0);
        assert_eq!(same[0].as_ref().unwrap().1, *full);
    }
}

#[test]
fn overflowing_norm_counts_as_non_finite_gradient() {
    // Every gradient is finite, but the sum of the two ranks' largest gradients is not.
    let large = f32::MAX / 601.0;
    let ignored = step(2, || Options::new().clip_norm(1.0), large);
    assert_eq!(ignored[0].as_ref().unwrap().0, Some(f64::INFINITY));
    let skip = || Options::new().clip_norm(1.0).non_finite(NonFinite::Skip);
    for end in step(2, skip, large) {
        let (_, gradients, skipped) = end.unwrap();
        assert_eq!((gradients.len(), skipped), (0, 1));
    }
    let fail = || Options::new().clip_norm(1.0).non_finite(NonFinite::Fail);
    for end in step(2, fail, large) {
        let line = end.unwrap_err().to_string();
        assert!(line.contains("norm") && line.contains("step 0"), "{line}");
    }
}
