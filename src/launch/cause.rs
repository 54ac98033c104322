//! Why a job ended, in words.

use super::words::{Words, blame_another};
use serde::{Deserialize, Serialize};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// The longest piece of a rank's output that is repeated in a message.
const QUOTE_CHARACTERS_MAX: usize = 300;

/// The exit code by which a program says that it was called wrongly.
const WRONG_USAGE: i32 = 2;
/// The exit code of a Rust program whose main thread panicked.
const PANICKED: i32 = 101;

/// What ended a job, or one attempt of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cause {
    /// One line.
    pub(crate) text: String,
    /// How likely it is that nothing else was the cause of this.
    pub(crate) standing: Standing,
    /// What may help.
    pub(crate) remedy: Remedy,
}

/// How likely it is that a failure is the first, and not the consequence of another one. A better
/// one replaces the cause that is known, for a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Standing {
    /// The rank's own words say that another rank is gone, left or panicked.
    Consequence,
    /// A rank exited by itself.
    Exit,
    /// A rank panicked, and its words blame no other rank.
    Panic,
    /// A rank was killed, or a launcher is gone: no other rank's end does that.
    Original,
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
            standing: Standing::Original,
            remedy: Remedy::Nothing,
        }
    }

    /// Whether it forbids the restart that another failure has led to.
    pub(super) fn forbids_restart(&self) -> bool {
        self.standing == Standing::Original && self.remedy == Remedy::Nothing
    }

    /// The exit code of a launcher whose job ended so.
    pub(super) fn exit_code(&self) -> i32 {
        match self.remedy {
            Remedy::Correction => WRONG_USAGE,
            Remedy::Restart | Remedy::Nothing => 1,
        }
    }

    /// The end of the rank `rank` called `name`, which was not a success.
    pub(super) fn of_rank(rank: usize, name: &str, status: ExitStatus, words: &Words) -> Self {
        let how = match status.signal() {
            Some(signal) => format!("was killed by {}", signal_name(signal)),
            None => format!("ended with exit code {}", status.code().unwrap_or(-1)),
        };
        let remedy = match status.code() {
            Some(WRONG_USAGE) => Remedy::Correction,
            _ => Remedy::Restart,
        };
        let has_panicked = [status.code(), status.signal()]
            .iter()
            .any(|end| [Some(PANICKED), Some(libc::SIGABRT)].contains(end));
        let panic = words.panic().filter(|_| has_panicked).map(printable);
        let last = printable(words.last());
        let text = match (&panic, last.as_str()) {
            (Some(panic), _) => format!("{name} {how}; it {panic}"),
            (None, "") => format!("{name} {how}; it wrote nothing"),
            (None, last) => format!("{name} {how}; its last output: {last}"),
        };
        let standing = if status.signal().is_some() {
            Standing::Original
        } else if blame_another(panic.as_ref().unwrap_or(&last), rank) {
            Standing::Consequence
        } else if panic.is_some() {
            Standing::Panic
        } else {
            Standing::Exit
        };
        Cause {
            text,
            standing,
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

/// `text` as one line that cannot confuse a terminal.
fn printable(text: &str) -> String {
    text.trim()
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

    fn end(status: i32, told: &str) -> Cause {
        let mut words = Words::default();
        let now = std::time::Instant::now();
        told.lines()
            .for_each(|line| words.told(line.as_bytes(), now));
        Cause::of_rank(3, "rank 3", ExitStatus::from_raw(status), &words)
    }

    #[test]
    fn an_end_is_told_in_one_line() {
        let killed = end(9, "step\t\x1b[31m4\n");
        assert_eq!(
            killed.text,
            "rank 3 was killed by SIGKILL; its last output: step  [31m4"
        );
        assert_eq!(killed.standing, Standing::Original);
        let failed = end(7 << 8, "");
        assert_eq!(
            failed.text,
            "rank 3 ended with exit code 7; it wrote nothing"
        );
        assert_eq!(
            (failed.standing, failed.remedy),
            (Standing::Exit, Remedy::Restart)
        );
        let misused = end(2 << 8, "");
        assert_eq!(
            (misused.remedy, misused.exit_code()),
            (Remedy::Correction, 2)
        );
    }

    #[test]
    fn a_panic_is_told_and_weighs_more_than_what_it_led_to() {
        let panic =
            "thread 'main' panicked at a.rs:1:2:\nno data\nnote: run with `RUST_BACKTRACE=1`";
        let panicked = end(101 << 8, panic);
        let text = "rank 3 ended with exit code 101; it panicked at a.rs:1:2: no data";
        assert_eq!(
            (panicked.text.as_str(), panicked.standing),
            (text, Standing::Panic)
        );
        // Told by a thread whose panic was caught, it is not the last word.
        let caught = end(1 << 8, &format!("{panic}\ngoing on\nno disk"));
        assert!(
            caught.text.ends_with("its last output: no disk"),
            "{}",
            caught.text
        );
        let led_to = "thread 'main' panicked at a.rs:3:4:\nrank 1 panicked; look there";
        for (status, words) in [(101 << 8, led_to), (1 << 8, "rank 1 left after call #4")] {
            assert_eq!(end(status, words).standing, Standing::Consequence);
        }
        assert!(Standing::Consequence < Standing::Exit && Standing::Panic < Standing::Original);
    }
}
