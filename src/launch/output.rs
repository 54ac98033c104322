//! What ranks write, passed on in whole lines.

use super::streams::{self, Target};
use crossbeam::channel::{self, Receiver, RecvTimeoutError, Sender};
use std::convert::Infallible;
use std::io::{self, Read};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes read from a rank at once.
const READ_BYTES: usize = 64 << 10;
/// A longer line is passed on in pieces, so that memory is bounded.
const LINE_BYTES_MAX: usize = 1 << 20;
/// Of a rank's last line this much is kept to be quoted.
const LAST_LINE_BYTES_MAX: usize = 1 << 10;
/// Lines on the two streams that come within this time count as written together.
const TOGETHER: Duration = Duration::from_millis(100);

/// The last line that a rank wrote, on either stream.
#[derive(Clone, Debug, Default)]
pub(super) struct LastLine(Arc<Mutex<[Option<Written>; 2]>>);

#[derive(Debug)]
struct Written {
    line: Vec<u8>,
    at: Instant,
}

impl LastLine {
    /// The line as it stands. The streams' order is known only as well as it could be seen, and
    /// errors are more telling: of two lines that came together it is that of standard error.
    pub(super) fn get(&self) -> Vec<u8> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let written = match &*last {
            [Some(stdout), Some(stderr)] if stdout.at > stderr.at + TOGETHER => Some(stdout),
            [_, Some(stderr)] => Some(stderr),
            [stdout, None] => stdout.as_ref(),
        };
        written
            .map(|written| written.line.clone())
            .unwrap_or_default()
    }

    fn set(&self, stream: Target, line: &[u8]) {
        let line = line[..line.len().min(LAST_LINE_BYTES_MAX)].to_vec();
        let at = Instant::now();
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last[stream as usize] = Some(Written { line, at });
    }
}

/// The output of a rank, passed on by threads of its own. When this is dropped, what they could not
/// pass on by then is dropped too.
pub(super) struct Passing {
    /// The last line.
    pub(super) last_line: LastLine,
    /// Disconnected when both streams have ended.
    ended: Receiver<Infallible>,
    is_abandoned: Arc<AtomicBool>,
}

impl Passing {
    /// Passes on those of `child`'s two streams that are pipes, with `prefix` before each line, or
    /// unchanged without one.
    pub(super) fn start(child: &mut Child, prefix: Option<&str>) -> io::Result<Self> {
        let (alive, ended) = channel::bounded(0);
        let passing = Passing {
            last_line: LastLine::default(),
            ended,
            is_abandoned: Arc::default(),
        };
        if let Some(stdout) = child.stdout.take() {
            passing.forward(stdout, Target::Stdout, prefix, alive.clone())?;
        }
        if let Some(stderr) = child.stderr.take() {
            passing.forward(stderr, Target::Stderr, prefix, alive)?;
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
        target: Target,
        prefix: Option<&str>,
        alive: Sender<Infallible>,
    ) -> io::Result<()> {
        let prefix = prefix.map(str::to_owned);
        let is_abandoned = Arc::clone(&self.is_abandoned);
        let last_line = self.last_line.clone();
        let pass = move || {
            let open = prefix.as_deref().unwrap_or("");
            let mut lines = Lines::new(open.as_bytes(), target, last_line);
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
                if prefix.is_none() {
                    ready = buffer[..count].to_vec();
                }
                streams::pass_on(target, std::mem::take(&mut ready), &is_abandoned);
            }
            lines.finish(&mut ready);
            if prefix.is_some() {
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
struct Lines<'a> {
    prefix: &'a [u8],
    stream: Target,
    pending: Vec<u8>,
    after_return: bool,
    last_line: LastLine,
}

impl<'a> Lines<'a> {
    fn new(prefix: &'a [u8], stream: Target, last_line: LastLine) -> Self {
        Lines {
            prefix,
            stream,
            pending: Vec::new(),
            after_return: false,
            last_line,
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
        ready.extend_from_slice(self.prefix);
        ready.extend_from_slice(&self.pending);
        let line = self.pending.trim_ascii();
        if !line.is_empty() {
            self.last_line.set(self.stream, line);
        }
        self.pending.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(pieces: &[&[u8]]) -> (String, Vec<u8>) {
        let last_line = LastLine::default();
        let mut lines = Lines::new(b"[7]: ", Target::Stdout, last_line.clone());
        let mut ready = Vec::new();
        for piece in pieces {
            lines.feed(piece, &mut ready);
        }
        lines.finish(&mut ready);
        (
            String::from_utf8_lossy(&ready).into_owned(),
            last_line.get(),
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
    fn the_later_stream_is_quoted_and_errors_when_both_are() {
        let last_line = LastLine::default();
        last_line.set(Target::Stderr, b"warning");
        last_line.set(Target::Stdout, b"step 1");
        assert_eq!(last_line.get(), b"warning");
        thread::sleep(2 * TOGETHER);
        last_line.set(Target::Stdout, b"step 2");
        assert_eq!(last_line.get(), b"step 2");
    }

    #[test]
    fn an_endless_line_is_passed_on_in_pieces() {
        let mut lines = Lines::new(b"", Target::Stdout, LastLine::default());
        let mut ready = Vec::new();
        for _ in 0..40 {
            lines.feed(&[b'x'; READ_BYTES], &mut ready);
            assert!(lines.pending.len() <= LINE_BYTES_MAX);
        }
        assert!(ready.len() >= 39 * READ_BYTES - LINE_BYTES_MAX);
    }
}
