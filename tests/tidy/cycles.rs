//! Finds import cycles between the files of a crate.

use super::source::{Source, name_of, paths};
use std::collections::{BTreeMap, BTreeSet};

/// Returns the import cycles between the files of one crate, whose sources are in `root`. Each
/// cycle lists the names of its files. References from a file to the modules above it are ignored.
pub(crate) fn cycles(sources: &[Source], root: &str) -> Vec<Vec<String>> {
    let files = sources
        .iter()
        .filter(|source| source.path.starts_with(root) && !source.is_test());
    let files: BTreeMap<String, &Source> = files
        .map(|source| (name_of(source, root), source))
        .collect();
    let edges: BTreeMap<&str, BTreeSet<&str>> = files
        .iter()
        .map(|(name, source)| (name.as_str(), targets(name, source, &files)))
        .collect();
    let reached: BTreeMap<&str, BTreeSet<&str>> = edges
        .keys()
        .map(|name| (*name, reached_from(name, &edges)))
        .collect();
    let mut found = BTreeSet::new();
    for (name, all) in &reached {
        if all.contains(name) {
            let cycle = all.iter().filter(|other| reached[**other].contains(name));
            found.insert(cycle.map(|one| (*one).to_owned()).collect::<Vec<_>>());
        }
    }
    found.into_iter().collect()
}

/// Returns the files that `source` names.
fn targets<'a>(
    name: &str,
    source: &Source,
    files: &'a BTreeMap<String, &Source>,
) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    for (_, path) in paths(name, &source.untested()) {
        let mut parts: Vec<&str> = path.iter().map(String::as_str).collect();
        while !parts.is_empty() {
            if let Some((target, _)) = files.get_key_value(&parts.join("::")) {
                if target != name && !name.starts_with(&format!("{target}::")) {
                    found.insert(target.as_str());
                }
                break;
            }
            parts.pop();
        }
    }
    found
}

/// Returns all files that can be reached from `name`.
fn reached_from<'a>(name: &str, edges: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&str> = edges[name].iter().copied().collect();
    while let Some(next) = open.pop() {
        if reached.insert(next) {
            open.extend(&edges[next]);
        }
    }
    reached
}
