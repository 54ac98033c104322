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
fn simultaneous_spans_coincide_despite_clock_offset() {
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
fn overlapping_buckets_have_separate_rows() {
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
