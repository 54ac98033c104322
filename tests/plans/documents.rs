//! What the documents say of the registry.

use ringtree::plan::{Algorithm, Collective, REGISTRY};
use std::fmt::Write as _;

const BEGIN: &str = "<!-- algorithms -->\n";
const END: &str = "<!-- /algorithms -->\n";

/// A row an algorithm, a column a collective; a radix as the K of its name.
fn table() -> String {
    let mut table = String::from("| |");
    for collective in Collective::ALL {
        let _ = write!(table, " {collective} |");
    }
    table.push_str("\n|---|");
    table.push_str(&":-:|".repeat(Collective::ALL.len()));
    table.push('\n');
    for entry in REGISTRY {
        let radix = if entry.has_any_radix() { "/K" } else { "" };
        let _ = write!(table, "| {}{radix} |", entry.name);
        for collective in Collective::ALL {
            let is_there = entry.collectives.contains(collective);
            table.push_str(if is_there { " ● |" } else { " |" });
        }
        table.push('\n');
    }
    table
}

/// Run it with RINGTREE_TEST_WRITE=1 to write the table.
#[test]
fn the_readmes_table_is_the_registry() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
    let readme = std::fs::read_to_string(path).unwrap();
    let (before, rest) = readme.split_once(BEGIN).unwrap();
    let (found, after) = rest.split_once(END).unwrap();
    let table = table();
    if std::env::var_os("RINGTREE_TEST_WRITE").is_some() {
        let written = [before, BEGIN, &table, END, after].concat();
        std::fs::write(path, written).unwrap();
        return;
    }
    assert!(
        found == table,
        "README.md's table of algorithms is not that of the registry; this writes it:\n\
         RINGTREE_TEST_WRITE=1 cargo test --test plans documents"
    );
}

#[test]
fn every_entry_says_what_it_is() {
    for (entry, algorithm) in REGISTRY.iter().zip(Algorithm::ALL) {
        assert_eq!(entry.algorithm, *algorithm);
        assert_eq!(entry.name.parse(), Ok(*algorithm));
        assert!(
            !entry.collectives.is_empty(),
            "{}: no collective",
            entry.name
        );
        assert!(!entry.source.is_empty(), "{}: no source", entry.name);
        for form in entry.forms(&[2, 5, 64]) {
            assert_eq!(form.to_string().parse(), Ok(form));
        }
    }
}
