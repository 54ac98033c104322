//! Tests `ringtree bench --trace`, which writes one timeline of all ranks.

use crate::names::messages_in;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output};

/// Maximum rounding error of floating-point times, in microseconds.
const ROUNDING_US: f64 = 0.01;

/// Runs `ringtree bench` with arguments separated by spaces. Each rank first runs `script`, which
/// can give ranks different settings.
fn bench(ranks: usize, script: &str, arguments: &str, path: &Path) -> Output {
    let program = env!("CARGO_BIN_EXE_ringtree");
    let mut command = Command::new(program);
    for name in ["RANK", "RINGTREE_TRANSPORT", "RINGTREE_HOST_ID"] {
        command.env_remove(name);
    }
    let script = format!("{script} exec \"$0\" bench \"$@\"");
    let line = [
        "run",
        "--nproc-per-node",
        &ranks.to_string(),
        "--output",
        "rank0",
        "--",
    ];
    command.args(line).args(["sh", "-c", &script, program]);
    command.args(arguments.split(' ')).arg("--trace").arg(path);
    command.output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Messages on one track of a rank, and how often each occurs.
type Messages = BTreeMap<String, usize>;

/// Checks the invariants of a timeline, and returns its messages by rank and track.
fn read(path: &Path, ranks: usize, points: usize) -> BTreeMap<(u64, String), Messages> {
    let file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let events = file["traceEvents"].as_array().unwrap();
    let mut rows: BTreeMap<(u64, u64), f64> = BTreeMap::new();
    let mut calls: BTreeMap<u64, Vec<[f64; 2]>> = BTreeMap::new();
    let mut messages: BTreeMap<(u64, String), Messages> = BTreeMap::new();
    let (mut named, mut inside) = (BTreeSet::new(), Vec::new());
    for event in events {
        let rank = event["pid"].as_u64().unwrap();
        if event["ph"] == "M" {
            if event["name"] == "process_name" {
                named.insert(event["args"]["name"].as_str().unwrap().to_owned());
            }
            continue;
        }
        assert_eq!(event["ph"], "X", "{event}");
        let begin = event["ts"].as_f64().unwrap();
        let times = [begin, begin + event["dur"].as_f64().unwrap()];
        let row = rows
            .entry((rank, event["tid"].as_u64().unwrap()))
            .or_insert(0.0);
        assert!(
            *row <= times[0] + ROUNDING_US,
            "{event} begins before {row}"
        );
        *row = times[1];
        let track = event["cat"].as_str().unwrap();
        match track {
            "call" => calls.entry(rank).or_default().push(times),
            "call, predicted" => {}
            "local" => inside.push((rank, times)),
            _ => {
                if !track.ends_with("predicted") {
                    inside.push((rank, times));
                }
                assert!(event["args"]["bytes"].is_u64() && event["args"]["round"].is_u64());
                let all = messages.entry((rank, track.to_owned())).or_default();
                for one in messages_in(event["name"].as_str().unwrap()) {
                    *all.entry(one).or_default() += 1;
                }
            }
        }
    }
    let all: BTreeSet<_> = (0..ranks).map(|rank| format!("rank {rank}")).collect();
    assert_eq!(named, all);
    assert!(calls.len() == ranks && calls.values().all(|calls| calls.len() == points));
    for (rank, [begin, end]) in inside {
        let mut calls = calls[&rank].iter();
        let holds =
            |call: &[f64; 2]| call[0] <= begin + ROUNDING_US && end <= call[1] + ROUNDING_US;
        assert!(
            calls.any(holds),
            "rank {rank}: {begin} to {end} is outside all of its calls"
        );
    }
    messages
}

#[test]
fn bench_writes_one_timeline_of_all_ranks_over_every_link() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = "RINGTREE_HOST_ID=host-$((RANK / 2))";
    let lines = [
        (
            "RINGTREE_TRANSPORT=tcp",
            "all-reduce --algorithm ring --sizes 8,64K",
            3,
            2,
        ),
        (
            "RINGTREE_TRANSPORT=shm",
            "all-reduce --algorithm all --sizes 600K",
            3,
            10,
        ),
        (
            "",
            "broadcast --root 1 --in-place --memory shared --sizes 4M",
            3,
            1,
        ),
        ("", "barrier --algorithm dissemination", 4, 1),
        (
            hosts,
            "all-reduce --algorithm hierarchical --sizes 100K",
            4,
            1,
        ),
    ];
    for (at, (script, arguments, ranks, points)) in lines.into_iter().enumerate() {
        let path = folder.path().join(format!("{at}.json"));
        let arguments = format!("{arguments} --iters 2 --format csv --explain");
        let output = bench(ranks, script, &arguments, &path);
        assert!(output.status.success(), "{arguments}: {}", stderr(&output));
        let table = String::from_utf8(output.stdout.clone()).unwrap();
        assert!(table.starts_with("collective,algorithm,"), "{table}");
        let points = if points == 10 {
            table.lines().count() - 1
        } else {
            points
        };
        assert_eq!(table.lines().count(), points + 1, "{table}");
        assert!(
            stderr(&output).contains("ui.perfetto.dev"),
            "{}",
            stderr(&output)
        );
        let messages = read(&path, ranks, points);
        assert!(messages.values().all(|all| !all.is_empty()));
        for ((rank, track), measured) in &messages {
            if !track.ends_with("predicted") {
                let predicted = &messages[&(*rank, format!("{track}, predicted"))];
                assert_eq!(measured, predicted, "{arguments}: rank {rank}, {track}");
            }
        }
        let both = |track: &str| {
            let tracks = messages.iter().filter(|((_, one), _)| one == track);
            tracks.flat_map(|(_, all)| all.values()).sum::<usize>()
        };
        assert_eq!(both("send"), both("receive"), "{arguments}");
        assert!(both("send") > 0, "{arguments}");
    }
}

#[test]
fn unwritable_trace_is_reported_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing").join("trace.json");
    let output = bench(2, "", "barrier --iters 1", &path);
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(
        message.contains("cannot write ") && message.contains("check that its directory exists"),
        "{message}"
    );
    assert!(!path.parent().unwrap().exists());

    let line = [
        "bench",
        "all-reduce",
        "--memory",
        "device",
        "--trace",
        "trace.json",
    ];
    let refused = Command::new(env!("CARGO_BIN_EXE_ringtree"))
        .args(line)
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let message = String::from_utf8(refused.stderr).unwrap();
    assert!(
        message.contains("--trace") && message.lines().count() == 1,
        "{message}"
    );
}
