//! Writes to the launcher's standard output and standard error, each from its own thread.
//!
//! The reader may pause (`| less`, Ctrl-S) or close the stream (`| head`, a lost connection).
//! Output from ranks waits for space in a bounded queue. A paused reader therefore blocks the ranks
//! that write, as a plain pipe would. The launcher's own lines never wait. If they do not fit into
//! the queue, they are dropped, and the number of dropped bytes is printed once there is space
//! again. If the reader has closed the stream, output is discarded and the ranks continue.

use rustix::fs::{Stat, fstat};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Number of queued bytes above which output from ranks must wait.
const QUEUE_BYTES_MAX: usize = 256 << 10;
/// Number of additional bytes that may be queued for the launcher's own lines.
const LINES_BYTES_MAX: usize = 64 << 10;
/// Maximum number of bytes per write. Short writes show the progress of a slow reader.
const WRITE_BYTES: usize = 4 << 10;
/// A reader that reads nothing for this long counts as paused.
const READER_GRACE: Duration = Duration::from_secs(1);
/// Interval at which a waiting thread checks its conditions.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// One of the launcher's two output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Stdout,
    Stderr,
}

/// The output that is waiting to be written.
struct Queue {
    pieces: VecDeque<Vec<u8>>,
    /// Number of bytes in `pieces` and in the unwritten remainder of the piece that is being
    /// written.
    bytes: usize,
    /// Number of dropped bytes that have not been reported yet.
    dropped: usize,
    /// Number of successful writes.
    writes: u64,
    /// `true` if the last queued byte did not end a line.
    is_mid_line: bool,
    is_closed: bool,
}

/// The queue of a stream and its writer thread.
struct Stream {
    name: &'static str,
    started: Once,
    queue: Mutex<Queue>,
    changed: Condvar,
}

static STREAMS: [Stream; 2] = [
    Stream::new("standard output"),
    Stream::new("standard error"),
];

impl Target {
    /// Returns `true` if the stream is a terminal.
    pub(super) fn is_terminal(self) -> bool {
        match self {
            Target::Stdout => io::stdout().is_terminal(),
            Target::Stderr => io::stderr().is_terminal(),
        }
    }
}

/// Returns `true` if standard output and standard error are the same file, as on a terminal.
pub(super) fn are_one() -> bool {
    let file = |data: Stat| (data.st_dev, data.st_ino);
    let [stdout, stderr] = [fstat(io::stdout()), fstat(io::stderr())];
    matches!((stdout, stderr), (Ok(one), Ok(other)) if file(one) == file(other))
}

/// Queues a rank's output once there is space, or discards it if the rank's attempt is over.
/// Returns `true` if the output was queued.
pub(super) fn pass_on(target: Target, bytes: Vec<u8>, is_abandoned: &AtomicBool) -> bool {
    Stream::of(target).push(bytes, Some(is_abandoned))
}

/// Queues `lines` for standard error without waiting. Returns `true` if there was space.
pub(super) fn show(lines: Vec<u8>) -> bool {
    Stream::of(Target::Stderr).push(lines, None)
}

/// Prints the line `text` to standard error without waiting.
pub(super) fn print_line(text: &str) {
    show(format!("ringtree: {text}\n").into_bytes());
}

/// Prints the line `text` to standard error as the last output of a launcher.
///
/// Returns once everything has been written, or once the reader has not read anything for a second,
/// because a paused reader must not keep a finished process alive.
pub fn tell(text: &str) {
    print_line(text);
    settle();
}

/// Returns the number of successful writes, and `true` if output is still waiting to be written.
pub(super) fn progress() -> (u64, bool) {
    let queues = STREAMS.each_ref().map(Stream::lock);
    let writes = queues.iter().map(|queue| queue.writes).sum();
    (writes, queues.iter().any(|queue| queue.bytes > 0))
}

/// Waits until everything has been written or the readers have paused.
pub(super) fn settle() {
    for stream in &STREAMS {
        stream.settle();
    }
}

/// Waits until `has_ended` returns `true`, as long as output is still being written. `has_ended`
/// may block for up to the time that it receives as its argument. Stops waiting if nothing has been
/// written for `grace`, or for [`READER_GRACE`] if a reader blocks the output.
pub(super) fn wait_while_moving(grace: Duration, mut has_ended: impl FnMut(Duration) -> bool) {
    let mut since = Instant::now();
    let (mut seen, _) = progress();
    while !has_ended(CHECK_INTERVAL.min(grace)) {
        let (writes, is_held_up) = progress();
        if writes != seen {
            (seen, since) = (writes, Instant::now());
        }
        let grace = if is_held_up { READER_GRACE } else { grace };
        if since.elapsed() >= grace {
            return;
        }
    }
}

