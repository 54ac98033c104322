//! Tests that figures and tables in the documentation match the code and their source pages.

use ringtree::plan::internal::algorithms::{forms, has_any_radix};
use ringtree::plan::{Algorithm, Collective, REGISTRY};
use std::fmt::Write as _;

const BEGIN: &str = "<!-- algorithms -->\n";
const END: &str = "<!-- /algorithms -->\n";

/// Returns a table with a row per algorithm and a column per collective. K stands for a radix.
fn table() -> String {
    let mut table = String::from("| |");
    for collective in Collective::ALL {
        let _ = write!(table, " {collective} |");
    }
    table.push_str("\n|---|");
    table.push_str(&":-:|".repeat(Collective::ALL.len()));
    table.push('\n');
    for entry in REGISTRY {
        let radix = if has_any_radix(entry) { "/K" } else { "" };
        let _ = write!(table, "| {}{radix} |", entry.name);
        for collective in Collective::ALL {
            let is_supported = entry.collectives.contains(collective);
            table.push_str(if is_supported { " ● |" } else { " |" });
        }
        table.push('\n');
    }
    table
}

/// Reads a file of the repository.
fn page(path: &str) -> String {
    std::fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// With `RINGTREE_TEST_WRITE=1`, writes the table instead of comparing it.
#[test]
fn documented_algorithms_match_registry() {
    let name = "docs/tuning.md";
    let text = page(name);
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (found, after) = rest.split_once(END).unwrap();
    let table = table();
    if std::env::var_os("RINGTREE_TEST_WRITE").is_some() {
        let written = [before, BEGIN, &table, END, after].concat();
        std::fs::write(format!("{}/{name}", env!("CARGO_MANIFEST_DIR")), written).unwrap();
        return;
    }
    assert!(
        found == table,
        "the table of algorithms in {name} does not match the registry; to write it, run\n\
         RINGTREE_TEST_WRITE=1 cargo test --test plans documents"
    );
}

/// Returns the text of the README from `heading` to the next heading.
fn section<'a>(readme: &'a str, heading: &str) -> &'a str {
    let (_, rest) = readme.split_once(&format!("\n## {heading}\n")).unwrap();
    rest.split_once("\n## ")
        .map_or(rest, |(section, _)| section)
}

/// Returns the numbers in a row of a table.
fn figures(row: &str) -> Vec<&str> {
    let parts = row.split([' ', '|', '(', ')', ';']);
    parts
        .filter(|part| part.starts_with(char::is_numeric))
        .collect()
}

#[test]
fn readme_speed_rows_appear_on_the_speed_page() {
    let (readme, speed) = (page("README.md"), page("docs/speed.md"));
    let rows: Vec<_> = section(&readme, "Speed")
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split_once(" | "))
        .filter(|(_, figures)| figures.starts_with(char::is_numeric))
        .collect();
    assert!(
        rows.len() >= 5,
        "README.md has {} rows of speed",
        rows.len()
    );
    for (case, row) in rows {
        let is_source = |line: &str| {
            let known = figures(line);
            figures(row).iter().all(|figure| known.contains(figure))
        };
        assert!(speed.lines().any(is_source), "docs/speed.md lacks: {case}");
    }
}

#[test]
fn readme_counts_of_torch_tests_match_their_page() {
    let (readme, suite) = (page("README.md"), page("adapters/python/torch_suite.md"));
    let count = |row: &str| -> usize {
        let line = suite
            .lines()
            .find_map(|line| line.strip_prefix(row))
            .unwrap();
        line.trim_matches([' ', '|']).parse().unwrap()
    };
    let (passed, failed) = (count("| passed | passed |"), count("| passed | failed |"));
    let text = section(&readme, "Use it from PyTorch and C").replace('\n', " ");
    let others = match failed {
        1 => "one".to_string(),
        _ => failed.to_string(),
    };
    for part in [
        format!("has {} backend tests", passed + failed),
        format!("passes {passed} of them"),
        format!("the other {others} "),
    ] {
        assert!(text.contains(&part), "README.md does not contain '{part}'");
    }
    let wheel = page("adapters/python/README.md").replace('\n', " ");
    for part in [
        format!("Gloo passes {} of torch", passed + failed),
        format!("ringtree passes {passed} of these"),
    ] {
        assert!(
            wheel.contains(&part),
            "adapters/python/README.md does not contain '{part}'"
        );
    }
}

#[test]
fn readme_times_of_the_thesis_match_their_page() {
    let (readme, page) = (page("README.md"), page("docs/logarithm.md"));
    let row = page
        .lines()
        .find(|line| line.starts_with("| 32 KiB |") && line.contains("| 64 |"));
    let cells: Vec<_> = row.unwrap().split('|').map(str::trim).collect();
    let seconds = |cell: &str| cell.replace(',', "").parse::<f64>().unwrap() / 1e3;
    let [ring, circulant, auto] = [4, 5, 6].map(|at| seconds(cells[at]));
    let text = readme.replace('\n', " ");
    let caption = format!("ring takes {ring:.1} s, circulant {circulant:.2} s");
    assert!(
        text.contains(&caption),
        "README.md does not contain '{caption}'"
    );
    assert!(
        text.contains(&format!("chooses {auto:.2} s")),
        "auto: {auto:.2} s"
    );
}

#[test]
fn every_registry_entry_is_complete() {
    for (entry, algorithm) in REGISTRY.iter().zip(Algorithm::ALL) {
        assert_eq!(entry.algorithm, *algorithm);
        assert_eq!(entry.name.parse(), Ok(*algorithm));
        assert!(
            !entry.collectives.is_empty(),
            "{}: no collective",
            entry.name
        );
        assert!(!entry.source.is_empty(), "{}: no source", entry.name);
        for form in forms(entry, &[2, 5, 64]) {
            assert_eq!(form.to_string().parse(), Ok(form));
        }
    }
}
