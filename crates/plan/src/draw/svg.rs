//! Draws plans for web pages, with one row per rank, one band per round, and one arrow per message.

use super::holdings::{Holdings, State};
use super::{Caption, arrows_of, escaped, facts, title};
use crate::error::PlanError;
use crate::export::Transfer;
use crate::ir::Plan;
use std::fmt::Write;

/// Sizes in pixels: the margin around the drawing, the space left of the first state, the distance
/// between rows, and the height of a state.
const MARGIN: f64 = 28.0;
const LABEL_WIDTH: f64 = 64.0;
const ROW_PITCH: f64 = 38.0;
const STATE_HEIGHT: f64 = 20.0;
/// Height, in pixels, of the space above the first line of rounds, which contains the title, the
/// facts and the legend.
const HEAD_HEIGHT: f64 = 102.0;
/// Height, in pixels, of the space above the first row of a line, which contains the round numbers.
const BAND_HEAD_HEIGHT: f64 = 34.0;
/// Height, in pixels, of the space below the last row, which shows the share of ranks that are
/// done.
const FOOT_HEIGHT: f64 = 62.0;
/// Widths in pixels: the minimum and the maximum for a state, and the preferred width of a chunk.
const STATE_WIDTH_MIN: f64 = 34.0;
const STATE_WIDTH_MAX: f64 = 96.0;
const CHUNK_WIDTH: f64 = 9.0;
/// Maximum and minimum width, in pixels, of a round's arrows. With many rounds, the arrows are
/// narrower.
const ARROWS_WIDTH_MAX: f64 = 110.0;
const ARROWS_WIDTH_MIN: f64 = 44.0;
/// Minimum width of a round's arrows, in pixels, at which the word "round" fits in front of the
/// number.
const ROUND_LABEL_WIDTH_MIN: f64 = 66.0;
/// Minimum and maximum width of a drawing, in pixels. A narrower drawing would clip its title, and
/// a wider one would not fit on a page.
const WIDTH_MIN: f64 = 620.0;
const WIDTH_MAX: f64 = 1480.0;
/// Number of shades between nothing and complete.
const SHADES: f32 = 4.0;

