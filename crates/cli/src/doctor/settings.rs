//! Shows the settings that are in effect and where they come from.

use super::report::{DEFAULT, Group, variable};
use ringtree::internal::bootstrap::{TuningSource, VARIABLES, check_settings, launchers};
use ringtree::plan::TuningTable;

/// Variables whose values are not shown: the secret, and a table of many numbers.
const NOT_SHOWN: [&str; 2] = ["RINGTREE_SECRET", "RINGTREE_JOB_TUNING"];

/// Shows all settings.
pub(super) fn examine(problems: &mut Vec<String>) -> Group {
    let mut group = Group::new("Settings");
    let (launcher, unused) = launchers(variable);
    group.add("launcher", launcher);
    for why in &unused {
        group.line("", format!("not {why}"));
    }
    group.value("launchers not used", unused);
    let (tuning, origin) = tuning();
    group.setting("tuning", &tuning, origin);
    group.variable(
        "site",
        "RINGTREE_SITE",
        "shared by all hosts without a site name",
    );
    group.variable("checks", "RINGTREE_CHECK", "none");
    // Other values were rejected before any command ran.
    let (order, origin) = match variable("RINGTREE_REPRODUCIBLE").as_deref() {
        Some("1") => ("rank order", "RINGTREE_REPRODUCIBLE"),
        _ => ("depends on the algorithm", DEFAULT),
    };
    group.setting("summation order", order, origin);
    for one in VARIABLES {
        let (value, origin) = shown(one.name, one.default, variable(one.name));
        group.setting(one.name, &value, origin);
    }
    problems.extend(
        check_settings(variable)
            .err()
            .map(|error| error.to_string()),
    );
    group
}

/// Returns the value of a variable to show, and its origin.
pub(super) fn shown(name: &str, default: &str, set: Option<String>) -> (String, &'static str) {
    match set {
        Some(_) if NOT_SHOWN.contains(&name) => ("set, not shown".to_owned(), "environment"),
        Some(value) => (value, "environment"),
        None => (default.to_owned(), "default"),
    }
}

/// Returns the source of the link speed table and the origin of this setting.
fn tuning() -> (String, &'static str) {
    let by_launcher = "measured by an earlier attempt and passed on by the launcher";
    let by_ranks = "built-in if all ranks are on one host, otherwise measured at startup";
    let Some(setting) = variable("RINGTREE_TUNING") else {
        let (what, origin) = match variable("RINGTREE_JOB_TUNING") {
            Some(_) => (by_launcher, "RINGTREE_JOB_TUNING"),
            None => (by_ranks, DEFAULT),
        };
        return (what.to_owned(), origin);
    };
    let what = match TuningSource::of_setting(&setting) {
        Ok(TuningSource::BuiltIn | TuningSource::Measured | TuningSource::HandedOn(_)) => {
            "built-in".to_owned()
        }
        Ok(TuningSource::MeasuredInto(path)) => {
            let path = path.display();
            format!("measured at startup, then written to {path}")
        }
        Ok(TuningSource::Text { origin, text }) => match TuningTable::parse(&text) {
            Ok(_) => format!("read from {origin}"),
            Err(why) => format!("{origin}: {why}"),
        },
        Err(error) => error.to_string(),
    };
    (what, "RINGTREE_TUNING")
}
