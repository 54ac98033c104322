//! The background thread of a process. It runs code of the program, that is, it wakes tasks and
//! drops buffers whose operations were abandoned. It also advances operations while no call polls.
//!
//! Both are duties of one thread because a task whose operation the thread completes is then woken
//! without another thread's help. Code of the program may block. Once it has kept the thread for
//! [`PROGRAM_CODE_MAX`], the thread is *away*: the control thread advances the operations in its
//! place, and other code of the program waits. So no call and no control message waits for code of
//! the program. A timer wakes the control thread for that. It is set at most once in that time,
//! because a wake-up of the control thread, or even a timer, for each task would delay a short
//! operation by a tenth.
//!
//! The thread starts when code of the program first falls due. Until then, so in programs without
//! such code, the control thread advances the operations.

use super::Runtime;
use super::foreign::Foreign;
use crate::control::ControlHandle;
use crate::control::wait::wait;
use crate::limits::PROGRAM_CODE_MAX;
use crate::link::tcp::Reactor;
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
/// The data sockets' epoll descriptor.
const DATA: Token = Token(1);

/// What the threads of the library reach of each other.
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

    /// Sets what the threads reach: called once, before any starts.
    pub(super) fn connect(&self, control: ControlHandle, runtime: Weak<Runtime>) {
        let _ = self.control.set(control);
        let _ = self.runtime.set(runtime);
    }

    pub(super) fn control(&self) -> Option<&ControlHandle> {
        self.control.get()
    }

    /// Does something with the runtime, unless that has ended.
    pub(super) fn with_runtime<R: Default>(&self, act: impl FnOnce(&Runtime) -> R) -> R {
        let runtime = self.runtime.get().and_then(Weak::upgrade);
        runtime.map(|runtime| act(&runtime)).unwrap_or_default()
    }

    /// Makes the control thread look `after` that time whether it has to advance the operations.
    fn poke_control_later(&self, after: Duration) {
        if let Some(control) = self.control() {
            control.poke_later(after);
        }
    }
}

/// Controls the background thread.
pub(super) struct Background {
    reach: Arc<Reach>,
    state: Mutex<State>,
    /// Signalled when the thread begins to run code and when it ends.
    changed: Condvar,
    /// Whether there is a thread and it is not away.
    is_here: AtomicBool,
    /// Whether data sockets that become ready wake the thread.
    is_watching: AtomicBool,
}

#[derive(Default)]
struct State {
    /// The thread and its waker, while it runs.
    thread: Option<(ThreadId, Arc<Waker>)>,
    code: VecDeque<Foreign>,
    /// Whether the thread sleeps, or is about to, and found no code to run before.
    is_asleep: bool,
    /// Since when the thread runs code.
    code_since: Option<Instant>,
    /// Whether a timer makes the control thread look how long that is.
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

    fn lock(&self) -> MutexGuard<'_, State> {
        // Whole between any two statements: a panic of another holder leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unlocks the state and wakes the thread, which would otherwise wait for the lock.
    fn wake(state: MutexGuard<'_, State>) {
        let waker = state.thread.as_ref().map(|(_, waker)| Arc::clone(waker));
        drop(state);
        if let Some(waker) = waker {
            // It fails only if the counter behind it is full, and then the thread wakes anyway.
            let _ = waker.wake();
        }
    }

    /// Whether the thread, and not the control thread, advances the operations.
    pub(super) fn is_here(&self) -> bool {
        self.is_here.load(Ordering::SeqCst)
    }

    /// For the control thread: like [`Background::is_here`], but looks how long the thread has run
    /// code.
    pub(super) fn is_still_here(&self) -> bool {
        let mut state = self.lock();
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

    /// Leaves the operations under way to the thread, which looks at them `at_once` or when it is
    /// woken; returns false if the control thread has to do it.
    pub(super) fn take_over(&self, at_once: bool) -> bool {
        if !self.is_here() {
            return false;
        }
        if at_once || !self.is_watching.load(Ordering::SeqCst) {
            Self::wake(self.lock());
        }
        true
    }

    /// Runs `code` on the thread.
    pub(super) fn run(self: &Arc<Self>, code: Foreign) {
        let mut state = self.lock();
        if self.start(&mut state).is_err() {
            drop(state);
            // The code runs here although it delays this thread: a task that is not woken would
            // wait for ever.
            return drop(code);
        }
        state.code.push_back(code);
        if state.is_asleep {
            Self::wake(state);
        }
    }

    /// Starts the thread unless it runs.
    fn start(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        if state.thread.is_some() {
            return Ok(());
        }
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        // It may have been stopped before it has started: then its first sleep is its last.
        waker.wake()?;
        let background = Arc::clone(self);
        let thread = thread::Builder::new().name("ringtree-background".into());
        let thread = thread.spawn(move || live(&background, poll))?;
        state.thread = Some((thread.thread().id(), Arc::new(waker)));
        self.is_here.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Ends the thread once it has run the code that is left. Returns when it has ended or runs
    /// such code.
    pub(super) fn stop(&self) {
        let mut state = self.lock();
        state.is_stopped = true;
        Self::wake(state);
        let current = thread::current().id();
        state = self.lock();
        while let Some((id, _)) = &state.thread
            && *id != current
            && state.code_since.is_none()
        {
            let woken = self.changed.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// For the thread: the code to run next. Without any, the thread goes on to sleep.
    fn next(&self) -> Option<Foreign> {
        let mut state = self.lock();
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

    /// For the thread: whether it ends now.
    fn ends(&self, is_broken: bool) -> bool {
        let mut state = self.lock();
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

/// The thread's body.
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

/// Watches the data sockets while operations are under way that no thread polls, and only then;
/// returns how long the thread may sleep. In one order with what [`Background::take_over`] does:
/// the thread says that it does not watch, and then looks at what is under way.
fn watch(background: &Background, poll: &Poll, is_registered: &mut bool) -> Option<Duration> {
    let is_watching = &background.is_watching;
    is_watching.store(false, Ordering::SeqCst);
    let asked = background.reach.with_runtime(Runtime::wants_poller_within);
    if asked.is_some() != *is_registered {
        let descriptor = background.reach.reactor.as_raw_fd();
        let mut source = SourceFd(&descriptor);
        let registry = poll.registry();
        let done = match asked.is_some() {
            true => registry.register(&mut source, DATA, Interest::READABLE),
            false => registry.deregister(&mut source),
        };
        // If it cannot be watched, `asked` alone paces the progress.
        *is_registered = asked.is_some() && done.is_ok();
    }
    is_watching.store(*is_registered, Ordering::SeqCst);
    asked
}
