//! Supervises the ranks on one host, in each attempt, until the last one exits.
//!
//! A single thread spawns the ranks, so that they die with it, and makes all decisions. It receives
//! events ([`Event`]) from several threads that each wait for one rank, from the signal thread, and
//! from the launchers on other hosts. Only this thread signals and reaps processes. It never
//! signals a process that it has already reaped, because the kernel may have reused the process ID.

use super::attempt::Attempt;
use super::cause::{self, Cause, Confidence, Remedy};
use super::event::{Event, Events, Peers, Status, spawn_thread};
use super::output::{Echoes, OutputForwarder};
use super::record::Record;
use super::route::Route;
use super::streams;
use super::terminal::PseudoTerminal;
use crate::control::report::REPORT_FD;
use crate::error::{Error, Result};
use crate::event::{Event as LogEvent, EventQueue};
use crate::limits::START_NOTICE_AFTER;
use crate::sys::process::{Watchdog, is_ignored, suspend};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGTSTP, SIGWINCH};
use signal_hook::iterator::{Handle, Signals};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Time that ranks are given to exit after they receive SIGTERM because of a failure. After that,
/// they receive SIGKILL.
const FAILURE_GRACE: Duration = Duration::from_millis(900);
/// Time between a rank's failure and the SIGTERM to the other ranks. During this time, they can
/// report what they know.
const REPORT_GRACE: Duration = Duration::from_millis(100);
/// Like [`REPORT_GRACE`], but used if the failure may be a consequence of another rank's failure.
/// The other rank may still be exiting, for example because it is unwinding.
const BLAMED_GRACE: Duration = Duration::from_secs(1);
/// Time that ranks are given to exit after the launcher receives a signal. They can use this time
/// to save a checkpoint, for example.
const SIGNAL_GRACE: Duration = Duration::from_secs(5);
/// Maximum time that the launcher waits for the output of exited ranks to end. A descendant that
/// has left its process group may keep the pipe open indefinitely.
const OUTPUT_GRACE: Duration = Duration::from_millis(300);
/// Maximum time that the launchers on all hosts may take to stop their ranks before a restart.
const RESTART_GRACE: Duration = Duration::from_secs(15);

/// A rank on this host.
struct Rank {
    number: usize,
    name: String,
    child: Child,
    running: bool,
    output: OutputForwarder,
    /// If the rank failed and the user has seen its last output, a clause that refers to this
    /// output.
    above: Option<String>,
    /// `true` if a signal from this launcher killed the rank.
    is_stopped: bool,
}

impl Rank {
    /// Signals the rank and its descendants unless the rank has been reaped.
    fn signal(&self, signal: Signal) {
        if self.running {
            // An error means that the process is already a zombie.
            let _ = kill_process_group(Pid::from_child(&self.child), signal);
        }
    }
}

/// The ranks on this host and the state of the job.
pub(super) struct Supervisor {
    name: String,
    ranks: Vec<Rank>,
    echoes: Echoes,
    watchdog: Watchdog,
    /// If `true`, each rank is started in its own session.
    sessions: bool,
    sender: Sender<Event>,
    events: Receiver<Event>,
    signals: Handle,
    /// The remaining part of [`OUTPUT_GRACE`]. It is shared by all ranks that fail in this attempt.
    output_grace: Duration,
    peers: Box<dyn Peers>,
    early: Early,
    ending: Option<Ending>,
    state: State,
}

/// Ranks on this host that exited with code 0 while others are still running. This is not an error,
/// but the others may be waiting for them.
#[derive(Default)]
struct Early {
    names: Vec<String>,
    /// The time at which a notice about these ranks is printed.
    notice_at: Option<Instant>,
}

impl Early {
    fn line(&self) -> String {
        format!("{} exited with code 0", self.names.join(" and "))
    }
}

/// The state of an attempt on all hosts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Succeeded,
    /// The attempt failed, no rank is left on any host, and the next attempt may begin.
    Stopped,
}

/// How an attempt ends after a failure.
struct Ending {
    cause: Cause,
    decision: Decision,
    /// The signal that stops the remaining ranks, and the time at which they receive it.
    signal: Option<(Signal, Instant)>,
    /// The time between that signal and SIGKILL.
    grace: Duration,
    /// The time at which the remaining ranks receive SIGKILL.
    kill_at: Option<Instant>,
}

