//! Finds the lines of a rank's output that best explain its failure.
//!
//! The last line often does not explain anything: a panic ends with a note about backtraces, a
//! backtrace ends with its deepest frame, and an argument parser's error ends with a hint to use
//! `--help`.

use super::streams::Target;
use std::time::{Duration, Instant};

/// Maximum number of bytes of a line that are kept for quoting.
const WORDS_BYTES_MAX: usize = 1 << 10;
/// Lines that are written to the two streams within this time of each other count as simultaneous.
const TOGETHER: Duration = Duration::from_millis(100);
/// A panic within this time of an earlier panic counts as a consequence of it. An indented line
/// within this time of the previous line belongs to that line.
const SOON: Duration = Duration::from_secs(1);
/// The part of a panic's first line between the thread's name and the source location.
const PANICKED: &str = " panicked at ";

/// Beginnings of lines that point to more information or precede a list of frames.
const NOTES: [&str; 5] = [
    "note: run with `RUST_BACKTRACE",
    "note: Some details are omitted",
    "For more information, try '",
    "stack backtrace:",
    "Stack backtrace:",
];

/// The last informative lines of a rank's output, on both streams.
#[derive(Debug, Default)]
pub(super) struct LastOutput {
    /// The last line of standard output.
    printed: Option<OutputLine>,
    /// The last informative line of standard error.
    told: Option<OutputLine>,
    panic: Option<OutputLine>,
    /// `true` if the next line is a panic message.
    awaits_message: bool,
    /// `true` if the lines up to the next note are usage hints from an argument parser.
    is_in_usage: bool,
    /// Number of lines on both streams so far.
    lines: u64,
    /// The value of `lines` at the time when each stream's last line was shown, indexed by stream.
    shown: [u64; 2],
}

/// The text of one line, or of several that belong together.
#[derive(Clone, Debug)]
pub(super) struct OutputLine {
    pub(super) words: String,
    at: Instant,
    stream: Target,
    /// The number of the first line, from 1.
    pub(super) line: u64,
    /// `true` if the line is not shown because another rank wrote the same line.
    is_hidden: bool,
}

impl LastOutput {
    /// Records a line of standard output.
    pub(super) fn record_stdout(&mut self, line: &[u8], at: Instant) {
        self.lines += 1;
        if let Some(words) = text(line) {
            self.printed = Some(self.said(Target::Stdout, &words, at));
        }
    }

    fn said(&self, stream: Target, words: &str, at: Instant) -> OutputLine {
        OutputLine {
            words: words.trim().to_owned(),
            at,
            stream,
            line: self.lines,
            is_hidden: false,
        }
    }

    /// Marks the latest line of standard error as not shown.
    pub(super) fn hide(&mut self) {
        let Some(told) = &mut self.told else {
            return;
        };
        told.is_hidden = true;
        if let Some(panic) = self.panic.as_mut().filter(|one| one.line == told.line) {
            panic.is_hidden = true;
        }
    }

    /// Marks all lines of `stream` so far as shown.
    pub(super) fn were_shown(&mut self, stream: Target) {
        self.shown[stream as usize] = self.lines;
    }

    /// Returns `true` if `said` was shown.
    pub(super) fn is_shown(&self, said: &OutputLine) -> bool {
        !said.is_hidden && said.line <= self.shown[said.stream as usize]
    }

    /// Returns the number of lines so far.
    pub(super) fn lines(&self) -> u64 {
        self.lines
    }

    /// Records a line of standard error.
    pub(super) fn record_stderr(&mut self, line: &[u8], at: Instant) {
        self.lines += 1;
        let Some(line) = text(line) else {
            return;
        };
        if self.awaits_message {
            self.awaits_message = false;
            return self.end_panic(line.trim(), at);
        }
        if let Some((thread, place)) = line.split_once(PANICKED)
            && thread.starts_with("thread '")
        {
            return self.begin_panic(place.trim(), at);
        }
        let is_soon = self.told.as_ref().is_some_and(|told| told.is_soon(at));
        let is_detail = self.is_in_usage || line.starts_with("Caused by:");
        if NOTES.iter().any(|note| line.starts_with(note)) {
            self.is_in_usage = false;
        } else if is_detail || line.starts_with(' ') && is_soon {
            self.add(&line, at);
        } else {
            self.is_in_usage = line.starts_with("error: ");
            self.told = Some(self.said(Target::Stderr, &line, at));
            return;
        }
        // A note or a detail renews the time of the line that it belongs to.
        if let Some(told) = &mut self.told {
            told.at = at;
        }
    }

    /// Appends a detail line to the previous line if that line announces details, as the first line
    /// of a failed assertion announces `left:` and `right:`.
    fn add(&mut self, line: &str, at: Instant) {
        let said = self.said(Target::Stderr, line, at);
        let Some(told) = &mut self.told else {
            self.told = Some(said);
            return;
        };
        let is_announced = told.words.ends_with(':') || told.words.contains(": assertion `left ");
        if is_announced && told.words.len() + line.len() < WORDS_BYTES_MAX {
            told.words = format!("{} {}", told.words, line.trim());
            let panic = self.panic.as_mut();
            if let Some(panic) = panic.filter(|panic| told.words.starts_with(&panic.words)) {
                panic.words.clone_from(&told.words);
            }
        }
    }

    fn begin_panic(&mut self, place: &str, at: Instant) {
        let said = self.said(Target::Stderr, &format!("panicked at {place}"), at);
        self.awaits_message = place.ends_with(':');
        self.is_in_usage = false;
        let is_first = !self.panic.as_ref().is_some_and(|first| first.is_soon(at));
        self.told = Some(said);
        if is_first {
            self.panic = self.told.clone();
        }
    }

    fn end_panic(&mut self, message: &str, at: Instant) {
        let Some(told) = &mut self.told else {
            return;
        };
        let panic = self.panic.as_ref();
        let is_first = panic.is_some_and(|first| first.words == told.words);
        told.words = format!("{} {message}", told.words);
        told.at = at;
        if is_first {
            self.panic = Some(told.clone());
        }
    }

    /// Returns the location and message of the panic if the rank panicked.
    pub(super) fn panic(&self) -> Option<&OutputLine> {
        self.panic.as_ref()
    }

    /// Returns the last line. If lines were written to both streams within [`TOGETHER`], prefers
    /// standard error, because the order of simultaneous lines is unknown and errors explain more.
    pub(super) fn last(&self) -> Option<&OutputLine> {
        match (&self.printed, &self.told) {
            (Some(printed), Some(told)) if printed.at > told.at + TOGETHER => Some(printed),
            (_, Some(told)) => Some(told),
            (printed, None) => printed.as_ref(),
        }
    }
}

impl OutputLine {
    fn is_soon(&self, at: Instant) -> bool {
        at.saturating_duration_since(self.at) < SOON
    }
}

/// Returns a line as text without trailing white space, or `None` if it is blank.
fn text(line: &[u8]) -> Option<String> {
    let line = line.trim_ascii_end();
    let line = String::from_utf8_lossy(&line[..line.len().min(WORDS_BYTES_MAX)]);
    (!line.is_empty()).then(|| line.into_owned())
}

#[cfg(test)]
mod tests;
