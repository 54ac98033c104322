//! Tests `ringtree plan` as a user runs it: replays the printed plans on pseudo-random integers,
//! and checks that every error message is a single line.

mod refused;

use ringtree::Dtype;
use ringtree::plan::Collective;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Output};

const BYTES: usize = 40_320;

fn ringtree(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ringtree"))
        .args(arguments)
        .env_remove("RINGTREE_TUNING")
        .output()
        .unwrap()
}

fn plan(line: &str) -> Output {
    let mut arguments = vec!["plan"];
    arguments.extend(line.split_whitespace());
    ringtree(&arguments)
}

/// Returns the standard output of a command that must succeed.
pub(crate) fn stdout(line: &str) -> String {
    let output = plan(line);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {message}");
    String::from_utf8(output.stdout).unwrap()
}

fn objects(line: &str) -> Vec<Value> {
    let text = stdout(&format!("{line} --format json"));
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn number(object: &Value, name: &str) -> usize {
    usize::try_from(
        object[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name} of {object}")),
    )
    .unwrap()
}

/// An entry of the JSON array `sends`: a transfer of chunks between two ranks or within one rank.
struct Entry {
    round: usize,
    message: Option<usize>,
    from: usize,
    from_chunk: usize,
    to: usize,
    to_chunk: usize,
    chunks: usize,
    reduce: bool,
}

impl Entry {
    fn of(value: &Value) -> Self {
        Self {
            round: number(value, "round"),
            message: value["message"].as_u64().map(|message| message as usize),
            from: number(value, "from"),
            from_chunk: number(value, "from_chunk"),
            to: number(value, "to"),
            to_chunk: number(value, "to_chunk"),
            chunks: number(value, "chunks"),
            reduce: value["reduce"].as_bool().unwrap(),
        }
    }
}

/// Returns a well-mixed number as the initial content of a chunk, so that a wrong summand changes
/// the sum.
fn mixed(seed: usize) -> u64 {
    let mut value = (seed as u64)
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    value ^= value >> 29;
    value = value.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value ^ (value >> 32)
}

/// The expected buffers before and after a collective, derived only from its definition.
struct Definition {
    collective: String,
    ranks: usize,
    root: usize,
    chunks: usize,
}

impl Definition {
    fn input(&self, rank: usize, chunk: usize) -> u64 {
        match self.collective.as_str() {
            "barrier" => 1 << rank,
            _ => mixed(rank * 100_003 + chunk),
        }
    }

    fn combine(&self, one: u64, other: u64) -> u64 {
        match self.collective.as_str() {
            "barrier" => one | other,
            _ => one.wrapping_add(other),
        }
    }

    /// Returns the expected value of `chunk` on `rank` at the end, or `None` if it is unspecified.
    fn output(&self, rank: usize, chunk: usize) -> Option<u64> {
        let all = || {
            (0..self.ranks)
                .map(|rank| self.input(rank, chunk))
                .reduce(|one, other| self.combine(one, other))
        };
        let owner = chunk * self.ranks / self.chunks;
        match self.collective.as_str() {
            "all-reduce" | "barrier" => all(),
            "broadcast" => Some(self.input(self.root, chunk)),
            "reduce" => all().filter(|_| rank == self.root),
            "reduce-scatter" => all().filter(|_| rank == owner),
            "all-gather" => Some(self.input(owner, chunk)),
            other => panic!("{other} is not replayed"),
        }
    }
}

/// Replays `sends` as documented, and checks the result and the totals.
fn replay(object: &Value) {
    let definition = Definition {
        collective: object["collective"].as_str().unwrap().to_owned(),
        ranks: number(object, "ranks"),
        root: number(object, "root"),
        chunks: number(object, "chunks"),
    };
    let entries: Vec<Entry> = object["sends"]
        .as_array()
        .unwrap()
        .iter()
        .map(Entry::of)
        .collect();
    let cells = definition.chunks + number(object, "scratch");
    let mut state: Vec<Vec<u64>> = (0..definition.ranks)
        .map(|rank| {
            (0..cells)
                .map(|chunk| definition.input(rank, chunk))
                .collect()
        })
        .collect();
    let rounds: BTreeSet<usize> = entries.iter().map(|entry| entry.round).collect();
    for round in rounds {
        let before = state.clone();
        for entry in entries.iter().filter(|entry| entry.round == round) {
            for offset in 0..entry.chunks {
                let arrived = before[entry.from][entry.from_chunk + offset];
                let place = &mut state[entry.to][entry.to_chunk + offset];
                *place = if entry.reduce {
                    definition.combine(*place, arrived)
                } else {
                    arrived
                };
            }
        }
    }
    let name = format!("{} {}", definition.collective, object["algorithm"]);
    for (rank, held) in state.iter().enumerate() {
        for (chunk, value) in held[..definition.chunks].iter().enumerate() {
            if let Some(expected) = definition.output(rank, chunk) {
                assert_eq!(
                    *value, expected,
                    "{name}: rank {rank}, chunk {chunk} of {object}"
                );
            }
        }
    }
    totals(object, &entries, &definition);
}

/// Checks the reported totals of rounds, messages and bytes against `entries`.
fn totals(object: &Value, entries: &[Entry], definition: &Definition) {
    let mut messages = BTreeMap::new();
    let mut rounds = BTreeSet::new();
    let mut sent = vec![0; definition.ranks];
    for entry in entries {
        let Some(message) = entry.message else {
            assert_eq!(
                entry.from, entry.to,
                "only local work has no message: {object}"
            );
            continue;
        };
        let edge = (entry.round, entry.from, entry.to);
        let known = messages.entry(message).or_insert(edge);
        assert_eq!(*known, edge, "two messages have the same number: {object}");
        assert_ne!(entry.from, entry.to, "a message to oneself: {object}");
        rounds.insert(entry.round);
        sent[entry.from] += entry.chunks;
    }
    assert_eq!(number(object, "rounds"), rounds.len());
    assert_eq!(number(object, "messages"), messages.len());
    if definition.collective == "barrier" {
        assert_eq!(number(object, "max_bytes_sent_per_rank"), 0);
    } else if BYTES.is_multiple_of(definition.chunks) {
        let most = sent.iter().max().unwrap() * (BYTES / definition.chunks);
        assert_eq!(number(object, "max_bytes_sent_per_rank"), most, "{object}");
    }
}

#[test]
fn printed_plans_implement_their_collectives() {
    let mut replayed = 0;
    for collective in [
        "all-reduce",
        "broadcast",
        "reduce",
        "reduce-scatter",
        "all-gather",
        "barrier",
    ] {
        let roots: fn(usize) -> Vec<usize> = match collective {
            "broadcast" | "reduce" => |ranks| vec![0, ranks / 2, ranks - 1],
            _ => |_| vec![0],
        };
        for ranks in [1, 2, 3, 4, 5, 6, 7, 8, 13] {
            for root in roots(ranks) {
                for chunks in ["", "--chunks 1", "--chunks 3"] {
                    let line = format!(
                        "{collective} --algorithm all --ranks {ranks} --root {root} {chunks} \
                         --bytes {BYTES} --verify"
                    );
                    for object in objects(&line) {
                        if object["why_not"].is_null() {
                            assert_eq!(object["verified"], true, "{object}");
                            assert_eq!(object["bits_agree"], true, "{object}");
                            assert_eq!(number(&object, "root"), root);
                            replay(&object);
                            replayed += 1;
                        } else {
                            assert!(object["rounds"].is_null() && object["sends"].is_null());
                        }
                    }
                }
            }
        }
    }
    assert!(replayed > 500, "only {replayed} plans were replayed");
}

#[test]
fn binomial_broadcast_of_eight_matches_textbook() {
    let line = "broadcast --algorithm binomial --ranks 8";
    let edges: Vec<(u64, u64, u64)> = objects(line)[0]["sends"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            let field = |name: &str| entry[name].as_u64().unwrap();
            (field("round"), field("from"), field("to"))
        })
        .collect();
    let expected = [
        (0, 0, 4),
        (1, 0, 2),
        (1, 4, 6),
        (2, 0, 1),
        (2, 2, 3),
        (2, 4, 5),
        (2, 6, 7),
    ];
    assert_eq!(BTreeSet::from_iter(edges), BTreeSet::from(expected));

    let picture = stdout(&format!("{line} --draw text"));
    for row in ["0→4", "0→2  4→6", "0→1  2→3  4→5  6→7"] {
        assert!(
            picture.lines().any(|line| line.ends_with(row)),
            "{row} in {picture}"
        );
    }
}

