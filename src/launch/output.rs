//! What ranks write, passed on in whole lines.

use super::streams::{self, Target};
use super::words::{Words, blame_another};
use crossbeam::channel::{self, Receiver, RecvTimeoutError, Sender};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{self, Read};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes read from a rank at once.
const READ_BYTES: usize = 64 << 10;
/// A longer line is passed on in pieces, so that memory is bounded.
const LINE_BYTES_MAX: usize = 1 << 20;
/// What ranks say after another one's end comes within this time.
const ECHO: Duration = Duration::from_secs(2);
/// So many different lines of that kind are remembered, and none that is longer.
const ECHOES_MAX: usize = 8;
const ECHO_BYTES_MAX: usize = 4 << 10;

/// What a rank wrote last, as both of its streams' threads note it.
#[derive(Clone, Debug, Default)]
pub(super) struct Heard(Arc<Mutex<Words>>);

impl Heard {
    /// The words as they stand.
    pub(super) fn words(&self) -> MutexGuard<'_, Words> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, stream: Target, line: &[u8]) {
        let now = Instant::now();
        match stream {
            Target::Stdout => self.words().printed(line, now),
            Target::Stderr => self.words().told(line, now),
        }
    }
}

/// Of several ranks that say in the same words that another rank is gone, one is heard: a line on
/// standard error that another rank of the job wrote just before is not passed on.
#[derive(Clone, Debug, Default)]
pub(super) struct Echoes(Arc<Mutex<VecDeque<Told>>>);

#[derive(Debug)]
struct Told {
    line: Vec<u8>,
    at: Instant,
}

impl Echoes {
    /// Whether this line of rank `own` says what another rank has just said.
    fn repeat(&self, line: &[u8], own: usize) -> bool {
        if line.len() > ECHO_BYTES_MAX || !blame_another(&String::from_utf8_lossy(line), own) {
            return false;
        }
        let now = Instant::now();
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|known| now.duration_since(known.at) < ECHO);
        let is_known = told.iter().any(|known| known.line == line);
        if !is_known {
            let line = line.to_vec();
            told.push_back(Told { line, at: now });
            if told.len() > ECHOES_MAX {
                told.pop_front();
            }
        }
        is_known
    }
}

/// The output of a rank, passed on by threads of its own. When this is dropped, what they could not
/// pass on by then is dropped too.
pub(super) struct Passing {
    /// What it wrote last.
    pub(super) heard: Heard,
    /// Disconnected when both streams have ended.
    ended: Receiver<Infallible>,
    is_abandoned: Arc<AtomicBool>,
}

impl Passing {
    /// Passes on those of the two streams of `child`, rank `rank`, that are pipes: with `prefix`
    /// before each line and without `echoes` of other ranks, or unchanged where there is no prefix.
    pub(super) fn start(
        (rank, child): (usize, &mut Child),
        prefix: Option<&str>,
        echoes: &Echoes,
    ) -> io::Result<Self> {
        let (alive, ended) = channel::bounded(0);
        let passing = Passing {
            heard: Heard::default(),
            ended,
            is_abandoned: Arc::default(),
        };
        if let Some(stdout) = child.stdout.take() {
            let lines = Lines::new(prefix, Target::Stdout, passing.heard.clone());
            passing.forward(stdout, lines, alive.clone())?;
        }
        if let Some(stderr) = child.stderr.take() {
            let mut lines = Lines::new(prefix, Target::Stderr, passing.heard.clone());
            lines.echoes = Some((rank, echoes.clone()));
            passing.forward(stderr, lines, alive)?;
        }
        Ok(passing)
    }

    /// Whether both streams have ended, or end within `at_most`.
    pub(super) fn has_ended(&self, at_most: Duration) -> bool {
        self.ended.recv_timeout(at_most) == Err(RecvTimeoutError::Disconnected)
    }

    /// Passes `source` on from a thread of its own until it ends. The thread drops `alive` then.
    fn forward(
        &self,
        mut source: impl Read + Send + 'static,
        mut lines: Lines,
        alive: Sender<Infallible>,
    ) -> io::Result<()> {
        let is_abandoned = Arc::clone(&self.is_abandoned);
        let (target, is_plain) = (lines.stream, lines.prefix.is_none());
        let pass = move || {
            let mut buffer = vec![0; READ_BYTES];
            let mut ready = Vec::new();
            loop {
                let count = match source.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(count) => count,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(_) => break,
                };
                lines.feed(&buffer[..count], &mut ready);
                if is_plain {
                    ready = buffer[..count].to_vec();
                }
                streams::pass_on(target, std::mem::take(&mut ready), &is_abandoned);
            }
            lines.finish(&mut ready);
            if !is_plain {
                streams::pass_on(target, ready, &is_abandoned);
            }
            drop(alive);
        };
        thread::Builder::new()
            .name("ringtree-output".to_owned())
            .spawn(pass)
            .map(drop)
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
    }
}

