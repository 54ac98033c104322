//! Supervising the ranks of one host until the last has ended, attempt after attempt.
//!
//! One thread decides: it spawns the ranks (so that they die with it), and everything else reaches
//! it as an [`Event`]: threads that wait for one rank each, the thread of the signals, and the
//! other hosts' launchers. Only this thread signals and reaps, and it reaps last, so a process
//! number is never used after the kernel may have given it to another process.

use super::attempt::Attempt;
use super::cause::{Cause, Remedy, Standing};
use super::event::{Event, Events, Peers, Status, spawn_thread};
use super::output::{Echoes, Passing};
use super::record::Record;
use super::route::Route;
use super::streams;
use super::terminal::PseudoTerminal;
use crate::control::report::REPORT_FD;
use crate::error::{Error, Result};
use crate::limits::START_TOLD_AFTER;
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

/// After a failure the other ranks have this long to end by themselves, from the signal on.
const FAILURE_GRACE: Duration = Duration::from_millis(900);
/// After a rank's own failure the others are not signalled for so long: each may be about to say
/// what it knows.
const LAST_WORDS_GRACE: Duration = Duration::from_millis(100);
/// The same where a rank blames another one, which is still ending: unwinding, for instance.
const BLAMED_GRACE: Duration = Duration::from_secs(1);
/// After a signal to the launcher its ranks have this long, for instance to write a checkpoint.
const SIGNAL_GRACE: Duration = Duration::from_secs(5);
/// How long the output of ranks that have ended is waited for: a descendant that left its process
/// group may hold the pipe open for ever.
const OUTPUT_GRACE: Duration = Duration::from_millis(300);
/// How long the launchers of all hosts may take to stop their ranks before a restart.
const RESTART_GRACE: Duration = Duration::from_secs(15);

/// One rank of this host.
struct Rank {
    number: usize,
    name: String,
    child: Child,
    running: bool,
    output: Passing,
    /// Where what it wrote last stands in what this launcher shows, once it has failed.
    above: Option<String>,
}

impl Rank {
    /// Signals the rank and its descendants, if it has not been reaped.
    fn signal(&self, signal: Signal) {
        if self.running {
            // It may be a zombie already, which is as good.
            let _ = kill_process_group(Pid::from_child(&self.child), signal);
        }
    }
}

/// The ranks of this host, and what is known about the end of the job.
pub(super) struct Supervisor {
    name: String,
    ranks: Vec<Rank>,
    echoes: Echoes,
    watchdog: Watchdog,
    /// Whether each rank has a session of its own.
    sessions: bool,
    sender: Sender<Event>,
    events: Receiver<Event>,
    signals: Handle,
    /// What is left of [`OUTPUT_GRACE`] for the ranks that have failed in this attempt.
    output_grace: Duration,
    peers: Box<dyn Peers>,
    early: Early,
    ending: Option<Ending>,
    state: State,
}

/// Ranks of this host that ended with exit code 0 while others ran. That is nothing wrong; but
/// those may wait for it.
#[derive(Default)]
struct Early {
    names: Vec<String>,
    /// When the user is told.
    tell_at: Option<Instant>,
}

impl Early {
    fn line(&self) -> String {
        format!("{} had ended with exit code 0", self.names.join(" and "))
    }
}

/// What is known of an attempt as a whole.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Succeeded,
    /// It failed, no rank is left on any host, and the next attempt may begin.
    Stopped,
}

/// An attempt that is coming to its end because of a failure.
struct Ending {
    cause: Cause,
    decision: Decision,
    /// The signal that tells the ranks which still run to end, and when they get it.
    signal: Option<(Signal, Instant)>,
    /// How long after it those that still run are killed.
    grace: Duration,
    /// When that is.
    kill_at: Option<Instant>,
}

/// What follows an attempt that failed.
enum Decision {
    /// Not known yet: until then a better cause may replace the first.
    Open { until: Instant },
    /// The end of the job.
    Final,
    /// Another attempt.
    Restart {
        /// When the next attempt may begin.
        at: Instant,
        /// Whether the others know that no rank is left here.
        told: bool,
        /// When the other launchers have taken too long.
        until: Instant,
    },
}

/// How an attempt ended.
pub(super) enum End {
    /// All ranks of all hosts ended well.
    Succeeded,
    /// The job is over.
    Failed {
        /// The line that says why.
        line: String,
        /// The launcher's.
        exit_code: i32,
    },
    /// This attempt follows.
    Again(Attempt),
}