#[test]
fn json_has_the_documented_fields_and_nulls() {
    let names = |object: &Value| -> BTreeSet<String> {
        object.as_object().unwrap().keys().cloned().collect()
    };
    let documented: BTreeSet<String> = [
        "collective",
        "algorithm",
        "ranks",
        "root",
        "chunks",
        "scratch",
        "rounds",
        "messages",
        "max_bytes_sent_per_rank",
        "time_us",
        "verified",
        "bits_agree",
        "why_not",
        "sends",
    ]
    .map(str::to_owned)
    .into();
    let small = &objects("all-reduce --algorithm circulant --ranks 6 --bytes 6K --chunks 2")[0];
    assert_eq!(names(small), documented);
    assert_eq!(number(small, "chunks"), 12);
    // Two slices, each with three rounds down and three up.
    assert_eq!(number(small, "rounds"), 12);
    assert_eq!(number(small, "max_bytes_sent_per_rank"), 2 * 5 * 1024);
    assert!(small["verified"].is_null() && small["bits_agree"].is_null());

    let large = &objects("all-reduce --algorithm circulant --ranks 65")[0];
    assert!(large.get("sends").is_none());
    let huge = &objects("broadcast --algorithm binomial --ranks 1025 --verify")[0];
    assert!(huge["verified"].is_null() && huge["bits_agree"].is_null());

    let refused = objects("barrier --algorithm all --ranks 4");
    assert_eq!(refused.len(), ringtree::plan::Algorithm::ALL.len());
    let ring = refused
        .iter()
        .find(|object| object["algorithm"] == "ring")
        .unwrap();
    assert_eq!(ring["why_not"], "ring does not implement barrier");
}

