//! The launcher's standard output and standard error, each written by a thread of its own.
//!
//! The reader at the other end may pause (`| less`, Ctrl-S) or go (`| head`, a lost connection).
//! What ranks wrote waits for room in a bounded queue, so a paused reader holds up the ranks that
//! write, as a plain pipe would. The launcher's own lines wait for nothing. What had to be dropped
//! is counted, and told when there is room again. If the reader has gone, the ranks run on and what
//! they write is discarded.

use rustix::fs::{Stat, fstat};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of output that wait for a reader.
const QUEUE_BYTES_MAX: usize = 256 << 10;
/// The launcher's own lines may take this much more.
const LINES_BYTES_MAX: usize = 64 << 10;
/// Bytes written at once: a reader that is slow, but reads, is seen to.
const WRITE_BYTES: usize = 4 << 10;
/// A reader that takes nothing for so long has paused.
const READER_GRACE: Duration = Duration::from_secs(1);
/// How often a thread that waits looks whether it still should.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Which of the two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Stdout,
    Stderr,
}

/// What waits to be written.
struct Queue {
    pieces: VecDeque<Vec<u8>>,
    /// Bytes of the pieces, and what is left of the one that is being written.
    bytes: usize,
    /// Bytes that found no room and were dropped, and not told of yet.
    dropped: usize,
    /// How often the reader has taken something.
    writes: u64,
    /// Whether the last byte did not end a line.
    is_mid_line: bool,
    is_closed: bool,
}

/// One of the two streams.
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
    /// Whether a person reads it.
    pub(super) fn is_terminal(self) -> bool {
        match self {
            Target::Stdout => io::stdout().is_terminal(),
            Target::Stderr => io::stderr().is_terminal(),
        }
    }
}

/// Whether standard output and standard error lead to one place, as on a terminal.
pub(super) fn are_one() -> bool {
    let file = |data: Stat| (data.st_dev, data.st_ino);
    let [stdout, stderr] = [fstat(io::stdout()), fstat(io::stderr())];
    matches!((stdout, stderr), (Ok(one), Ok(other)) if file(one) == file(other))
}

/// Passes on what a rank wrote, when there is room; drops it if the rank's attempt is over. Whether
/// it was passed on.
pub(super) fn pass_on(target: Target, bytes: Vec<u8>, is_abandoned: &AtomicBool) -> bool {
    Stream::of(target).push(bytes, Some(is_abandoned))
}

/// Shows `lines` on standard error. Waits for nothing. Whether there was room for them.
pub(super) fn show(lines: Vec<u8>) -> bool {
    Stream::of(Target::Stderr).push(lines, None)
}

/// Tells the user `text`, one line, on standard error. Waits for nothing.
pub(super) fn say(text: &str) {
    show(format!("ringtree: {text}\n").into_bytes());
}

/// Tells the user `text`, one line, on standard error: the last words of a launcher. It returns
/// when they are written; or when the reader there has taken nothing for a second, since a reader
/// that has paused must not keep a process whose work is done.
pub fn tell(text: &str) {
    say(text);
    settle();
}

/// How often the readers have taken something, and whether they have anything left to take.
pub(super) fn progress() -> (u64, bool) {
    let queues = STREAMS.each_ref().map(Stream::lock);
    let writes = queues.iter().map(|queue| queue.writes).sum();
    (writes, queues.iter().any(|queue| queue.bytes > 0))
}

/// Waits until everything is written, for as long as the readers take it.
pub(super) fn settle() {
    for stream in &STREAMS {
        stream.settle();
    }
}

/// Waits for something that comes about when output is passed on, which `has_ended` looks for, for
/// a given time each time. Gives up when nothing has moved for `grace`, or, if a reader holds the
/// output up, for as long as a reader may pause.
pub(super) fn wait_while_moving(grace: Duration, mut has_ended: impl FnMut(Duration) -> bool) {
    let mut since = Instant::now();
    let (mut seen, _) = progress();
    while !has_ended(LOOK_EVERY.min(grace)) {
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

    /// The stream, whose thread starts with its first use.
    fn of(target: Target) -> &'static Stream {
        let stream = &STREAMS[target as usize];
        stream.started.call_once(|| {
            let write = move || match target {
                Target::Stdout => stream.write(io::stdout().as_fd()),
                Target::Stderr => stream.write(io::stderr().as_fd()),
            };
            let thread = thread::Builder::new().name("ringtree-writer".to_owned());
            // A system without room for a thread has none for ranks either.
            stream.lock().is_closed = thread.spawn(write).is_err();
        });
        stream
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Whole between any two statements: a panic of another holder leaves nothing half done.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        let waited = self.changed.wait_timeout(queue, LOOK_EVERY);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Queues a rank's output when there is room, unless it `is_abandoned`; an own line at once,
    /// and not in the middle of another one. Whether it is queued.
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
        let room = QUEUE_BYTES_MAX
            + if is_abandoned.is_some() {
                0
            } else {
                LINES_BYTES_MAX
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

    /// The life of the thread that writes.
    fn write(&self, to: BorrowedFd<'_>) {
        loop {
            let mut queue = self.lock();
            while queue.pieces.is_empty() {
                queue = self
                    .changed
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner);
            }
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
            self.tell_of(dropped);
        }
    }

    /// Whether the reader has taken all of it: no reader has gone that takes a part.
    fn write_piece(&self, to: BorrowedFd<'_>, mut piece: &[u8]) -> bool {
        while !piece.is_empty() {
            let most = &piece[..piece.len().min(WRITE_BYTES)];
            // Whole lines if there is one, for the other stream may lead to the same place.
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
                // Another process has made the open file non-blocking.
                Err(Errno::AGAIN) => thread::sleep(LOOK_EVERY),
                Err(_) => return false,
            }
        }
        true
    }

    fn tell_of(&self, dropped: usize) {
        if dropped > 0 {
            say(&format!(
                "{dropped} bytes for {} were not passed on, for its reader had paused",
                self.name
            ));
        }
    }

    /// Waits until everything is written, unless the reader pauses.
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
        self.tell_of(dropped);
    }
}
