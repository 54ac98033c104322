//! The environment variables that ringtree reads.

use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;

/// What ringtree's own variables begin with.
const PREFIX: &str = "RINGTREE_";

/// What others set: Kubernetes for a Service of the name `ringtree`, and ringtree's own tests.
const PASSED_OVER: [&str; 3] = ["RINGTREE_SERVICE_", "RINGTREE_PORT", "RINGTREE_TEST_"];

/// The meaning of a setting that this version does not carry out: any value of it but its default
/// is refused rather than ignored.
pub(super) const NOT_BUILT_YET: &str = "not built yet";

/// A variable, what holds where it is not set, and what it says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What holds where it is not set, or empty.
    pub default: &'static str,
    /// What it says.
    pub meaning: &'static str,
}

const fn variable(name: &'static str, default: &'static str, meaning: &'static str) -> Variable {
    Variable {
        name,
        default,
        meaning,
    }
}

/// Every variable that a rank or the launcher reads.
pub(crate) const VARIABLES: &[Variable] = &[
    variable("RANK", "", "rank of this process, from 0"),
    variable("WORLD_SIZE", "", "number of ranks"),
    variable(
        "LOCAL_RANK",
        "found at startup",
        "rank of this process on its host, from 0",
    ),
    variable(
        "LOCAL_WORLD_SIZE",
        "found at startup",
        "number of ranks on this host",
    ),
    variable("MASTER_ADDR", "", "address of rank 0's host"),
    variable(
        "MASTER_PORT",
        "",
        "port that rank 0 listens on; the next port if another service holds it",
    ),
    variable(
        "RINGTREE_RENDEZVOUS",
        "MASTER_ADDR:MASTER_PORT",
        "where rank 0 listens, as HOST:PORT",
    ),
    variable(
        "RINGTREE_SECRET",
        "",
        "the job's secret, 64 hexadecimal digits, the same on all ranks; required across hosts",
    ),
    variable(
        "RINGTREE_SECRET_FILE",
        "",
        "file that contains the secret, read if RINGTREE_SECRET is not set",
    ),
    variable(
        "RINGTREE_TIMEOUT_MS",
        "300000",
        "time limit for startup and for each call, in milliseconds",
    ),
    variable(
        "RINGTREE_STALL_WARNING_S",
        "10",
        "seconds until a waiting call prints a warning; 0 silences that and startup notices",
    ),
    variable(
        "RINGTREE_TRANSPORT",
        "auto",
        "tcp, shm, or auto: shared memory within a host, TCP between hosts",
    ),
    variable(
        "RINGTREE_DEVICE_PATH",
        "auto",
        "how GPU buffers travel: staged, mapped, or auto",
    ),
    variable(
        "RINGTREE_INTERFACE",
        "",
        "network interface or address to listen on; by default the one that routes to rank 0",
    ),
    variable(
        "RINGTREE_HOST_ID",
        "",
        "name of this host; ranks share memory only if these names are equal",
    ),
    variable(
        "RINGTREE_SITE",
        "",
        "name of this host's site; links between sites count as slow and shared",
    ),
    variable(
        "RINGTREE_ALGORITHM",
        "auto",
        "algorithm for every collective that has it",
    ),
    variable(
        "RINGTREE_TUNING",
        "",
        "file that keeps measured link speeds, or built-in to measure nothing",
    ),
    variable(
        "RINGTREE_REPRODUCIBLE",
        "0",
        "1: the bits of a sum do not depend on buffer size, algorithm or transport",
    ),
    variable(
        "RINGTREE_CHECK",
        "",
        "calls: ranks compare each call before it starts; for tests of a program",
    ),
    variable(
        "RINGTREE_ATTEMPT",
        "0",
        "set by the launcher: number of restarts so far",
    ),
    variable(
        "RINGTREE_LISTENER_FD",
        "",
        "set by the launcher: descriptor of the socket that rank 0 listens on",
    ),
    variable(
        "RINGTREE_REPORT_FD",
        "",
        "set by the launcher: descriptor of the file for errors and measured link speeds",
    ),
    variable(
        "RINGTREE_JOB_TUNING",
        "",
        "set by the launcher: link speeds that an earlier attempt measured",
    ),
    variable("RINGTREE_ENCRYPT", "0", NOT_BUILT_YET),
    variable("RINGTREE_LOG", "", NOT_BUILT_YET),
];

