//! Converts the times of all ranks' spans to rank 0's clock, and encodes the spans as a file that
//! Perfetto can open.
//!
//! The file uses the JSON object form of Chrome's "Trace Event Format". It contains complete events
//! (`X`), with times in microseconds, and metadata events (`M`) that name and sort the processes
//! and threads. There is a process for each rank and a thread for each row.

use super::clock::{self, Reading, nanoseconds};
use super::{COMMUNICATION, Recording};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::Range;
use std::time::Duration;

/// Tracks that are shown first, in this order.
const TRACKS: [&str; 5] = ["step", "forward", "backward", COMMUNICATION, "optimizer"];

/// A named interval of time on one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Track to which the span belongs. Spans of the same kind share a track.
    pub track: String,
    /// Name of the span.
    pub name: String,
    /// Time at which the span starts.
    pub start: Duration,
    /// Time at which the span ends. It is not before `start`.
    pub end: Duration,
    /// Named numbers to show alongside the span.
    pub numbers: Vec<(String, u64)>,
}

impl Span {
    pub(super) fn new(
        track: &str,
        name: impl Display,
        time: Range<Duration>,
        numbers: &[(&str, u64)],
    ) -> Self {
        let numbers = numbers
            .iter()
            .map(|(name, number)| ((*name).into(), *number));
        Self {
            track: track.into(),
            name: name.to_string(),
            start: time.start,
            end: time.end.max(time.start),
            numbers: numbers.collect(),
        }
    }
}

/// The spans of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankSpans {
    /// Spans in ascending order of their start times.
    pub spans: Vec<Span>,
    /// Number of spans that were dropped.
    pub dropped: u64,
    /// Maximum error of the rank's times relative to rank 0's clock, provided that both clocks run
    /// at a constant rate.
    pub clock_error: Duration,
}

/// The spans of all ranks, with times on rank 0's clock. The earliest span starts at time 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Spans of each rank, indexed by rank.
    pub ranks: Vec<RankSpans>,
}

/// Spans in the same track that do not overlap.
struct Row<'a> {
    track: &'a str,
    /// Index of the row in its track.
    number: usize,
    spans: Vec<&'a Span>,
}

impl Timeline {
    /// Shifts the recordings of all ranks to rank 0's clock, using clock readings from the
    /// beginning and the end of the trace.
    pub(crate) fn new(recordings: Vec<Recording>, begin: &[Reading], end: &[Reading]) -> Self {
        let shifted = |rank: usize, time| clock::shift(nanoseconds(time), &begin[rank], &end[rank]);
        let starts = recordings.iter().enumerate().flat_map(|(rank, recording)| {
            let spans = recording.spans.iter();
            spans.map(move |span| shifted(rank, span.start))
        });
        let zero_ns = starts.min().unwrap_or_default();
        let place = |rank, time| {
            let passed_ns = u64::try_from(shifted(rank, time) - zero_ns);
            Duration::from_nanos(passed_ns.unwrap_or_default())
        };
        let one = |(rank, recording): (usize, Recording)| {
            let on_our_clock = |span: Span| Span {
                start: place(rank, span.start),
                end: place(rank, span.end),
                ..span
            };
            let error_ns = begin[rank].error_ns.max(end[rank].error_ns);
            let mut spans = RankSpans {
                spans: recording.spans.into_iter().map(on_our_clock).collect(),
                dropped: recording.dropped,
                clock_error: Duration::from_nanos(u64::try_from(error_ns).unwrap_or(u64::MAX)),
            };
            spans.sort();
            spans
        };
        let ranks = recordings.into_iter().enumerate().map(one).collect();
        Self { ranks }
    }

    /// Returns the contents of the trace file, with one event per line.
    #[must_use]
    pub fn json(&self) -> String {
        let events = self.ranks.iter().enumerate().flat_map(events);
        let lines: Vec<_> = events.map(|event| event.to_string()).collect();
        format!(
            "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{}\n]}}\n",
            lines.join(",\n")
        )
    }
}

impl RankSpans {
    /// Returns each track's spans, arranged without overlaps in as few rows as possible, so that
    /// viewers show concurrent spans in separate rows.
    fn rows(&self) -> Vec<Row<'_>> {
        let others: BTreeSet<_> = self.spans.iter().map(|span| span.track.as_str()).collect();
        let others = others.into_iter().filter(|track| !TRACKS.contains(track));
        TRACKS
            .into_iter()
            .chain(others)
            .flat_map(|track| self.rows_of(track))
            .collect()
    }

    /// Sorts the spans by start time. If spans have the same start time, the longest comes first,
    /// so that a span precedes the spans that it contains.
    pub(super) fn sort(&mut self) {
        let spans = &mut self.spans;
        spans.sort_by_key(|span| (span.start, std::cmp::Reverse(span.end)));
    }

    fn rows_of<'a>(&'a self, track: &'a str) -> Vec<Row<'a>> {
        let mut rows: Vec<Row<'a>> = Vec::new();
        for span in self.spans.iter().filter(|span| span.track == track) {
            let is_free = |row: &Row<'_>| row.spans.last().is_none_or(|one| one.end <= span.start);
            let number = rows.iter().position(is_free).unwrap_or(rows.len());
            if number == rows.len() {
                let spans = Vec::new();
                rows.push(Row {
                    track,
                    number,
                    spans,
                });
            }
            rows[number].spans.push(span);
        }
        rows
    }

    /// Returns a label such as "clock ± 12 µs, 3 later spans dropped".
    fn label(&self) -> String {
        let mut label = format!("clock ± {} µs", self.clock_error.as_micros());
        if self.dropped > 0 {
            label += &format!(", {} later spans dropped", self.dropped);
        }
        label
    }
}

/// Returns the trace events for a rank, beginning with the metadata.
fn events((rank, spans): (usize, &RankSpans)) -> Vec<Value> {
    let about = |thread: usize, what: &str, args: Value| metadata(rank, thread, what, args);
    let mut events = vec![
        about(0, "process_name", json!({"name": format!("rank {rank}")})),
        about(0, "process_sort_index", json!({"sort_index": rank})),
        about(0, "process_labels", json!({"labels": spans.label()})),
    ];
    for (index, row) in spans.rows().iter().enumerate() {
        let thread = index + 1;
        let name = match row.number {
            0 => row.track.to_owned(),
            number => format!("{} {}", row.track, number + 1),
        };
        let order = json!({"sort_index": thread});
        events.push(about(thread, "thread_name", json!({"name": name})));
        events.push(about(thread, "thread_sort_index", order));
        events.extend(row.spans.iter().map(|span| complete(rank, thread, span)));
    }
    events
}

fn metadata(rank: usize, thread: usize, what: &str, args: Value) -> Value {
    json!({"ph": "M", "name": what, "pid": rank, "tid": thread, "ts": 0, "args": args})
}

fn complete(rank: usize, thread: usize, span: &Span) -> Value {
    let numbers = span
        .numbers
        .iter()
        .map(|(name, number)| (name.clone(), json!(number)));
    json!({
        "ph": "X",
        "name": span.name,
        "cat": span.track,
        "pid": rank,
        "tid": thread,
        "ts": microseconds(span.start),
        "dur": microseconds(span.end.saturating_sub(span.start)),
        "args": numbers.collect::<Map<_, _>>(),
    })
}

/// Converts `time` to microseconds, the unit that the format requires, with nanoseconds after the
/// decimal point.
fn microseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

#[cfg(test)]
mod tests;
