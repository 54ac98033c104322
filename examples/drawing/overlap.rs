//! Draws a timeline: the computation of every rank, and below it the buckets on the rank's links.

use super::page::{open, tick_length, write_anchored, write_rect, write_text};
use ringtree::ddp::{RankSpans, Span, Timeline};
use std::fmt::Write;
use std::ops::Range;
use std::time::Duration;

/// Name of the track that contains the buckets.
const COMMUNICATION: &str = "communication";
/// Dimensions of the picture and its parts, in pixels.
const WIDTH: f64 = 960.0;
const MARGIN: f64 = 28.0;
const NAMES_WIDTH: f64 = 118.0;
const HEAD_HEIGHT: f64 = 122.0;
const AXIS_HEIGHT: f64 = 54.0;
/// Heights of a row of computation and of a row of communication, and the gap below a row, in
/// pixels.
const WORK_HEIGHT: f64 = 22.0;
const BUCKET_HEIGHT: f64 = 13.0;
const ROW_GAP: f64 = 3.0;
const RANK_GAP: f64 = 16.0;
/// Gap between neighboring bars, in pixels.
const SPAN_GAP: f64 = 1.0;
/// Width of a letter in a span's name, in pixels.
const LETTER_WIDTH: f64 = 6.0;
/// Maximum number of ticks on the axis.
const TICKS_MAX: f64 = 10.0;
/// Tracks to draw: name, class, text in the legend, and width of that text in pixels.
const KINDS: [(&str, &str, &str, f64); 5] = [
    ("forward", "forward", "forward", 90.0),
    ("backward", "h4", "backward, by layer", 160.0),
    (COMMUNICATION, "done", "communication, by bucket", 208.0),
    ("wait", "wait", "waiting for it", 121.0),
    ("optimizer", "optimizer", "optimizer", 100.0),
];