/// Cuts a stream into lines. A carriage return ends one too, so that a progress bar moves on.
struct Lines {
    prefix: Option<Vec<u8>>,
    stream: Target,
    pending: Vec<u8>,
    after_return: bool,
    heard: Heard,
    /// The rank's number, and what others have said on standard error.
    echoes: Option<(usize, Echoes)>,
}

impl Lines {
    fn new(prefix: Option<&str>, stream: Target, heard: Heard) -> Self {
        Lines {
            prefix: prefix.map(|prefix| prefix.as_bytes().to_vec()),
            echoes: None,
            stream,
            pending: Vec::new(),
            after_return: false,
            heard,
        }
    }

    /// Appends the lines that `bytes` completes to `ready`.
    fn feed(&mut self, bytes: &[u8], ready: &mut Vec<u8>) {
        for piece in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            // The second half of "\r\n" and a bar's leading "\r" get no line of their own.
            let bare = self.pending.is_empty()
                && (piece == b"\r" || (piece == b"\n" && self.after_return));
            self.after_return = piece.ends_with(b"\r");
            if bare {
                ready.extend_from_slice(piece);
                continue;
            }
            self.pending.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.after_return {
                self.complete(ready);
            } else if self.pending.len() >= LINE_BYTES_MAX {
                self.pending.push(b'\n');
                self.complete(ready);
            }
        }
    }

    /// Appends what is left, as a line.
    fn finish(&mut self, ready: &mut Vec<u8>) {
        if !self.pending.is_empty() {
            self.pending.push(b'\n');
            self.complete(ready);
        }
    }

    fn complete(&mut self, ready: &mut Vec<u8>) {
        self.heard.note(self.stream, &self.pending);
        let line = &self.pending;
        let is_echo = |(own, echoes): &(usize, Echoes)| echoes.repeat(line, *own);
        if !self.echoes.as_ref().is_some_and(is_echo) {
            ready.extend_from_slice(self.prefix.as_deref().unwrap_or_default());
            ready.extend_from_slice(line);
        }
        self.pending.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(pieces: &[&[u8]]) -> (String, Vec<u8>) {
        let heard = Heard::default();
        let mut lines = Lines::new(Some("[7]: "), Target::Stdout, heard.clone());
        let mut ready = Vec::new();
        for piece in pieces {
            lines.feed(piece, &mut ready);
        }
        lines.finish(&mut ready);
        (
            String::from_utf8_lossy(&ready).into_owned(),
            heard.words().last().as_bytes().to_vec(),
        )
    }

    #[test]
    fn lines_are_whole_however_they_arrive() {
        let whole = passed(&[b"one\ntwo\n\nend"]);
        assert_eq!(whole.0, "[7]: one\n[7]: two\n[7]: \n[7]: end\n");
        assert_eq!(
            whole,
            passed(&[b"o", b"ne\ntw", b"o", b"\n", b"\ne", b"nd"])
        );
        assert_eq!(whole.1, b"end");
    }

    #[test]
    fn a_carriage_return_moves_on_and_is_no_line() {
        let (text, last) = passed(&[b"\r10%", b"\r20%\r", b"\ndone\r\n"]);
        assert_eq!(text, "\r[7]: 10%\r[7]: 20%\r\n[7]: done\r\n");
        assert_eq!(last, b"done");
    }

    #[test]
    fn what_several_ranks_say_of_another_is_passed_on_once() {
        let echoes = Echoes::default();
        let of = |own, line: &str| echoes.repeat(line.as_bytes(), own);
        assert!(!of(0, "train: rank 1 panicked; look there\n"));
        assert!(of(2, "train: rank 1 panicked; look there\n"));
        assert!(
            !of(1, "train: rank 1 panicked; look there\n"),
            "its own words"
        );
        assert!(!of(2, "train: rank 1 is gone\n"));
        assert!(!of(0, "step 4\n") && !of(2, "step 4\n"));
    }

    #[test]
    fn an_endless_line_is_passed_on_in_pieces() {
        let mut lines = Lines::new(Some(""), Target::Stdout, Heard::default());
        let mut ready = Vec::new();
        for _ in 0..40 {
            lines.feed(&[b'x'; READ_BYTES], &mut ready);
            assert!(lines.pending.len() <= LINE_BYTES_MAX);
        }
        assert!(ready.len() >= 39 * READ_BYTES - LINE_BYTES_MAX);
    }
}
