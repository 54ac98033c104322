//! Why a job ended, in words.

use serde::{Deserialize, Serialize};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// The longest piece of a rank's output that is repeated in a message.
const QUOTE_CHARACTERS_MAX: usize = 300;

/// The exit code by which a program says that it was called wrongly.
const WRONG_USAGE: i32 = 2;

/// What ended a job, or one attempt of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cause {
    /// One line.
    pub(crate) text: String,
    /// Whether this cannot be the consequence of another rank's end. A rank that lost its peer
    /// exits by itself; a rank that is killed, or whose launcher is gone, does not.
    pub(crate) original: bool,
    /// What may help.
    pub(crate) remedy: Remedy,
}

/// What may help against a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Remedy {
    /// To start all ranks again.
    Restart,
    /// To correct the program or its arguments: it would fail in the same way again.
    Correction,
    /// Nothing that a launcher can do: a user ended it, or a launcher is gone.
    Nothing,
}

impl Cause {
    /// A cause of its own after which there is no restart.
    pub(super) fn last(text: String) -> Self {
        Cause {
            text,
            original: true,
            remedy: Remedy::Nothing,
        }
    }

    /// Whether it forbids the restart that another failure has led to.
    pub(super) fn forbids_restart(&self) -> bool {
        self.original && self.remedy == Remedy::Nothing
    }

    /// The end of the rank called `name`, which was not a success.
    pub(super) fn of_rank(name: &str, status: ExitStatus, last_output: &[u8]) -> Self {
        let how = match status.signal() {
            Some(signal) => format!("was killed by {}", signal_name(signal)),
            None => format!("ended with exit code {}", status.code().unwrap_or(-1)),
        };
        let remedy = match status.code() {
            Some(WRONG_USAGE) => Remedy::Correction,
            _ => Remedy::Restart,
        };
        let quote = printable(last_output);
        let said = match quote.as_str() {
            "" => "it wrote nothing".to_owned(),
            quote => format!("its last output: {quote}"),
        };
        Cause {
            text: format!("{name} {how}; {said}"),
            original: status.signal().is_some(),
            remedy,
        }
    }

    /// A signal to the launcher called `name`.
    pub(super) fn of_signal(name: &str, signal: i32) -> Self {
        let signal = signal_name(signal);
        Cause::last(format!(
            "{name} received {signal} and passed it on to its ranks"
        ))
    }
}

/// `bytes` as one line of text that cannot confuse a terminal.
pub(super) fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .trim()
        .chars()
        .map(|character| {
            if character.is_control() {
                ' '
            } else {
                character
            }
        })
        .take(QUOTE_CHARACTERS_MAX)
        .collect()
}

/// The name of a signal, such as `SIGKILL`.
fn signal_name(signal: i32) -> String {
    const NAMES: &[(i32, &str)] = &[
        (libc::SIGHUP, "SIGHUP"),
        (libc::SIGINT, "SIGINT"),
        (libc::SIGQUIT, "SIGQUIT"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGTRAP, "SIGTRAP"),
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGUSR1, "SIGUSR1"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGUSR2, "SIGUSR2"),
        (libc::SIGPIPE, "SIGPIPE"),
        (libc::SIGALRM, "SIGALRM"),
        (libc::SIGTERM, "SIGTERM"),
        (libc::SIGXCPU, "SIGXCPU"),
        (libc::SIGXFSZ, "SIGXFSZ"),
        (libc::SIGSYS, "SIGSYS"),
    ];
    match NAMES.iter().find(|(number, _)| *number == signal) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("signal {signal}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_in_one_line() {
        let killed = Cause::of_rank("rank 3", ExitStatus::from_raw(9), b"step\t\x1b[31m4\n");
        assert_eq!(
            killed.text,
            "rank 3 was killed by SIGKILL; its last output: step  [31m4"
        );
        assert!(killed.original);
        let failed = Cause::of_rank("rank 0", ExitStatus::from_raw(7 << 8), b"");
        assert_eq!(
            failed.text,
            "rank 0 ended with exit code 7; it wrote nothing"
        );
        assert!(!failed.original);
        assert_eq!(failed.remedy, Remedy::Restart);
        let misused = Cause::of_rank("rank 0", ExitStatus::from_raw(2 << 8), b"");
        assert_eq!(misused.remedy, Remedy::Correction);
    }
}