/// CSS of a timeline in addition to the page's CSS.
const TRACE_STYLE: &str = "
.in{font-size:10px;font-weight:600;fill:#ffffff}.in-bucket{font-size:9.5px;fill:#ffffff}
.forward{fill:#8896a6}.optimizer{fill:#9567d6}.wait{fill:#e8973a}
.row{fill:#f5f7fa}
@media (prefers-color-scheme:dark){.in,.in-bucket{fill:#0f141b}.forward{fill:#7d8b9b}
.optimizer{fill:#b18af0}.wait{fill:#f0a44c}.row{fill:#161d26}}
";

/// Draws the part `window` of the timeline. For every rank, one row shows the computation (the
/// tracks `forward`, `backward`, `optimizer`, and `wait` for the time in `DataParallel::wait`). The
/// rows below it show the buckets in flight.
pub(crate) fn overlap(
    timeline: &Timeline,
    title: &str,
    note: &str,
    window: Range<Duration>,
) -> String {
    let frame = Frame::new(window);
    let lanes: Vec<_> = timeline
        .ranks
        .iter()
        .map(|rank| Lane::new(rank, &frame))
        .collect();
    let heights = lanes.iter().map(|lane| lane.height() + RANK_GAP);
    let bottom = HEAD_HEIGHT + heights.sum::<f64>() - RANK_GAP;
    let mut out = String::new();
    open(&mut out, (WIDTH, bottom + AXIS_HEIGHT), TRACE_STYLE);
    write_text(&mut out, (MARGIN, 42.0), "title", title);
    write_text(&mut out, (MARGIN, 64.0), "note", note);
    legend(&mut out);
    frame.draw_axis(&mut out, bottom);
    let mut top = HEAD_HEIGHT;
    for (rank, lane) in lanes.iter().enumerate() {
        lane.draw(&mut out, &frame, rank, top);
        top += lane.height() + RANK_GAP;
    }
    out.push_str("</svg>\n");
    out
}

fn legend(out: &mut String) {
    let mut x = MARGIN;
    for (_, class, text, width) in KINDS {
        write_rect(out, class, (x, 81.0), (12.0, 12.0), 3.0);
        write_text(out, (x + 18.0, 91.0), "note", text);
        x += width;
    }
}

fn kind(track: &str) -> Option<&'static str> {
    let found = KINDS.iter().find(|(name, ..)| *name == track);
    found.map(|(_, class, ..)| *class)
}

/// Conversion from time to pixels.
struct Frame {
    start_ms: f64,
    length_ms: f64,
}

impl Frame {
    fn new(window: Range<Duration>) -> Self {
        let start_ms = milliseconds(window.start);
        let length_ms = milliseconds(window.end) - start_ms;
        let length_ms = if length_ms > 0.0 { length_ms } else { 1.0 };
        Self {
            start_ms,
            length_ms,
        }
    }

    fn x(&self, time_ms: f64) -> f64 {
        let part = ((time_ms - self.start_ms) / self.length_ms).clamp(0.0, 1.0);
        MARGIN + NAMES_WIDTH + part * (WIDTH - 2.0 * MARGIN - NAMES_WIDTH)
    }

    fn holds(&self, span: &Span) -> bool {
        let end_ms = self.start_ms + self.length_ms;
        milliseconds(span.end) > self.start_ms && milliseconds(span.start) < end_ms
    }

    fn draw_axis(&self, out: &mut String, bottom: f64) {
        let tick_ms = tick_length(self.length_ms / TICKS_MAX);
        let ticks = (self.length_ms / tick_ms + 1e-9).floor() as usize;
        let decimals = (-tick_ms.log10().floor()).max(0.0) as usize;
        for tick in 0..=ticks {
            let time_ms = tick as f64 * tick_ms;
            let x = self.x(self.start_ms + time_ms);
            let (above, below) = (HEAD_HEIGHT - 8.0, bottom + 8.0);
            let _ = writeln!(
                out,
                "<path class=\"grid\" d=\"M{x:.1} {above:.1}V{below:.1}\"/>"
            );
            let text = format!("{time_ms:.decimals$} ms");
            write_anchored(out, (x, bottom + 26.0), "note", "middle", &text);
        }
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The part of the picture for one rank.
struct Lane<'a> {
    work: Vec<&'a Span>,
    buckets: Vec<Vec<&'a Span>>,
}

impl<'a> Lane<'a> {
    fn new(rank: &'a RankSpans, frame: &Frame) -> Self {
        let is_work = |span: &&Span| span.track != COMMUNICATION && kind(&span.track).is_some();
        let is_bucket = |span: &&Span| span.track == COMMUNICATION && frame.holds(span);
        let buckets = rows(rank.spans.iter().filter(is_bucket));
        let work = rank.spans.iter().filter(is_work);
        Self {
            work: work.filter(|span| frame.holds(span)).collect(),
            buckets,
        }
    }

    fn height(&self) -> f64 {
        WORK_HEIGHT + self.buckets.len() as f64 * (BUCKET_HEIGHT + ROW_GAP)
    }

    fn draw(&self, out: &mut String, frame: &Frame, rank: usize, top: f64) {
        write_text(out, (MARGIN, top + 15.0), "head", &format!("rank {rank}"));
        let begin = MARGIN + NAMES_WIDTH;
        let whole = WIDTH - MARGIN - begin;
        let name = (begin - 10.0, top + 15.0);
        write_anchored(out, name, "note", "end", "compute");
        write_rect(out, "row", (begin, top), (whole, WORK_HEIGHT), 3.0);
        for span in &self.work {
            draw_span(out, frame, span, top, WORK_HEIGHT);
        }
        for (index, row) in self.buckets.iter().enumerate() {
            let y = top + WORK_HEIGHT + ROW_GAP + index as f64 * (BUCKET_HEIGHT + ROW_GAP);
            if index == 0 {
                let name = (begin - 10.0, y + BUCKET_HEIGHT - 2.5);
                write_anchored(out, name, "note", "end", "links");
            }
            write_rect(out, "row", (begin, y), (whole, BUCKET_HEIGHT), 3.0);
            for span in row {
                draw_span(out, frame, span, y, BUCKET_HEIGHT);
            }
        }
    }
}

/// Distributes `spans`, which are in ascending order of start, among as few rows as possible.
fn rows<'a>(spans: impl Iterator<Item = &'a Span>) -> Vec<Vec<&'a Span>> {
    let mut rows: Vec<Vec<&Span>> = Vec::new();
    for span in spans {
        let is_free = |row: &&mut Vec<&Span>| row.last().is_none_or(|one| one.end <= span.start);
        match rows.iter_mut().find(is_free) {
            Some(row) => row.push(span),
            None => rows.push(vec![span]),
        }
    }
    rows
}

/// Draws a bar with the span's name, only the last word of the name, or no text, depending on the
/// space.
fn draw_span(out: &mut String, frame: &Frame, span: &Span, y: f64, height: f64) {
    let Some(class) = kind(&span.track) else {
        return;
    };
    let begin = frame.x(milliseconds(span.start));
    let width = frame.x(milliseconds(span.end)) - begin;
    // Omit the gap if the bar would otherwise disappear.
    let drawn = (width - SPAN_GAP).max(width.min(0.6));
    write_rect(out, class, (begin, y), (drawn, height), 2.0);
    let last_word = span.name.rsplit(' ').next().unwrap_or_default();
    let fits = |text: &&str| text.chars().count() as f64 * LETTER_WIDTH + 4.0 <= drawn;
    let Some(text) = [span.name.as_str(), last_word].into_iter().find(fits) else {
        return;
    };
    let class = if span.track == COMMUNICATION {
        "in-bucket"
    } else {
        "in"
    };
    let middle = (begin + drawn / 2.0, y + height / 2.0 + 3.5);
    write_anchored(out, middle, class, "middle", text);
}

#[cfg(test)]
mod tests {
    use super::overlap;
    use ringtree::sim::sleep;
    use ringtree::{Error, ddp::Trace};
    use std::time::Duration;

    #[test]
    fn rank_0_draws_spans_of_all_ranks() {
        let pictures = ringtree::simulate(2, |comm| {
            let trace = Trace::new(comm)?;
            trace.measure("backward", "layer 1", || {
                sleep(comm, Duration::from_millis(300))
            });
            let second = Duration::ZERO..Duration::from_secs(1);
            let timeline = trace.collect()?;
            Ok::<_, Error>(timeline.map(|timeline| overlap(&timeline, "A <step>", "", second)))
        });
        let picture = pictures[0].clone().unwrap().unwrap();
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
        assert!(picture.contains("A &lt;step&gt;"));
        assert_eq!(picture.matches(">layer 1<").count(), 2, "{picture}");
    }
}