/// The decision that is made after a failed attempt.
enum Decision {
    /// No decision has been made yet. Until this time, a better cause may replace the first one.
    Open { until: Instant },
    /// The job ends.
    Final,
    /// Another attempt follows.
    Restart {
        /// The time at which the next attempt may begin.
        at: Instant,
        /// `true` if the other launchers have been notified that no rank is left on this host.
        told: bool,
        /// The time by which the launchers must have stopped their ranks. Otherwise, the restart
        /// fails.
        until: Instant,
    },
}

/// The outcome of an attempt.
pub(super) enum End {
    /// All ranks on all hosts succeeded.
    Succeeded,
    /// The job failed.
    Failed {
        /// The launcher's last line, which contains the cause.
        line: String,
        /// The launcher's exit code.
        exit_code: i32,
    },
    /// The attempt failed. The value is the next attempt.
    Again(Attempt),
}

impl Supervisor {
    /// Creates a supervisor that has no ranks yet. Messages call it `name`.
    pub(super) fn new(
        name: String,
        peers: Box<dyn Peers>,
        (sender, events): Events,
        sessions: bool,
    ) -> Result<Self> {
        let watchdog = Watchdog::start()
            .map_err(|error| Error::io("cannot start the launcher's watchdog", &error))?;
        // A signal that was ignored at startup, for example because of `nohup`, stays ignored.
        let heeded = [SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCONT, SIGWINCH];
        let heeded = heeded.into_iter().filter(|signal| !is_ignored(*signal));
        let mut signals =
            Signals::new(heeded).map_err(|error| Error::io("cannot listen for signals", &error))?;
        let handle = signals.handle();
        let heard = sender.clone();
        spawn_thread("ringtree-signals", move || {
            for signal in signals.forever() {
                let _ = heard.send(Event::Signalled(signal));
            }
        })?;
        Ok(Supervisor {
            name,
            ranks: Vec::new(),
            echoes: Echoes::default(),
            watchdog,
            sessions,
            sender,
            events,
            signals: handle,
            output_grace: OUTPUT_GRACE,
            peers,
            early: Early::default(),
            ending: None,
            state: State::Running,
        })
    }

