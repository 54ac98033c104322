//! Tests the timeline of all ranks: its file has the structure that Perfetto reads, and it shows
//! that communication proceeds while backward runs.

use ringtree::ddp::{BucketSize, DataParallel, Options, Parameter, Trace};
use ringtree::internal::ddp::dropped;
use ringtree::internal::limits::TRACE_SPANS_MAX;
use ringtree::sim::{World, sleep};
use ringtree::{Communicator, Dtype, Error, Result};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

const RANKS: usize = 4;
const LAYERS: usize = 6;
const STEPS: usize = 3;
const LAYER_ELEMENTS: usize = 25_000;
/// Time of a layer's backward. Its all-reduce takes 2 · 3/4 · 100 kB / 1 MB/s = 150 ms or slightly
/// more.
const LAYER: Duration = Duration::from_millis(200);
/// Tolerance when comparing floating-point times, in microseconds.
const ROUNDING_US: f64 = 0.01;

/// Trains a model of equal layers. If `overlaps` is `false`, it reports gradients only after
/// backward.
fn train(comm: &Communicator, trace: &Trace, overlaps: bool) -> Result<()> {
    let layer = |index| Parameter::new(&format!("layer {index}"), &[LAYER_ELEMENTS], Dtype::F32);
    let options = Options::new().buckets(BucketSize::Bytes(4 * LAYER_ELEMENTS));
    let mut model = DataParallel::new(comm, (0..LAYERS).map(layer), options)?;
    let gradient = vec![1.0f32; LAYER_ELEMENTS];
    for step in 0..STEPS {
        let start = trace.clock();
        trace.measure("forward", "forward", || sleep(comm, LAYER));
        for index in (0..LAYERS).rev() {
            let name = format_args!("layer {index}");
            trace.measure("backward", name, || sleep(comm, LAYER));
            if overlaps {
                model.report(index, &gradient)?;
            }
        }
        for index in (0..LAYERS).rev().filter(|_| !overlaps) {
            model.report(index, &gradient)?;
        }
        trace.measure("wait", "wait", || model.wait())?;
        trace.buckets(&model);
        trace.measure("optimizer", "optimizer", || sleep(comm, LAYER / 2));
        trace.span("step", format_args!("step {step}"), start, trace.clock());
    }
    Ok(())
}

/// Traces [`train`] on simulated ranks over links of 1 MB/s and returns the events.
fn traced(path: &Path, overlaps: bool) -> Vec<Value> {
    let mut world = World::new(RANKS);
    world.network.bandwidth_bytes_per_s = 1e6;
    let ends = world.run(|comm| {
        let trace = Trace::new(comm)?;
        train(comm, &trace, overlaps)?;
        trace.write(path).map(|timeline| timeline.is_some())
    });
    assert_eq!(ends, [Ok(true), Ok(false), Ok(false), Ok(false)]);
    events(path)
}

fn events(path: &Path) -> Vec<Value> {
    let file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    file["traceEvents"].as_array().unwrap().clone()
}

/// Returns the complete events of a rank's track: name, start and end in microseconds.
fn spans(events: &[Value], rank: usize, track: &str) -> Vec<(String, f64, f64)> {
    let found = events
        .iter()
        .filter(|event| event["ph"] == "X" && event["pid"] == rank && event["cat"] == track);
    let times = found.map(|event| {
        let start = event["ts"].as_f64().unwrap();
        let name = event["name"].as_str().unwrap().to_owned();
        (name, start, start + event["dur"].as_f64().unwrap())
    });
    times.collect()
}

#[test]
fn trace_file_has_the_structure_that_perfetto_reads() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a \"trace\".json");
    let events = traced(&path, true);
    let mut ends: BTreeMap<(u64, u64), f64> = BTreeMap::new();
    let mut names = BTreeSet::new();
    for event in &events {
        let process = event["pid"].as_u64().unwrap();
        let row = (process, event["tid"].as_u64().unwrap());
        let name = event["name"].as_str().unwrap();
        if event["ph"] == "M" {
            let value = match name {
                "process_name" | "thread_name" => event["args"]["name"].as_str(),
                "process_labels" => event["args"]["labels"].as_str(),
                "process_sort_index" | "thread_sort_index" => {
                    assert!(event["args"]["sort_index"].is_u64());
                    continue;
                }
                other => panic!("unknown metadata event {other}"),
            };
            names.insert((row, value.unwrap().to_owned()));
            continue;
        }
        assert_eq!(event["ph"], "X");
        let (start, time) = (
            event["ts"].as_f64().unwrap(),
            event["dur"].as_f64().unwrap(),
        );
        assert!(
            start >= 0.0 && time >= 0.0 && event["args"].is_object(),
            "{event}"
        );
        // Events in one row must not overlap.
        let end = ends.entry(row).or_insert(0.0);
        assert!(*end <= start + ROUNDING_US, "{event} starts before {end}");
        *end = start + time;
        assert!(
            names.iter().any(|(named, _)| *named == row),
            "the row of {event} has no name"
        );
    }
    for rank in 0..RANKS as u64 {
        assert!(names.contains(&((rank, 0), format!("rank {rank}"))));
    }
    // The directory contains only the file.
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn bucket_spans_are_inside_their_step_and_have_sizes() {
    let directory = tempfile::tempdir().unwrap();
    let events = traced(&directory.path().join("trace.json"), true);
    for rank in 0..RANKS {
        let buckets = spans(&events, rank, "communication");
        assert_eq!(buckets.len(), LAYERS * STEPS);
        for (name, from, to) in spans(&events, rank, "step") {
            let inside = buckets
                .iter()
                .filter(|(_, start, end)| from - ROUNDING_US <= *start && *end <= to + ROUNDING_US);
            assert_eq!(inside.count(), LAYERS, "{name} of rank {rank}");
        }
    }
    for event in events
        .iter()
        .filter(|event| event["cat"] == "communication")
    {
        assert_eq!(event["args"]["bytes"], 4 * LAYER_ELEMENTS);
        assert_eq!(event["args"]["parameters"], 1);
        assert!(event["args"]["exposed_us"].is_u64());
    }
}

