//! Why a job ended, in words.

use super::record::Record;
use super::words::{Said, Words};
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
    /// What ended, and how: a part of a line.
    pub(crate) text: String,
    /// The rank that ended.
    pub(crate) rank: Option<usize>,
    /// What it said last, where the launcher saw that.
    pub(crate) words: Option<String>,
    /// The file that has all it wrote.
    pub(crate) log: Option<String>,
    /// What follows from it.
    pub(crate) then: Option<String>,
    /// How likely it is that nothing else was the cause of this.
    pub(crate) standing: Standing,
    /// What may help.
    pub(crate) remedy: Remedy,
}

/// How likely it is that a failure is the first, and not the consequence of another one. A better
/// one replaces the cause that is known, for a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Standing {
    /// The rank got an error for which another rank is to blame, and its last words tell of that or
    /// are not known.
    Consequence,
    /// The rank has reported no error, and its last words are not known: another rank's end may yet
    /// say more.
    Unknown,
    /// A rank exited by itself.
    Exit,
    /// A rank panicked, and no other rank is to blame for that.
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
            rank: None,
            words: None,
            log: None,
            then: None,
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

    /// The line that tells of it. What the rank said last is not repeated where it stands `above`
    /// already, in words.
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

    /// The end of the rank `rank` called `name`, which was not a success. It said `words`, of which
    /// the launcher saw all unless `is_partial`, and left `record`.
    pub(super) fn of_rank(
        (rank, name): (usize, &str),
        status: ExitStatus,
        (words, is_partial): (&Words, bool),
        record: &mut Record,
    ) -> Self {
        let how = match status.signal() {
            Some(signal) => format!("was killed by {}", signal_name(signal)),
            None => format!("ended with exit code {}", status.code().unwrap_or(-1)),
        };
        let remedy = match status.code() {
            Some(WRONG_USAGE) => Remedy::Correction,
            _ => Remedy::Restart,
        };
        let quote = quote(status, words);
        let is_panic = has_panicked(status) && words.panic().is_some();
        let words = match quote.map(|said| printable(&said.words)) {
            Some(panic) if is_panic => Some(format!("it {panic}")),
            Some(last) => Some(format!("its last output: {last}")),
            None if is_partial => None,
            None => Some("it wrote nothing".to_owned()),
        };
        let blames_another = record.blames_another(quote.map(|said| &*said.words));
        let is_unheard = is_partial && quote.is_none() && status.code() != Some(PANICKED);
        let standing = if status.signal().is_some() {
            Standing::Original
        } else if blames_another == Some(true) {
            Standing::Consequence
        } else if is_unheard && blames_another.is_none() {
            Standing::Unknown
        } else if is_panic {
            Standing::Panic
        } else {
            Standing::Exit
        };
        Cause {
            text: format!("{name} {how}"),
            rank: Some(rank),
            words,
            log: None,
            then: None,
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

/// Of `words` what says most about an end with `status`.
pub(super) fn quote(status: ExitStatus, words: &Words) -> Option<&Said> {
    let panic = words.panic().filter(|_| has_panicked(status));
    panic.or_else(|| words.last())
}

/// Whether a program that panics ends with `status`.
fn has_panicked(status: ExitStatus) -> bool {
    status.code() == Some(PANICKED) || status.signal() == Some(libc::SIGABRT)
}

/// `text` as one line that cannot confuse a terminal.
pub(super) fn printable(text: &str) -> String {
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
        end_after(&[], status, told)
    }

    /// An end after these errors, each with the rank that it blames.
    fn end_after(errors: &[(Option<u32>, &str)], status: i32, told: &str) -> Cause {
        let mut words = Words::default();
        let now = std::time::Instant::now();
        told.lines()
            .for_each(|line| words.told(line.as_bytes(), now));
        let (status, mut record) = (ExitStatus::from_raw(status), Record::of(errors));
        Cause::of_rank((3, "rank 3"), status, (&words, false), &mut record)
    }

    #[test]
    fn an_end_is_told_in_one_line() {
        let killed = end(9, "step\t\x1b[31m4\n");
        assert_eq!(
            killed.line(None),
            "rank 3 was killed by SIGKILL; its last output: step  [31m4"
        );
        assert_eq!(killed.standing, Standing::Original);
        let failed = end(7 << 8, "");
        assert_eq!(
            failed.line(None),
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
    fn what_stands_above_is_not_said_again() {
        let mut cause = end(1 << 8, "no data");
        cause.then = Some("restart 1 of 2".to_owned());
        let above = || Some("its last output is above".to_owned());
        let line = "rank 3 ended with exit code 1; its last output is above; restart 1 of 2";
        assert_eq!(cause.line(above()), line);
        cause.log = Some("logs/rank-3.log".to_owned());
        let line = "rank 3 ended with exit code 1; see logs/rank-3.log; restart 1 of 2";
        assert_eq!(cause.line(above()), line);
        let line = "rank 3 ended with exit code 1; its last output: no data; see logs/rank-3.log; \
                    restart 1 of 2";
        assert_eq!(cause.line(None), line);
    }

    #[test]
    fn of_a_rank_that_is_not_heard_nothing_is_claimed() {
        let unheard_after = |errors: &[_], status| {
            let (words, status) = (Words::default(), ExitStatus::from_raw(status));
            Cause::of_rank(
                (3, "rank 3"),
                status,
                (&words, true),
                &mut Record::of(errors),
            )
        };
        let unheard = |status| unheard_after(&[], status);
        assert_eq!(unheard(1 << 8).line(None), "rank 3 ended with exit code 1");
        assert_eq!(unheard(9).line(None), "rank 3 was killed by SIGKILL");
        // Another rank's end may say more, but for that of one that panicked by itself.
        let standings = [1 << 8, 101 << 8, 9].map(|status| unheard(status).standing);
        let expected = [Standing::Unknown, Standing::Exit, Standing::Original];
        assert_eq!(standings, expected);
        // The last error that it got says whether another rank is to blame.
        let [own, others] = [(None, "no data"), (Some(1), "1 has had enough")];
        for status in [1 << 8, 101 << 8] {
            let standing = |errors: &[_]| unheard_after(errors, status).standing;
            assert_eq!(standing(&[own, others]), Standing::Consequence);
            assert_eq!(standing(&[others, own]), Standing::Exit);
        }
    }

    #[test]
    fn a_panic_is_told_and_weighs_more_than_what_it_led_to() {
        let panic =
            "thread 'main' panicked at a.rs:1:2:\nno data\nnote: run with `RUST_BACKTRACE=1`";
        let panicked = end(101 << 8, panic);
        let text = "rank 3 ended with exit code 101; it panicked at a.rs:1:2: no data";
        assert_eq!(
            (&*panicked.line(None), panicked.standing),
            (text, Standing::Panic)
        );
        // Told by a thread whose panic was caught, it is not the last word.
        let caught = end(1 << 8, &format!("{panic}\ngoing on\nno disk"));
        assert!(
            caught.line(None).ends_with("its last output: no disk"),
            "{}",
            caught.line(None)
        );
        let errors = [(Some(1), "1 has had enough")];
        let led_to = "thread 'main' panicked at a.rs:3:4:\nErr(1 has had enough; look there)";
        for (status, words) in [
            (101 << 8, led_to),
            (1 << 8, "train: 1 has had enough"),
            (1 << 8, ""),
        ] {
            let standing = end_after(&errors, status, words).standing;
            assert_eq!(standing, Standing::Consequence);
        }
        // It has survived that error.
        assert_eq!(
            end_after(&errors, 1 << 8, "no disk").standing,
            Standing::Exit
        );
        assert!(Standing::Consequence < Standing::Unknown && Standing::Unknown < Standing::Exit);
        assert!(Standing::Panic < Standing::Original);
    }
}
