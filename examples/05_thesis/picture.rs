//! The picture: step time and exposed communication against the number of ranks.

use crate::drawing::chart::{Chart, Curve, Scale, charts};
use crate::step::{BUCKET_BYTES, BUCKETS, Point, WAYS, compute};

/// Paints both charts; the curves are the executed points, the circles the measured ones.
pub(crate) fn paint(
    points: &[Point],
    measured: &[Point],
    (alpha_us, rate_mbit): (f64, f64),
) -> String {
    let step: fn(&Point) -> f64 = |point| point.step_ms / 1e3;
    let exposed: fn(&Point) -> f64 = |point| point.exposed_ms / 1e3;
    let curves = |value| -> Vec<Curve> {
        WAYS.iter()
            .map(|(way, _)| curve(way, points, measured, value))
            .collect()
    };
    let logarithmic = points.iter().filter(|point| point.way != "ring");
    let top_s = logarithmic.map(exposed).fold(0.0, f64::max) * 1.08;
    let both = [
        Chart {
            name: "Step time".into(),
            note: format!(
                "logarithmic; forward and backward alone take {} ms",
                compute().as_millis()
            ),
            scale: Scale::Logarithmic,
            curves: curves(step),
        },
        Chart {
            name: "Exposed communication".into(),
            note: "linear: what grows with log₂ n is a straight line".into(),
            scale: Scale::Linear(top_s),
            curves: curves(exposed),
        },
    ];
    let mut ticks: Vec<_> = points.iter().map(|point| point.ranks).collect();
    ticks.dedup();
    let ticks: Vec<_> = ticks
        .iter()
        .map(|ranks| (*ranks as f64, ranks.to_string()))
        .collect();
    let links = format!(
        "{BUCKETS} buckets of {} KiB, reduced while backward runs; {} ms a message, {rate_mbit} \
         Mbit/s",
        BUCKET_BYTES >> 10,
        alpha_us / 1e3
    );
    let mut how = "dots: the engine on real bytes over a simulated network".to_owned();
    if !measured.is_empty() {
        how += "; circles: real processes over TCP, on links shaped alike";
    }
    charts(
        "A training step on n ranks: the ring's grows with n, the others' with ⌈log₂ n⌉",
        &[&links, &how],
        "ranks",
        &ticks,
        &both,
    )
}

fn curve(way: &str, points: &[Point], measured: &[Point], value: fn(&Point) -> f64) -> Curve {
    let of_way = |all: &[Point]| -> Vec<(f64, f64)> {
        all.iter()
            .filter(|point| point.way == way)
            .map(|point| (point.ranks as f64, value(point)))
            .collect()
    };
    Curve {
        name: way.into(),
        points: of_way(points),
        measured: of_way(measured),
    }
}
