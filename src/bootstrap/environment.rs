//! Lists and checks the environment variables that ringtree reads.

use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;

/// The prefix of ringtree's own variables.
const PREFIX: &str = "RINGTREE_";

/// Prefixes of variables to ignore: those that Kubernetes sets for a Service named `ringtree`, and
/// those that ringtree's tests use.
const IGNORED_PREFIXES: [&str; 3] = ["RINGTREE_SERVICE_", "RINGTREE_PORT", "RINGTREE_TEST_"];

/// The meaning of a setting that this version does not implement. Any value other than the default
/// is an error.
pub(super) const NOT_BUILT_YET: &str = "not implemented yet";

/// An environment variable.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// The name.
    pub name: &'static str,
    /// The value that applies if the variable is not set, or an empty string if there is no
    /// default.
    pub default: &'static str,
    /// A description of the value.
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
pub const VARIABLES: &[Variable] = &[
    variable("RANK", "", "rank of this process, from 0"),
    variable("WORLD_SIZE", "", "number of ranks"),
    variable(
        "LOCAL_RANK",
        "determined at startup",
        "rank of this process on its host, from 0",
    ),
    variable(
        "LOCAL_WORLD_SIZE",
        "determined at startup",
        "number of ranks on this host",
    ),
    variable("MASTER_ADDR", "", "address of rank 0's host"),
    variable(
        "MASTER_PORT",
        "",
        "port that rank 0 listens on; if it is in use, rank 0 listens on the next port",
    ),
    variable(
        "RINGTREE_RENDEZVOUS",
        "MASTER_ADDR:MASTER_PORT",
        "address that rank 0 listens on, as HOST:PORT",
    ),
    variable(
        "RINGTREE_SECRET",
        "",
        "the job's secret: 64 hexadecimal digits, the same on all ranks; required across hosts",
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
        "seconds before a waiting call prints a warning; 0 disables warnings and startup notices",
    ),
    variable(
        "RINGTREE_LOG",
        "warn",
        "events to print: off, error, warn, info, debug or trace; see docs/running.md#log",
    ),
    variable(
        "RINGTREE_TRANSPORT",
        "auto",
        "tcp, shm or auto (shared memory within a host, TCP between hosts)",
    ),
    variable(
        "RINGTREE_DEVICE_PATH",
        "auto",
        "how GPU buffers are transferred: staged, mapped or auto",
    ),
    variable(
        "RINGTREE_INTERFACE",
        "",
        "network interface or address to listen on; by default, the one that routes to rank 0",
    ),
    variable(
        "RINGTREE_HOST_ID",
        "",
        "name of this host; ranks share memory only if their hosts have the same name",
    ),
    variable(
        "RINGTREE_SITE",
        "",
        "name of this host's site; links between sites are treated as slow and shared",
    ),
    variable(
        "RINGTREE_ALGORITHM",
        "auto",
        "algorithm to use for every collective that it implements",
    ),
    variable(
        "RINGTREE_TUNING",
        "",
        "file in which measured link speeds are kept, or built-in to skip the measurement",
    ),
    variable(
        "RINGTREE_REPRODUCIBLE",
        "0",
        "set to 1 to make the bits of sums independent of buffer size, algorithm and transport",
    ),
    variable(
        "RINGTREE_CHECK",
        "",
        "set to calls to make ranks compare each call before it starts; meant for testing",
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
        "set by the launcher: link speeds measured by an earlier attempt",
    ),
    variable("RINGTREE_ENCRYPT", "0", NOT_BUILT_YET),
];

/// Checks that every name that begins with `RINGTREE_` is a known variable.
///
/// # Errors
/// Returns `ErrorKind::Configuration` if a name is unknown. The message suggests the nearest known
/// name.
///
/// ```
/// use ringtree::internal::bootstrap::check_names;
/// assert!(check_names(["PATH", "RINGTREE_TIMEOUT_MS"].map(Into::into)).is_ok());
/// let error = check_names(["RINGTREE_TRANSPROT".into()]).unwrap_err();
/// assert!(error.to_string().contains("the closest match is RINGTREE_TRANSPORT"));
/// ```
pub fn check_names(names: impl IntoIterator<Item = OsString>) -> Result<()> {
    for name in names {
        let name = name.to_string_lossy();
        let is_own = name.starts_with(PREFIX);
        let is_passed_over = IGNORED_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix));
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
        "unknown setting {}; the closest match is {}; see `ringtree --help` for all settings",
        name.escape_debug(),
        nearest.unwrap_or_default()
    ))
}

/// Returns a list of all variables, one per line, for the end of a help text.
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

/// Returns `host` and `port` in the form `HOST:PORT`, with an IPv6 address in brackets.
#[must_use]
pub fn host_and_port(host: &str, port: u16) -> String {
    match host.contains(':') && !host.starts_with('[') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// Returns the error for a variable whose value is not what it has to be, which is `meaning`.
pub(super) fn malformed(name: &str, value: &str, meaning: &str) -> Error {
    Error::configuration(format!(
        "{name}={value:?} is malformed; set it to {meaning}"
    ))
}

/// Returns the error for a variable that has to be set to `meaning`.
pub(super) fn not_set(name: &str, meaning: &str) -> Error {
    Error::configuration(format!(
        "{name} is not set; set it to {meaning}, or start the program with `ringtree run`, \
         torchrun, srun or mpirun"
    ))
}

/// Returns the parsed value of a variable, or `None` if it is not set.
pub(super) fn optional<T: FromStr>(
    set: &dyn Fn(&str) -> Option<String>,
    name: &str,
    meaning: &str,
) -> Result<Option<T>> {
    let parse = |value: String| {
        let parsed = value.trim().parse();
        parsed.map_err(|_| malformed(name, &value, meaning))
    };
    set(name).map(parse).transpose()
}

/// Like [`optional`], but returns an error if the variable is not set.
pub(super) fn required<T: FromStr>(
    set: &dyn Fn(&str) -> Option<String>,
    name: &str,
    meaning: &str,
) -> Result<T> {
    optional(set, name, meaning)?.ok_or_else(|| not_set(name, meaning))
}

/// Environment variables and their values, which may include secrets.
#[derive(Default)]
pub(crate) struct Environment(pub(crate) BTreeMap<String, String>);

impl Environment {
    /// Returns a copy of the environment of this process.
    pub(crate) fn current() -> Self {
        let text = |(name, value): (OsString, OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self(std::env::vars_os().filter_map(text).collect())
    }

    /// Returns the value of a variable.
    pub(crate) fn get(&self, name: &str) -> Option<String> {
        self.0.get(name).cloned()
    }

    /// Like the function [`check_names`], but checks the variables in this environment.
    ///
    /// # Errors
    /// Returns `ErrorKind::Configuration` if a name is unknown.
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
mod tests;
