//! The processes of one part of the check: started, listened to, and ended, whatever they do.

use super::rank::{Said, free_address};
use ringtree::sys::process::bind_to_parent;
use ringtree::{Error, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What is done to the last rank once the others wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Kill,
    Stop,
}

/// What to start.
#[derive(Clone, Debug)]
pub(super) struct Job {
    /// The arguments of this program's processes.
    pub(super) arguments: Vec<String>,
    /// How many there are, each a rank.
    pub(super) ranks: usize,
    /// `RINGTREE_TRANSPORT` of the ranks.
    pub(super) transport: &'static str,
    /// How long a call may take.
    pub(super) timeout: Duration,
    pub(super) fate: Option<Fate>,
    /// What runs the program, if it does not run itself.
    pub(super) runner: Vec<String>,
}

/// What has come of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) checked: usize,
    pub(super) found: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

enum Event {
    Line(usize, String),
    Closed(usize),
}

/// Processes under way; dropping them ends them.
struct Group {
    children: Vec<Child>,
    complaints: Vec<JoinHandle<String>>,
    /// The last line on standard output that no rank said: a tool's that runs it.
    unheard: String,
    events: Receiver<Event>,
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
            .push(format!("there was no end within {seconds} s"));
    }
    let doomed = job.fate.map(|_| job.ranks - 1);
    group.release(doomed);
    for (rank, (status, complaint)) in group.end().into_iter().enumerate() {
        let is_done = are_done.as_ref().is_none_or(|done| done[rank]);
        if Some(rank) == doomed || (is_done && status.is_none_or(|status| status.success())) {
            continue;
        }
        let how = status.map_or_else(|| "unseen".into(), |status| status.to_string());
        let lines = [&*group.unheard, &*complaint].map(str::lines).into_iter();
        let last_words = lines.flatten().rfind(|line| !line.trim().is_empty());
        let last_words = last_words.map_or(String::new(), |words| format!("; it said: {words}"));
        outcome.found.push(format!(
            "the process of rank {rank} ended badly ({how}){last_words}"
        ));
    }
    outcome
}

impl Group {
    fn start(job: &Job) -> Result<Self> {
        let (said, events) = channel();
        let mut group = Self {
            children: Vec::new(),
            complaints: Vec::new(),
            unheard: String::new(),
            events,
        };
        let rendezvous = free_address()?;
        for rank in 0..job.ranks {
            let mut command = job.command(rank, &rendezvous)?;
            let child = command.spawn();
            let mut child = child
                .map_err(|error| Error::system("starting a process of this program", &error))?;
            if let Some(out) = child.stdout.take() {
                let said = said.clone();
                std::thread::spawn(move || pass_on(rank, BufReader::new(out), &said));
            }
            let complaints = child.stderr.take();
            group.complaints.push(std::thread::spawn(move || {
                let mut text = Vec::new();
                if let Some(mut complaints) = complaints {
                    let _ = complaints.read_to_end(&mut text);
                }
                String::from_utf8_lossy(&text).into_owned()
            }));
            group.children.push(child);
        }
        Ok(group)
    }

    /// Takes what the ranks say until all have closed; which of them said that they were done, or
    /// nothing if time is up before.
    fn listen(&mut self, job: &Job, end: Instant, outcome: &mut Outcome) -> Option<Vec<bool>> {
        let mut are_done = vec![false; job.ranks];
        let mut there = 0;
        // Whoever meets a fate is not waited for.
        let doomed = job.fate.map(|_| job.ranks - 1);
        let mut open = job.ranks - usize::from(doomed.is_some());
        // The doomed rank comes there once, each other twice.
        let all_there = 2 * job.ranks - 1;
        while open > 0 {
            let left = end.saturating_duration_since(Instant::now());
            let (rank, line) = match self.events.recv_timeout(left) {
                Ok(Event::Line(rank, line)) => (rank, line),
                Ok(Event::Closed(rank)) => {
                    open -= usize::from(Some(rank) != doomed);
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            match Said::heard(&line) {
                Some(Said::Checked(count)) => outcome.checked += count,
                Some(Said::Found(text)) => outcome.found.push(text),
                Some(Said::Row(cells)) => outcome.rows.push(cells),
                Some(Said::Done) => are_done[rank] = true,
                Some(Said::There) => {
                    there += 1;
                    if let Some(fate) = job.fate.filter(|_| there == all_there) {
                        self.meet_fate(fate);
                    }
                }
                None => self.unheard = line,
            }
        }
        Some(are_done)
    }

    fn meet_fate(&mut self, fate: Fate) {
        let Some(child) = self.children.last_mut() else {
            return;
        };
        match fate {
            Fate::Kill => {
                let _ = child.kill();
            }
            Fate::Stop => {
                let _ = kill_process(Pid::from_child(child), Signal::STOP);
            }
        }
    }

    /// Ends whoever is left; how each ended, if of itself, and what it complained of.
    fn end(&mut self) -> Vec<(Option<ExitStatus>, String)> {
        // Who has closed its output is about to go.
        let patience = Instant::now() + Duration::from_secs(5);
        let own_ends: Vec<_> = self
            .children
            .iter_mut()
            .map(|child| {
                loop {
                    match child.try_wait() {
                        Ok(Some(status)) => return Some(status),
                        Ok(None) if Instant::now() < patience => {
                            std::thread::sleep(Duration::from_millis(2));
                        }
                        _ => return None,
                    }
                }
            })
            .collect();
        self.kill();
        let complaints = self.complaints.drain(..);
        let complaints = complaints.map(|text| text.join().unwrap_or_default());
        own_ends.into_iter().zip(complaints).collect()
    }

    /// Kills the rank that met a fate and is still there.
    fn release(&mut self, doomed: Option<usize>) {
        if let Some(child) = doomed.and_then(|doomed| self.children.get_mut(doomed)) {
            let _ = child.kill();
        }
    }

    fn kill(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
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
    fn command(&self, rank: usize, rendezvous: &str) -> Result<Command> {
        let program = std::env::current_exe()
            .map_err(|error| Error::system("cannot find this program's own file", &error))?;
        let mut command = match self.runner.split_first() {
            Some((runner, arguments)) => {
                let mut command = Command::new(runner);
                command.args(arguments).arg(program);
                command
            }
            None => Command::new(program),
        };
        // Settings of the user's own jobs are none of the check's.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("RINGTREE_") || text.starts_with("MASTER_") {
                command.env_remove(&name);
            }
        }
        let (rank, ranks) = (rank.to_string(), self.ranks.to_string());
        command
            .args(&self.arguments)
            .envs([("RANK", &rank), ("LOCAL_RANK", &rank)])
            .envs([("WORLD_SIZE", &ranks), ("LOCAL_WORLD_SIZE", &ranks)])
            .env("RINGTREE_RENDEZVOUS", rendezvous)
            .env("RINGTREE_TRANSPORT", self.transport)
            .env("RINGTREE_TUNING", "built-in")
            .env("RINGTREE_TIMEOUT_MS", self.timeout.as_millis().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        bind_to_parent(&mut command, None);
        Ok(command)
    }
}