/// Colors for light pages, followed by those for dark pages. A complete chunk is green, and a
/// partial sum is a shade of blue. A green arrow is a message that is stored, and a blue arrow is a
/// message that is reduced.
const STYLE: &str = "
text{font-family:ui-sans-serif,system-ui,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2933}
.paper{fill:#ffffff;stroke:#d9dee5}.title{font-size:19px;font-weight:650}
.note{font-size:12.5px;fill:#5f6c7b}.head{font-size:12px;font-weight:600}
.band{fill:#f5f7fa}.h0{fill:#e6eaf0}.h1{fill:#cfe0f5}.h2{fill:#a3c6ee}.h3{fill:#6ea4e2}
.h4{fill:#3c7fcf}.done{fill:#17a673}.gap{stroke:#ffffff;stroke-width:1}
.store{stroke:#17a673;fill:none;stroke-width:1.6}.fold{stroke:#3c7fcf;fill:none;stroke-width:1.6}
.store-tip{fill:#17a673}.fold-tip{fill:#3c7fcf}.line{stroke:#d9dee5;stroke-width:1}
.own{stroke:#8896a6;stroke-width:1.6;stroke-dasharray:2 3;fill:none}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.paper{fill:#0f141b;stroke:#2b333d}
.note{fill:#93a1b1}.band{fill:#161d26}.h0{fill:#28313c}.h1{fill:#1d3a5c}.h2{fill:#23588f}
.h3{fill:#3079c4}.h4{fill:#5aa0ea}.done{fill:#2cc48d}.gap{stroke:#0f141b}.store{stroke:#2cc48d}
.fold{stroke:#5aa0ea}.store-tip{fill:#2cc48d}.fold-tip{fill:#5aa0ea}.line{stroke:#2b333d}}
";

/// Draws `plans`, which contains one plan per rank in rank order, as a self-contained SVG.
///
/// # Errors
/// Returns an error if there are no plans, if there are too many ranks to draw, or if the
/// plans are not consistent with each other.
pub fn svg(plans: &[Plan], caption: &Caption) -> Result<String, PlanError> {
    let holdings = Holdings::of(plans)?;
    let collective = plans[0].request.collective;
    let frame = Frame::of(&holdings);
    let mut out = String::new();
    open(&mut out, (frame.width, frame.height()), STYLE);
    let title = title(plans).unwrap_or_default();
    write_text(&mut out, (MARGIN, 42.0), "title", &title);
    write_text(
        &mut out,
        (MARGIN, 64.0),
        "note",
        &facts(collective, caption),
    );
    legend(&mut out, &holdings);
    for index in 0..frame.lines() {
        frame.line(index).draw(&mut out, &holdings);
    }
    out.push_str("</svg>\n");
    Ok(out)
}

/// Writes the opening tag, the style, the arrowheads and the background.
fn open(out: &mut String, (width, height): (f64, f64), style: &str) {
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\">\n<style>{style}</style>\n<defs>"
    );
    for name in ["store", "fold"] {
        let _ = write!(
            out,
            "<marker id=\"{name}\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" \
             markerHeight=\"7\" markerUnits=\"userSpaceOnUse\" orient=\"auto\">\
             <path class=\"{name}-tip\" d=\"M0 0L8 4L0 8Z\"/></marker>"
        );
    }
    let _ = writeln!(
        out,
        "</defs>\n<rect class=\"paper\" x=\"0.5\" y=\"0.5\" width=\"{:.0}\" height=\"{:.0}\" \
         rx=\"10\"/>",
        width - 1.0,
        height - 1.0
    );
}

fn write_text(out: &mut String, (x, y): (f64, f64), class: &str, text: &str) {
    write_anchored(out, (x, y), class, "start", text);
}

fn write_anchored(out: &mut String, (x, y): (f64, f64), class: &str, anchor: &str, text: &str) {
    let text = escaped(text);
    let _ = writeln!(
        out,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
    );
}

/// Writes a rectangle with rounded corners.
fn write_rect(
    out: &mut String,
    class: &str,
    (x, y): (f64, f64),
    (width, height): (f64, f64),
    radius: f64,
) {
    let _ = writeln!(
        out,
        "<rect class=\"{class}\" x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" \
         height=\"{height:.2}\" rx=\"{radius}\"/>"
    );
}

fn legend(out: &mut String, holdings: &Holdings) {
    let (mut x, y) = (MARGIN, 89.0);
    let mut key = |class: &str, text: &str, width: f64| {
        write_rect(out, class, (x, y - 10.0), (12.0, 12.0), 3.0);
        write_text(out, (x + 18.0, y), "note", text);
        x += width;
    };
    let parts = |state: &State| state.parts.iter().flatten().any(|part| is_partial(*part));
    key("h0", "nothing", 82.0);
    if holdings.states.iter().any(parts) {
        key("h1", "one contribution", 132.0);
        key("h3", "several", 82.0);
    }
    key("done", "complete", 92.0);
    let transfers = || holdings.rounds.iter().flatten();
    let has_store = transfers().any(|one| !one.reduce && one.from != one.to);
    let has_fold = transfers().any(|one| one.reduce && one.from != one.to);
    for (class, text, is_used) in [
        ("store", "stored", has_store),
        ("fold", "reduced", has_fold),
    ] {
        if is_used {
            let _ = writeln!(
                out,
                "<path class=\"{class}\" marker-end=\"url(#{class})\" d=\"M{x:.1} {:.1}h26\"/>",
                y - 4.0
            );
            write_text(out, (x + 33.0, y), "note", text);
            x += 88.0;
        }
    }
}

fn is_partial(part: f32) -> bool {
    part > 0.0 && part < 1.0
}

/// The sizes that determine all positions in the drawing. Rounds that do not fit next to each other
/// continue on the next line.
struct Frame {
    ranks: usize,
    rounds: usize,
    rounds_per_line: usize,
    state_width: f64,
    arrows_width: f64,
    width: f64,
    line_height: f64,
}

impl Frame {
    fn of(holdings: &Holdings) -> Self {
        let ranks = holdings.states[0].parts.len();
        let chunks = holdings.states[0].parts[0].len();
        let rounds = holdings.rounds.len();
        let state_width = (chunks as f64 * CHUNK_WIDTH).clamp(STATE_WIDTH_MIN, STATE_WIDTH_MAX);
        let room = WIDTH_MAX - 2.0 * MARGIN - LABEL_WIDTH - state_width;
        let fitting = (room / (state_width + ARROWS_WIDTH_MIN)) as usize;
        // Distribute the rounds evenly over the lines, so that the last line is not much shorter
        // than the others.
        let lines = rounds.div_ceil(fitting).max(1);
        let rounds_per_line = rounds.div_ceil(lines).max(1);
        let arrows_width =
            (room / rounds_per_line as f64 - state_width).clamp(ARROWS_WIDTH_MIN, ARROWS_WIDTH_MAX);
        let drawn =
            LABEL_WIDTH + state_width + rounds_per_line as f64 * (state_width + arrows_width);
        Self {
            ranks,
            rounds,
            rounds_per_line,
            state_width,
            arrows_width,
            width: (drawn + 2.0 * MARGIN).max(WIDTH_MIN),
            line_height: BAND_HEAD_HEIGHT + ranks as f64 * ROW_PITCH + FOOT_HEIGHT,
        }
    }

    fn lines(&self) -> usize {
        self.rounds.div_ceil(self.rounds_per_line).max(1)
    }

    fn height(&self) -> f64 {
        HEAD_HEIGHT + self.lines() as f64 * self.line_height
    }

    fn line(&self, index: usize) -> Line<'_> {
        Line {
            frame: self,
            begin: index * self.rounds_per_line,
            end: self.rounds.min((index + 1) * self.rounds_per_line),
            top: HEAD_HEIGHT + index as f64 * self.line_height + BAND_HEAD_HEIGHT,
        }
    }
}

/// A line of the drawing, which shows the rounds `begin..end` next to each other.
struct Line<'a> {
    frame: &'a Frame,
    begin: usize,
    end: usize,
    top: f64,
}

impl Line<'_> {
    fn draw(&self, out: &mut String, holdings: &Holdings) {
        self.bands(out);
        for index in self.begin..self.end {
            self.arrows(out, index, &holdings.rounds[index]);
        }
        for index in self.begin..=self.end {
            self.state(out, index, &holdings.states[index]);
            self.share(out, index, &holdings.states[index]);
        }
    }

    /// Returns the left border of the state before round `index`.
    fn x(&self, index: usize) -> f64 {
        let pitch = self.frame.state_width + self.frame.arrows_width;
        MARGIN + LABEL_WIDTH + (index - self.begin) as f64 * pitch
    }

    /// Returns the middle of a rank's row.
    fn y(&self, rank: usize) -> f64 {
        self.top + (rank as f64 + 0.5) * ROW_PITCH
    }

    /// Draws the background and the number of each round, and the label and the line of each row.
    fn bands(&self, out: &mut String) {
        let (ranks, width) = (self.frame.ranks, self.frame.arrows_width);
        let bottom = self.y(ranks);
        for index in self.begin..self.end {
            let x = self.x(index) + self.frame.state_width;
            let place = (x + 5.0, self.top - 26.0);
            let size = (width - 10.0, bottom - self.top + 12.0);
            write_rect(out, "band", place, size, 6.0);
            let head = match width >= ROUND_LABEL_WIDTH_MIN {
                true => format!("round {}", index + 1),
                false => format!("{}", index + 1),
            };
            let middle = (x + width / 2.0, self.top - 9.0);
            write_anchored(out, middle, "head", "middle", &head);
        }
        for rank in 0..ranks {
            let y = self.y(rank);
            write_text(out, (MARGIN, y + 4.0), "head", &format!("rank {rank}"));
            let (begin, end) = (self.x(self.begin), self.x(self.end));
            let _ = writeln!(
                out,
                "<path class=\"line\" d=\"M{begin:.1} {y:.1}H{end:.1}\"/>"
            );
        }
        write_text(out, (MARGIN, bottom + 10.0), "note", "complete");
    }

    /// Draws the number of ranks that hold everything they are owed, and a bar that shows the
    /// fraction of owed chunks that are complete.
    fn share(&self, out: &mut String, index: usize, state: &State) {
        let (x, bottom) = (self.x(index), self.y(self.frame.ranks));
        let full = self.frame.state_width;
        let part = full * f64::from(state.complete_part);
        write_rect(out, "h0", (x, bottom), (full, 5.0), 2.5);
        if part > 0.0 {
            write_rect(out, "done", (x, bottom), (part, 5.0), 2.5);
        }
        let text = format!("{}/{}", state.ranks_done, state.ranks_owed);
        let place = (x + full / 2.0, bottom + 20.0);
        write_anchored(out, place, "note", "middle", &text);
    }

    /// Draws one cell per chunk. If cells are narrow, adjacent cells with the same shade are drawn
    /// as one rectangle.
    fn state(&self, out: &mut String, index: usize, state: &State) {
        for (rank, parts) in state.parts.iter().enumerate() {
            let (x, y) = (self.x(index), self.y(rank) - STATE_HEIGHT / 2.0);
            let chunk_width = self.frame.state_width / parts.len() as f64;
            let shade = |part: &f32| shade(*part, self.frame.ranks);
            let is_fine = chunk_width < 4.0;
            let (gap, radius) = match parts.len() {
                1 => (0.0, 4.0),
                _ if is_fine => (0.0, 1.5),
                _ => (1.0, 1.5),
            };
            let mut begin = 0;
            for cell in parts.chunk_by(|one, next| is_fine && shade(one) == shade(next)) {
                let width = cell.len() as f64 * chunk_width - gap;
                let place = (x + begin as f64 * chunk_width, y);
                write_rect(out, shade(&cell[0]), place, (width, STATE_HEIGHT), radius);
                begin += cell.len();
            }
        }
    }

    fn arrows(&self, out: &mut String, index: usize, round: &[Transfer]) {
        for one in arrows_of(round) {
            let begin = self.x(index) + self.frame.state_width + 2.0;
            let end = self.x(index + 1) - 3.0;
            let (from, to) = (self.y(one.from), self.y(one.to));
            if one.from == one.to {
                let _ = writeln!(
                    out,
                    "<path class=\"own\" d=\"M{begin:.1} {from:.1}H{end:.1}\"/>"
                );
                continue;
            }
            let class = match is_folded(&one, round) {
                true => "fold",
                false => "store",
            };
            let bend = (end - begin) * 0.5;
            let _ = writeln!(
                out,
                "<path class=\"{class}\" marker-end=\"url(#{class})\" d=\"M{begin:.1} {from:.1}\
                 C{:.1} {from:.1} {:.1} {to:.1} {end:.1} {to:.1}\"/>",
                begin + bend,
                end - bend
            );
        }
    }
}

/// Returns whether a transfer is part of a reduction. In a reduction of several messages, the first
/// operand is stored, but it still belongs to the reduction.
fn is_folded(one: &Transfer, round: &[Transfer]) -> bool {
    round
        .iter()
        .any(|other| other.reduce && (other.to, other.to_chunk) == (one.to, one.to_chunk))
}

/// Returns the shade for a fraction of the contributions of `ranks` ranks. The darkness grows with
/// the logarithm of the number of contributions.
fn shade(part: f32, ranks: usize) -> &'static str {
    if part >= 1.0 {
        return "done";
    }
    if part <= 0.0 {
        return "h0";
    }
    let contributions = part * ranks as f32;
    let depth = contributions.log2() / (ranks as f32).log2();
    match (depth * SHADES + 0.01) as usize {
        0 => "h1",
        1 => "h2",
        2 => "h3",
        _ => "h4",
    }
}
