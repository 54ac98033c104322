//! Draws exposed communication against the number of ranks, one chart per model.

use crate::drawing::chart::{Chart, Curve, Scale, charts};
use crate::step::{BUCKETS, MODELS, Model};

/// The points of one algorithm and model, as pairs of ranks and exposed milliseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series {
    /// One of the names in [`crate::step::WAYS`].
    pub(crate) way: &'static str,
    pub(crate) simulated: Vec<(f64, f64)>,
    pub(crate) priced: Vec<(f64, f64)>,
    pub(crate) measured: Vec<(f64, f64)>,
}

/// Draws one chart per model.
pub(crate) fn paint(series: &[Vec<Series>], (alpha_ms, rate_mbit): (f64, f64)) -> String {
    let of_models = MODELS.iter().zip(series);
    let charts_of_models: Vec<_> = of_models
        .map(|(model, of_ways)| chart(model, of_ways))
        .collect();
    let all = series.iter().flatten();
    let ranks = all.flat_map(|one| one.simulated.iter().chain(&one.priced));
    let most = ranks.map(|(ranks, _)| *ranks).fold(2.0, f64::max);
    let ticks = [2, 8, 32, 128, 1_024, 10_000, 100_000].map(f64::from);
    let ticks: Vec<_> = ticks
        .into_iter()
        .filter(|ranks| *ranks <= most)
        .map(|ranks| (ranks, ranks.to_string()))
        .collect();
    let links = format!(
        "{BUCKETS} all-reduces per step while backward runs; {alpha_ms} ms per message, \
         {rate_mbit} Mbit/s per host"
    );
    let how = "circles: real processes over TCP; lines: the engine on real bytes over a simulated \
               network; dashes: predictions";
    charts(
        "What communication adds to a training step: a ring's grows with n, circulant's with log n",
        &[&links, how],
        "ranks",
        &ticks,
        &charts_of_models,
    )
}

fn chart(model: &Model, series: &[Series]) -> Chart {
    let seconds = |points: &[(f64, f64)]| -> Vec<(f64, f64)> {
        points
            .iter()
            .map(|(ranks, ms)| (*ranks, ms / 1e3))
            .collect()
    };
    let curve = |one: &Series| Curve {
        name: one.way.into(),
        points: seconds(&one.simulated),
        continued: seconds(&one.priced),
        measured: seconds(&one.measured),
    };
    Chart {
        name: format!(
            "The {} model: buckets of {} KiB",
            model.name,
            model.bucket_bytes() >> 10
        ),
        note: "exposed communication of a step, logarithmic".into(),
        scale: Scale::Logarithmic,
        curves: series.iter().map(curve).collect(),
    }
}
