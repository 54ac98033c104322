//! The house rules, checked on the sources: sizes, rooms and who may import whom, where unsafe
//! code may stand, and what files may be called.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;
const LINE_COLUMNS_MAX: usize = 100;

/// Files that every room may import.
const BASE: &[&str] = &["dtype", "error", "limits", "op", "random", "whole_file"];
/// Rooms without clock, I/O or threads.
const PURE: &[&str] = &["plan", "protocol"];
/// What a room may import besides itself and the base files.
const ROOMS: &[(&str, &[&str])] = &[
    ("plan", &[]),
    ("protocol", &["plan"]),
    ("sys", &[]),
    ("reduce", &["sys"]),
    ("device", &["engine", "sys"]),
    ("link", &["sys"]),
    ("engine", &["link", "reduce", "sys", "plan", "protocol"]),
    ("control", &["link", "protocol"]),
    ("bootstrap", &["control", "link", "sys", "protocol"]),
    ("runtime", &["engine", "control", "link", "sys", "protocol"]),
    (
        "comm",
        &[
            "runtime",
            "engine",
            "bootstrap",
            "control",
            "link",
            "device",
            "reduce",
            "sys",
            "plan",
            "protocol",
        ],
    ),
    (
        "sim",
        &[
            "comm", "runtime", "engine", "link", "reduce", "sys", "plan", "protocol",
        ],
    ),
    ("ddp", &["comm", "plan", "reduce", "sys"]),
    ("launch", &["bootstrap", "control", "sys", "protocol"]),
    (
        "command",
        &[
            "launch",
            "ddp",
            "sim",
            "comm",
            "device",
            "reduce",
            "bootstrap",
            "plan",
        ],
    ),
    (
        "decoders",
        &[
            "link",
            "sys",
            "control",
            "bootstrap",
            "launch",
            "ddp",
            "plan",
            "protocol",
        ],
    ),
];
/// Names that say nothing.
const EMPTY_NAMES: &[&str] = &[
    "utils", "util", "common", "manager", "base", "helper", "helpers", "misc",
];

/// A source file: as it stands, and with everything but code blanked out.
struct Source {
    path: PathBuf,
    text: String,
    code: String,
}

impl Source {
    fn new(path: PathBuf, text: String) -> Self {
        let code = blank(&text);
        Source { path, text, code }
    }

    /// The room the file belongs to: a folder of `src`, or a crate in `crates`.
    fn room(&self) -> Option<&str> {
        let mut parts = self.path.iter().map(|part| part.to_str().unwrap());
        let room = parts
            .find(|part| ["src", "crates"].contains(part))
            .and_then(|_| parts.next())?;
        ROOMS
            .iter()
            .map(|(name, _)| *name)
            .find(|name| *name == room)
    }

    fn complaint(&self, at: usize, what: &str) -> String {
        let line = 1 + self.code[..at].matches('\n').count();
        format!("{}:{line}: {what}", self.path.display())
    }
}

/// `text` with comments, strings and characters replaced by blanks; every line keeps its number.
fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = at + insignificant(&bytes[at..], at > 0 && is_word(bytes[at - 1]));
        for byte in &mut code[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end.max(at + 1);
    }
    String::from_utf8_lossy(&code).into_owned()
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// The length of the comment, string or character at the start of `bytes`, or 0.
fn insignificant(bytes: &[u8], inside_word: bool) -> usize {
    let until = |from: usize, end: &[u8]| {
        let found = bytes[from..]
            .windows(end.len())
            .position(|window| window == end);
        found.map_or(bytes.len(), |position| from + position + end.len())
    };
    match bytes {
        [b'/', b'/', ..] => until(0, b"\n") - 1,
        [b'/', b'*', ..] => until(2, b"*/"),
        [b'r', rest @ ..] if !inside_word => {
            let hashes = rest.iter().take_while(|byte| **byte == b'#').count();
            match rest.get(hashes) {
                Some(b'"') => until(hashes + 2, &[b"\"", &b"#".repeat(hashes)[..]].concat()),
                _ => 0,
            }
        }
        [b'"', ..] => quoted(bytes, b'"'),
        [b'\'', b'\\', ..] => quoted(bytes, b'\''),
        // Without a closing quote it is a lifetime.
        [b'\'', first, rest @ ..] => {
            let more = rest.iter().take_while(|byte| **byte & 0xC0 == 0x80).count();
            let closed = *first != b'\'' && rest.get(more) == Some(&b'\'');
            if closed { more + 3 } else { 0 }
        }
        _ => 0,
    }
}

