//! Forwards the ranks' output line by line.

use super::cause::{self, Cause};
use super::record::Record;
use super::route::{Route, Show};
use super::streams::{self, Target};
use super::words::{LastOutput, OutputLine};
use crate::lock::lock;
use crossbeam_channel::{self as channel, Receiver, RecvTimeoutError, Sender};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Read};
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of bytes per read.
const READ_BYTES: usize = 64 << 10;
/// Maximum length of a line. A longer line is split to limit memory use.
const LINE_BYTES_MAX: usize = 1 << 20;
/// Time for which a line about another rank's failure is remembered, so that copies from other
/// ranks can be suppressed.
const ECHO: Duration = Duration::from_secs(2);
/// Maximum number of lines that are remembered for this purpose.
const ECHOES_MAX: usize = 8;
/// Maximum length of a remembered line.
const ECHO_BYTES_MAX: usize = 4 << 10;

/// Number of bytes that are kept from the output of a rank whose output is not shown.
const KEPT_BYTES_MAX: usize = 16 << 10;

/// Notes about a rank's output, shared by the threads that read the rank's streams.
#[derive(Clone, Debug, Default)]
struct SharedOutput(Arc<Mutex<Noted>>);

#[derive(Debug, Default)]
struct Noted {
    words: LastOutput,
    /// The reports from the rank.
    record: Record,
    /// The last lines and their line numbers. Used for a rank whose output is not shown.
    kept: VecDeque<(u64, Vec<u8>)>,
    kept_bytes: usize,
}

impl SharedOutput {
    fn noted(&self) -> MutexGuard<'_, Noted> {
        lock(&self.0)
    }
}

impl Noted {
    fn note(&mut self, stream: Target, line: &[u8]) {
        let now = Instant::now();
        match stream {
            Target::Stdout => self.words.record_stdout(line, now),
            Target::Stderr => self.words.record_stderr(line, now),
        }
    }

    /// Keeps `line`, which was noted last, and drops the oldest lines beyond [`KEPT_BYTES_MAX`].
    fn keep(&mut self, line: &[u8]) {
        let line = &line[..line.len().min(KEPT_BYTES_MAX)];
        self.kept_bytes += line.len();
        self.kept.push_back((self.words.lines(), line.to_vec()));
        while self.kept_bytes > KEPT_BYTES_MAX {
            let first = self.kept.pop_front();
            self.kept_bytes -= first.map_or(0, |(_, line)| line.len());
        }
    }

    /// Returns `true` if the line contains an error that the rank has reported and that blames
    /// another rank.
    fn blames_another(&mut self, line: &[u8]) -> bool {
        let line = (line.len() <= ECHO_BYTES_MAX).then(|| String::from_utf8_lossy(line));
        line.is_some_and(|line| matches!(self.record.blames(Some(&line)), Some(Some(_))))
    }

    fn has_kept(&self, said: &OutputLine) -> bool {
        let first = self.kept.front();
        first.is_some_and(|(number, _)| *number <= said.line)
    }
}

/// Lines on standard error that blame another rank. If several ranks write the same line, only the
/// first copy is shown.
#[derive(Clone, Debug, Default)]
pub(super) struct Echoes(Arc<Mutex<VecDeque<RecentLine>>>);

/// A line, and the time at which it was written.
type RecentLine = (Vec<u8>, Instant);

impl Echoes {
    /// Returns `true` if the same line was written within the last [`ECHO`]. Otherwise, remembers
    /// the line.
    fn repeat(&self, line: &[u8]) -> bool {
        let now = Instant::now();
        let mut told = lock(&self.0);
        told.retain(|(_, at)| now.duration_since(*at) < ECHO);
        let is_known = told.iter().any(|(known, _)| known == line);
        if !is_known {
            told.push_back((line.to_vec(), now));
            if told.len() > ECHOES_MAX {
                told.pop_front();
            }
        }
        is_known
    }
}

