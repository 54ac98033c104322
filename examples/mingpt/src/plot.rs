//! Draws the losses of a run, and redraws them during the training.

use crate::files;
use crate::report::VALIDATION;
use plotters::prelude::*;
use ringtree::ddp::Line;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Size of the picture in pixels.
const EXTENTS: (u32, u32) = (960, 480);
/// Minimum time between redraws.
const REDRAW_EVERY: Duration = Duration::from_secs(2);
/// Maximum number of points on a curve. In longer runs, each point is the mean of several steps.
const POINTS_MAX: usize = 1000;

/// Points of a curve: steps and losses.
type Points = Vec<(u64, f64)>;

/// The picture, which is kept in memory and written to a file if a path is given.
pub(crate) struct Picture {
    path: Option<PathBuf>,
    training: Points,
    validation: Points,
    drawn: Instant,
    has_failed: bool,
}

impl Picture {
    /// Creates the picture from the lines of earlier steps and draws it to `path`, so that an
    /// unwritable file is reported before the training starts.
    pub(crate) fn new(path: Option<PathBuf>, lines: &[Line]) -> Result<Self, String> {
        let mut this = Self {
            path,
            training: Points::new(),
            validation: Points::new(),
            drawn: Instant::now(),
            has_failed: false,
        };
        lines.iter().for_each(|line| this.take(line));
        this.draw()?;
        Ok(this)
    }

    /// Adds a step, and redraws the picture if the last redraw was long enough ago.
    pub(crate) fn add(&mut self, line: &Line) {
        if self.path.is_some() {
            self.take(line);
            if self.drawn.elapsed() >= REDRAW_EVERY {
                self.redraw();
            }
        }
    }

    /// Redraws the picture. A failure to write it does not end the training.
    pub(crate) fn redraw(&mut self) {
        if let Err(error) = self.draw()
            && !std::mem::replace(&mut self.has_failed, true)
        {
            eprintln!("mingpt: {error}; the training continues");
        }
        self.drawn = Instant::now();
    }

    fn take(&mut self, line: &Line) {
        let named = |name| Some((line.step, *line.numbers.get(name)?));
        self.training.extend(named("loss"));
        self.validation.extend(named(VALIDATION));
    }

    fn draw(&self) -> Result<(), String> {
        let Some(path) = &self.path else {
            return Ok(());
        };
        let drawn = svg(&self.training, &self.validation).map_err(|error| error.to_string());
        let written = drawn
            .and_then(|picture| files::replace(path, &picture).map_err(|error| error.to_string()));
        written.map_err(|error| format!("cannot draw {}: {error}", path.display()))
    }
}

/// Reduces `points` to at most [`POINTS_MAX`].
fn thinned(points: &Points) -> Points {
    let each = points.len().div_ceil(POINTS_MAX).max(1);
    let mean = |points: &[(u64, f64)]| {
        let sum: f64 = points.iter().map(|(_, loss)| loss).sum();
        (points[points.len() / 2].0, sum / points.len() as f64)
    };
    points.chunks(each).map(mean).collect()
}

/// Draws the losses as SVG.
fn svg(training: &Points, validation: &Points) -> Result<String, Box<dyn std::error::Error>> {
    let last = training.last().map_or(1, |(step, _)| *step).max(1);
    let (training, validation) = (thinned(training), thinned(validation));
    let highest = training.iter().chain(&validation).map(|(_, loss)| *loss);
    let highest = highest.filter(|loss| loss.is_finite()).fold(1.0, f64::max);

    let mut picture = String::new();
    let root = SVGBackend::with_string(&mut picture, EXTENTS).into_drawing_area();
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
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE)
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()?;
    // These values borrow `picture`, so drop them before it is returned.
    drop((chart, root));
    Ok(picture)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_run_is_drawn_as_means_and_short_run_exactly() {
        let points: Points = (0..2500).map(|step| (step, step as f64)).collect();
        let few = thinned(&points);
        assert_eq!((few.len(), few[0]), (834, (1, 1.0)));
        assert_eq!(thinned(&few), few);
        assert!(svg(&points, &few).unwrap().ends_with("</svg>\n"));
        assert!(svg(&Vec::new(), &Vec::new()).is_ok());
    }

    #[test]
    fn unwritable_picture_is_reported_immediately() {
        let path = Some(PathBuf::from("/proc/none/loss.svg"));
        let message = Picture::new(path, &[]).err().unwrap();
        assert!(
            message.contains("cannot draw /proc/none/loss.svg"),
            "{message}"
        );
    }
}