/// The length of a literal that begins and ends with `quote` and may contain escapes.
fn quoted(bytes: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// The places of `word` in `code` where it stands alone.
fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |at| {
            let before = code[..*at].bytes().next_back();
            let after = code[at + word.len()..].bytes().next();
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        })
}

/// The place just after the bracket that closes the one at `open`.
fn closing(code: &str, open: usize) -> usize {
    let mut depth = 0_i32;
    for (offset, byte) in code[open..].bytes().enumerate() {
        depth += match byte {
            b'(' | b'[' | b'{' => 1,
            b')' | b']' | b'}' => -1,
            _ => 0,
        };
        if depth == 0 {
            return open + offset + 1;
        }
    }
    code.len()
}

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
    // What has no name is a type.
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

fn unsafe_outside_sys(source: &Source) -> Vec<String> {
    if source.room() == Some("sys") {
        return Vec::new();
    }
    let found = words(&source.code, "unsafe");
    found
        .map(|at| source.complaint(at, "unsafe code outside src/sys"))
        .collect()
}

/// The names that follow `crate::` (or enough `super::` to come to the same) in `source`.
fn imports(source: &Source) -> Vec<(usize, String)> {
    let code = &source.code;
    let mut starts: Vec<usize> = words(code, "crate")
        .map(|at| at + "crate".len())
        .filter(|at| code[*at..].starts_with("::"))
        .collect();
    // A room's mod.rs is one step below the root, its other files two or more.
    let below = source.path.iter().skip_while(|part| *part != "src").count() - 1;
    let depth = if source.path.ends_with("mod.rs") {
        below - 1
    } else {
        below
    };
    let climb = "super::".repeat(depth);
    for at in words(code, "super") {
        if code[at..].starts_with(&climb) && !code[..at].ends_with("::") {
            starts.push(at + climb.len() - "::".len());
        }
    }
    let mut names = Vec::new();
    for at in starts {
        let rest = &code[at + 2..];
        let group = match rest.starts_with('{') {
            true => &rest[1..closing(rest, 0) - 1],
            false => rest,
        };
        let mut depth = 0;
        let parts = group.split(|character| {
            depth += i32::from(character == '{') - i32::from(character == '}');
            character == ',' && depth == 0
        });
        let parts = if rest.starts_with('{') {
            parts.collect()
        } else {
            vec![group]
        };
        for part in parts {
            let name = part
                .trim_start()
                .split(|letter: char| !(letter.is_alphanumeric() || letter == '_'));
            names.push((at, name.take(1).collect()));
        }
    }
    names
}

fn forbidden_imports(source: &Source) -> Vec<String> {
    let is_room = |name: &str| ROOMS.iter().any(|(room, _)| *room == name);
    let allowed: &[&str] = match source.room() {
        Some(own) => ROOMS.iter().find(|(room, _)| *room == own).unwrap().1,
        None if source.path.ends_with("lib.rs") => return Vec::new(),
        // An error names the collective in which it happened. `plan` knows nothing of errors.
        None if source.path.ends_with("src/error.rs") => &["plan"],
        None => &[],
    };
    imports(source)
        .into_iter()
        .filter(|(_, name)| is_room(name) && source.room() != Some(name))
        .filter(|(_, name)| !allowed.contains(&name.as_str()))
        .map(|(at, name)| source.complaint(at, &format!("may not import {name}")))
        .collect()
}

