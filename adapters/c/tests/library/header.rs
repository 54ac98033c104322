//! Checks that the header matches the sources.

use cbindgen::{Builder, Config};
use std::fs;
use std::path::Path;

/// Source files, in the order of their sections in the header.
const SOURCES: [&str; 7] = [
    "types.rs",
    "door/results.rs",
    "door/communicators.rs",
    "door/collectives.rs",
    "door/messages.rs",
    "door/started.rs",
    "door/work.rs",
];

pub(crate) const HEADER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../include/ringtree.h");

/// Generates the header from the current sources.
fn generated() -> String {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config = Config::from_file(package.join("cbindgen.toml")).unwrap();
    let macros = fs::read_to_string(package.join("src/macros.h")).unwrap();
    let macros = macros
        .replace("@MAJOR@", env!("CARGO_PKG_VERSION_MAJOR"))
        .replace("@MINOR@", env!("CARGO_PKG_VERSION_MINOR"))
        .replace("@PATCH@", env!("CARGO_PKG_VERSION_PATCH"));
    config.after_includes = Some(format!("\n{}", macros.trim_end()));
    let sources = SOURCES.iter().map(|file| package.join("src").join(file));
    let builder = sources.fold(Builder::new().with_config(config), Builder::with_src);
    let mut text = Vec::new();
    builder.generate().unwrap().write(&mut text);
    String::from_utf8(text).unwrap()
}

/// Returns the sorted names of the functions that the header declares.
pub(crate) fn functions() -> Vec<String> {
    let header = fs::read_to_string(HEADER).unwrap();
    let lines = header.lines().filter(|line| !line.starts_with([' ', '/']));
    let names = lines.filter_map(|line| {
        let (before, _) = line.split_once('(')?;
        let name = before.rsplit([' ', '*']).next()?;
        name.starts_with("ringtree_").then(|| name.to_owned())
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn header_matches_sources() {
    let (kept, made) = (fs::read_to_string(HEADER).unwrap_or_default(), generated());
    if std::env::var_os("RINGTREE_TEST_WRITE").is_some() {
        return fs::write(HEADER, made).unwrap();
    }
    assert!(
        kept == made,
        "include/ringtree.h does not match the sources; regenerate it with\n\
         RINGTREE_TEST_WRITE=1 cargo test -p ringtree-c header"
    );
}