#[test]
fn radix_is_part_of_algorithm_name() {
    let line = "all-reduce --ranks 64 --bytes 8 --verify --algorithm recursive-doubling";
    let by_four = &objects(&format!("{line}/4"))[0];
    assert_eq!(by_four["algorithm"], "recursive-doubling/4");
    assert_eq!(
        (number(by_four, "rounds"), number(by_four, "messages")),
        (3, 64 * 9)
    );
    assert_eq!(
        (&by_four["verified"], &by_four["bits_agree"]),
        (&true.into(), &true.into())
    );
    assert_eq!(&objects(&format!("{line} --radix 4"))[0], by_four);
    let by_two = &objects(&format!("{line} --radix 2"))[0];
    assert_eq!(
        (&by_two["algorithm"], number(by_two, "rounds")),
        (&"recursive-doubling".into(), 6)
    );
}

/// `--algorithm all` lists every algorithm that fits, and reports the one that needs too much
/// memory.
#[test]
fn algorithm_with_too_much_scratch_is_reported_in_one_line() {
    let all = stdout("all-reduce --algorithm all --ranks 64");
    let lines = all.lines().filter(|line| line.contains("of scratch"));
    assert_eq!(lines.count(), 1, "{all}");
    assert!(all.lines().any(|line| line.starts_with("ring ")), "{all}");
    assert!(
        !all.lines().any(|line| line.starts_with("bruck-fold  ")),
        "{all}"
    );
}

#[test]
fn link_parameters_determine_predicted_time() {
    let time_us = |flags: &str| {
        let line = format!("broadcast --algorithm binomial --ranks 8 --bytes 1M {flags}");
        objects(&line)[0]["time_us"].as_f64().unwrap()
    };
    // Three rounds of 1,048,576 bytes each; o is paid at both ends. The time is printed to 0.1 ns.
    for (flags, round_us) in [
        (
            "--alpha 4us --overhead 3us --bandwidth 8Gbit",
            10.0 + 1048.576,
        ),
        ("--alpha 0s --overhead 0s --bandwidth 8Mbit", 1_048_576.0),
        (
            "--alpha 1ms --overhead 0s --bandwidth 8Tbit",
            1000.0 + 1.048_576,
        ),
    ] {
        assert!((time_us(flags) - 3.0 * round_us).abs() < 1e-4, "{flags}");
    }
}

