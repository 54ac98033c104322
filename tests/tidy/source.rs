//! Reads and parses source files for the rules.

use std::fs;
use std::path::{Path, PathBuf};

/// A source file: its text, and the text with everything except code replaced by blanks.
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    pub(crate) code: String,
}

impl Source {
    pub(crate) fn new(path: PathBuf, text: String) -> Self {
        let code = blank(&text);
        Source { path, text, code }
    }

    /// Returns the module of the file as the map names it: a directory of `src`, `src` itself for
    /// the base files, a crate, or an adapter.
    pub(crate) fn module(&self) -> Option<String> {
        let parts: Vec<_> = self
            .path
            .iter()
            .map(|part| part.to_str().unwrap())
            .collect();
        match parts[..] {
            ["src", _] => Some("src".to_owned()),
            [root @ ("src" | "crates" | "adapters"), folder, ..] => {
                Some(format!("{root}/{folder}"))
            }
            _ => None,
        }
    }

    /// Returns the name of the module of `src` that the file belongs to.
    pub(crate) fn src_module(&self) -> Option<String> {
        let module = self.module()?;
        module.strip_prefix("src/").map(str::to_owned)
    }

    /// Returns whether the file contains only tests.
    pub(crate) fn is_test(&self) -> bool {
        let is_tests = |part: &str| ["tests", "tests.rs", "benches", "examples"].contains(&part);
        self.path
            .iter()
            .any(|part| is_tests(part.to_str().unwrap()))
    }

    /// Returns the code without its test modules. Every line keeps its number.
    pub(crate) fn untested(&self) -> String {
        let mut code = self.code.clone().into_bytes();
        for (at, _) in self.code.match_indices("#[cfg(test)]") {
            let rest = &self.code[at..];
            let end = match rest.find(['{', ';']) {
                Some(open) if rest[open..].starts_with('{') => closing(rest, open),
                Some(semicolon) => semicolon + 1,
                None => rest.len(),
            };
            for byte in &mut code[at..at + end] {
                if *byte != b'\n' {
                    *byte = b' ';
                }
            }
        }
        String::from_utf8_lossy(&code).into_owned()
    }

    /// Returns the number of lines with code, excluding tests.
    pub(crate) fn code_lines(&self) -> usize {
        match self.is_test() {
            true => 0,
            false => self
                .untested()
                .lines()
                .filter(|line| !line.trim().is_empty())
                .count(),
        }
    }

    pub(crate) fn complaint(&self, at: usize, what: &str) -> String {
        let line = 1 + self.code[..at].matches('\n').count();
        format!("{}:{line}: {what}", self.path.display())
    }
}

/// Returns `text` with comments, strings and character literals replaced by blanks. Every line
/// keeps its number.
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

/// Returns the length of the comment, string or character literal at the start of `bytes`, or 0 if
/// there is none.
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
        // If it has no closing quote, it is a lifetime.
        [b'\'', first, rest @ ..] => {
            let more = rest.iter().take_while(|byte| **byte & 0xC0 == 0x80).count();
            let closed = *first != b'\'' && rest.get(more) == Some(&b'\'');
            if closed { more + 3 } else { 0 }
        }
        _ => 0,
    }
}

/// Returns the length of a literal that begins and ends with `quote` and may contain escapes.
fn quoted(bytes: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// Returns the positions of `word` in `code` where it is not part of a longer word.
pub(crate) fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |at| {
            let before = code[..*at].bytes().next_back();
            let after = code[at + word.len()..].bytes().next();
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        })
}

/// Returns the position after the bracket that closes the bracket at `open`.
pub(crate) fn closing(code: &str, open: usize) -> usize {
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

/// Returns `a::b` for `a/b.rs` and `a/b/mod.rs`, and an empty name for the crate's root.
pub(crate) fn name_of(source: &Source, root: &str) -> String {
    let path = source.path.strip_prefix(root).unwrap().with_extension("");
    let mut parts: Vec<_> = path.iter().map(|part| part.to_str().unwrap()).collect();
    if parts == ["lib"] || parts.last() == Some(&"mod") {
        parts.pop();
    }
    parts.join("::")
}

/// Returns the paths that `code` of the file `name` contains, relative to the crate's root, with
/// their positions.
pub(crate) fn paths(name: &str, code: &str) -> Vec<(usize, Vec<String>)> {
    let here: Vec<String> = name
        .split("::")
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect();
    let mut found = Vec::new();
    for first in ["crate", "super", "self"] {
        for at in words(code, first) {
            // `super` within a path belongs to the path that begins before it.
            let rest = &code[at + first.len()..];
            if code[..at].ends_with("::") || !rest.starts_with("::") {
                continue;
            }
            let base = match first {
                "crate" => Vec::new(),
                "self" => here.clone(),
                _ => here[..here.len().saturating_sub(1)].to_vec(),
            };
            let mut named = Vec::new();
            collect(base, &rest[2..], &mut named);
            found.extend(named.into_iter().map(|path| (at, path)));
        }
    }
    found
}

/// Adds the paths in `rest`, which continue the path `base`: one path, or each path of a group in
/// braces.
fn collect(mut base: Vec<String>, rest: &str, found: &mut Vec<Vec<String>>) {
    let rest = rest.trim_start();
    if rest.starts_with('{') {
        let group = &rest[1..closing(rest, 0) - 1];
        let mut depth = 0;
        let parts = group.split(|letter| {
            depth += i32::from(letter == '{') - i32::from(letter == '}');
            letter == ',' && depth == 0
        });
        parts.for_each(|part| collect(base.clone(), part, found));
        return;
    }
    let end = rest.find(|letter: char| !(letter.is_alphanumeric() || letter == '_'));
    let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
    match word {
        "" => return,
        "super" => drop(base.pop()),
        "self" => {}
        _ => base.push(word.to_owned()),
    }
    match after.strip_prefix("::") {
        Some(after) => collect(base, after, found),
        None => found.push(base),
    }
}

/// Returns all sources in the named directories.
pub(crate) fn sources(folders: &[&str]) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut open: Vec<PathBuf> = folders.iter().map(|folder| root.join(folder)).collect();
    let mut found = Vec::new();
    while let Some(path) = open.pop() {
        if path.is_dir() && !path.ends_with("target") {
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