/// What `rooms` allows a room to import and no file of the room imports.
fn unused_permissions(sources: &[Source], rooms: &[(&str, &[&str])]) -> Vec<String> {
    let mut unused = Vec::new();
    for (room, allowed) in rooms {
        let files = sources.iter().filter(|source| source.room() == Some(room));
        let used: BTreeSet<String> = files.flat_map(imports).map(|(_, name)| name).collect();
        let idle = allowed.iter().filter(|name| !used.contains(**name));
        unused.extend(idle.map(|name| format!("{room} may import {name}, and does not")));
    }
    unused
}

fn impure(source: &Source) -> Vec<String> {
    if !source.room().is_some_and(|room| PURE.contains(&room)) {
        return Vec::new();
    }
    let tests = source
        .code
        .find("mod tests")
        .filter(|_| source.text.contains("#[cfg(test)]"));
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
        .filter_map(|effect| Some((source.code.find(effect)?, effect)));
    let found = found.filter(|(at, _)| tests.is_none_or(|tests| *at < tests));
    found
        .map(|(at, effect)| source.complaint(at, &format!("{effect} in a pure room")))
        .collect()
}

fn ill_introduced(source: &Source) -> Vec<String> {
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
        complaints.push(source.complaint(0, "a name that says nothing"));
    }
    if name == "mod" && !source.text.starts_with("//! ") {
        complaints.push(source.complaint(0, "a mod.rs opens with what it is for"));
    }
    let room = source.room().filter(|room| {
        (name == "mod" && *room == folder) || (name == "lib" && source.path.starts_with("crates"))
    });
    if let Some(room) = room {
        let allowed = ROOMS.iter().find(|(name, _)| *name == room).unwrap().1;
        // What a crate may import stands in its manifest.
        if name == "mod" && said_importable(&source.text) != Some(allowed.iter().copied().collect())
        {
            complaints
                .push(source.complaint(0, "a room says what it may import, as the table does"));
        }
        if PURE.contains(&room) && !source.code.contains("#![forbid(unsafe_code)]") {
            complaints.push(source.complaint(0, "a pure room forbids unsafe code"));
        }
    }
    complaints
}

/// The rooms that a room's opening text says it may import.
fn said_importable(text: &str) -> Option<BTreeSet<&'static str>> {
    let (_, after) = text.split_once("*May import* ")?;
    let (list, _) = after.split_once("base")?;
    let rooms = ROOMS.iter().map(|(room, _)| *room);
    Some(
        rooms
            .filter(|room| list.contains(&format!("`{room}`")))
            .collect(),
    )
}

/// All sources under the named folders.
fn sources(folders: &[&str]) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut open: Vec<PathBuf> = folders.iter().map(|folder| root.join(folder)).collect();
    let mut found = Vec::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.push(Source::new(
                path.strip_prefix(root).unwrap().to_owned(),
                text,
            ));
        }
    }
    found
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
    // A test may hold a long table of cases.
    assert_tidy(&["src", "crates", "examples", "benches"], long_functions);
}

#[test]
fn unsafe_code_stands_in_sys_alone() {
    assert_tidy(
        &["src", "crates", "examples", "benches"],
        unsafe_outside_sys,
    );
}

#[test]
fn imports_point_one_way() {
    assert_tidy(&["src", "crates"], forbidden_imports);
}

#[test]
fn every_permission_to_import_is_used() {
    let unused = unused_permissions(&sources(&["src", "crates"]), ROOMS);
    assert!(unused.is_empty(), "\n{}\n", unused.join("\n"));
}

#[test]
fn pure_rooms_have_no_effects() {
    assert_tidy(&["src", "crates"], impure);
}

#[test]
fn every_room_introduces_itself() {
    assert_tidy(&["src", "crates"], ill_introduced);
}

#[test]
fn every_folder_is_a_room_with_a_row_in_the_table() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["src", "crates"].map(|folder| fs::read_dir(root.join(folder)).unwrap());
    for entry in folders.into_iter().flatten().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let known = ROOMS.iter().any(|(room, _)| *room == name) || name == "bin";
        let base = name
            .strip_suffix(".rs")
            .is_some_and(|file| BASE.contains(&file));
        assert!(
            known || base || name == "lib.rs",
            "{name} has no row in the table of rooms"
        );
    }
}

