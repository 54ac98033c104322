//! Draws step time against bucket size.

use crate::drawing::page::{open, tick_length, write_anchored, write_text};
use crate::rows::{Row, bound_ms, read};
use std::fmt::Write;
use std::ops::RangeInclusive;
use std::path::Path;

/// Dimensions of the picture and its parts, in pixels.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 500.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 792.0;
const TOP: f64 = 96.0;
const BOTTOM: f64 = 424.0;

const MIB: f64 = (1 << 20) as f64;

/// CSS of the plot in addition to the page's CSS.
const PLOT_STYLE: &str = "
.name{font-size:13px;font-weight:600}.bound{stroke:#8896a6;stroke-width:1.5}
.curve{fill:none;stroke-width:2.2}.s0{stroke:#3c7fcf}.s1{stroke:#17a673}.s2{stroke:#c77d1a}
.d0{fill:#3c7fcf}.d1{fill:#17a673}.d2{fill:#c77d1a}.own{fill:#ffffff;stroke-width:2.6}
@media (prefers-color-scheme:dark){.s0{stroke:#5aa0ea}.d0{fill:#5aa0ea}.s1{stroke:#2cc48d}
.d1{fill:#2cc48d}.s2{stroke:#e0a04a}.d2{fill:#e0a04a}.own{fill:#0f141b}}
";

/// Draws the rows in `table`, with one curve per algorithm. All rows must have the same number of
/// ranks and the same times of forward and backward.
pub(crate) fn plot(table: &Path, picture: &Path, note: &str) -> Result<(), String> {
    let rows = read(table)?;
    let first = rows.first().ok_or("the table has no lines")?;
    let mut algorithms: Vec<&str> = Vec::new();
    for row in &rows {
        if !algorithms.contains(&row.algorithm.as_str()) {
            algorithms.push(&row.algorithm);
        }
    }
    let axes = Axes::of(&rows, bound_ms(first, &rows));
    let mut out = String::new();
    open(&mut out, (WIDTH, HEIGHT), PLOT_STYLE);
    let title = format!("One step on {} hosts, by the size of a bucket", first.ranks);
    write_text(&mut out, (28.0, 42.0), "title", &title);
    write_text(&mut out, (28.0, 64.0), "note", note);
    axes.draw(&mut out);
    for (index, algorithm) in algorithms.iter().enumerate() {
        let of: Vec<&Row> = rows
            .iter()
            .filter(|row| row.algorithm == *algorithm)
            .collect();
        axes.curve(&mut out, index.min(2), algorithm, &of);
    }
    out.push_str("</svg>\n");
    std::fs::write(picture, out).map_err(|error| format!("{}: {error}", picture.display()))
}

/// The axes: sizes in powers of two (horizontal) and seconds (vertical).
struct Axes {
    sizes_log2: RangeInclusive<f64>,
    times_ms: RangeInclusive<f64>,
    bound_ms: f64,
}

impl Axes {
    fn of(rows: &[Row], bound_ms: f64) -> Self {
        let sizes = rows.iter().map(|row| size(row).log2());
        let least = sizes.clone().fold(f64::INFINITY, f64::min);
        let most = sizes.fold(f64::NEG_INFINITY, f64::max);
        let slowest = rows.iter().map(|row| row.step_ms).fold(bound_ms, f64::max);
        Self {
            sizes_log2: least - 0.25..=most + 0.25,
            times_ms: bound_ms * 0.95..=slowest * 1.03,
            bound_ms,
        }
    }

    fn x(&self, size: f64) -> f64 {
        let (start, end) = (self.sizes_log2.start(), self.sizes_log2.end());
        LEFT + (size.log2() - start) / (end - start) * (RIGHT - LEFT)
    }

    fn y(&self, time_ms: f64) -> f64 {
        let (start, end) = (self.times_ms.start(), self.times_ms.end());
        BOTTOM - (time_ms - start) / (end - start) * (BOTTOM - TOP)
    }

    fn draw(&self, out: &mut String) {
        for mib in [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 25.0] {
            if self.sizes_log2.contains(&(mib * MIB).log2()) {
                let x = self.x(mib * MIB);
                let _ = writeln!(out, "<path class=\"grid\" d=\"M{x:.1} {TOP}V{BOTTOM}\"/>");
                write_anchored(out, (x, BOTTOM + 20.0), "note", "middle", &mib.to_string());
            }
        }
        let middle = f64::midpoint(LEFT, RIGHT);
        write_anchored(
            out,
            (middle, BOTTOM + 46.0),
            "note",
            "middle",
            "MiB a bucket",
        );
        let (start, end) = (*self.times_ms.start(), *self.times_ms.end());
        let step = tick_length((end - start) / 5.0);
        let mut time = (start / step).ceil() * step;
        while time <= end {
            let y = self.y(time);
            let _ = writeln!(out, "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>");
            let label = format!("{:.2} s", time / 1e3);
            write_anchored(out, (LEFT - 10.0, y + 4.0), "note", "end", &label);
            time += step;
        }
        let y = self.y(self.bound_ms);
        let _ = writeln!(out, "<path class=\"bound\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>");
        write_anchored(out, (RIGHT + 10.0, y + 4.0), "note", "start", "all hidden");
    }

    /// Draws an algorithm's rows with fixed sizes as a curve, and the row with the automatic size
    /// as a circle.
    fn curve(&self, out: &mut String, class: usize, algorithm: &str, rows: &[&Row]) {
        let mut fixed: Vec<&&Row> = rows.iter().filter(|row| row.size != "auto").collect();
        fixed.sort_by(|one, other| size(one).total_cmp(&size(other)));
        let at = |row: &Row| (self.x(size(row)), self.y(row.step_ms));
        let mut path = String::new();
        for (index, row) in fixed.iter().enumerate() {
            let (x, y) = at(row);
            let _ = write!(path, "{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' });
        }
        let _ = writeln!(out, "<path class=\"curve s{class}\" d=\"{path}\"/>");
        for row in &fixed {
            let (x, y) = at(row);
            let _ = writeln!(
                out,
                "<circle class=\"d{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>"
            );
        }
        // Label the curves where latency matters most, because they differ most there.
        if let Some(first) = fixed.first() {
            let (x, y) = at(first);
            write_anchored(out, (x + 14.0, y + 4.0), "name", "start", algorithm);
        }
        for row in rows.iter().filter(|row| row.size == "auto") {
            let (x, y) = at(row);
            let _ = writeln!(
                out,
                "<circle class=\"own s{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"7\"/>"
            );
        }
    }
}

/// Returns the bucket size in bytes. If the size is automatic, returns that of the largest bucket.
fn size(row: &Row) -> f64 {
    row.size.parse().unwrap_or(row.bucket_bytes as f64)
}