#[test]
fn hosts_change_plan_predicted_time_and_choice() {
    let ask = |flags: &str| {
        let line = format!("all-reduce --ranks 8 --bytes 1M --verify {flags}");
        objects(&line).remove(0)
    };
    let apart = ask("--algorithm auto");
    let together = ask("--algorithm auto --ranks-per-host 8");
    assert_eq!(together["algorithm"], "two-shot");
    let two_hosts = ask("--algorithm auto --ranks-per-host 4");
    assert_eq!(two_hosts["algorithm"], "hierarchical");
    assert_eq!(two_hosts["verified"], true);
    let time_us = |answer: &Value| answer["time_us"].as_f64().unwrap();
    assert!(time_us(&together) < time_us(&two_hosts) && time_us(&two_hosts) < time_us(&apart));
    // Each rank sends a quarter of the buffer, in two halves, to its counterpart on the other host.
    let sends = two_hosts["sends"].as_array().unwrap();
    let host = |send: &Value, end: &str| send[end].as_u64().unwrap() / 4;
    let between = sends
        .iter()
        .filter(|send| host(send, "from") != host(send, "to"));
    assert!(
        between
            .clone()
            .all(|send| { send["from"].as_u64().unwrap() % 4 == send["to"].as_u64().unwrap() % 4 })
    );
    let chunks: u64 = between.map(|send| send["chunks"].as_u64().unwrap()).sum();
    assert_eq!(chunks, 2 * two_hosts["chunks"].as_u64().unwrap());
}

#[test]
fn uneven_hosts_exchange_minimum_number_of_chunks() {
    let hosts = [0, 0, 0, 1, 1, 1, 1, 1, 2, 2];
    for collective in ["all-reduce", "broadcast", "reduce"] {
        let line = format!("{collective} --ranks-per-host 3,5,2 --bytes {BYTES} --verify");
        let object = objects(&format!("{line} --algorithm auto")).remove(0);
        assert_eq!(number(&object, "ranks"), 10);
        assert_eq!(object["verified"], true);
        let object = objects(&format!("{line} --algorithm hierarchical --chunks 2")).remove(0);
        assert_eq!(object["verified"], true);
        replay(&object);
        let mut between = [0; 3];
        for entry in object["sends"].as_array().unwrap() {
            let (from, to) = (hosts[number(entry, "from")], hosts[number(entry, "to")]);
            if from != to {
                between[from] += number(entry, "chunks");
            }
        }
        let chunks = number(&object, "chunks");
        match collective {
            "all-reduce" => assert_eq!(between, [4 * chunks / 3; 3]),
            _ => assert_eq!(between.iter().sum::<usize>(), 2 * chunks),
        }
    }
    let large = "all-reduce --algorithm auto --ranks-per-host 8,8,7 --bytes 25M";
    assert_eq!(objects(large)[0]["algorithm"], "hierarchical");
    let drawn = "all-reduce --algorithm hierarchical --ranks-per-host 2,1 --draw text";
    assert!(stdout(drawn).contains("hierarchical"));
    assert!(stdout(large).contains("7 to 8 per host"));
}

#[test]
fn auto_matches_choice_of_a_call() {
    for ranks in [2, 6, 8] {
        for bytes in [8, 4 << 10, 64 << 10, 1 << 20, 25 << 20] {
            let line = format!("all-reduce --algorithm auto --ranks {ranks} --bytes {bytes}");
            let choices = ringtree::simulate(ranks, |comm| {
                comm.plan_for(Collective::AllReduce, bytes, Dtype::U8, 0)
            });
            let choice = choices[0].clone().unwrap();
            let object = &objects(&line)[0];
            assert_eq!(object["algorithm"], choice.algorithm.to_string(), "{line}");
            let time_us = object["time_us"].as_f64().unwrap();
            assert!(
                (time_us - choice.predicted_s * 1e6).abs() < 1e-3,
                "{line}: {time_us}"
            );
        }
    }
}

#[test]
fn short_and_old_spellings_mean_the_same() {
    let line = "all-reduce -n 8 --bytes 64KiB --latency 4us --sites 4,4 --uplink-latency 1ms";
    let old = "all-reduce --algorithm auto --ranks 8 --bytes 64K --alpha 4us --sites 4,4 \
               --uplink-alpha 1ms";
    assert_eq!(objects(line), objects(old));
    let rows = stdout(&format!("{line} --format csv"));
    let (columns, row) = rows.trim_end().split_once('\n').unwrap();
    assert!(columns.starts_with("collective,algorithm,ranks,root,"));
    assert_eq!(columns.split(',').count(), row.split(',').count());
}