impl Stream {
    const fn new(name: &'static str) -> Self {
        let queue = Queue {
            pieces: VecDeque::new(),
            bytes: 0,
            dropped: 0,
            writes: 0,
            is_mid_line: false,
            is_closed: false,
        };
        Stream {
            name,
            started: Once::new(),
            queue: Mutex::new(queue),
            changed: Condvar::new(),
        }
    }

    /// Returns the stream for `target`. The first use of a stream starts its writer thread.
    fn of(target: Target) -> &'static Stream {
        let stream = &STREAMS[target as usize];
        stream.started.call_once(|| {
            let write = move || match target {
                Target::Stdout => stream.write(io::stdout().as_fd()),
                Target::Stderr => stream.write(io::stderr().as_fd()),
            };
            let thread = thread::Builder::new().name("ringtree-writer".to_owned());
            // If this thread cannot start, ranks cannot start either.
            stream.lock().is_closed = thread.spawn(write).is_err();
        });
        stream
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // The queue is consistent after every statement, even if another holder panicked.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        let waited = self.changed.wait_timeout(queue, CHECK_INTERVAL);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Queues a rank's output once there is space, unless the output `is_abandoned`. If
    /// `is_abandoned` is `None`, `bytes` is a line from the launcher, which is queued immediately
    /// and on a new line. Returns `true` if the bytes were queued.
    fn push(&self, mut bytes: Vec<u8>, is_abandoned: Option<&AtomicBool>) -> bool {
        let mut queue = self.lock();
        if let Some(is_abandoned) = is_abandoned {
            let may_wait = |queue: &Queue| {
                queue.bytes > QUEUE_BYTES_MAX
                    && !queue.is_closed
                    && !is_abandoned.load(Ordering::Relaxed)
            };
            while may_wait(&queue) {
                queue = self.wait(queue);
            }
        }
        let room = match is_abandoned {
            Some(_) => QUEUE_BYTES_MAX,
            None => QUEUE_BYTES_MAX + LINES_BYTES_MAX,
        };
        if queue.is_closed {
            return false;
        }
        if queue.bytes > room {
            queue.dropped += bytes.len();
            return false;
        }
        if is_abandoned.is_none() && queue.is_mid_line {
            bytes.insert(0, b'\n');
        }
        if let Some(last) = bytes.last() {
            queue.is_mid_line = *last != b'\n';
        }
        queue.bytes += bytes.len();
        queue.pieces.push_back(bytes);
        self.changed.notify_all();
        true
    }

    /// Runs the writer thread until a write fails.
    fn write(&self, to: BorrowedFd<'_>) {
        loop {
            let is_idle = |queue: &mut Queue| queue.pieces.is_empty();
            let waited = self.changed.wait_while(self.lock(), is_idle);
            let mut queue = waited.unwrap_or_else(PoisonError::into_inner);
            let piece = queue.pieces.pop_front().unwrap_or_default();
            drop(queue);
            if !self.write_piece(to, &piece) {
                let mut queue = self.lock();
                queue.is_closed = true;
                queue.pieces.clear();
                queue.bytes = 0;
                self.changed.notify_all();
                return;
            }
            let dropped = std::mem::take(&mut self.lock().dropped);
            self.report_dropped(dropped);
        }
    }

    /// Writes `piece`. Returns `false` if that fails, for example because the reader has closed the
    /// stream.
    fn write_piece(&self, to: BorrowedFd<'_>, mut piece: &[u8]) -> bool {
        while !piece.is_empty() {
            let most = &piece[..piece.len().min(WRITE_BYTES)];
            // End at a line break if possible, because the other stream may write to the same file.
            let end = most.iter().rposition(|byte| *byte == b'\n');
            match rustix::io::write(to, &most[..end.map_or(most.len(), |end| end + 1)]) {
                Ok(count) => {
                    piece = &piece[count..];
                    let mut queue = self.lock();
                    queue.bytes -= count;
                    queue.writes += 1;
                    self.changed.notify_all();
                }
                Err(Errno::INTR) => {}
                // Another process has made the open file non-blocking, so try again later.
                Err(Errno::AGAIN) => thread::sleep(CHECK_INTERVAL),
                Err(_) => return false,
            }
        }
        true
    }

    fn report_dropped(&self, dropped: usize) {
        if dropped > 0 {
            print_line(&format!(
                "{dropped} bytes for {} were dropped because its reader had paused",
                self.name
            ));
        }
    }

    /// Waits until everything has been written, unless the reader pauses.
    fn settle(&self) {
        wait_while_moving(READER_GRACE, |at_most| {
            let queue = self.lock();
            let is_held_up = |queue: &mut Queue| queue.bytes > 0;
            let waited = self.changed.wait_timeout_while(queue, at_most, is_held_up);
            waited.unwrap_or_else(PoisonError::into_inner).0.bytes == 0
        });
        let mut queue = self.lock();
        let dropped = std::mem::take(&mut queue.dropped) + queue.bytes;
        drop(queue);
        self.report_dropped(dropped);
    }
}