    /// Starts `command` as the next rank, which has this number. Messages call it by this name. The
    /// rank inherits the descriptors in `inherited` and one for its reports. Its output takes the
    /// route `route`.
    pub(super) fn spawn(
        &mut self,
        (number, name): (usize, String),
        mut command: Command,
        inherited: &[BorrowedFd<'_>],
        route: Route,
    ) -> Result<()> {
        let program = command.get_program().to_string_lossy().into_owned();
        let record = Record::new();
        if let Some(file) = record.file() {
            command.env(REPORT_FD, file.as_raw_fd().to_string());
        }
        let inherited: Vec<_> = inherited.iter().copied().chain(record.file()).collect();
        let mut child = self
            .watchdog
            .spawn(command, &inherited, self.sessions)
            .map_err(|error| cause::not_started(&program, &error))?;
        let pid = Pid::from_child(&child);
        let local_rank = self.ranks.len();
        let output = OutputForwarder::start(&mut child, record, route, &self.echoes);
        let output = output
            .map_err(|error| Error::io("cannot start a thread for a rank's output", &error))?;
        self.ranks.push(Rank {
            number,
            name,
            child,
            running: true,
            output,
            above: None,
            is_stopped: false,
        });
        let ended = self.sender.clone();
        spawn_thread("ringtree-rank", move || {
            // Until the supervisor reaps it, the rank is a zombie and its process ID is not reused.
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            while waitid(WaitId::Pid(pid), options).err() == Some(Errno::INTR) {}
            let _ = ended.send(Event::Ended(local_rank));
        })
    }

    /// Supervises the ranks until none is left and the outcome of the attempt is decided.
    pub(super) fn run(&mut self) -> Result<End> {
        while !self.is_over() {
            match self.events.recv_deadline(self.next_timer()) {
                Ok(Event::Ended(local_rank)) => self.reap(local_rank),
                Ok(Event::Signalled(SIGTSTP)) => self.suspend(),
                Ok(Event::Signalled(SIGCONT)) => self.signal_all(Signal::CONT),
                Ok(Event::Signalled(SIGWINCH)) => self.fit(),
                Ok(Event::Signalled(signal)) => self.pass_on(signal),
                Ok(Event::Peer(heard)) => {
                    let status = self.peers.handle(heard);
                    self.take(status);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    unreachable!("invariant: the supervisor holds a sender itself")
                }
            }
            self.run_due_timers();
        }
        streams::wait_while_moving(OUTPUT_GRACE, |at_most| {
            let until = Instant::now() + at_most;
            let left = || until.saturating_duration_since(Instant::now());
            self.ranks.iter().all(|rank| rank.output.has_ended(left()))
        });
        let end = self.ending.take().map(|Ending { cause, .. }| End::Failed {
            line: self.line(&cause),
            exit_code: cause.exit_code(),
        });
        let first = self.ranks.iter().find(|rank| rank.number == 0);
        let table = first.and_then(|rank| rank.output.table());
        self.ranks.clear();
        self.early = Early::default();
        self.echoes = Echoes::default();
        self.output_grace = OUTPUT_GRACE;
        match std::mem::replace(&mut self.state, State::Running) {
            State::Stopped => self.peers.again(table).map(End::Again),
            _ => Ok(end.unwrap_or(End::Succeeded)),
        }
    }

    /// Reports to the other launchers that this launcher failed with `error`.
    pub(super) fn abandon(&mut self, error: &Error) {
        let cause = Cause::last(format!("{}: {error}", self.name));
        self.peers.failed(&cause);
        self.peers.settled(&cause);
    }

    fn is_over(&self) -> bool {
        (self.state != State::Running || self.is_final()) && self.is_empty()
    }

    /// Returns `true` if the cause is decided and no other attempt follows.
    fn is_final(&self) -> bool {
        matches!(self.decision(), Some(Decision::Final))
    }

    fn decision(&self) -> Option<&Decision> {
        self.ending.as_ref().map(|ending| &ending.decision)
    }

    /// Returns `true` if no rank is left on this host.
    fn is_empty(&self) -> bool {
        self.ranks.iter().all(|rank| !rank.running)
    }

    /// Returns the time at which the next timer is due.
    fn next_timer(&self) -> Instant {
        let idle = Instant::now() + Duration::from_secs(3600);
        let Some(ending) = &self.ending else {
            return self.early.notice_at.unwrap_or(idle);
        };
        let decides_at = match ending.decision {
            Decision::Open { until } => Some(until),
            Decision::Final => None,
            Decision::Restart {
                at, told: false, ..
            } if self.is_empty() => Some(at),
            Decision::Restart { until, .. } => Some(until),
        };
        let signals_at = ending.signal.map(|(_, at)| at);
        let next = [decides_at, signals_at, ending.kill_at];
        next.into_iter().flatten().min().unwrap_or(idle)
    }

    /// Runs the timers that are due.
    fn run_due_timers(&mut self) {
        let now = Instant::now();
        let is_empty = self.is_empty();
        let Some(ending) = &mut self.ending else {
            if self.early.notice_at.take_if(|at| now >= *at).is_some() {
                let line = self.early.line();
                streams::print_line(&format!("{line}; other ranks are still running"));
            }
            return;
        };
        if let Some((signal, _)) = ending.signal.take_if(|(_, at)| now >= *at) {
            ending.kill_at = Some(now + ending.grace);
            self.ranks.iter().for_each(|rank| rank.signal(signal));
        }
        if ending.kill_at.take_if(|at| now >= *at).is_some() {
            self.ranks.iter().for_each(|rank| rank.signal(Signal::KILL));
        }
        match &mut ending.decision {
            Decision::Open { until } if now >= *until => {
                let status = self.peers.settled(&ending.cause);
                self.take(status);
            }
            Decision::Restart { at, told, .. } if is_empty && !*told && now >= *at => {
                *told = true;
                let status = self.peers.stopped();
                self.take(status);
            }
            Decision::Restart { until, .. } if now >= *until => {
                let whom = self.peers.awaited();
                let text = format!("no restart: {whom} did not stop its ranks in time");
                self.end(Cause::last(text), FAILURE_GRACE, Signal::TERM);
            }
            _ => {}
        }
    }

    /// Reaps an exited rank, kills its remaining descendants and handles its exit status.
    fn reap(&mut self, local_rank: usize) {
        let rank = &mut self.ranks[local_rank];
        rank.signal(Signal::KILL);
        self.watchdog.release(rank.child.id().cast_signed());
        rank.running = false;
        let status = rank.child.wait();
        let status = status.unwrap_or_else(|_| ExitStatusExt::from_raw(1 << 8));
        let ending = self.ending.as_ref();
        if !status.success() {
            // All failed ranks share this grace period, so that many failures do not delay the end
            // of the job.
            let began = Instant::now();
            rank.output.has_ended(self.output_grace);
            self.output_grace = self.output_grace.saturating_sub(began.elapsed());
            let (cause, above) = rank.output.judge((rank.number, &rank.name), status);
            rank.above = above;
            let is_stopped = self.was_killed_by_us(status.signal());
            self.ranks[local_rank].is_stopped = is_stopped;
            if !is_stopped {
                self.end(cause, FAILURE_GRACE, Signal::TERM);
            }
        } else if ending.is_none_or(|ending| ending.signal.is_some()) {
            // The rank succeeded before the launcher signaled it to stop.
            self.early.names.push(rank.name.clone());
            if self.early.names.len() == 1 {
                self.early.notice_at = Some(Instant::now() + START_NOTICE_AFTER);
            }
            if self.ending.is_none() && self.is_empty() {
                let status = self.peers.finished();
                self.take(status);
            }
        }
        self.shorten_wait();
    }

    /// Shortens the wait for a better cause if no rank is left on this host that could report one.
    fn shorten_wait(&mut self) {
        let is_empty = self.is_empty();
        if let Some(Ending {
            cause, decision, ..
        }) = &mut self.ending
            && let Decision::Open { until } = decision
        {
            *until = (*until).min(Instant::now() + self.peers.settling_time(cause, is_empty));
        }
    }

    /// Returns `true` if this launcher sent the `signal` that killed a rank.
    fn was_killed_by_us(&self, signal: Option<i32>) -> bool {
        self.ending.as_ref().is_some_and(|ending| match signal {
            Some(libc::SIGTERM | libc::SIGINT | libc::SIGHUP) => ending.signal.is_none(),
            Some(libc::SIGKILL) => ending.signal.is_none() && ending.kill_at.is_none(),
            _ => false,
        })
    }

    /// Suspends the ranks on this host and then this process after Ctrl-Z is pressed. The ranks are
    /// in their own process groups, so the terminal's signal does not reach them. SIGCONT, which
    /// `fg` and `bg` send, resumes this process, which then resumes the ranks.
    fn suspend(&self) {
        self.signal_all(Signal::STOP);
        suspend();
        self.signal_all(Signal::CONT);
    }

    fn signal_all(&self, signal: Signal) {
        self.ranks.iter().for_each(|rank| rank.signal(signal));
    }

    /// Forwards a signal to the ranks and ends the job. If the ranks are already stopping, kills
    /// them.
    fn pass_on(&mut self, signal: i32) {
        if let Some(ending) = &mut self.ending {
            ending.kill_at = ending.kill_at.and(Some(Instant::now()));
        }
        let cause = Cause::of_signal(&self.name, signal);
        let signal = Signal::from_named_raw(signal).unwrap_or(Signal::TERM);
        self.end(cause, SIGNAL_GRACE, signal);
    }

    fn take(&mut self, status: Status) {
        match status {
            // The coordinator exits after its decision. Its exit must not replace the decision.
            Status::Final(_) | Status::Restart { .. } if self.is_final() => {}
            Status::Succeeded => self.state = State::Succeeded,
            Status::Failed(cause) => self.end(cause, FAILURE_GRACE, Signal::TERM),
            Status::Final(cause) => {
                self.stop(FAILURE_GRACE, Signal::TERM, cause, Decision::Final);
            }
            Status::Restart { cause, pause } => self.restart(cause, pause),
            Status::Stopped if matches!(self.decision(), Some(Decision::Restart { .. })) => {
                self.state = State::Stopped;
            }
            Status::Undecided | Status::Stopped => {}
        }
    }

    /// Begins to end the attempt. If the attempt is already ending, `cause` may replace the earlier
    /// cause or prevent the restart.
    fn end(&mut self, cause: Cause, grace: Duration, signal: Signal) {
        let replaces = match &self.ending {
            None => true,
            Some(ending) => match ending.decision {
                Decision::Open { .. } => {
                    cause.standing > ending.cause.standing
                        || cause.forbids_restart() && !ending.cause.forbids_restart()
                }
                Decision::Restart { .. } => cause.forbids_restart(),
                Decision::Final => false,
            },
        };
        if replaces {
            self.peers.failed(&cause);
            let until = Instant::now() + self.peers.settling_time(&cause, self.is_empty());
            self.stop(grace, signal, cause, Decision::Open { until });
        }
    }

    /// Stops all ranks for a restart.
    fn restart(&mut self, cause: Cause, pause: Duration) {
        let forbidden = |ending: &Ending| ending.cause.forbids_restart();
        if self.ending.as_ref().is_some_and(forbidden) {
            // The coordinator has not yet received the cause that prevents the restart.
            return;
        }
        let text = self.line(&cause);
        streams::print_line(&text);
        EventQueue::new().push(LogEvent::Restart { text });
        let now = Instant::now();
        let decision = Decision::Restart {
            at: now + pause,
            told: false,
            until: now + RESTART_GRACE,
        };
        let cause = Cause {
            standing: Confidence::Original,
            remedy: Remedy::Restart,
            ..cause
        };
        self.stop(FAILURE_GRACE, Signal::TERM, cause, decision);
    }

    /// Returns the line that reports `cause`. First shows the output of the rank that the line
    /// names, if that output has been held back.
    fn line(&self, cause: &Cause) -> String {
        let is_blamed = |rank: &&Rank| u32::try_from(rank.number).ok() == cause.blames;
        let blamed = self.ranks.iter().find(is_blamed);
        if let Some(blamed) = blamed.filter(|rank| rank.running || rank.is_stopped)
            && let Some(last) = blamed.output.last()
        {
            // The blamed rank has left the job, but takes longer to exit than the others.
            blamed.output.show_kept();
            return cause.line_with(&blamed.name, last);
        }
        let is_named = |rank: &&Rank| Some(rank.number) == cause.rank;
        let rank = self.ranks.iter().find(is_named);
        let line = cause.line(rank.and_then(|rank| {
            rank.output.show_kept();
            rank.above.clone()
        }));
        match cause.standing < Confidence::Exit && !self.early.names.is_empty() {
            true => format!("{}; then {line}", self.early.line()),
            false => line,
        }
    }

    /// Passes the size of the launcher's terminal on to the ranks' terminals.
    fn fit(&self) {
        for rank in &self.ranks {
            rank.output
                .route
                .terminals
                .iter()
                .for_each(PseudoTerminal::fit);
        }
        self.signal_all(Signal::WINCH);
    }

    /// Sets the cause and the decision, and schedules the signal that stops the ranks. If the cause
    /// is a rank's exit, the signal is delayed for a moment so that the other ranks can report what
    /// they know. Each rank is signaled only once.
    fn stop(&mut self, grace: Duration, signal: Signal, cause: Cause, decision: Decision) {
        let now = Instant::now();
        let is_open = matches!(decision, Decision::Open { .. });
        let at = match cause.standing {
            Confidence::Consequence | Confidence::Unknown if is_open => now + BLAMED_GRACE,
            Confidence::Exit | Confidence::Panic if is_open => now + REPORT_GRACE,
            _ => now,
        };
        match &mut self.ending {
            Some(ending) => {
                ending.cause = cause;
                ending.decision = decision;
                if let Some((first, due)) = ending.signal {
                    // A signal from the user takes precedence over the launcher's SIGTERM.
                    let signal = if first == Signal::TERM { signal } else { first };
                    ending.signal = Some((signal, due.min(at)));
                    ending.grace = ending.grace.max(grace);
                }
            }
            None => {
                self.ending = Some(Ending {
                    cause,
                    decision,
                    signal: Some((signal, at)),
                    grace,
                    kill_at: None,
                });
            }
        }
        self.run_due_timers();
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.signals.close();
        for rank in self.ranks.iter_mut().filter(|rank| rank.running) {
            rank.signal(Signal::KILL);
            self.watchdog.release(rank.child.id().cast_signed());
            let _ = rank.child.wait();
        }
    }
}
