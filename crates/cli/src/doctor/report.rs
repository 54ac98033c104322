//! Collects facts and problems, and renders them as text or JSON.

use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;

/// The origin of a setting that is not set.
pub(super) const DEFAULT: &str = "the default";

/// Facts with the same heading.
pub(super) struct Group {
    heading: &'static str,
    lines: Vec<(String, String)>,
    values: Map<String, Value>,
}

impl Group {
    pub(super) fn new(heading: &'static str) -> Self {
        Self {
            heading,
            lines: Vec::new(),
            values: Map::new(),
        }
    }

    /// Adds a line that is not part of the JSON output.
    pub(super) fn line(&mut self, name: impl Into<String>, text: impl Into<String>) {
        self.lines.push((name.into(), text.into()));
    }

    /// Adds a value that is only part of the JSON output.
    pub(super) fn value(&mut self, name: &str, value: impl Into<Value>) {
        self.values.insert(key(name), value.into());
    }

    /// Adds a fact whose text is not just its value.
    pub(super) fn show(&mut self, name: &str, text: impl Into<String>, value: impl Into<Value>) {
        self.line(name, text);
        self.value(name, value);
    }

    /// Adds a fact. `null` means that it is unknown.
    pub(super) fn add(&mut self, name: &str, value: impl Into<Value>) {
        let value = value.into();
        self.show(name, plain(&value), value);
    }

    /// Adds a number of bytes, or `absent` if there is none.
    pub(super) fn bytes(&mut self, name: &str, bytes: Option<u64>, absent: &str) {
        let gib = |bytes| format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30));
        self.line(name, bytes.map_or(absent.to_owned(), gib));
        self.value(&format!("{name} bytes"), bytes);
    }

    /// Adds one line for each entry of `all`, which is one object in JSON.
    pub(super) fn each(&mut self, name: &str, all: Map<String, Value>) {
        for (one, value) in &all {
            self.line(format!("{name} {one}"), plain(value));
        }
        self.value(name, all);
    }

    /// Adds a setting, whose origin is a variable or [`DEFAULT`].
    pub(super) fn setting(&mut self, name: &str, value: &str, origin: &str) {
        let text = match value {
            "" => "not set".to_owned(),
            _ => format!("{value} ({origin})"),
        };
        let value = Some(value).filter(|value| !value.is_empty());
        self.show(name, text, json!({ "value": value, "origin": origin }));
    }

    /// Adds a setting that is the value of `variable_name`, or `default` if it is not set.
    pub(super) fn variable(&mut self, name: &str, variable_name: &str, default: &str) {
        match variable(variable_name) {
            Some(value) => self.setting(name, &value, variable_name),
            None => self.setting(name, default, DEFAULT),
        }
    }
}

/// Returns the JSON name of a fact.
fn key(name: &str) -> String {
    name.to_lowercase().replace(' ', "_")
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "unknown".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(all) => all.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Object(all) => {
            let all = all.iter();
            let all =
                all.map(|(name, value)| format!("{}: {}", name.replace('_', " "), plain(value)));
            all.collect::<Vec<_>>().join("; ")
        }
        other => other.to_string(),
    }
}

/// Renders `groups` and `problems` as text.
pub(super) fn text(groups: &[Group], problems: &[String]) -> String {
    let names = groups.iter().flat_map(|group| &group.lines);
    let width = names.map(|(name, _)| name.len() + 2).max().unwrap_or(0);
    let mut text = String::new();
    for Group { heading, lines, .. } in groups {
        text += &format!("{heading}\n");
        for (name, found) in lines {
            text += &format!("  {name:<width$}{}\n", printable(found));
        }
        text.push('\n');
    }
    let problems = problems
        .iter()
        .map(|problem| format!("  {}\n", printable(problem)));
    match problems.collect::<String>() {
        none if none.is_empty() => text + "no problems found\n",
        some => text + "Problems\n" + &some,
    }
}

/// Replaces control characters, which variables and names can contain.
fn printable(text: &str) -> String {
    text.replace(|symbol: char| symbol.is_control(), "?")
}

/// Renders `groups` and `problems` as one JSON object.
pub(super) fn json(groups: Vec<Group>, problems: Vec<String>) -> String {
    let groups = groups
        .into_iter()
        .map(|group| (key(group.heading), group.values.into()));
    let mut all: Map<String, Value> = groups.collect();
    all.insert("problems".to_owned(), problems.into());
    format!("{:#}\n", Value::Object(all))
}

/// Returns the text of a file without surrounding blanks, or `None` if it cannot be read.
pub(super) fn read(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

/// Returns the trimmed value of an environment variable, unless it is blank.
pub(super) fn variable(name: &str) -> Option<String> {
    let text = std::env::var(name).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// Returns the number in an environment variable.
pub(super) fn count(name: &str) -> Option<u64> {
    variable(name)?.parse().ok()
}

/// Returns what follows `name` and a colon in a file such as `/proc/self/status`.
pub(super) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(found, _)| *found == name)?;
    Some(value.trim())
}