/// Refuses a variable that looks like one of ringtree's and is none.
///
/// # Errors
/// [`Error::configuration`] names it, and the nearest that there is.
///
/// ```
/// use ringtree::internal::bootstrap::check_names;
/// assert!(check_names(["PATH", "RINGTREE_TIMEOUT_MS"].map(Into::into)).is_ok());
/// let error = check_names(["RINGTREE_TRANSPROT".into()]).unwrap_err();
/// assert!(error.to_string().contains("the nearest is RINGTREE_TRANSPORT"));
/// ```
pub fn check_names(names: impl IntoIterator<Item = OsString>) -> Result<()> {
    for name in names {
        let name = name.to_string_lossy();
        let is_own = name.starts_with(PREFIX);
        let is_passed_over = PASSED_OVER.iter().any(|prefix| name.starts_with(prefix));
        let is_known = VARIABLES.iter().any(|one| one.name == name);
        if is_own && !is_passed_over && !is_known {
            return Err(unknown(&name));
        }
    }
    Ok(())
}

fn unknown(name: &str) -> Error {
    let own = VARIABLES.iter().map(|one| one.name);
    let own = own.filter(|one| one.starts_with(PREFIX));
    let nearest = own.min_by_key(|one| strsim::damerau_levenshtein(one, &name.to_uppercase()));
    Error::configuration(format!(
        "{} is no setting of ringtree; the nearest is {}; `ringtree --help` lists all",
        name.escape_debug(),
        nearest.unwrap_or_default()
    ))
}

/// A list of all variables, a line each, for the end of a help text.
#[must_use]
pub fn listed() -> String {
    let width = VARIABLES.iter().map(|one| one.name.len()).max();
    let width = width.unwrap_or(0);
    let line = |one: &Variable| {
        let default = match one.default {
            "" => String::new(),
            default => format!(" [default: {default}]"),
        };
        format!("  {:width$}  {}{default}\n", one.name, one.meaning)
    };
    VARIABLES.iter().map(line).collect()
}

/// Variables and their values, among them secrets.
#[derive(Default)]
pub(crate) struct Environment(pub(crate) BTreeMap<String, String>);

impl Environment {
    /// This process's, as it is now.
    pub(crate) fn current() -> Self {
        let text = |(name, value): (OsString, OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self(std::env::vars_os().filter_map(text).collect())
    }

    /// The value of a variable.
    pub(crate) fn get(&self, name: &str) -> Option<String> {
        self.0.get(name).cloned()
    }

    /// # Errors
    /// [`Error::configuration`] names a variable of the library's that there is not.
    pub(crate) fn check_names(&self) -> Result<()> {
        check_names(self.0.keys().map(OsString::from))
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} variables", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_misspelt_is_refused_with_the_nearest() {
        let nearest = [
            ("RINGTREE_TIMEOUT", "RINGTREE_TIMEOUT_MS"),
            ("RINGTREE_TRANSPROT", "RINGTREE_TRANSPORT"),
            ("RINGTREE_ALGORYTHM", "RINGTREE_ALGORITHM"),
            ("RINGTREE_transport", "RINGTREE_TRANSPORT"),
            ("RINGTREE_\u{1b}[2J", "RINGTREE_SITE"),
        ];
        for (misspelt, meant) in nearest {
            let error = check_names([misspelt.into()]).unwrap_err().to_string();
            assert!(
                error.contains(&format!("the nearest is {meant};")),
                "{error}"
            );
            assert!(!error.contains('\u{1b}'), "{error:?}");
        }
    }

    #[test]
    fn what_others_set_is_passed_over() {
        let kubernetes = [
            "RINGTREE_SERVICE_HOST",
            "RINGTREE_PORT_29500_TCP_ADDR",
            "RINGTREE_PORT",
        ];
        assert_eq!(check_names(kubernetes.map(Into::into)), Ok(()));
        assert_eq!(
            check_names(VARIABLES.iter().map(|one| one.name.into())),
            Ok(())
        );
    }

    #[test]
    fn the_document_lists_every_variable() {
        let document = include_str!("../../docs/settings.md");
        let rows: Vec<_> = document
            .lines()
            .filter(|line| line.starts_with("| `"))
            .collect();
        let row =
            |one: &Variable| format!("| `{}` | {} | {} |", one.name, one.default, one.meaning);
        let expected: Vec<_> = VARIABLES.iter().map(row).collect();
        assert_eq!(
            rows, expected,
            "docs/settings.md has the left rows, VARIABLES the right ones"
        );
    }
}
