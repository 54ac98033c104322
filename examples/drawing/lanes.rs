//! Draws how much of the data each rank has over time, in several runs of a collective.

use super::page::{open, tick_length, write_anchored, write_rect, write_text};
use std::fmt::Write;

/// Dimensions of the picture and its parts, in pixels.
const WIDTH: f64 = 960.0;
const MARGIN: f64 = 28.0;
const NAMES_WIDTH: f64 = 196.0;
const FINISH_WIDTH: f64 = 86.0;
const HEAD_HEIGHT: f64 = 96.0;
const LANE_HEIGHT: f64 = 10.0;
const LANE_PITCH: f64 = 13.0;
const PANEL_GAP: f64 = 26.0;
const AXIS_HEIGHT: f64 = 60.0;
/// Maximum number of ticks on the axis.
const TICKS_MAX: f64 = 9.0;

/// CSS of the lanes in addition to the page's CSS.
const LANES_STYLE: &str = "
.finish{font-size:21px;font-weight:700}
.rank{font-size:9.5px;fill:#5f6c7b}.track{fill:#f0f3f7}.end{stroke:#1f2933;stroke-width:1.5}
@media (prefers-color-scheme:dark){.rank{fill:#93a1b1}.track{fill:#1a222c}.end{stroke:#e6edf3}}
";

/// A run of a collective.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Panel {
    /// Title, such as "Binomial tree".
    pub(crate) name: String,
    /// Short explanation, such as "3 rounds of the complete file".
    pub(crate) note: String,
    /// Progress of each rank, indexed by rank, as (seconds, fraction from 0 to 1 that the rank has
    /// from then on), in ascending order of time. Before the first entry, a rank has nothing.
    pub(crate) lanes: Vec<Vec<(f64, f64)>>,
}

impl Panel {
    /// Returns the time in seconds after which no rank received more data.
    pub(crate) fn finish_s(&self) -> f64 {
        let growth = |lane: &Vec<(f64, f64)>| {
            let most = lane.iter().map(|(_, part)| *part).fold(0.0, f64::max);
            let reached = lane.iter().find(|(_, part)| *part >= most);
            reached.map_or(0.0, |(time_s, _)| *time_s)
        };
        self.lanes.iter().map(growth).fold(0.0, f64::max)
    }

    fn height(&self) -> f64 {
        self.lanes.len() as f64 * LANE_PITCH
    }
}

/// Draws `panels` one above the other along one axis of seconds, as a self-contained SVG. Each rank
/// has a lane, which is blue and as high as the fraction that the rank has, and turns green once
/// the rank has everything.
pub(crate) fn timeline(title: &str, note: &str, panels: &[Panel]) -> String {
    let panels_height: f64 = panels.iter().map(|panel| panel.height() + PANEL_GAP).sum();
    let bottom = HEAD_HEIGHT + panels_height - PANEL_GAP;
    let longest_s = panels.iter().map(Panel::finish_s).fold(0.0, f64::max);
    let axis = Axis::new(longest_s);
    let mut out = String::new();
    open(&mut out, (WIDTH, bottom + AXIS_HEIGHT), LANES_STYLE);
    write_text(&mut out, (MARGIN, 42.0), "title", title);
    write_text(&mut out, (MARGIN, 64.0), "note", note);
    legend(&mut out);
    axis.draw(&mut out, bottom);
    let mut top = HEAD_HEIGHT;
    for panel in panels {
        draw_panel(&mut out, panel, &axis, top);
        top += panel.height() + PANEL_GAP;
    }
    out.push_str("</svg>\n");
    out
}

fn legend(out: &mut String) {
    let mut x = WIDTH - MARGIN - 262.0;
    for (class, text, width) in [
        ("track", "nothing", 82.0),
        ("h3", "a part", 74.0),
        ("done", "everything", 90.0),
    ] {
        write_rect(out, class, (x, 54.0), (12.0, 12.0), 3.0);
        write_text(out, (x + 18.0, 64.0), "note", text);
        x += width;
    }
}

/// Conversion from seconds to pixels.
struct Axis {
    end_s: f64,
    tick_s: f64,
}

impl Axis {
    fn new(end_s: f64) -> Self {
        let end_s = if end_s > 0.0 { end_s } else { 1.0 };
        Self {
            end_s,
            tick_s: tick_length(end_s / TICKS_MAX),
        }
    }

    fn x(&self, time_s: f64) -> f64 {
        let span = WIDTH - 2.0 * MARGIN - NAMES_WIDTH - FINISH_WIDTH;
        MARGIN + NAMES_WIDTH + time_s / self.end_s * span
    }

    fn draw(&self, out: &mut String, bottom: f64) {
        let ticks = (self.end_s / self.tick_s + 1e-9).floor() as usize;
        let decimals = (-self.tick_s.log10().floor()).max(0.0) as usize;
        for tick in 0..=ticks {
            let time_s = tick as f64 * self.tick_s;
            let x = self.x(time_s);
            let _ = writeln!(
                out,
                "<path class=\"grid\" d=\"M{x:.1} {:.1}V{:.1}\"/>",
                HEAD_HEIGHT - 6.0,
                bottom + 8.0
            );
            let text = format!("{time_s:.decimals$} s");
            write_anchored(out, (x, bottom + 26.0), "note", "middle", &text);
        }
    }
}

fn draw_panel(out: &mut String, panel: &Panel, axis: &Axis, top: f64) {
    let finish_s = panel.finish_s();
    let (begin, end) = (axis.x(0.0), axis.x(finish_s));
    let middle = top + panel.height() / 2.0;
    write_text(out, (MARGIN, middle - 3.0), "name", &panel.name);
    write_text(out, (MARGIN, middle + 15.0), "note", &panel.note);
    for (rank, lane) in panel.lanes.iter().enumerate() {
        let y = top + rank as f64 * LANE_PITCH + (LANE_PITCH - LANE_HEIGHT) / 2.0;
        let base = y + LANE_HEIGHT;
        write_anchored(
            out,
            (begin - 6.0, base - 1.5),
            "rank",
            "end",
            &rank.to_string(),
        );
        write_rect(out, "track", (begin, y), (end - begin, LANE_HEIGHT), 2.0);
        draw_lane(out, lane, axis, (base, finish_s));
    }
    let (above, below) = (top - 3.0, top + panel.height() + 3.0);
    let _ = writeln!(
        out,
        "<path class=\"end\" d=\"M{end:.1} {above:.1}V{below:.1}\"/>"
    );
    let text = format!("{finish_s:.1} s");
    write_text(out, (end + 10.0, middle + 7.0), "finish", &text);
}

/// Draws steps until the rank has everything, and a solid bar from then on.
fn draw_lane(out: &mut String, lane: &[(f64, f64)], axis: &Axis, (base, finish_s): (f64, f64)) {
    let complete_s = lane
        .iter()
        .find(|(_, part)| *part >= 1.0)
        .map_or(finish_s, |(time_s, _)| *time_s);
    let mut path = String::new();
    let mut end = axis.x(complete_s);
    for (time_s, part) in lane.iter().filter(|(time_s, _)| *time_s < complete_s) {
        let x = axis.x(*time_s);
        let y = base - LANE_HEIGHT * part.clamp(0.0, 1.0);
        if path.is_empty() {
            let _ = write!(path, "M{x:.1} {base:.1}");
        }
        let _ = write!(path, "H{x:.1}V{y:.1}");
    }
    if !path.is_empty() {
        let _ = writeln!(out, "<path class=\"h3\" d=\"{path}H{end:.1}V{base:.1}Z\"/>");
    }
    if lane.iter().any(|(_, part)| *part >= 1.0) {
        // The last rank's bar would have no width, so each bar has a minimum width.
        end = end.min(axis.x(finish_s) - 2.0);
        let size = (axis.x(finish_s) - end, LANE_HEIGHT);
        write_rect(out, "done", (end, base - LANE_HEIGHT), size, 1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::{Axis, Panel, timeline};

    fn panel(lanes: Vec<Vec<(f64, f64)>>) -> Panel {
        Panel {
            name: "a <name>".to_owned(),
            note: String::new(),
            lanes,
        }
    }

    #[test]
    fn panel_ends_when_last_rank_has_all_data() {
        let panel = panel(vec![
            vec![(0.0, 1.0), (9.0, 1.0)],
            vec![(1.0, 0.5), (3.0, 1.0), (8.0, 1.0)],
            vec![],
        ]);
        assert_eq!(panel.finish_s(), 3.0);
    }

    #[test]
    fn axis_has_few_round_ticks() {
        for (end_s, tick_s) in [(35.0, 5.0), (5.6, 1.0), (0.007, 0.001), (90.0, 10.0)] {
            let axis = Axis::new(end_s);
            assert!(
                (axis.tick_s / tick_s - 1.0).abs() < 1e-9,
                "{end_s}: {}",
                axis.tick_s
            );
        }
    }

    #[test]
    fn picture_names_every_run_and_its_time() {
        let fast = panel(vec![vec![(0.0, 1.0)], vec![(2.5, 1.0)]]);
        let picture = timeline("title", "note", &[fast, panel(vec![])]);
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
        assert_eq!(picture.matches("a &lt;name&gt;").count(), 2);
        assert!(picture.contains(">2.5 s<"));
    }
}
