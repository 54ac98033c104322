//! Draws how times grow with the number of ranks: curves over a logarithmic axis.

use super::page::{open, write_anchored, write_text};
use ringtree::plan::Seconds;
use std::fmt::Write;

/// Dimensions of the picture and its parts, in pixels.
const WIDTH: f64 = 1120.0;
const MARGIN: f64 = 28.0;
const TICKS_WIDTH: f64 = 52.0;
const LABELS_WIDTH: f64 = 176.0;
const HEAD_HEIGHT: f64 = 148.0;
const PLOT_HEIGHT: f64 = 330.0;
const FOOT_HEIGHT: f64 = 66.0;
/// Space above the second and each further row, in pixels, and the distance from one row to the
/// next.
const ROW_HEAD_HEIGHT: f64 = 50.0;
const ROW_PITCH: f64 = PLOT_HEIGHT + FOOT_HEIGHT + ROW_HEAD_HEIGHT;
const CHARTS_A_ROW: usize = 2;
/// Minimum distance between labels at the ends of curves.
const LABEL_PITCH: f64 = 17.0;
/// Maximum number of ticks on a linear axis.
const TICKS_MAX: f64 = 7.0;

/// CSS of a chart in addition to the page's CSS, with one color per curve.
const CHART_STYLE: &str = "
.axis{stroke:#8896a6;stroke-width:1.2}.tick{font-size:11.5px;fill:#5f6c7b}
.label{font-size:12.5px;font-weight:600}.curve{fill:none;stroke-width:2;stroke-linejoin:round}
.dashed{stroke-dasharray:5 5}.heavy{stroke-width:3.4}.measured{fill:#ffffff;stroke-width:2}
.c0{stroke:#d9542b}.c1{stroke:#b98a12}.c2{stroke:#8a5cc9}.c3{stroke:#3c7fcf}.c4{stroke:#17a673}
.d0{fill:#d9542b}.d1{fill:#b98a12}.d2{fill:#8a5cc9}.d3{fill:#3c7fcf}.d4{fill:#17a673}
@media (prefers-color-scheme:dark){.tick{fill:#93a1b1}
.measured{fill:#0f141b}.c0{stroke:#f47b52}.c1{stroke:#dcae38}.c2{stroke:#ad86e6}
.c3{stroke:#5aa0ea}.c4{stroke:#2cc48d}.d0{fill:#f47b52}.d1{fill:#dcae38}.d2{fill:#ad86e6}
.d3{fill:#5aa0ea}.d4{fill:#2cc48d}}
";
/// Number of colors in [`CHART_STYLE`].
const COLORS: usize = 5;

/// A curve. Its index determines its color. The last curve is drawn with the thickest line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Curve {
    /// Label at the end of the curve.
    pub(crate) name: String,
    /// Points as (x, seconds), in ascending order of x.
    pub(crate) points: Vec<(f64, f64)>,
    /// Points that were computed in a different way. They continue the curve as a dashed line.
    pub(crate) continued: Vec<(f64, f64)>,
    /// Measured points, drawn as open circles over the curve.
    pub(crate) measured: Vec<(f64, f64)>,
}

/// The scale of the axis of seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scale {
    /// From zero to this number of seconds. Higher curves leave the chart, and their labels show
    /// where they end.
    Linear(f64),
    /// Wide enough for all curves. Points at or below zero are not drawn.
    Logarithmic,
}

/// A chart.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chart {
    /// Title, such as "Step time".
    pub(crate) name: String,
    /// Short explanation.
    pub(crate) note: String,
    /// The axis of seconds.
    pub(crate) scale: Scale,
    /// The curves.
    pub(crate) curves: Vec<Curve>,
}

/// Ticks on the x axis: values above zero and their labels.
type Ticks<'a> = &'a [(f64, String)];

/// Draws `charts` in rows of two as a self-contained SVG. Each chart has a logarithmic x axis that
/// is labeled `x_name`.
pub(crate) fn charts(
    title: &str,
    notes: &[&str],
    x_name: &str,
    ticks: Ticks,
    charts: &[Chart],
) -> String {
    let rows = charts.chunks(CHARTS_A_ROW);
    let height = HEAD_HEIGHT + ROW_PITCH * rows.len() as f64 - ROW_HEAD_HEIGHT;
    let mut out = String::new();
    open(&mut out, (WIDTH, height), CHART_STYLE);
    write_text(&mut out, (MARGIN, 42.0), "title", title);
    for (index, note) in notes.iter().enumerate() {
        write_text(&mut out, (MARGIN, 64.0 + 18.0 * index as f64), "note", note);
    }
    let pitch = (WIDTH - 2.0 * MARGIN) / charts.len().clamp(1, CHARTS_A_ROW) as f64;
    for (number, row) in rows.enumerate() {
        let top = HEAD_HEIGHT + ROW_PITCH * number as f64;
        for (index, chart) in row.iter().enumerate() {
            let corner = (MARGIN + pitch * index as f64, top);
            let frame = Frame::new(chart, ticks, corner, pitch);
            frame.draw_axes(&mut out, x_name, ticks);
            frame.draw_curves(&mut out);
            frame.draw_labels(&mut out);
        }
    }
    out.push_str("</svg>\n");
    out
}

/// The positions of the parts of a chart.
struct Frame<'a> {
    chart: &'a Chart,
    left: f64,
    right: f64,
    /// Top of the plot.
    top: f64,
    /// The range of x.
    x_range: (f64, f64),
    /// The range of seconds.
    y_range: (f64, f64),
}

impl<'a> Frame<'a> {
    fn new(chart: &'a Chart, ticks: Ticks, (left, top): (f64, f64), width: f64) -> Self {
        let widest = |range: (f64, f64), value: f64| (range.0.min(value), range.1.max(value));
        let none = (f64::INFINITY, 0.0);
        let x_range = ticks.iter().map(|(x, _)| *x).fold(none, widest);
        let y_range = match chart.scale {
            Scale::Linear(top_s) => (0.0, top_s),
            Scale::Logarithmic => {
                let curves = chart.curves.iter();
                let all = curves.flat_map(|curve| {
                    let computed = curve.points.iter().chain(&curve.continued);
                    computed.chain(&curve.measured)
                });
                let seconds = all.map(|(_, seconds)| *seconds);
                let (least, most) = seconds.filter(|one| *one > 0.0).fold(none, widest);
                // Leave space below and above, so that no curve runs along the border.
                (least / 1.6, most * 1.3)
            }
        };
        Self {
            chart,
            left: left + TICKS_WIDTH,
            right: left + width - LABELS_WIDTH,
            top,
            x_range,
            y_range,
        }
    }

    fn x(&self, value: f64) -> f64 {
        let (least, most) = self.x_range;
        let part = (value / least).ln() / (most / least).ln().max(f64::MIN_POSITIVE);
        self.left + 10.0 + part * (self.right - self.left - 10.0)
    }

    fn y(&self, seconds: f64) -> f64 {
        let (least, most) = self.y_range;
        let part = match self.chart.scale {
            Scale::Linear(_) => seconds / most,
            Scale::Logarithmic => (seconds / least).ln() / (most / least).ln(),
        };
        self.top + PLOT_HEIGHT * (1.0 - part)
    }

    fn is_inside(&self, seconds: f64) -> bool {
        seconds <= self.y_range.1 && seconds >= self.y_range.0
    }

    /// Returns round numbers of seconds: 1, 2 and 5 times powers of ten, or multiples of one.
    fn y_ticks(&self) -> Vec<f64> {
        let (least, most) = self.y_range;
        let steps_of = |power: i32| [1.0, 2.0, 5.0].map(|factor| factor * 10_f64.powi(power));
        match self.chart.scale {
            Scale::Logarithmic => (-9..9)
                .flat_map(steps_of)
                .filter(|tick| *tick >= least && *tick <= most)
                .collect(),
            Scale::Linear(_) => {
                let step = (-9..9)
                    .flat_map(steps_of)
                    .find(|step| most / step <= TICKS_MAX);
                let step = step.unwrap_or(most);
                let count = (most / step + 1e-9) as usize;
                (0..=count).map(|tick| tick as f64 * step).collect()
            }
        }
    }

    fn draw_axes(&self, out: &mut String, x_name: &str, ticks: Ticks) {
        let (left, right, top) = (self.left, self.right, self.top);
        let bottom = top + PLOT_HEIGHT;
        let head = (left - TICKS_WIDTH, top - 32.0);
        write_text(out, head, "name", &self.chart.name);
        write_text(out, (head.0, top - 14.0), "note", &self.chart.note);
        for seconds in self.y_ticks() {
            let y = self.y(seconds);
            let _ = writeln!(
                out,
                "<path class=\"grid\" d=\"M{left:.1} {y:.1}H{right:.1}\"/>"
            );
            let text = match seconds {
                0.0 => "0".to_owned(),
                _ => Seconds(seconds).to_string(),
            };
            write_anchored(out, (left - 7.0, y + 4.0), "tick", "end", &text);
        }
        let _ = writeln!(
            out,
            "<path class=\"axis\" fill=\"none\" d=\"M{left:.1} {top:.1}V{bottom:.1}H{right:.1}\"/>"
        );
        for (value, text) in ticks {
            let x = self.x(*value);
            let _ = writeln!(out, "<path class=\"axis\" d=\"M{x:.1} {bottom:.1}v5\"/>");
            write_anchored(out, (x, bottom + 20.0), "tick", "middle", text);
        }
        let middle = ((left + right) / 2.0, bottom + 42.0);
        write_anchored(out, middle, "note", "middle", x_name);
    }

    fn draw_curves(&self, out: &mut String) {
        let last = self.chart.curves.len().saturating_sub(1);
        for (index, curve) in self.chart.curves.iter().enumerate() {
            let color = index % COLORS;
            let heavy = if index == last { " heavy" } else { "" };
            let last = &curve.points[curve.points.len().saturating_sub(1)..];
            let continued = [last, &curve.continued].concat();
            for (points, dashed) in [(&curve.points, ""), (&continued, " dashed")] {
                let path = self.path(points);
                let class = format!("curve c{color}{heavy}{dashed}");
                let _ = writeln!(out, "<path class=\"{class}\" d=\"{path}\"/>");
            }
            for (value, seconds) in &curve.points {
                if self.is_inside(*seconds) {
                    let (x, y) = (self.x(*value), self.y(*seconds));
                    let _ = writeln!(
                        out,
                        "<circle class=\"d{color}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\"/>"
                    );
                }
            }
        }
        for (index, curve) in self.chart.curves.iter().enumerate() {
            for (value, seconds) in curve.measured.iter().filter(|one| self.is_inside(one.1)) {
                let (x, y) = (self.x(*value), self.y(*seconds));
                let color = index % COLORS;
                let _ = writeln!(
                    out,
                    "<circle class=\"measured c{color}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.2\"/>"
                );
            }
        }
    }

    /// Returns the path of the curve inside the plot. A curve that is too high leaves the plot
    /// through its top.
    fn path(&self, points: &[(f64, f64)]) -> String {
        let mut path = String::new();
        let mut before: Option<(f64, f64)> = None;
        for (value, seconds) in points {
            let (x, y) = (self.x(*value), self.y(*seconds));
            let command = if path.is_empty() { 'M' } else { 'L' };
            if self.is_inside(*seconds) {
                let _ = write!(path, "{command}{x:.1} {y:.1}");
                before = Some((x, y));
                continue;
            }
            if let Some((from_x, from_y)) = before {
                let part = (from_y - self.top) / (from_y - y);
                let exit = from_x + part * (x - from_x);
                let _ = write!(path, "L{exit:.1} {:.1}", self.top);
            }
            break;
        }
        path
    }

    /// Writes the names and the last values of the curves at their ends, and moves labels apart if
    /// they would overlap.
    fn draw_labels(&self, out: &mut String) {
        let ends = self.chart.curves.iter().enumerate();
        let mut labels: Vec<_> = ends
            .filter_map(|(index, curve)| {
                let seconds = curve.continued.last().or(curve.points.last())?.1;
                let (name, time) = (&curve.name, Seconds(seconds));
                let is_inside = self.is_inside(seconds);
                let text = format!("{name} {}{time}", if is_inside { "" } else { "↑ " });
                let y = if is_inside { self.y(seconds) } else { self.top };
                Some((y, index % COLORS, text))
            })
            .collect();
        labels.sort_by(|one, other| one.0.total_cmp(&other.0));
        // Go from the bottom up, so that the lowest labels stay above the axis.
        let mut lowest = self.top + PLOT_HEIGHT - 2.0;
        for (y, color, text) in labels.iter().rev() {
            let y = y.min(lowest);
            lowest = y - LABEL_PITCH;
            write_text(
                out,
                (self.right + 8.0, y + 4.0),
                &format!("label d{color}"),
                text,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Chart, Curve, Frame, HEAD_HEIGHT, PLOT_HEIGHT, Scale, charts};

    fn chart(scale: Scale, ends_s: &[f64]) -> Chart {
        let curve = |(index, end_s): (usize, &f64)| Curve {
            name: format!("<{index}>"),
            points: vec![(2.0, 1.0), (4.0, *end_s)],
            continued: Vec::new(),
            measured: vec![(2.0, 1.0)],
        };
        Chart {
            name: "Step time".into(),
            note: String::new(),
            scale,
            curves: ends_s.iter().enumerate().map(curve).collect(),
        }
    }

    fn ticks() -> Vec<(f64, String)> {
        [2, 4]
            .map(|ranks| (f64::from(ranks), ranks.to_string()))
            .to_vec()
    }

    #[test]
    fn doublings_are_equidistant_and_inside_the_plot() {
        let chart = chart(Scale::Logarithmic, &[0.01, 10.0]);
        let ticks = [1.0, 2.0, 4.0].map(|x| (x, String::new()));
        let frame = Frame::new(&chart, &ticks, (0.0, HEAD_HEIGHT), 500.0);
        let [first, second] = [(1.0, 2.0), (2.0, 4.0)].map(|(a, b)| frame.x(b) - frame.x(a));
        assert!((first - second).abs() < 1e-9, "{first} {second}");
        for seconds in [0.01, 1.0, 10.0] {
            let y = frame.y(seconds) - HEAD_HEIGHT;
            assert!((0.0..=PLOT_HEIGHT).contains(&y), "{seconds} s at {y}");
        }
        assert_eq!(
            frame.y_ticks().len(),
            10,
            "expected the ticks 0.01, 0.02, 0.05 … 10"
        );
    }

    #[test]
    fn too_high_curve_leaves_through_top_with_label() {
        let chart = chart(Scale::Linear(2.0), &[3.0]);
        let ticks = ticks();
        let frame = Frame::new(&chart, &ticks, (0.0, HEAD_HEIGHT), 500.0);
        let path = frame.path(&chart.curves[0].points);
        let exit = (frame.x(2.0) + frame.x(4.0)) / 2.0;
        assert!(
            path.ends_with(&format!("L{exit:.1} {HEAD_HEIGHT:.1}")),
            "{path}"
        );
        let picture = charts("title", &["note"], "ranks", &ticks, &[chart]);
        assert!(picture.contains("&lt;0&gt; ↑ 3 s<"), "{picture}");
        assert_eq!(picture.matches("class=\"measured c0\"").count(), 1);
    }

    #[test]
    fn labels_of_curves_with_equal_ends_do_not_overlap() {
        let chart = chart(Scale::Linear(2.0), &[1.0, 1.001, 0.0]);
        let mut out = String::new();
        Frame::new(&chart, &ticks(), (0.0, HEAD_HEIGHT), 500.0).draw_labels(&mut out);
        let places: Vec<f64> = out
            .lines()
            .filter_map(|line| line.split("y=\"").nth(1)?.split('"').next()?.parse().ok())
            .collect();
        assert_eq!(places.len(), 3);
        assert!(
            places.windows(2).all(|pair| pair[0] - pair[1] >= 16.9),
            "{places:?}"
        );
    }
}
