//! Verifies two claims of the documentation: five changed lines make a candle program distributed,
//! and the distributed program prints the same loss.

#![allow(clippy::unwrap_used)]

#[path = "../../../tests/support/address.rs"]
mod address;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns the lines of `text` that are not in `other`. Skips the first line, which describes the
/// program.
fn own_lines<'a>(text: &'a str, other: &str) -> Vec<&'a str> {
    let others: Vec<_> = other.lines().map(str::trim).collect();
    let lines = text.lines().skip(1).map(str::trim);
    lines.filter(|line| !others.contains(line)).collect()
}

#[test]
fn five_changed_lines_make_program_distributed() {
    let single = include_str!("../examples/single.rs");
    let distributed = include_str!("../examples/distributed.rs");
    let (mut added, removed) = (
        own_lines(distributed, single),
        own_lines(single, distributed),
    );
    // Ignore the sixth changed line, which makes only one rank print.
    added.retain(|line| *line != "if comm.rank() == 0 {");
    assert!(added.len() <= 5, "{added:#?}");
    assert!(removed.len() <= added.len(), "{removed:#?}");
}

/// Returns `true` if the program exists and its sources have not changed since it was built.
fn is_up_to_date(program: &Path) -> bool {
    let built = |file: &Path| file.metadata().and_then(|data| data.modified());
    let (Ok(time), Ok(rule)) = (
        built(program),
        std::fs::read_to_string(program.with_extension("d")),
    ) else {
        return false;
    };
    // Cargo writes the program, a colon, and the sources of all local crates.
    let (_, sources) = rule.split_once(':').unwrap();
    let mut sources = sources.split_whitespace().map(Path::new);
    sources.all(|source| built(source).is_ok_and(|changed| changed <= time))
}

/// Builds both programs from these sources and returns their paths. Running all tests of this
/// package has already built them, perhaps with features that another selection of packages lacks.
fn build_programs() -> [PathBuf; 2] {
    let test = std::env::current_exe().unwrap();
    let target = test.parent().and_then(Path::parent).unwrap();
    let profile = match target.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "test",
        Some(profile) => profile,
    };
    let programs = ["single", "distributed"].map(|name| target.join("examples").join(name));
    if programs.iter().all(|program| is_up_to_date(program)) {
        return programs;
    }
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--examples", "--profile", profile])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .unwrap();
    assert!(built.success(), "cargo cannot build the examples");
    programs
}

/// Runs a program on `ranks` ranks and returns the output of all of them.
fn output_of(program: &Path, ranks: usize) -> String {
    let rendezvous = address::reserved_address();
    let rank = |rank: usize| {
        let numbers = [("RANK", rank), ("LOCAL_RANK", rank)];
        let sizes = [("WORLD_SIZE", ranks), ("LOCAL_WORLD_SIZE", ranks)];
        let numbers = numbers.iter().chain(&sizes);
        Command::new(program)
            .envs(numbers.map(|(name, number)| (*name, number.to_string())))
            .env("RINGTREE_RENDEZVOUS", &rendezvous)
            .env("RAYON_NUM_THREADS", "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let ranks: Vec<_> = (0..ranks).map(rank).collect();
    let ends = ranks.into_iter().map(|rank| {
        let end = rank.wait_with_output().unwrap();
        assert!(end.status.success());
        String::from_utf8(end.stdout).unwrap()
    });
    ends.collect()
}

#[test]
fn printed_loss_does_not_depend_on_rank_count() {
    let [single, distributed] = build_programs();
    let mut all = BTreeSet::from([output_of(&single, 1)]);
    all.extend([1, 2, 4].map(|ranks| output_of(&distributed, ranks)));
    assert_eq!(all.len(), 1, "{all:?}");
    let line = all.first().unwrap();
    assert!(line.starts_with("after 500 steps the loss is ") && line.lines().count() == 1);
}
