//! Starts the processes for a part of the check, collects their reports, and terminates them.

use super::messages::Message;
use crate::Program;
use ringtree::internal::launch::bind_to_parent;
use ringtree::start::UniqueId;
use ringtree::{Error, Result};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Maximum time that a process may take to exit after it has closed its output or has been killed.
const GRACE: Duration = Duration::from_secs(5);

/// The action taken on the last rank once the other ranks are waiting for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Kill,
    Stop,
}

/// A path that device buffers can take, and the values of `RINGTREE_TRANSPORT` and
/// `RINGTREE_DEVICE_PATH` that select it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) name: &'static str,
    pub(super) transport: &'static str,
    pub(super) device_path: &'static str,
}

/// The ranks to start for a part of the check.
#[derive(Clone, Debug)]
pub(super) struct Job {
    /// This program.
    pub(super) program: Program,
    /// The ranks' arguments.
    pub(super) arguments: Vec<String>,
    /// The number of ranks. Each rank is a process.
    pub(super) ranks: usize,
    pub(super) path: Path,
    /// The time limit for each call.
    pub(super) timeout: Duration,
    pub(super) fate: Option<Fault>,
}

/// The outcome of a part of the check.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) checked: usize,
    pub(super) found: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
    /// The reason why the job's path is unavailable, or `None` if it is available.
    pub(super) not_here: Option<String>,
}

enum Event {
    Line(usize, String),
    Closed(usize),
}

/// Running processes. Dropping the group kills them.
struct Group {
    children: Vec<Child>,
    complaints: Vec<Receiver<String>>,
    events: Receiver<Event>,
    /// Reserves the rendezvous port.
    _meeting: UniqueId,
}

/// Runs the job for at most `patience`.
pub(super) fn run(job: &Job, patience: Duration) -> Outcome {
    let end = Instant::now() + patience;
    let mut outcome = Outcome::default();
    let mut group = match Group::start(job) {
        Ok(group) => group,
        Err(error) => {
            outcome.found.push(error.to_string());
            return outcome;
        }
    };
    let are_done = group.listen(job, end, &mut outcome);
    if are_done.is_none() {
        let seconds = patience.as_secs();
        outcome
            .found
            .push(format!("did not finish within {seconds} s"));
    }
    let victim = job.fate.map(|_| job.ranks - 1);
    group.release(victim, are_done.is_none());
    for (rank, (status, complaint)) in group.end().into_iter().enumerate() {
        // Ranks that were killed at the time limit have already been reported.
        let Some(are_done) = &are_done else { continue };
        let is_done = are_done[rank];
        if Some(rank) == victim || (is_done && status.is_none_or(|status| status.success())) {
            continue;
        }
        let how = status.map_or_else(|| "status unknown".into(), |status| status.to_string());
        let mut lines = complaint.lines();
        let last_words = lines.rfind(|line| !line.trim().is_empty());
        let last_words =
            last_words.map_or(String::new(), |words| format!("; its last output: {words}"));
        outcome.found.push(format!(
            "the process running rank {rank} failed ({how}){last_words}"
        ));
    }
    outcome
}

impl Group {
    fn start(job: &Job) -> Result<Self> {
        let (said, events) = channel();
        let meeting = UniqueId::on("127.0.0.1")?;
        let rendezvous = meeting.address().to_string();
        let mut group = Self {
            children: Vec::new(),
            complaints: Vec::new(),
            events,
            _meeting: meeting,
        };
        for rank in 0..job.ranks {
            let mut command = job.command(rank, &rendezvous);
            let child = command.spawn();
            let mut child = child.map_err(|error| {
                Error::io("cannot start another process of this program", &error)
            })?;
            if let Some(out) = child.stdout.take() {
                let said = said.clone();
                std::thread::spawn(move || pass_on(rank, BufReader::new(out), &said));
            }
            let complaints = child.stderr.take();
            group.complaints.push(all_of(complaints));
            group.children.push(child);
        }
        Ok(group)
    }

