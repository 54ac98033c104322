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
/// The text of a panic's first line between the thread's name and the source location.
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
pub(super) struct Words {
    /// The last line of standard output.
    printed: Option<Said>,
    /// The last informative line of standard error.
    told: Option<Said>,
    panic: Option<Said>,
    /// `true` if the next line is a panic message.
    awaits_message: bool,
    /// `true` if the lines up to the next note are usage hints from an argument parser.
    is_in_usage: bool,
    /// Number of lines on both streams so far.
    lines: u64,
    /// The value of `lines` at the time when the last line of each stream was shown, indexed by
    /// stream.
    shown: [u64; 2],
}

/// The text of one line, or of several that belong together.
#[derive(Clone, Debug)]
pub(super) struct Said {
    pub(super) words: String,
    at: Instant,
    stream: Target,
    /// The number of the first line, from 1.
    pub(super) line: u64,
    /// `true` if the line is not shown because another rank wrote the same line.
    is_hidden: bool,
}

impl Words {
    /// Records a line of standard output.
    pub(super) fn printed(&mut self, line: &[u8], at: Instant) {
        self.lines += 1;
        if let Some(words) = text(line) {
            self.printed = Some(self.said(Target::Stdout, &words, at));
        }
    }

    fn said(&self, stream: Target, words: &str, at: Instant) -> Said {
        Said {
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
    pub(super) fn is_shown(&self, said: &Said) -> bool {
        !said.is_hidden && said.line <= self.shown[said.stream as usize]
    }

    /// Returns the number of lines so far.
    pub(super) fn lines(&self) -> u64 {
        self.lines
    }

    /// Records a line of standard error.
    pub(super) fn told(&mut self, line: &[u8], at: Instant) {
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
        // A note or detail keeps the line that it belongs to recent.
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
            if let Some(panic) = self
                .panic
                .as_mut()
                .filter(|panic| told.words.starts_with(&panic.words))
            {
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
        let is_first = self
            .panic
            .as_ref()
            .is_some_and(|first| first.words == told.words);
        told.words = format!("{} {message}", told.words);
        told.at = at;
        if is_first {
            self.panic = Some(told.clone());
        }
    }

    /// Returns the location and message of the panic if the rank panicked.
    pub(super) fn panic(&self) -> Option<&Said> {
        self.panic.as_ref()
    }

    /// Returns the last line. If lines were written to both streams within [`TOGETHER`], prefers
    /// standard error, because the order of simultaneous lines is unknown and errors explain more.
    pub(super) fn last(&self) -> Option<&Said> {
        match (&self.printed, &self.told) {
            (Some(printed), Some(told)) if printed.at > told.at + TOGETHER => Some(printed),
            (_, Some(told)) => Some(told),
            (printed, None) => printed.as_ref(),
        }
    }
}

impl Said {
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
mod tests {
    use super::*;

    fn told(text: &str) -> Words {
        let mut words = Words::default();
        let at = Instant::now();
        text.lines()
            .for_each(|line| words.told(line.as_bytes(), at));
        words
    }

    fn last(words: &Words) -> &str {
        words.last().map_or("", |said| &said.words)
    }

    fn panic(words: &Words) -> Option<&str> {
        words.panic().map(|said| &*said.words)
    }

    #[test]
    fn a_panic_is_quoted_and_not_its_note_or_frames() {
        let opening = "thread 'main' (4211) panicked at src/main.rs:9:5:\nno such sample\n";
        let note = "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace";
        let frames = "stack backtrace:\n   0: __rustc::rust_begin_unwind\n             at \
                      /rustc/5/panicking.rs:689:5\n  19: _start\nnote: Some details are omitted, \
                      run with `RUST_BACKTRACE=full`";
        for end in [note, frames] {
            let words = told(&format!("step 4\n{opening}{end}"));
            assert_eq!(last(&words), "panicked at src/main.rs:9:5: no such sample");
            assert_eq!(panic(&words), Some(last(&words)));
        }
        // The panic of a thread is followed by that of its owner, in an older format of the line.
        let second = "thread 'main' panicked at 'a thread panicked: Any', src/main.rs:20:1\n";
        let words = told(&format!("{opening}{note}\n{second}"));
        assert_eq!(
            panic(&words),
            Some("panicked at src/main.rs:9:5: no such sample")
        );
        let assertion = "thread 'main' panicked at a.rs:1:1:\nassertion `left == \
                         right` failed\n  left: 1\n right: 2\n";
        let whole = "panicked at a.rs:1:1: assertion `left == right` failed left: 1 right: 2";
        assert_eq!(panic(&told(&format!("{assertion}{note}"))), Some(whole));
    }

    #[test]
    fn errors_are_quoted_and_not_what_stands_below_them() {
        let parser = [
            "error: unexpected argument '--stepz' found\n",
            "  tip: a similar argument exists: '--steps'\n",
            "Usage: mingpt [OPTIONS]\n",
            "For more information, try '--help'.",
        ];
        let missing = [
            "error: the following required arguments were not provided:",
            "  --text <FILE>\n",
            "Usage: mingpt --text <FILE>\n",
            "For more information, try '--help'.",
        ];
        let candle = [
            "Error: shape mismatch in matmul",
            "   0: candle_core::error::Error::bt",
            "             at /candle/error.rs:264:25",
            "  19: _start",
        ];
        let chain = [
            "Error: cannot read the data\n",
            "Caused by:",
            "    0: no such file",
            "    1: data.bin\n",
            "Stack backtrace:",
            "   0: anyhow::error",
        ];
        let python = [
            "Traceback (most recent call last):",
            "  File \"a.py\", line 3, in <module>",
            "    f()",
            "ValueError: no data",
        ];
        let last_of = |lines: &[&str]| last(&told(&lines.join("\n"))).to_owned();
        assert_eq!(
            last_of(&parser),
            "error: unexpected argument '--stepz' found"
        );
        let whole = "error: the following required arguments were not provided: --text <FILE>";
        assert_eq!(last_of(&missing), whole);
        assert_eq!(last_of(&candle), "Error: shape mismatch in matmul");
        assert_eq!(last_of(&chain), "Error: cannot read the data");
        assert_eq!(last_of(&python), "ValueError: no data");
        assert_eq!(last(&told("   0: only this")), "0: only this");
    }

    #[test]
    fn the_later_stream_is_quoted_and_errors_when_both_are() {
        let mut words = told("warning");
        let now = Instant::now();
        words.printed(b"step 1\n", now);
        assert_eq!(last(&words), "warning");
        words.printed(b"step 2\n", now + 2 * TOGETHER);
        assert_eq!(last(&words), "step 2");
    }

    #[test]
    fn what_was_shown_is_told_from_what_was_not() {
        let mut words = told("no data\n  in line 3");
        let is_shown = |words: &Words| words.is_shown(words.last().unwrap());
        assert!(!is_shown(&words));
        words.were_shown(Target::Stdout);
        assert!(!is_shown(&words), "the other stream");
        words.were_shown(Target::Stderr);
        assert!(is_shown(&words));
        words.told(b"rank 1 is gone", Instant::now());
        words.hide();
        words.were_shown(Target::Stderr);
        assert!(!is_shown(&words), "an echo");
    }
}