/// How many complaints `rule` has about a file of this path and text.
fn complaints(rule: fn(&Source) -> Vec<String>, path: &str, text: &str) -> usize {
    rule(&Source::new(path.into(), text.to_owned())).len()
}

#[test]
fn what_is_too_long_is_found() {
    let path = "src/plan/x.rs";
    let lines = "\n".repeat(FUNCTION_LINES_MAX);
    let long = format!("fn long() {{{lines}}}\nfn short() {{}}\n");
    assert_eq!(complaints(long_functions, path, &long), 1);
    let wide = "/".repeat(LINE_COLUMNS_MAX + 1);
    assert_eq!(complaints(too_long, path, &wide), 1);
    let high = "\n".repeat(FILE_LINES_MAX + 1);
    assert_eq!(complaints(too_long, path, &high), 1);
}

#[test]
fn unsafe_code_is_told_from_its_mention() {
    let hidden = "// unsafe\nconst A: &str = \"unsafe \\\" unsafe\"; /* unsafe */ 'x: loop {}\n\
                  const B: &str = r#\"unsafe\"#; const C: char = '\"'; #![forbid(unsafe_code)]";
    let shown = format!("{hidden} fn f() {{ unsafe {{}} }}");
    assert_eq!(complaints(unsafe_outside_sys, "src/plan/x.rs", hidden), 0);
    assert_eq!(complaints(unsafe_outside_sys, "src/plan/x.rs", &shown), 1);
    assert_eq!(complaints(unsafe_outside_sys, "src/sys/x.rs", &shown), 0);
}

#[test]
fn an_import_is_found_in_every_spelling() {
    let groups = "use crate::{error::Error, protocol::{Frame, sys}, sys};";
    let cases = [
        ("crates/plan/src/x.rs", "use crate::ir; use crate::op;", 0),
        ("src/protocol/x.rs", "use crate::engine::Engine;", 1),
        ("src/reduce/x.rs", groups, 1),
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
fn a_permission_that_no_file_uses_is_found() {
    let files = [
        ("src/engine/x.rs", "use crate::plan::ir; // crate::reduce"),
        ("src/protocol/x.rs", "use crate::reduce::Kernel;"),
    ];
    let files = files.map(|(path, text)| Source::new(path.into(), text.to_owned()));
    let unused = unused_permissions(&files, &[("engine", &["plan", "reduce"])]);
    assert_eq!(unused, ["engine may import reduce, and does not"]);
}

#[test]
fn effects_and_missing_introductions_are_found() {
    let network = "use std::net::TcpStream;";
    assert_eq!(complaints(impure, "src/protocol/x.rs", network), 1);
    assert_eq!(complaints(impure, "src/link/x.rs", network), 0);
    assert_eq!(
        complaints(ill_introduced, "src/protocol/mod.rs", "mod x;"),
        3
    );
    assert_eq!(complaints(ill_introduced, "src/comm/utils.rs", ""), 1);
    for (said, expected) in [
        ("`sys` and the base", 0),
        ("the base", 1),
        ("`protocol`, `sys`, base", 1),
    ] {
        let text = format!("//! *May import* {said} files.");
        let found = complaints(ill_introduced, "src/reduce/mod.rs", &text);
        assert_eq!(found, expected, "{said}");
    }
}

/// What rests on contracts that the compiler does not check is out of users' reach.
#[test]
fn rooms_with_contracts_are_not_public() {
    let library = fs::read_to_string("src/lib.rs").unwrap();
    for room in ["engine", "link", "sys"] {
        let public = format!("#[cfg(feature = \"internals\")]\n#[doc(hidden)]\npub mod {room};");
        assert!(library.contains(&public), "{room}");
        assert_eq!(
            library.matches(&format!("pub mod {room};")).count(),
            1,
            "{room}"
        );
    }
    let manifest = fs::read_to_string("Cargo.toml").unwrap();
    assert!(manifest.contains("\n[features]\n") && !manifest.contains("\ndefault = "));
}
