//! Checks that the sources follow the house rules: sizes, imports between modules, locations of
//! unsafe code, and names of files.

#![allow(clippy::unwrap_used)]

mod cycles;
mod map;
mod source;

use cycles::cycles;
use map::{Module, map};
use source::{Source, closing, name_of, paths, sources, words};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;
const LINE_COLUMNS_MAX: usize = 100;

/// Modules that must not use a clock, I/O or threads.
const PURE: &[&str] = &["crates/plan", "src/protocol"];
/// Directories of the sources of all crates.
const ROOTS: &[&str] = &[
    "src",
    "crates/cli/src",
    "crates/kit/src",
    "crates/plan/src",
    "adapters/c/src",
    "adapters/candle/src",
    "adapters/foreign/src",
    "adapters/object-store/src",
    "adapters/python/src",
];
/// The map of modules in DESIGN.md.
static MAP: LazyLock<Vec<Module>> = LazyLock::new(map);

/// Names that say nothing about the contents of a file.
const EMPTY_NAMES: &[&str] = &[
    "utils", "util", "common", "manager", "base", "helper", "helpers", "misc",
];

fn too_long(source: &Source) -> Vec<String> {
    let mut complaints = Vec::new();
    let lines = source.text.lines().count();
    if lines > FILE_LINES_MAX {
        complaints.push(source.complaint(0, &format!("{lines} lines in a file")));
    }
    for (index, line) in source.text.lines().enumerate() {
        let columns = line.chars().count();
        if columns > LINE_COLUMNS_MAX {
            let place = format!("{}:{}", source.path.display(), index + 1);
            complaints.push(format!("{place}: {columns} columns in a line"));
        }
    }
    complaints
}

fn long_functions(source: &Source) -> Vec<String> {
    let mut complaints = Vec::new();
    let code = &source.code;
    // `fn` without a name belongs to the type of a function pointer.
    let named = words(code, "fn").filter(|at| !code[at + 2..].starts_with('('));
    for at in named {
        let Some(signature) = code[at..].find(['{', ';']).map(|offset| at + offset) else {
            continue;
        };
        let lines = code[at..closing(code, signature)].matches('\n').count() + 1;
        if code.as_bytes()[signature] == b'{' && lines > FUNCTION_LINES_MAX {
            complaints.push(source.complaint(at, &format!("{lines} lines in a function")));
        }
    }
    complaints
}

/// Rejects unsafe code outside `sys` and tests. `src/internal.rs`, the API for this repository's
/// other crates, declares unsafe functions but has no unsafe block. One bench calls these
/// functions.
fn unsafe_outside_sys(source: &Source) -> Vec<String> {
    let mut parts = source.path.iter().map(|part| part.to_str().unwrap());
    let may = parts.any(|part| ["sys", "tests"].contains(&part));
    if may || source.path.ends_with("benches/shared.rs") {
        return Vec::new();
    }
    let is_internal_api = source.path.ends_with("src/internal.rs");
    let found = words(&source.code, "unsafe");
    found
        .filter(|at| !(is_internal_api && source.code[*at..].starts_with("unsafe fn ")))
        .map(|at| source.complaint(at, "unsafe code outside src/sys"))
        .collect()
}

/// Returns the map's row for a module.
fn row(name: &str) -> Option<&'static Module> {
    MAP.iter().find(|module| module.name == name)
}

/// Returns the modules of `src` that `source` names, with the positions of the names.
fn imports(source: &Source) -> Vec<(usize, String)> {
    let is_module = |name: &str| name == "plan" || row(&format!("src/{name}")).is_some();
    let found = paths(&name_of(source, "src"), &source.code).into_iter();
    found
        .filter_map(|(at, path)| Some((at, path.into_iter().next()?)))
        .filter(|(_, name)| is_module(name) && source.src_module().as_ref() != Some(name))
        .collect()
}

fn forbidden_imports(source: &Source) -> Vec<String> {
    let Some(module) = source.module().filter(|_| {
        !["src/lib.rs", "src/internal.rs"]
            .iter()
            .any(|file| source.path.ends_with(file))
    }) else {
        return Vec::new();
    };
    let allowed = row(&module).map_or(&[][..], |row| &row.may_import);
    imports(source)
        .into_iter()
        .filter(|(_, name)| !allowed.contains(name))
        .map(|(at, name)| source.complaint(at, &format!("may not import {name}")))
        .collect()
}

