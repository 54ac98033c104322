//! Starts ranks as real processes: a test binary starts itself, and environment variables turn the
//! `child_entry` of the copy into a rank.

mod address;

pub(crate) use address::reserved_address;
use ringtree::{ErrorKind, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

pub(crate) const ROLE: &str = "RINGTREE_TEST_ROLE";
/// Prefix of a rank's reports, which distinguishes them from the lines of the test harness.
pub(crate) const REPORT_PREFIX: &str = "says: ";
/// A duration longer than any test takes, on any machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// Reports the outcome of a rank and exits the process.
pub(crate) fn exit(end: Result<String>) -> ! {
    match end {
        Ok(text) => eprintln!("{REPORT_PREFIX}{text}"),
        // A group may learn of the death of a rank outside the group, which has no group rank.
        Err(error) if error.kind() == ErrorKind::PeerLost => match error.peer() {
            Some(peer) => eprintln!("{REPORT_PREFIX}lost {peer}: {error}"),
            None => eprintln!("{REPORT_PREFIX}lost outside: {error}"),
        },
        Err(error) if error.kind() == ErrorKind::Deadline => {
            eprintln!("{REPORT_PREFIX}deadline: {error}")
        }
        Err(error) => eprintln!("{REPORT_PREFIX}{error:?}"),
    }
    // Returning would let the harness print more lines.
    std::process::exit(0);
}

/// Blocks a rank until the test calls [`Ranks::resume`].
pub(crate) fn wait_for_resume() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

/// Ranks that are processes.
pub(crate) struct Ranks {
    children: Vec<Child>,
    heard: Receiver<(usize, Instant, String)>,
}

/// The links between the ranks of a test.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Links {
    Tcp,
    SharedMemory,
    /// Shared memory within hosts of two ranks each, TCP between these hosts.
    Both,
}

pub(crate) const ALL_LINKS: [Links; 3] = [Links::Tcp, Links::SharedMemory, Links::Both];

/// Runs `test` on all cases at the same time, because it mostly waits for processes.
pub(crate) fn concurrently<T: Send>(cases: impl IntoIterator<Item = T>, test: impl Fn(T) + Sync) {
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(|| test(case));
        }
    });
}

impl Links {
    fn settings(self, rank: usize) -> [(&'static str, String); 2] {
        let (transport, host) = match self {
            Links::Tcp => ("tcp", 0),
            Links::SharedMemory => ("shm", 0),
            Links::Both => ("auto", rank / 2),
        };
        [
            ("RINGTREE_TRANSPORT", transport.into()),
            ("RINGTREE_HOST_ID", format!("host {host}")),
        ]
    }
}

/// The module whose `child_entry` a rank runs.
pub(crate) struct Suite(pub(crate) &'static str);

impl Suite {
    /// Returns the name of the test that turns a copy of this binary into a rank.
    pub(crate) fn entry(&self) -> String {
        let module = self.0.split_once("::").map(|(_, module)| module);
        module.map_or_else(
            || "child_entry".into(),
            |module| format!("{module}::child_entry"),
        )
    }

    pub(crate) fn start(
        &self,
        links: Links,
        role: &str,
        world_size: usize,
        more: &[(&str, &str)],
    ) -> Ranks {
        self.start_each(links, role, world_size, |_, command| {
            command.envs(more.iter().copied());
        })
    }

    /// Like [`Suite::start`], but `settings` configures each rank separately.
    pub(crate) fn start_each(
        &self,
        links: Links,
        role: &str,
        world_size: usize,
        settings: impl Fn(usize, &mut Command),
    ) -> Ranks {
        let (report, heard) = channel();
        let rendezvous = reserved_address();
        let program = std::env::current_exe().unwrap();
        let start = |rank: usize| {
            let mut command = Command::new(&program);
            command
                .args([&self.entry(), "--exact", "--nocapture"])
                .env(ROLE, role)
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", world_size.to_string())
                .env("LOCAL_RANK", rank.to_string())
                .env("LOCAL_WORLD_SIZE", world_size.to_string())
                .env("RINGTREE_RENDEZVOUS", &rendezvous)
                .envs(links.settings(rank))
                // With the built-in table, ranks neither measure links nor print a notice about it.
                .env("RINGTREE_TUNING", "built-in")
                // Print no warning if ranks wait for a long time on a busy machine.
                .env("RINGTREE_STALL_WARNING_S", "0")
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::piped());
            settings(rank, &mut command);
            // Each rank has its own session, as with torchrun, so the scheduler shares the cores
            // among the ranks as among unrelated processes.
            // SAFETY: between fork and exec; setsid takes nothing and touches no memory.
            unsafe {
                command.pre_exec(|| rustix::process::setsid().map(drop).map_err(Into::into));
            }
            let mut child = command.spawn().unwrap();
            let lines = BufReader::new(child.stderr.take().unwrap()).lines();
            let report = report.clone();
            std::thread::spawn(move || {
                let mut lines = lines.map_while(std::io::Result::ok);
                while let Some(line) = lines.next() {
                    let said = match line.strip_prefix(REPORT_PREFIX) {
                        Some(said) => said.into(),
                        // A panic begins with an empty line. All its lines form one report.
                        None if line.is_empty() => lines.by_ref().collect::<Vec<_>>().join("\n"),
                        None => line,
                    };
                    if report.send((rank, Instant::now(), said)).is_err() {
                        return;
                    }
                }
            });
            child
        };
        Ranks {
            children: (0..world_size).map(start).collect(),
            heard,
        }
    }
}

impl Ranks {
    /// Waits for the next report of each of `ranks`. Returns the reports in the order of `ranks`,
    /// and the time of the last report.
    pub(crate) fn next_reports(&self, ranks: &[usize]) -> (Vec<String>, Instant) {
        let mut said = vec![None; ranks.len()];
        let mut last = Instant::now();
        while said.iter().any(Option::is_none) {
            let (rank, at, text) = self
                .heard
                .recv_timeout(PATIENCE)
                .unwrap_or_else(|_| panic!("ranks {ranks:?} reported only {said:?}"));
            if let Some(place) = ranks.iter().position(|one| *one == rank) {
                said[place] = Some(text);
                last = at;
            }
        }
        (said.into_iter().flatten().collect(), last)
    }

    /// Resumes `ranks`, which are blocked in [`wait_for_resume`].
    pub(crate) fn resume(&mut self, ranks: &[usize]) {
        for rank in ranks {
            let stdin = self.children[*rank].stdin.as_mut().unwrap();
            stdin.write_all(b"\n").unwrap();
        }
    }

    /// Waits until the process of `rank` has exited.
    pub(crate) fn end(&mut self, rank: usize) {
        self.children[rank].wait().unwrap();
    }

    pub(crate) fn signal(&self, rank: usize, signal: Signal) {
        kill_process(Pid::from_child(&self.children[rank]), signal).unwrap();
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
