//! Determines why a job failed and phrases the launcher's last line.

use super::record::Record;
use super::words::{LastOutput, OutputLine};
use crate::error::Error;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;

/// Maximum number of characters that a message quotes from a rank's output.
const QUOTE_CHARACTERS_MAX: usize = 300;

/// The exit code with which a program reports a usage error.
const WRONG_USAGE: i32 = 2;
/// The exit code of a Rust program whose main thread panicked.
const PANICKED: i32 = 101;

/// The reason why a job, or one attempt to run it, failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cause {
    /// A clause that states which process failed and how it failed. The line that reports the cause
    /// begins with this clause.
    pub(crate) text: String,
    /// The rank that failed, if it was a rank.
    pub(crate) rank: Option<usize>,
    /// The rank that the failed rank's error blames.
    pub(crate) blames: Option<u32>,
    /// A clause that quotes the rank's last output, if the launcher knows it.
    pub(crate) words: Option<String>,
    /// The path of the rank's log file.
    pub(crate) log: Option<String>,
    /// A clause that describes what the launchers do next, such as "restart 1 of 3".
    pub(crate) then: Option<String>,
    /// The degree of confidence that this is the original cause.
    pub(crate) standing: Confidence,
    /// The remedy that might help.
    pub(crate) remedy: Remedy,
}

/// The degree of confidence that a failure is the original one and not a consequence of another
/// failure. Until the cause is final, a cause with a higher confidence replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Confidence {
    /// The rank received an error that blames another rank, and the rank's last output is either
    /// that error or unknown.
    Consequence,
    /// The rank did not report an error, and its last output is unknown. Another rank's failure may
    /// explain more.
    Unknown,
    /// A rank exited, and neither its error nor its last output blames another rank.
    Exit,
    /// A rank panicked, and its panic does not blame another rank.
    Panic,
    /// A rank was killed, or a launcher was lost. Failures of other ranks cannot cause this.
    Original,
}

/// The remedy for a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Remedy {
    /// Restarting all ranks.
    Restart,
    /// Correcting the program or its arguments, because the program would otherwise fail in the
    /// same way again.
    Correction,
    /// There is nothing that a launcher can do, because a user stopped the job or a launcher was
    /// lost.
    Nothing,
}

impl Cause {
    /// Creates an original cause that is not followed by a restart.
    pub(super) fn last(text: String) -> Self {
        Cause {
            text,
            rank: None,
            blames: None,
            words: None,
            log: None,
            then: None,
            standing: Confidence::Original,
            remedy: Remedy::Nothing,
        }
    }

    /// Returns `true` if this cause prevents the restart that an earlier failure triggered.
    pub(super) fn forbids_restart(&self) -> bool {
        self.standing == Confidence::Original && self.remedy == Remedy::Nothing
    }

    /// Returns the launcher's exit code for a job that fails with this cause.
    pub(super) fn exit_code(&self) -> i32 {
        match self.remedy {
            Remedy::Correction => WRONG_USAGE,
            Remedy::Restart | Remedy::Nothing => 1,
        }
    }

    /// Returns the line that reports the cause. If the user has already seen the rank's last
    /// output, `above` is a clause that refers to it, and the line does not quote the output.
    pub(super) fn line(&self, above: Option<String>) -> String {
        let words = match (above, &self.log) {
            (Some(_), Some(_)) => None,
            (Some(above), None) => Some(above),
            (None, _) => self.words.clone(),
        };
        let log = self.log.as_ref().map(|log| format!("see {log}"));
        let parts = [Some(self.text.clone()), words, log, self.then.clone()];
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    /// Like [`Cause::line`], but also names the blamed rank, which was still running and whose last
    /// output `last` quotes.
    pub(super) fn line_with(&self, blamed: &str, last: String) -> String {
        let text = &self.text;
        let with_blamed = Cause {
            text: format!("{text} because it lost {blamed}, which had not exited"),
            words: Some(last),
            log: None,
            ..self.clone()
        };
        with_blamed.line(None)
    }

    /// Creates the cause for rank `rank`, called `name`, which failed with `status`. `words` is the
    /// rank's output, or only a part of it if `is_partial` is `true`. `record` holds the errors
    /// that the rank reported.
    pub(super) fn of_rank(
        (rank, name): (usize, &str),
        status: ExitStatus,
        (words, is_partial): (&LastOutput, bool),
        record: &mut Record,
    ) -> Self {
        let how = match status.signal() {
            Some(signal) => format!("was killed by {}", signal_name(signal)),
            None => format!("exited with code {}", status.code().unwrap_or(-1)),
        };
        let remedy = match status.code() {
            Some(WRONG_USAGE) => Remedy::Correction,
            _ => Remedy::Restart,
        };
        let quote = quote(status, words);
        let is_panic = has_panicked(status) && words.panic().is_some();
        let words = match quote {
            Some(panic) if is_panic => Some(format!("it {}", printable(&panic.words))),
            Some(said) => Some(last_output(said)),
            None if is_partial => None,
            None => Some("it produced no output".to_owned()),
        };
        let blames = record.blames(quote.map(|said| &*said.words));
        let has_unknown_output = is_partial && quote.is_none() && status.code() != Some(PANICKED);
        let standing = if status.signal().is_some() {
            Confidence::Original
        } else if matches!(blames, Some(Some(_))) {
            Confidence::Consequence
        } else if has_unknown_output && blames.is_none() {
            Confidence::Unknown
        } else if is_panic {
            Confidence::Panic
        } else {
            Confidence::Exit
        };
        Cause {
            rank: Some(rank),
            blames: blames.flatten(),
            words,
            standing,
            remedy,
            ..Cause::last(format!("{name} {how}"))
        }
    }

    /// Creates the cause for a signal that the launcher called `name` received.
    pub(super) fn of_signal(name: &str, signal: i32) -> Self {
        let signal = signal_name(signal);
        Cause::last(format!(
            "{name} received {signal} and forwarded it to its ranks"
        ))
    }
}

/// Returns the line of `words` that best explains `status`.
pub(super) fn quote(status: ExitStatus, words: &LastOutput) -> Option<&OutputLine> {
    let panic = words.panic().filter(|_| has_panicked(status));
    panic.or_else(|| words.last())
}

/// Returns the error for a program that cannot be started. If `program` is a file, the error
/// suggests how to start it.
pub(super) fn not_started(program: &str, error: &io::Error) -> Error {
    let hint = match Path::new(program).is_file() {
        true if program.ends_with(".py") => {
            format!("; to run a Python script, write `python3 {program}`")
        }
        true if !program.contains('/') => format!("; try ./{program}"),
        _ => String::new(),
    };
    Error::configuration(format!(
        "cannot start the program '{program}': {error}{hint}"
    ))
}

/// Returns a clause that quotes `said`.
pub(super) fn last_output(said: &OutputLine) -> String {
    format!("its last output: {}", printable(&said.words))
}

/// Returns `true` if `status` can be the exit status of a program that panicked.
fn has_panicked(status: ExitStatus) -> bool {
    status.code() == Some(PANICKED) || status.signal() == Some(libc::SIGABRT)
}

/// Returns the beginning of `text` as one line without control characters.
pub(super) fn printable(text: &str) -> String {
    let text = text.trim().replace(char::is_control, " ");
    text.chars().take(QUOTE_CHARACTERS_MAX).collect()
}

/// Returns the name of a signal, such as `SIGKILL`.
fn signal_name(signal: i32) -> String {
    let name = signal_hook::low_level::signal_name(signal);
    name.map_or_else(|| format!("signal {signal}"), str::to_owned)
}

#[cfg(test)]
mod tests;