/// Returns the permissions in `modules` that no file of the module uses.
fn unused_permissions(sources: &[Source], modules: &[Module]) -> Vec<String> {
    let mut unused = Vec::new();
    for Module {
        name: module,
        may_import,
        ..
    } in modules
    {
        let files = sources
            .iter()
            .filter(|source| source.module().as_ref() == Some(module));
        let used: BTreeSet<String> = files.flat_map(imports).map(|(_, name)| name).collect();
        let idle = may_import.iter().filter(|name| !used.contains(*name));
        unused.extend(idle.map(|name| format!("{module} may import {name}, but does not")));
    }
    unused
}

/// Returns the modules with more lines of code than their row allows.
fn over_budget(sources: &[Source], modules: &[Module]) -> Vec<String> {
    let over = modules.iter().filter_map(
        |Module {
             name, lines_max, ..
         }| {
            let files = sources
                .iter()
                .filter(|source| source.module().as_ref() == Some(name));
            let lines: usize = files.map(Source::code_lines).sum();
            (lines > *lines_max).then(|| {
            format!(
                "{name} has {lines} lines of code, and DESIGN.md's map allows {lines_max}: make it \
                 smaller, or change the map"
            )
        })
        },
    );
    over.collect()
}

fn impure(source: &Source) -> Vec<String> {
    let is_pure = source
        .module()
        .is_some_and(|module| PURE.contains(&module.as_str()));
    if !is_pure || source.is_test() {
        return Vec::new();
    }
    let code = source.untested();
    let effects = [
        "std::fs",
        "std::net",
        "std::thread",
        "std::process",
        "std::env",
        "Instant::now",
    ];
    let found = effects
        .iter()
        .filter_map(|effect| Some((code.find(effect)?, effect)));
    found
        .map(|(at, effect)| source.complaint(at, &format!("{effect} in a pure module")))
        .collect()
}

fn without_introduction(source: &Source) -> Vec<String> {
    let mut complaints = Vec::new();
    let name = source.path.file_stem().unwrap().to_str().unwrap();
    let folder = source
        .path
        .parent()
        .and_then(Path::file_name)
        .unwrap()
        .to_str()
        .unwrap();
    if EMPTY_NAMES.contains(&name) || EMPTY_NAMES.contains(&folder) {
        complaints.push(source.complaint(0, "the name has no meaning"));
    }
    if name == "mod" && !source.text.starts_with("//! ") {
        complaints.push(source.complaint(0, "mod.rs must begin with a description of the module"));
    }
    let module = source.module().unwrap_or_default();
    let is_head = source.path == Path::new(&module).join("mod.rs")
        || source.path == Path::new(&module).join("src/lib.rs");
    if is_head {
        let allowed = row(&module).map(|row| row.may_import.iter().cloned().collect());
        // The manifest of a crate lists what the crate may import.
        if name == "mod" && allowed != listed_imports(&source.text) {
            complaints
                .push(source.complaint(0, "`*May import*` differs from the map in DESIGN.md"));
        }
        if PURE.contains(&module.as_str()) && !source.code.contains("#![forbid(unsafe_code)]") {
            complaints.push(source.complaint(0, "a pure module must forbid unsafe code"));
        }
    }
    complaints
}

/// Returns the modules that the introduction of a module lists after `*May import*`.
fn listed_imports(text: &str) -> Option<BTreeSet<String>> {
    let (_, after) = text.split_once("*May import* ")?;
    let (list, _) = after.split_once("base")?;
    let names = list.split('`').skip(1).step_by(2);
    Some(names.map(str::to_owned).collect())
}