/// The threads that forward a rank's output. Dropping this value discards any output that they have
/// not forwarded yet.
pub(super) struct OutputForwarder {
    pub(super) route: Route,
    heard: SharedOutput,
    /// A channel that is disconnected once all streams have ended.
    ended: Receiver<Infallible>,
    is_abandoned: Arc<AtomicBool>,
}

impl OutputForwarder {
    /// Starts forwarding what the rank `child` writes to its pipes and to the terminals of its
    /// `route`. Lines that are in `echoes` are suppressed. `record` receives the rank's reports.
    pub(super) fn start(
        child: &mut Child,
        record: Record,
        route: Route,
        echoes: &Echoes,
    ) -> io::Result<Self> {
        let (alive, ended) = channel::bounded(0);
        let heard = SharedOutput::default();
        heard.noted().record = record;
        let passing = OutputForwarder {
            route,
            heard,
            ended,
            is_abandoned: Arc::default(),
        };
        let lines = |stream| {
            let show = passing.route.show.clone();
            let mut lines = Lines::new(show, stream, passing.heard.clone());
            lines.echoes = (stream == Target::Stderr).then(|| echoes.clone());
            lines
        };
        for terminal in &passing.route.terminals {
            let source = File::from(terminal.own.try_clone()?);
            passing.forward(source, lines(terminal.target), alive.clone())?;
        }
        if let Some(stdout) = child.stdout.take() {
            passing.forward(stdout, lines(Target::Stdout), alive.clone())?;
        }
        if let Some(stderr) = child.stderr.take() {
            passing.forward(stderr, lines(Target::Stderr), alive)?;
        }
        Ok(passing)
    }

    /// Returns `true` if all streams have ended or end within `at_most`.
    pub(super) fn has_ended(&self, at_most: Duration) -> bool {
        self.ended.recv_timeout(at_most) == Err(RecvTimeoutError::Disconnected)
    }

    /// Returns the reason why the rank with this number and name failed with `status`. If the user
    /// has seen the rank's last output, also returns a clause that refers to this output.
    pub(super) fn judge(&self, rank: (usize, &str), status: ExitStatus) -> (Cause, Option<String>) {
        let mut noted = self.heard.noted();
        let Noted { words, record, .. } = &mut *noted;
        let mut cause = Cause::of_rank(rank, status, (words, self.route.is_partial), record);
        let quote = cause::quote(status, &noted.words);
        cause.log = quote.and(self.route.log.as_ref()).map(|log| log.path());
        let above = quote.and_then(|said| self.above(&noted, said));
        (cause, above)
    }

    /// Returns a clause that refers to `said`, if the user has seen it.
    fn above(&self, noted: &Noted, said: &OutputLine) -> Option<String> {
        let is_shown = match self.route.show {
            Show::Kept(_) => self.route.log.is_none() && noted.has_kept(said),
            _ => noted.words.is_shown(said),
        };
        is_shown.then(|| match &self.route.show {
            Show::Lines(prefix) | Show::Kept(prefix) => {
                let prefix = prefix.trim_end_matches([':', ' ']);
                format!("its last output is above, after {prefix}")
            }
            Show::Unchanged => "its last output is above".to_owned(),
        })
    }

    /// Returns a clause that quotes the last output of a rank that is still running, or refers to
    /// it.
    pub(super) fn last(&self) -> Option<String> {
        let noted = self.heard.noted();
        let said = noted.words.last()?;
        let quoted = || cause::last_output(said);
        Some(self.above(&noted, said).unwrap_or_else(quoted))
    }

    /// Returns the link speed table that the rank measured, for use in later attempts.
    pub(super) fn table(&self) -> Option<String> {
        self.heard.noted().record.table()
    }

    /// Shows the kept lines unless a log contains all of the output.
    pub(super) fn show_kept(&self) {
        if let (Show::Kept(prefix), None) = (&self.route.show, &self.route.log) {
            let mut lines = Vec::new();
            for (_, line) in self.heard.noted().kept.drain(..) {
                lines.extend_from_slice(prefix.as_bytes());
                lines.extend_from_slice(line.trim_ascii_end());
                lines.push(b'\n');
            }
            streams::show(lines);
        }
    }

