//! The spans of all ranks on one clock, and the file that Perfetto opens.
//!
//! The format is Chrome's "Trace Event Format", its JSON object form: complete events (`X`) in
//! microseconds, a process for each rank, a thread for each row, and metadata events (`M`) that
//! name and sort them.

use super::clock::{self, Reading, nanoseconds};
use super::{COMMUNICATION, Recording};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::Range;
use std::time::Duration;

/// The tracks that come first, in this order.
const TRACKS: [&str; 5] = ["step", "forward", "backward", COMMUNICATION, "optimizer"];

/// Something that went on for a while on one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Spans of one kind share a track.
    pub track: String,
    /// What it was.
    pub name: String,
    /// When it began.
    pub start: Duration,
    /// When it ended, not before its start.
    pub end: Duration,
    /// Numbers to be shown for it, by name.
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
    /// In ascending order of their starts.
    pub spans: Vec<Span>,
    /// Spans that were not kept.
    pub dropped: u64,
    /// How far at most the rank's times are from those of rank 0's clock, as long as both clocks
    /// run evenly.
    pub clock_error: Duration,
}

/// What all ranks did, on the clock of rank 0, from the first span on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// By rank.
    pub ranks: Vec<RankSpans>,
}

/// Spans of one track that do not overlap.
struct Row<'a> {
    track: &'a str,
    /// Its number among the rows of the track.
    number: usize,
    spans: Vec<&'a Span>,
}

impl Timeline {
    /// Shifts every rank's recording to rank 0's clock, by its readings at begin and end.
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
            let spans = recording.spans.into_iter().map(on_our_clock).collect();
            let error_ns = begin[rank].error_ns.max(end[rank].error_ns);
            let mut spans = RankSpans {
                spans,
                dropped: recording.dropped,
                clock_error: Duration::from_nanos(u64::try_from(error_ns).unwrap_or(u64::MAX)),
            };
            spans.sort();
            spans
        };
        let ranks = recordings.into_iter().enumerate().map(one).collect();
        Self { ranks }
    }

    /// The file's text, an event a line.
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
    /// Each track's spans in as few rows as keep them apart, so that buckets in flight together
    /// are seen beside each other.
    fn rows(&self) -> Vec<Row<'_>> {
        let others: BTreeSet<_> = self.spans.iter().map(|span| span.track.as_str()).collect();
        let others = others.into_iter().filter(|track| !TRACKS.contains(track));
        TRACKS
            .into_iter()
            .chain(others)
            .flat_map(|track| self.rows_of(track))
            .collect()
    }

    /// Brings the spans in order: what holds others comes before them.
    pub(super) fn sort(&mut self) {
        let spans = &mut self.spans;
        spans.sort_by_key(|span| (span.start, std::cmp::Reverse(span.end)));
    }

    fn rows_of<'a>(&'a self, track: &'a str) -> Vec<Row<'a>> {
        let mut rows: Vec<Row<'a>> = Vec::new();
        for span in self.spans.iter().filter(|span| span.track == track) {
            let is_free = |row: &Row<'_>| row.spans.last().is_none_or(|one| one.end <= span.start);
            let free = rows.iter().position(is_free);
            let number = free.unwrap_or(rows.len());
            if free.is_none() {
                rows.push(Row {
                    track,
                    number,
                    spans: Vec::new(),
                });
            }
            rows[number].spans.push(span);
        }
        rows
    }

    /// "clock ± 12 µs, 3 spans dropped".
    fn label(&self) -> String {
        let mut label = format!("clock ± {} µs", self.clock_error.as_micros());
        if self.dropped > 0 {
            label += &format!(", {} later spans dropped", self.dropped);
        }
        label
    }
}

/// The events of a rank: metadata first.
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
        events.push(about(thread, "thread_name", json!({"name": name})));
        events.push(about(
            thread,
            "thread_sort_index",
            json!({"sort_index": thread}),
        ));
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

/// As the format counts them; nanoseconds are decimals.
fn microseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording(times_ns: &[(u64, u64)]) -> Recording {
        let span = |(start, end): &(u64, u64)| Span {
            track: COMMUNICATION.into(),
            name: "bucket".into(),
            start: Duration::from_nanos(*start),
            end: Duration::from_nanos(*end),
            numbers: Vec::new(),
        };
        Recording {
            spans: times_ns.iter().map(span).collect(),
            dropped: 0,
        }
    }

    #[test]
    fn what_happened_at_once_stands_at_once_whatever_the_clocks_showed() {
        let hour_ns = 3_600_000_000_000;
        let recordings = vec![
            recording(&[(5_000, 6_000)]),
            recording(&[(hour_ns + 5_000, hour_ns + 6_000)]),
        ];
        let reading = |lead: u64, error_ns| Reading {
            its_ns: i128::from(lead),
            ours_ns: 0,
            error_ns,
        };
        let begin = [reading(0, 0), reading(hour_ns, 700)];
        let end = [reading(0, 0), reading(hour_ns, 300)];
        let timeline = Timeline::new(recordings, &begin, &end);
        let times = timeline.ranks.iter().map(|rank| {
            let span = &rank.spans[0];
            (span.start.as_nanos(), span.end.as_nanos())
        });
        assert_eq!(times.collect::<Vec<_>>(), [(0, 1_000); 2]);
        assert_eq!(timeline.ranks[1].clock_error, Duration::from_nanos(700));
    }

    #[test]
    fn buckets_in_flight_together_have_rows_of_their_own() {
        let times = [(0, 10), (5, 15), (10, 20), (12, 13), (20, 30)];
        let reading = [Reading::default()];
        let timeline = Timeline::new(vec![recording(&times)], &reading, &reading);
        let rows = timeline.ranks[0].rows();
        let starts = |row: &Row<'_>| {
            let starts = row.spans.iter().map(|span| span.start.as_nanos());
            starts.collect::<Vec<_>>()
        };
        let starts: Vec<_> = rows.iter().map(starts).collect();
        assert_eq!(starts, [vec![0, 10, 20], vec![5], vec![12]]);
    }
}
