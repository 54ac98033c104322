//! The picture of a run's loss.

use crate::train::VALIDATION;
use plotters::prelude::*;
use ringtree::ddp::Line;
use std::path::Path;

/// The picture's extents in pixels.
const EXTENTS: (u32, u32) = (960, 480);

/// Draws the losses of `lines` into the file `path`, as SVG.
pub(crate) fn draw(path: &Path, lines: &[Line]) -> Result<(), String> {
    try_draw(path, lines).map_err(|error| format!("cannot draw {}: {error}", path.display()))
}

fn try_draw(path: &Path, lines: &[Line]) -> Result<(), Box<dyn std::error::Error>> {
    let training: Vec<_> = lines.iter().map(|line| (line.step, line.loss)).collect();
    let validation: Vec<_> = lines
        .iter()
        .filter_map(|line| Some((line.step, *line.more.get(VALIDATION)?)))
        .collect();
    let highest = training.iter().chain(&validation).map(|(_, loss)| *loss);
    let highest = highest.filter(|loss| loss.is_finite()).fold(1.0, f64::max);
    let last = training.last().map_or(1, |(step, _)| *step).max(1);

    let root = SVGBackend::new(path, EXTENTS).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .margin(16)
        .x_label_area_size(40)
        .y_label_area_size(50)
        .build_cartesian_2d(0..last, 0.0..highest * 1.05)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc("step")
        .y_desc("loss (nats a character)")
        .draw()?;
    let (blue, orange) = (RGBColor(31, 119, 180), RGBColor(230, 110, 20));
    chart
        .draw_series(LineSeries::new(training, blue.stroke_width(1)))?
        .label("training batch")
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], blue));
    chart
        .draw_series(LineSeries::new(validation, orange.stroke_width(3)))?
        .label("validation")
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], orange));
    chart
        .configure_series_labels()
        .background_style(WHITE)
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()?;
    Ok(())
}
