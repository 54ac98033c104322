//! Runs the background thread of a process. The thread runs *user code*, which is code of the
//! program that uses this library: it wakes tasks, and drops the buffers of abandoned operations.
//! It also advances operations while no call polls.
//!
//! A single thread has both duties, so that when it completes an operation, it can wake the waiting
//! task itself. User code may block. Once user code has kept the thread busy for
//! [`PROGRAM_CODE_MAX`], the thread is *away*: the control thread advances operations in its place,
//! and any other user code waits. So no call and no control message waits for user code. The
//! control thread is woken for this purpose by a timer, which is set at most once per
//! [`PROGRAM_CODE_MAX`]. Waking the control thread for each task, or even setting a timer for each
//! task, would slow down short operations by a tenth.
//!
//! The thread is started when user code is due for the first time. Until then, the control thread
//! advances operations.

use super::Runtime;
use super::user_code::Foreign;
use crate::control::ControlHandle;
use crate::control::wait::wait;
use crate::limits::PROGRAM_CODE_MAX;
use crate::link::tcp::Reactor;
use crate::lock::lock;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

const WAKER: Token = Token(0);
/// Token of the epoll descriptor for the data sockets.
const DATA: Token = Token(1);

/// The handles through which the library's threads reach each other.
pub(super) struct Reach {
    pub(super) reactor: Arc<Reactor>,
    control: OnceLock<ControlHandle>,
    runtime: OnceLock<Weak<Runtime>>,
}

impl Reach {
    pub(super) fn new(reactor: Arc<Reactor>) -> Self {
        Self {
            reactor,
            control: OnceLock::new(),
            runtime: OnceLock::new(),
        }
    }

    /// Sets the handles. This method is called once, before any thread starts.
    pub(super) fn connect(&self, control: ControlHandle, runtime: Weak<Runtime>) {
        let _ = self.control.set(control);
        let _ = self.runtime.set(runtime);
    }

    pub(super) fn control(&self) -> Option<&ControlHandle> {
        self.control.get()
    }

    /// Calls `act` on the runtime. Returns the default value if the runtime has been dropped.
    pub(super) fn with_runtime<R: Default>(&self, act: impl FnOnce(&Runtime) -> R) -> R {
        let runtime = self.runtime.get().and_then(Weak::upgrade);
        runtime.map(|runtime| act(&runtime)).unwrap_or_default()
    }

    /// Makes the control thread check, once the time `after` has elapsed, whether it must advance
    /// operations.
    fn poke_control_later(&self, after: Duration) {
        if let Some(control) = self.control() {
            control.poke_later(after);
        }
    }
}

/// The background thread's state, and the methods that control the thread.
pub(super) struct Background {
    reach: Arc<Reach>,
    state: Mutex<State>,
    /// Signaled when the thread begins to run user code and when it ends.
    changed: Condvar,
    /// `true` if the thread is running and is not away.
    is_here: AtomicBool,
    /// `true` if the thread wakes when a data socket becomes ready.
    is_watching: AtomicBool,
}

#[derive(Default)]
struct State {
    /// ID and waker of the thread, while it is running.
    thread: Option<(ThreadId, Arc<Waker>)>,
    code: VecDeque<Foreign>,
    /// `true` if the thread has found no code to run and is sleeping or about to sleep.
    is_asleep: bool,
    /// The time at which the thread began to run user code; `None` if it is not running any.
    code_since: Option<Instant>,
    /// `true` if a timer is set that makes the control thread check `code_since`.
    is_timed: bool,
    is_stopped: bool,
}

impl Background {
    pub(super) fn new(reach: Arc<Reach>) -> Self {
        Self {
            reach,
            state: Mutex::default(),
            changed: Condvar::new(),
            is_here: AtomicBool::new(false),
            is_watching: AtomicBool::new(false),
        }
    }

    /// Unlocks the state and then wakes the thread, so that the thread does not have to wait for
    /// the lock.
    fn wake(state: MutexGuard<'_, State>) {
        let waker = state.thread.as_ref().map(|(_, waker)| Arc::clone(waker));
        drop(state);
        if let Some(waker) = waker {
            // This fails only if the waker's counter is full. In that case, the thread wakes
            // anyway.
            let _ = waker.wake();
        }
    }

    /// Returns `true` if the background thread, and not the control thread, advances operations.
    pub(super) fn is_here(&self) -> bool {
        self.is_here.load(Ordering::SeqCst)
    }

    /// Like [`Background::is_here`], but first checks how long the thread has been running user
    /// code. Only the control thread calls this method.
    pub(super) fn is_still_here(&self) -> bool {
        let mut state = lock(&self.state);
        let left = state
            .code_since
            .map(|since| PROGRAM_CODE_MAX.saturating_sub(since.elapsed()));
        state.is_timed = left.is_some_and(|left| !left.is_zero());
        match left {
            Some(Duration::ZERO) => self.is_here.store(false, Ordering::SeqCst),
            Some(left) => self.reach.poke_control_later(left),
            None => {}
        }
        self.is_here()
    }