fn assert_tidy(folders: &[&str], rule: fn(&Source) -> Vec<String>) {
    let sources = sources(folders);
    assert!(!sources.is_empty());
    let mut complaints: Vec<_> = sources.iter().flat_map(rule).collect();
    complaints.sort();
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn files_and_lines_are_short() {
    assert_tidy(&["src", "crates", "tests", "examples", "benches"], too_long);
}

#[test]
fn functions_are_short() {
    // A test may contain a long table of cases.
    assert_tidy(&["src", "crates", "examples", "benches"], long_functions);
}

#[test]
fn unsafe_code_is_confined_to_sys() {
    assert_tidy(
        &["src", "crates", "examples", "benches"],
        unsafe_outside_sys,
    );
}

#[test]
fn imports_are_allowed_by_map() {
    assert_tidy(&["src"], forbidden_imports);
}

#[test]
fn import_permissions_are_used() {
    let unused = unused_permissions(&sources(&["src"]), &MAP);
    assert!(unused.is_empty(), "\n{}\n", unused.join("\n"));
}

#[test]
fn files_do_not_form_import_cycles() {
    let found = ROOTS
        .iter()
        .flat_map(|root| cycles(&sources(&[root]), root))
        .map(|cycle| cycle.join(", "));
    let found: Vec<String> = found.collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn modules_do_not_exceed_limits_of_map() {
    let over = over_budget(&sources(&["src", "crates", "adapters"]), &MAP);
    assert!(over.is_empty(), "\n{}\n", over.join("\n"));
}

#[test]
fn pure_modules_have_no_side_effects() {
    assert_tidy(&["src", "crates"], impure);
}

#[test]
fn modules_have_introductions() {
    assert_tidy(&["src", "crates"], without_introduction);
}

/// Cargo cannot inherit the version of a path dependency from the workspace.
#[test]
fn workspace_dependencies_have_workspace_version() {
    let manifest = std::fs::read_to_string("Cargo.toml").unwrap();
    let version = |line: &str| {
        Some(
            line.split_once("version = \"")?
                .1
                .split_once('"')?
                .0
                .to_owned(),
        )
    };
    let mut lines = manifest.lines();
    let stated = lines
        .find(|line| line.starts_with("version = "))
        .and_then(version);
    let dependencies: Vec<_> = lines
        .filter(|line| line.starts_with("ringtree"))
        .filter_map(version)
        .collect();
    assert_eq!(dependencies, vec![stated.unwrap(); dependencies.len()]);
    assert!(!dependencies.is_empty());
}

#[test]
fn map_lists_every_module() {
    let found = sources(&["src", "crates", "adapters"]);
    // A folder that contains only the tests of a base file is not a module.
    let is_test = |source: &&Source| source.path.ends_with("tests.rs");
    let found = found.iter().filter(|source| !is_test(source));
    let found: BTreeSet<String> = found.filter_map(Source::module).collect();
    let rows: BTreeSet<String> = MAP.iter().map(|module| module.name.clone()).collect();
    assert_eq!(found, rows);
}

/// Returns the number of complaints of `rule` about a file with this path and text.
fn complaints(rule: fn(&Source) -> Vec<String>, path: &str, text: &str) -> usize {
    rule(&Source::new(path.into(), text.to_owned())).len()
}

#[test]
fn long_files_lines_and_functions_are_found() {
    let path = "src/link/x.rs";
    let lines = "\n".repeat(FUNCTION_LINES_MAX);
    let long = format!("fn long() {{{lines}}}\nfn short() {{}}\n");
    assert_eq!(complaints(long_functions, path, &long), 1);
    let wide = "/".repeat(LINE_COLUMNS_MAX + 1);
    assert_eq!(complaints(too_long, path, &wide), 1);
    let high = "\n".repeat(FILE_LINES_MAX + 1);
    assert_eq!(complaints(too_long, path, &high), 1);
}

#[test]
fn unsafe_in_comments_and_strings_is_ignored() {
    let hidden = "// unsafe\nconst A: &str = \"unsafe \\\" unsafe\"; /* unsafe */ 'x: loop {}\n\
                  const B: &str = r#\"unsafe\"#; const C: char = '\"'; #![forbid(unsafe_code)]";
    let shown = format!("{hidden} fn f() {{ unsafe {{}} }}");
    assert_eq!(complaints(unsafe_outside_sys, "src/link/x.rs", hidden), 0);
    assert_eq!(complaints(unsafe_outside_sys, "src/link/x.rs", &shown), 1);
    assert_eq!(complaints(unsafe_outside_sys, "src/sys/x.rs", &shown), 0);
}

#[test]
fn forbidden_imports_are_found_in_every_spelling() {
    let groups = "use crate::{error::Error, protocol::{Frame, sys}, sys};";
    let cases = [
        ("src/link/x.rs", "use crate::op; use super::tcp;", 0),
        ("src/protocol/x.rs", "use crate::engine::Engine;", 1),
        ("src/reduce/x.rs", groups, 2),
        (
            "src/protocol/x.rs",
            "fn f() { super::super::engine::run() }",
            1,
        ),
        ("src/protocol/mod.rs", "use super::engine;", 1),
        ("src/engine/x.rs", "use super::plan; use crate::plan;", 0),
        ("src/dtype.rs", "use crate::sys::memory;", 1),
    ];
    for (path, text, expected) in cases {
        let found = complaints(forbidden_imports, path, text);
        assert_eq!(found, expected, "{path} {text}");
    }
}

#[test]
fn unused_import_permission_is_found() {
    let files = [
        (
            "src/engine/x.rs",
            "use crate::plan::internal::ir; // crate::reduce",
        ),
        ("src/protocol/x.rs", "use crate::reduce::Kernel;"),
    ];
    let files = files.map(|(path, text)| Source::new(path.into(), text.to_owned()));
    let engine = Module {
        name: "src/engine".to_owned(),
        may_import: vec!["plan".to_owned(), "reduce".to_owned()],
        lines_max: 1,
    };
    let unused = unused_permissions(&files, &[engine]);
    assert_eq!(unused, ["src/engine may import reduce, but does not"]);
}

#[test]
fn effects_and_missing_introductions_are_found() {
    let network = "use std::net::TcpStream;";
    assert_eq!(complaints(impure, "src/protocol/x.rs", network), 1);
    assert_eq!(complaints(impure, "src/link/x.rs", network), 0);
    assert_eq!(
        complaints(without_introduction, "src/protocol/mod.rs", "mod x;"),
        3
    );
    assert_eq!(complaints(without_introduction, "src/comm/utils.rs", ""), 1);
    for (list, expected) in [
        ("`sys` and the base", 0),
        ("the base", 1),
        ("`protocol`, `sys`, base", 1),
    ] {
        let text = format!("//! *May import* {list} files.");
        let found = complaints(without_introduction, "src/reduce/mod.rs", &text);
        assert_eq!(found, expected, "{list}");
    }
}

#[test]
fn code_is_counted_without_comments_and_tests() {
    let text = "//! a\n\nuse b;\n#[cfg(test)]\nmod tests {\n    fn c() {}\n}\nfn d() { /* e */ }\n";
    let source = Source::new("src/link/x.rs".into(), text.to_owned());
    assert_eq!(source.code_lines(), 2);
    let module = |lines_max| Module {
        name: "src/link".to_owned(),
        may_import: Vec::new(),
        lines_max,
    };
    assert_eq!(over_budget(&[source], &[module(1)]).len(), 1);
    let source = Source::new("src/link/x.rs".into(), text.to_owned());
    assert!(over_budget(&[source], &[module(2)]).is_empty());
}

#[test]
fn import_cycle_is_found_but_parents_are_allowed() {
    let files = [
        ("src/a/mod.rs", "use b::B; use self::c::C; mod c;"),
        ("src/a/c.rs", "use super::{d, e::E}; use super::Above;"),
        ("src/a/d.rs", "fn f() { crate::a::e::g() }"),
        (
            "src/a/e.rs",
            "use crate::a::{self, c::C};\n#[cfg(test)]\nmod t { use super::super::d; }",
        ),
    ];
    let files = files.map(|(path, text)| Source::new(path.into(), text.to_owned()));
    assert_eq!(cycles(&files, "src"), [["a::c", "a::d", "a::e"]]);
    assert!(cycles(&files[..3], "src").is_empty());
}

/// Other crates name a private module only through `internal`.
#[test]
fn internal_modules_are_private() {
    let library = fs::read_to_string("src/lib.rs").unwrap();
    for module in MAP
        .iter()
        .filter_map(|module| module.name.strip_prefix("src/"))
    {
        // The module `decoders` exists only for the fuzzer and the unit tests.
        let is_api = ["comm", "ddp", "decoders", "launch", "sim"].contains(&module);
        let public = library.contains(&format!("\npub mod {module};"));
        assert_eq!(public, is_api, "{module}");
    }
    assert!(library.contains("#[doc(hidden)]\npub mod internal;"));
}