    /// Collects the ranks' reports until all ranks have closed their output. Returns, for each
    /// rank, whether it reported that it was done, or `None` if the time limit was reached.
    fn listen(&mut self, job: &Job, end: Instant, outcome: &mut Outcome) -> Option<Vec<bool>> {
        let mut are_done = vec![false; job.ranks];
        let mut there = 0;
        // Do not wait for a rank that will be killed or stopped.
        let victim = job.fate.map(|_| job.ranks - 1);
        let mut open = job.ranks - usize::from(victim.is_some());
        // The victim reports `Reached` once, and every other rank twice.
        let all_there = 2 * job.ranks - 1;
        while open > 0 {
            let left = end.saturating_duration_since(Instant::now());
            let (rank, line) = match self.events.recv_timeout(left) {
                Ok(Event::Line(rank, line)) => (rank, line),
                Ok(Event::Closed(rank)) => {
                    open -= usize::from(Some(rank) != victim);
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            match Message::parse(&line) {
                Some(Message::Checked(count)) => outcome.checked += count,
                Some(Message::Found(text)) => outcome.found.push(text),
                Some(Message::Row(cells)) => outcome.rows.push(cells),
                Some(Message::NotHere(why)) => outcome.not_here = Some(why),
                Some(Message::Done) => are_done[rank] = true,
                Some(Message::Reached) => {
                    there += 1;
                    if let Some(fate) = job.fate.filter(|_| there == all_there) {
                        self.apply_fault(fate);
                    }
                }
                None => {}
            }
        }
        Some(are_done)
    }

    fn apply_fault(&mut self, fate: Fault) {
        let Some(child) = self.children.last_mut() else {
            return;
        };
        match fate {
            Fault::Kill => {
                let _ = child.kill();
            }
            Fault::Stop => {
                let _ = kill_process(Pid::from_child(child), Signal::STOP);
            }
        }
    }

    /// Ends the remaining ranks. For each rank, returns its exit status if it exited on its own,
    /// and its standard error.
    fn end(&mut self) -> Vec<(Option<ExitStatus>, String)> {
        // A rank that has closed its output should exit soon.
        let patience = Instant::now() + GRACE;
        let own_end = |child: &mut Child| exit_by(child, patience).ok().flatten();
        let own_ends: Vec<_> = self.children.iter_mut().map(own_end).collect();
        self.kill();
        let complaints = self.complaints.drain(..);
        let complaints = complaints.map(|text| text.recv_timeout(GRACE).unwrap_or_default());
        own_ends.into_iter().zip(complaints).collect()
    }

    /// Kills the victim or, if `all` is set, all ranks. None of them has been reaped yet, so each
    /// process ID still identifies the rank's process group.
    fn release(&mut self, victim: Option<usize>, all: bool) {
        for (rank, child) in self.children.iter().enumerate() {
            if all || Some(rank) == victim {
                kill_group(child);
            }
        }
    }

    /// Kills the remaining ranks. Waits only for a limited time, because a process that hangs in
    /// the driver may survive SIGKILL.
    fn kill(&mut self) {
        let is_left = |child: &mut &mut Child| matches!(child.try_wait(), Ok(None));
        let left: Vec<_> = self
            .children
            .iter_mut()
            .filter_map(|mut child| is_left(&mut child).then_some(child))
            .collect();
        let patience = Instant::now() + GRACE;
        for child in &left {
            kill_group(child);
        }
        for child in left {
            let _ = exit_by(child, patience);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Kills the process group that `child` leads.
fn kill_group(child: &Child) {
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
}

/// Waits for `child` to exit. Returns its exit status, or `None` if it is still running at `end`.
fn exit_by(child: &mut Child, end: Instant) -> std::io::Result<Option<ExitStatus>> {
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() >= end {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns a channel that receives everything written to `pipe` once the pipe is closed.
fn all_of(pipe: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut text);
        }
        let _ = tell.send(String::from_utf8_lossy(&text).into_owned());
    });
    told
}

/// Returns the standard output of `command` if it succeeds within `patience`. Kills it if it takes
/// longer.
pub(super) fn output_within(mut command: Command, patience: Duration) -> Option<String> {
    command.stdout(Stdio::piped());
    bind_to_parent(&mut command);
    let end = Instant::now() + patience;
    let mut child = command.spawn().ok()?;
    let said = all_of(child.stdout.take());
    match exit_by(&mut child, end).ok()? {
        Some(status) if status.success() => said.recv_timeout(GRACE).ok(),
        Some(_) => None,
        None => {
            kill_group(&child);
            let _ = child.try_wait();
            None
        }
    }
}

fn pass_on(rank: usize, lines: impl BufRead, said: &Sender<Event>) {
    for line in lines.lines().map_while(std::result::Result::ok) {
        if said.send(Event::Line(rank, line)).is_err() {
            return;
        }
    }
    let _ = said.send(Event::Closed(rank));
}

impl Job {
    fn command(&self, rank: usize, rendezvous: &str) -> Command {
        let mut command = Command::new(&self.program.file);
        // Do not inherit settings from the user's own jobs.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("RINGTREE_") || text.starts_with("MASTER_") {
                command.env_remove(&name);
            }
        }
        let (rank, ranks) = (rank.to_string(), self.ranks.to_string());
        command
            .args(&self.program.arguments)
            .args(&self.arguments)
            .envs([("RANK", &rank), ("LOCAL_RANK", &rank)])
            .envs([("WORLD_SIZE", &ranks), ("LOCAL_WORLD_SIZE", &ranks)])
            .env("RINGTREE_RENDEZVOUS", rendezvous)
            .env("RINGTREE_TRANSPORT", self.path.transport)
            .env("RINGTREE_DEVICE_PATH", self.path.device_path)
            .env("RINGTREE_TUNING", "built-in")
            .env("RINGTREE_TIMEOUT_MS", self.timeout.as_millis().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        bind_to_parent(&mut command);
        command
    }
}
