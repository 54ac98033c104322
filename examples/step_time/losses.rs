//! Draws how long trainings take to reach a validation loss.

use crate::drawing::chart::{Chart, Curve, Scale, charts};
use std::path::Path;

const HEADER: &str = "way,step,seconds,validation_loss";
/// Losses that are labeled below the plot.
const MARKED: [f64; 8] = [3.8, 3.4, 3.0, 2.8, 2.6, 2.4, 2.2, 2.0];

/// Draws the rows of `table`, with one curve per way of training.
pub(crate) fn plot(table: &Path, picture: &Path, note: &str) -> Result<(), String> {
    let wrong = |path: &Path, what: String| format!("{}: {what}", path.display());
    let text = std::fs::read_to_string(table).map_err(|error| wrong(table, error.to_string()))?;
    let curves = curves(&text).map_err(|what| wrong(table, what))?;
    let slowest = curves.iter().flat_map(|curve| &curve.points);
    let slowest = slowest.map(|(_, seconds)| *seconds).fold(1.0, f64::max);
    let chart = Chart {
        name: "Time until the validation loss is first as low".into(),
        note: "linear".into(),
        scale: Scale::Linear(slowest * 1.03),
        curves,
    };
    // Plot 1/loss, so that lower losses are farther to the right.
    let ticks = MARKED.map(|loss| (1.0 / loss, format!("{loss:.1}")));
    let title = "Averaging every gradient, or training apart and meeting now and then";
    let drawn = charts(
        title,
        &[note],
        "validation loss (nats a character)",
        &ticks,
        &[chart],
    );
    std::fs::write(picture, drawn).map_err(|error| wrong(picture, error.to_string()))
}

/// Returns a curve for each way of training. Its points are the inverse of each new lowest loss,
/// and the time at which it was reached.
fn curves(text: &str) -> Result<Vec<Curve>, String> {
    let mut lines = text.lines();
    if lines.next() != Some(HEADER) {
        return Err(format!("the first line is not {HEADER}"));
    }
    let mut curves: Vec<Curve> = Vec::new();
    for line in lines {
        let fields: Vec<&str> = line.split(',').collect();
        let number = |at: usize| fields.get(at)?.parse::<f64>().ok();
        let (Some(seconds), Some(loss)) = (number(2), number(3)) else {
            return Err(format!("invalid row: {line}"));
        };
        if curves.last().is_none_or(|curve| curve.name != fields[0]) {
            curves.push(Curve {
                name: fields[0].to_owned(),
                continued: Vec::new(),
                points: Vec::new(),
                measured: Vec::new(),
            });
        }
        let points = &mut curves.last_mut().expect("invariant: one was pushed").points;
        if points.last().is_none_or(|(before, _)| 1.0 / loss > *before) {
            points.push((1.0 / loss, seconds));
        }
    }
    Ok(curves)
}