impl Supervisor {
    /// A supervisor without ranks yet, called `name` in messages.
    pub(super) fn new(
        name: String,
        peers: Box<dyn Peers>,
        (sender, events): Events,
        sessions: bool,
    ) -> Result<Self> {
        let watchdog = Watchdog::start()
            .map_err(|error| Error::io("cannot start the launcher's watchdog", &error))?;
        // What the user had ignored, by `nohup` for example, stays so.
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

    /// Starts `command` as the next rank, which has this number and this name in messages, with the
    /// descriptors `inherited` and one for its reports. What it writes goes the way of `route`.
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
            .map_err(|error| {
                Error::configuration(format!("cannot start the program '{program}': {error}"))
            })?;
        let pid = Pid::from_child(&child);
        let local_rank = self.ranks.len();
        let output = Passing::start(&mut child, record, route, &self.echoes);
        let output = output
            .map_err(|error| Error::io("cannot start a thread for a rank's output", &error))?;
        self.ranks.push(Rank {
            number,
            name,
            child,
            running: true,
            output,
            above: None,
        });
        let ended = self.sender.clone();
        spawn_thread("ringtree-rank", move || {
            // The rank stays a zombie, and its number its own, until the supervisor reaps it.
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            while waitid(WaitId::Pid(pid), options).err() == Some(Errno::INTR) {}
            let _ = ended.send(Event::Ended(local_rank));
        })
    }