#[test]
fn reproducible_flag_matches_choice_of_a_call_with_setting() {
    let line = "all-reduce --algorithm auto --ranks 6 --bytes 25M";
    assert_ne!(objects(line)[0]["algorithm"], "two-shot");
    let reproducible = format!("{line} --reproducible");
    assert_eq!(objects(&reproducible)[0]["algorithm"], "two-shot");
    let all = stdout("all-reduce --algorithm all --ranks 6 --reproducible");
    assert!(all.contains("two-shot") && all.contains("all-reduce by ring over 6 ranks does not"));
}

#[test]
fn flags_override_links_of_tuning_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tuning.json");
    let run = |flags: &[&str]| {
        let line = [
            "plan",
            "barrier",
            "--algorithm",
            "dissemination",
            "--ranks",
            "8",
        ];
        Command::new(env!("CARGO_BIN_EXE_ringtree"))
            .args(line)
            .args(["--format", "json"])
            .args(flags)
            .env("RINGTREE_TUNING", &path)
            .output()
            .unwrap()
    };
    let time_us = |output: &Output| {
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        object["time_us"].as_f64().unwrap()
    };
    std::fs::write(
        &path,
        r#"{"tcp": {"alpha_s": 3e-6, "overhead_s": 1e-6, "beta_s_per_byte": 1e-9,
                    "gamma_s_per_byte": 0}}"#,
    )
    .unwrap();
    assert_eq!(time_us(&run(&[])), 15.0);
    assert_eq!(time_us(&run(&["--alpha", "1us", "--overhead", "0s"])), 3.0);

    std::fs::write(&path, "nonsense").unwrap();
    let refused = run(&[]);
    assert_eq!(refused.status.code(), Some(2));
    let message = String::from_utf8(refused.stderr).unwrap();
    assert!(message.contains("RINGTREE_TUNING") && message.lines().count() == 1);
}

#[test]
fn auto_explains_its_choice() {
    let small = stdout("all-reduce --algorithm auto --ranks 8 --bytes 8");
    assert!(small.contains("recursive-doubling/4, predicted"), "{small}");
    let last = small.lines().last().unwrap();
    assert!(last.contains("next best"), "{last}");
    let object = &objects("all-reduce --algorithm auto --ranks 8 --bytes 8")[0];
    assert_eq!(object["algorithm"], "recursive-doubling/4");
}

#[test]
fn pictures_are_complete_files() {
    for line in [
        "all-reduce --algorithm ring --ranks 8",
        "broadcast --algorithm auto --ranks 64",
    ] {
        let page = stdout(&format!("{line} --draw html"));
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
        assert_eq!(page, stdout(&format!("{line} --draw html")));
        let picture = stdout(&format!("{line} --draw svg"));
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
        assert_eq!(
            picture.matches("<text").count(),
            picture.matches("</text>").count()
        );
    }
    let grid = stdout("all-reduce --algorithm ring --ranks 8 --draw text");
    assert!(
        grid.lines().all(|line| line.chars().count() <= 110),
        "{grid}"
    );
}

#[test]
fn sites_change_plan_predicted_time_and_choice() {
    let ask = |flags: &str| {
        let line = format!("all-reduce --ranks 8 --ranks-per-host 2 --bytes 64K --verify {flags}");
        objects(&line).remove(0)
    };
    let at_one = ask("--algorithm hierarchical");
    let at_two = ask("--algorithm auto --sites 3,1");
    assert_eq!(at_two["algorithm"], "hierarchical");
    let faster = ask("--algorithm hierarchical --sites 3,1 --uplink-bandwidth 100Gbit");
    let sooner = ask("--algorithm hierarchical --sites 3,1 --uplink-alpha 1us");
    let time_us = |answer: &Value| answer["time_us"].as_f64().unwrap();
    assert!(time_us(&faster) < time_us(&at_two) && time_us(&sooner) < time_us(&at_two));
    assert!(time_us(&at_one) < time_us(&at_two));
    // Each half of the buffer crosses between the sites twice: as a partial sum and as the result.
    let sends = at_two["sends"].as_array().unwrap();
    let crosses = |send: &&Value| (number(send, "from") < 6) != (number(send, "to") < 6);
    let chunks = sends
        .iter()
        .filter(crosses)
        .map(|send| number(send, "chunks"));
    assert_eq!(chunks.sum::<usize>(), 2 * number(&at_two, "chunks"));
    let table = "all-reduce --algorithm auto --ranks 8 --sites 4,4 --uplink-bandwidth 100Mbit";
    assert!(stdout(table).contains("between 2 sites: 60 µs latency, 100 Mbit/s per uplink"));
}