/// Returns the fraction of rank 0's communication time during which its backward runs.
fn hidden_part(events: &[Value]) -> f64 {
    let backward = spans(events, 0, "backward");
    let (mut all, mut hidden) = (0.0, 0.0);
    for (_, start, end) in spans(events, 0, "communication") {
        all += end - start;
        let both = |(_, from, to): &(String, f64, f64)| (end.min(*to) - start.max(*from)).max(0.0);
        hidden += backward.iter().map(both).sum::<f64>();
    }
    hidden / all
}

#[test]
fn trace_shows_how_much_communication_overlaps_backward() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.json");
    // Each bucket except the last of six overlaps the next layer's backward.
    let part = hidden_part(&traced(&path, true));
    assert!((0.7..0.95).contains(&part), "{part} is hidden");
    let part = hidden_part(&traced(&path, false));
    assert!(part < 0.01, "{part} is hidden although backward was over");
}

#[test]
fn trace_bounds_memory_and_reports_dropped_spans() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.json");
    let dropped = ringtree::simulate(2, |comm| {
        let trace = Trace::new(comm)?;
        for _ in 0..comm.rank() * (TRACE_SPANS_MAX + 5) {
            trace.span("track", "a \"name\"\n\u{7}", Duration::ZERO, Duration::ZERO);
        }
        trace.write(&path)?;
        Ok::<_, Error>(dropped(&trace))
    });
    assert_eq!(dropped, [Ok(0), Ok(5)]);
    let events = events(&path);
    let kept = spans(&events, 1, "track");
    assert_eq!(kept.len(), TRACE_SPANS_MAX);
    assert_eq!(kept[0].0, "a \"name\"\n\u{7}");
    let labels = events
        .iter()
        .filter(|event| event["name"] == "process_labels");
    let is_reported = labels.map(|label| label["args"]["labels"].to_string().contains("5 later"));
    assert_eq!(is_reported.collect::<Vec<_>>(), [false, true]);
}

#[test]
fn failed_write_is_an_error_on_every_rank_and_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    // Create a directory at the path of the file.
    let path = directory.path().join("taken");
    std::fs::create_dir(&path).unwrap();
    let ends = ringtree::simulate(3, |comm| {
        let trace = Trace::new(comm)?;
        let failed = trace.write(&path).map(drop);
        // The trace can still be written to another path.
        trace
            .write(directory.path().join("other.json"))
            .map(|_| failed)
    });
    for end in ends {
        let error = end.unwrap().unwrap_err().to_string();
        assert!(
            error.contains("rank 0") && error.contains("taken"),
            "{error}"
        );
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
}

/// In a directory that every user can write to, another user may have created links with names that
/// can be guessed.
#[test]
fn writing_a_trace_follows_no_link() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.json");
    let victim = directory.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    let guess = format!("trace.json.{}.partial", std::process::id());
    for name in [&guess, "trace.json"] {
        std::os::unix::fs::symlink(&victim, directory.path().join(name)).unwrap();
    }
    for end in ringtree::simulate(2, |comm| Trace::new(comm)?.write(&path).map(drop)) {
        end.unwrap();
    }
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
    assert!(path.symlink_metadata().unwrap().is_file());
}

#[test]
fn disabled_trace_runs_the_work_and_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.json");
    let ends = ringtree::simulate(2, |comm| {
        let trace = Trace::off();
        train(comm, &trace, true)?;
        let timeline = trace.write(&path)?;
        Ok::<_, Error>((trace.measure("any", "any", || 42), timeline.is_none()))
    });
    assert_eq!(ends, [Ok((42, true)), Ok((42, true))]);
    assert!(!path.exists());
}