    /// Leaves operations in flight to the background thread. If `at_once` is `true`, or if the
    /// thread is not watching the data sockets, the thread polls immediately. Otherwise, it polls
    /// when it next wakes. Returns `false` if the control thread must advance the operations.
    pub(super) fn take_over(&self, at_once: bool) -> bool {
        if !self.is_here() {
            return false;
        }
        if at_once || !self.is_watching.load(Ordering::SeqCst) {
            Self::wake(lock(&self.state));
        }
        true
    }

    /// Runs `code` on the thread.
    pub(super) fn run(self: &Arc<Self>, code: Foreign) {
        let mut state = lock(&self.state);
        if self.start(&mut state).is_err() {
            drop(state);
            // Run the code here although it delays this thread. Otherwise, a task might never be
            // woken.
            return drop(code);
        }
        state.code.push_back(code);
        if state.is_asleep {
            Self::wake(state);
        }
    }

    /// Starts the thread unless it is already running.
    fn start(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        if state.thread.is_some() {
            return Ok(());
        }
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        // End the thread's first sleep, in case the thread is stopped before it starts.
        waker.wake()?;
        let background = Arc::clone(self);
        let thread = thread::Builder::new().name("ringtree-background".into());
        let thread = thread.spawn(move || live(&background, poll))?;
        state.thread = Some((thread.thread().id(), Arc::new(waker)));
        self.is_here.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Ends the thread after it has run the remaining user code. Returns when the thread has ended
    /// or is running user code.
    pub(super) fn stop(&self) {
        let mut state = lock(&self.state);
        state.is_stopped = true;
        Self::wake(state);
        let current = thread::current().id();
        state = lock(&self.state);
        while let Some((id, _)) = &state.thread
            && *id != current
            && state.code_since.is_none()
        {
            let woken = self.changed.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the user code that the thread must run next. If there is none, records that the
    /// thread is about to sleep.
    fn next(&self) -> Option<Foreign> {
        let mut state = lock(&self.state);
        let code = state.code.pop_front();
        state.is_asleep = code.is_none();
        if code.is_none() {
            state.code_since = None;
            self.is_here.store(true, Ordering::SeqCst);
        } else if state.code_since.is_none() {
            state.code_since = Some(Instant::now());
            if !std::mem::replace(&mut state.is_timed, true) {
                self.reach.poke_control_later(PROGRAM_CODE_MAX);
            }
            self.changed.notify_all();
        }
        code
    }

    /// Returns `true`, and records that the thread has ended, if the thread must end now.
    fn ends(&self, is_broken: bool) -> bool {
        let mut state = lock(&self.state);
        state.is_asleep = false;
        let ends = is_broken || (state.is_stopped && state.code.is_empty());
        if ends {
            state.thread = None;
            self.is_here.store(false, Ordering::SeqCst);
            self.changed.notify_all();
        }
        ends
    }
}

/// Runs the thread's main loop.
fn live(background: &Background, mut poll: Poll) {
    let mut events = Events::with_capacity(2);
    let mut is_registered = false;
    loop {
        while let Some(code) = background.next() {
            drop(code);
        }
        let asked = watch(background, &poll, &mut is_registered);
        let until = asked.map(|asked| Instant::now() + asked);
        let is_broken = wait(&mut poll, &mut events, until).is_err();
        if background.ends(is_broken) {
            return;
        }
        background.reach.with_runtime(Runtime::poll_in_background);
    }
}

/// Watches the data sockets only while operations that no thread polls are in flight. Returns how
/// long the thread may sleep.
///
/// This function first clears `is_watching` and then checks for operations in flight. A thread that
/// starts an operation does so first and then reads `is_watching` in [`Background::take_over`].
/// With sequential consistency, at least one of the two threads sees the other's write.
fn watch(background: &Background, poll: &Poll, is_registered: &mut bool) -> Option<Duration> {
    let is_watching = &background.is_watching;
    is_watching.store(false, Ordering::SeqCst);
    let asked = background.reach.with_runtime(Runtime::poll_due_in);
    if asked.is_some() != *is_registered {
        let descriptor = background.reach.reactor.as_raw_fd();
        let mut source = SourceFd(&descriptor);
        let registry = poll.registry();
        let done = match asked.is_some() {
            true => registry.register(&mut source, DATA, Interest::READABLE),
            false => registry.deregister(&mut source),
        };
        // If the sockets cannot be watched, only the timeout `asked` makes the thread poll.
        *is_registered = asked.is_some() && done.is_ok();
    }
    is_watching.store(*is_registered, Ordering::SeqCst);
    asked
}