    /// Supervises until no rank is left and it is decided how the attempt ended.
    pub(super) fn run(&mut self) -> Result<End> {
        while !self.is_over() {
            match self.events.recv_timeout(self.patience()) {
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
            self.keep_time();
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

    /// Tells the other launchers that this one could not start its ranks.
    pub(super) fn abandon(mut self, error: &Error) {
        let cause = Cause::last(format!("{}: {error}", self.name));
        self.peers.failed(&cause);
        self.peers.settled(&cause);
    }

    fn is_over(&self) -> bool {
        (self.state != State::Running || self.is_final()) && self.is_empty()
    }

    /// Whether it is settled why the attempt ends, and that no other follows.
    fn is_final(&self) -> bool {
        let is_final = |ending: &Ending| matches!(ending.decision, Decision::Final);
        self.ending.as_ref().is_some_and(is_final)
    }

    /// Whether no rank of this host is left.
    fn is_empty(&self) -> bool {
        self.ranks.iter().all(|rank| !rank.running)
    }

    /// How long the supervisor may sleep unless an event arrives.
    fn patience(&self) -> Duration {
        let idle = Duration::from_secs(3600);
        let until = |at: Instant| at.saturating_duration_since(Instant::now());
        let Some(ending) = &self.ending else {
            return self.early.tell_at.map_or(idle, until);
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
        let next = next.into_iter().flatten().min();
        next.map_or(idle, until)
    }

    /// Does what is due by now.
    fn keep_time(&mut self) {
        let now = Instant::now();
        let is_empty = self.is_empty();
        let Some(ending) = &mut self.ending else {
            if self.early.tell_at.take_if(|at| now >= *at).is_some() {
                streams::say(&format!("{}; other ranks still run", self.early.line()));
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
                let text = format!("no restart: waited too long for {whom} to stop its ranks");
                self.end(Cause::last(text), FAILURE_GRACE, Signal::TERM);
            }
            _ => {}
        }
    }

    /// Reaps a rank that has ended, kills what it left behind and judges how it ended.
    fn reap(&mut self, local_rank: usize) {
        let rank = &mut self.ranks[local_rank];
        rank.signal(Signal::KILL);
        self.watchdog.release(rank.child.id().cast_signed());
        rank.running = false;
        let status = rank
            .child
            .wait()
            .unwrap_or_else(|_| ExitStatusExt::from_raw(1 << 8));
        if !status.success() {
            // All of them together: many ranks that fail must not hold up the end of the job.
            let began = Instant::now();
            rank.output.has_ended(self.output_grace);
            self.output_grace = self.output_grace.saturating_sub(began.elapsed());
            let (cause, above) = rank.output.judge((rank.number, &rank.name), status);
            rank.above = above;
            if !self.is_own_doing(status.signal()) {
                self.end(cause, FAILURE_GRACE, Signal::TERM);
            }
        } else if self
            .ending
            .as_ref()
            .is_none_or(|ending| ending.signal.is_some())
        {
            // No signal has told it to end.
            self.early.names.push(rank.name.clone());
            if self.early.names.len() == 1 {
                self.early.tell_at = Some(Instant::now() + START_TOLD_AFTER);
            }
            if self.ending.is_none() && self.is_empty() {
                let status = self.peers.finished();
                self.take(status);
            }
        }
        self.hasten();
    }

    /// Without a rank of this host left, no better cause comes from here.
    fn hasten(&mut self) {
        let is_empty = self.is_empty();
        if let Some(Ending {
            cause,
            decision: Decision::Open { until },
            ..
        }) = &mut self.ending
        {
            *until = (*until).min(Instant::now() + self.peers.settling_time(cause, is_empty));
        }
    }

    /// Whether a rank that was killed by `signal` was killed by this launcher.
    fn is_own_doing(&self, signal: Option<i32>) -> bool {
        self.ending.as_ref().is_some_and(|ending| match signal {
            Some(libc::SIGTERM | libc::SIGINT | libc::SIGHUP) => ending.signal.is_none(),
            Some(libc::SIGKILL) => ending.signal.is_none() && ending.kill_at.is_none(),
            _ => false,
        })
    }

    /// Stops the job on this host, and then this process, as a shell's user asks with Ctrl-Z. The
    /// ranks have process groups of their own, so the terminal's signal does not reach them. With
    /// SIGCONT, which `fg` and `bg` send, this process goes on, and the ranks with it.
    fn suspend(&self) {
        self.signal_all(Signal::STOP);
        suspend();
        self.signal_all(Signal::CONT);
    }

    fn signal_all(&self, signal: Signal) {
        self.ranks.iter().for_each(|rank| rank.signal(signal));
    }

    /// Passes a signal on to the ranks and ends the job; if it ends already, kills them.
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
            Status::Undecided => {}
            // The coordinator's decision counts. That it exits afterwards does not.
            Status::Final(_) | Status::Restart { .. } if self.is_final() => {}
            Status::Succeeded => self.state = State::Succeeded,
            Status::Failed(cause) => self.end(cause, FAILURE_GRACE, Signal::TERM),
            Status::Final(cause) => {
                self.stop(FAILURE_GRACE, Signal::TERM, cause, Decision::Final);
            }
            Status::Restart { cause, pause } => self.restart(cause, pause),
            Status::Stopped => {
                let restarts =
                    |ending: &Ending| matches!(ending.decision, Decision::Restart { .. });
                if self.ending.as_ref().is_some_and(restarts) {
                    self.state = State::Stopped;
                }
            }
        }
    }

    /// Begins the end of the attempt. If that has begun, `cause` may still replace the first cause,
    /// or forbid the restart.
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

    /// All ranks are to end, and to be started again.
    fn restart(&mut self, cause: Cause, pause: Duration) {
        let forbidden = |ending: &Ending| ending.cause.forbids_restart();
        if self.ending.as_ref().is_some_and(forbidden) {
            // The other launchers learn of the cause soon.
            return;
        }
        streams::say(&self.line(&cause));
        let now = Instant::now();
        let decision = Decision::Restart {
            at: now + pause,
            told: false,
            until: now + RESTART_GRACE,
        };
        let cause = Cause {
            standing: Standing::Original,
            remedy: Remedy::Restart,
            ..cause
        };
        self.stop(FAILURE_GRACE, Signal::TERM, cause, decision);
    }

    /// The line that tells of `cause` here. What was kept back of the rank that it names is shown
    /// before.
    fn line(&self, cause: &Cause) -> String {
        let is_named = |rank: &&Rank| Some(rank.number) == cause.rank;
        let rank = self.ranks.iter().find(is_named);
        let line = cause.line(rank.and_then(|rank| {
            rank.output.show_kept();
            rank.above.clone()
        }));
        match cause.standing < Standing::Exit && !self.early.names.is_empty() {
            true => format!("{}; then {line}", self.early.line()),
            false => line,
        }
    }

    /// The launcher's terminal has another size.
    fn fit(&self) {
        for rank in &self.ranks {
            rank.output.terminals.iter().for_each(PseudoTerminal::fit);
        }
        self.signal_all(Signal::WINCH);
    }

    /// Notes why the attempt ends and what follows. The ranks are signalled once: now or, where the
    /// cause is a rank's own end, after a moment in which the others may say what they know.
    fn stop(&mut self, grace: Duration, signal: Signal, cause: Cause, decision: Decision) {
        let now = Instant::now();
        let is_open = matches!(decision, Decision::Open { .. });
        let at = match cause.standing {
            Standing::Consequence | Standing::Unknown if is_open => now + BLAMED_GRACE,
            Standing::Exit | Standing::Panic if is_open => now + LAST_WORDS_GRACE,
            _ => now,
        };
        match &mut self.ending {
            Some(ending) => {
                ending.cause = cause;
                ending.decision = decision;
                if let Some((first, due)) = ending.signal {
                    // A user's signal goes before the launcher's own.
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
        self.keep_time();
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
