//! The map of modules: the table in DESIGN.md.

use std::fs;

const BEGIN: &str = "<!-- modules -->";
const END: &str = "<!-- /modules -->";

/// A row of the map.
pub(crate) struct Module {
    /// Path of the module, such as `src/engine`, `crates/plan` or `adapters/c`; `src` for the base
    /// files.
    pub(crate) name: String,
    /// Modules of `src` that a module of `src` may import.
    pub(crate) may_import: Vec<String>,
    /// Maximum number of lines of code.
    pub(crate) lines_max: usize,
}

/// Reads the table in DESIGN.md.
pub(crate) fn map() -> Vec<Module> {
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/DESIGN.md")).unwrap();
    let (_, rest) = text.split_once(BEGIN).expect("DESIGN.md has the map");
    let (table, _) = rest
        .split_once(END)
        .expect("DESIGN.md marks the end of the map");
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    rows.map(row).collect()
}

/// Parses a row of the form `| name | purpose | may import | lines |`.
fn row(line: &str) -> Module {
    let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
    let [name, _, may_import, lines] = cells[..] else {
        panic!("not four cells: {line}");
    };
    let imports = may_import.split(", ").filter(|name| !name.is_empty());
    Module {
        name: name.trim_matches('`').to_owned(),
        may_import: imports
            .map(|name| name.trim_matches('`').to_owned())
            .collect(),
        lines_max: lines.replace(',', "").parse().expect("a number of lines"),
    }
}