    /// Starts a thread that forwards `source` until its end. The thread then drops `alive`.
    fn forward(
        &self,
        mut source: impl Read + Send + 'static,
        mut lines: Lines,
        alive: Sender<Infallible>,
    ) -> io::Result<()> {
        let is_abandoned = Arc::clone(&self.is_abandoned);
        let log = self.route.log.clone();
        let pass = move || {
            let mut buffer = vec![0; READ_BYTES];
            loop {
                let count = match source.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(count) => count,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    // A pseudo terminal signals the end of its data with an error (EIO).
                    Err(_) => break,
                };
                let bytes = &buffer[..count];
                if let Some(log) = &log {
                    log.write(bytes);
                }
                lines.feed(bytes);
                lines.pass(&is_abandoned);
            }
            lines.finish();
            lines.pass(&is_abandoned);
            drop(alive);
        };
        thread::Builder::new()
            .name("ringtree-output".to_owned())
            .spawn(pass)
            .map(drop)
    }
}

impl Drop for OutputForwarder {
    fn drop(&mut self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
    }
}

/// Splits a stream into lines. A carriage return also ends a line, so that progress bars are shown
/// as they change.
struct Lines {
    show: Show,
    stream: Target,
    pending: Vec<u8>,
    after_return: bool,
    /// The output to forward next.
    ready: Vec<u8>,
    /// `true` if all output so far has been queued for the same file as the launcher's own lines.
    is_shown: bool,
    heard: SharedOutput,
    /// On standard error, the lines whose copies are suppressed.
    echoes: Option<Echoes>,
}

impl Lines {
    fn new(show: Show, stream: Target, heard: SharedOutput) -> Self {
        Lines {
            show,
            echoes: None,
            stream,
            pending: Vec::new(),
            after_return: false,
            ready: Vec::new(),
            is_shown: stream == Target::Stderr || streams::are_one(),
            heard,
        }
    }

    /// Notes the lines that `bytes` completes, and appends to `ready` the output to show.
    fn feed(&mut self, bytes: &[u8]) {
        if matches!(self.show, Show::Unchanged) {
            self.ready.extend_from_slice(bytes);
        }
        for piece in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            // The second half of "\r\n" and the leading "\r" of a progress bar are not lines.
            let bare = self.pending.is_empty()
                && (piece == b"\r" || (piece == b"\n" && self.after_return));
            self.after_return = piece.ends_with(b"\r");
            if bare {
                if matches!(self.show, Show::Lines(_)) {
                    self.ready.extend_from_slice(piece);
                }
                continue;
            }
            self.pending.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.after_return {
                self.complete();
            } else if self.pending.len() >= LINE_BYTES_MAX {
                self.pending.push(b'\n');
                self.complete();
            }
        }
    }

    /// Notes the incomplete last line if there is one.
    fn finish(&mut self) {
        if !self.pending.is_empty() {
            self.pending.push(b'\n');
            self.complete();
        }
    }

    fn complete(&mut self) {
        let mut noted = self.heard.noted();
        let line = &self.pending;
        noted.note(self.stream, line);
        match &self.show {
            Show::Unchanged => {}
            Show::Kept(_) => noted.keep(line),
            Show::Lines(prefix) => {
                let echoes = self.echoes.as_ref();
                if echoes.is_some_and(|all| noted.blames_another(line) && all.repeat(line)) {
                    noted.words.hide();
                } else {
                    self.ready.extend_from_slice(prefix.as_bytes());
                    self.ready.extend_from_slice(line);
                }
            }
        }
        drop(noted);
        self.pending.clear();
    }

    /// Forwards the output in `ready`, and notes whether the user sees it.
    fn pass(&mut self, is_abandoned: &AtomicBool) {
        let ready = std::mem::take(&mut self.ready);
        if !ready.is_empty() {
            self.is_shown &= streams::pass_on(self.stream, ready, is_abandoned);
        }
        if self.is_shown && !matches!(self.show, Show::Kept(_)) {
            self.heard.noted().words.were_shown(self.stream);
        }
    }
}

#[cfg(test)]
mod tests;
