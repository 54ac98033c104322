//! Ranks as real processes: a test binary starts itself, and the environment turns the copy's
//! `child_entry` into a rank.

mod address;

pub(crate) use address::own_address;
use ringtree::{ErrorKind, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

pub(crate) const ROLE: &str = "RINGTREE_TEST_ROLE";
/// In front of what a rank has to say, among the lines of the test harness.
pub(crate) const MARK: &str = "says: ";
/// No test takes this long, on any machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// A rank says how it ended, and ends.
pub(crate) fn exit(end: Result<String>) -> ! {
    match end {
        Ok(text) => eprintln!("{MARK}{text}"),
        // A group may hear of the death of a rank outside of it, which has no number there.
        Err(error) if error.kind() == ErrorKind::PeerLost => match error.peer() {
            Some(peer) => eprintln!("{MARK}lost {peer}: {error}"),
            None => eprintln!("{MARK}lost outside: {error}"),
        },
        Err(error) if error.kind() == ErrorKind::Deadline => eprintln!("{MARK}deadline: {error}"),
        Err(error) => eprintln!("{MARK}{error:?}"),
    }
    // The harness would only print more.
    std::process::exit(0);
}

/// A rank waits until the test lets it go on.
pub(crate) fn wait_to_go_on() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

/// Ranks that are processes.
pub(crate) struct Ranks {
    children: Vec<Child>,
    heard: Receiver<(usize, Instant, String)>,
}

/// What ranks talk over.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Links {
    Tcp,
    SharedMemory,
    /// Shared memory among two ranks each, TCP between these hosts.
    Both,
}

pub(crate) const ALL_LINKS: [Links; 3] = [Links::Tcp, Links::SharedMemory, Links::Both];

/// Runs `test` with all cases at the same time, because it mostly waits for processes.
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
    /// The test that turns a copy of this binary into a rank.
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
        let (tell, heard) = channel();
        let rendezvous = own_address();
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
                // Nothing is measured, so nothing is said of it.
                .env("RINGTREE_TUNING", "built-in")
                // Nor of ranks that wait for long on a busy machine.
                .env("RINGTREE_STALL_WARNING_S", "0")
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::piped());
            settings(rank, &mut command);
            // Each in a session of its own, as torchrun starts them: so the scheduler shares the
            // cores among the ranks as among strangers.
            // SAFETY: between fork and exec; setsid takes nothing and touches no memory.
            unsafe {
                command.pre_exec(|| rustix::process::setsid().map(drop).map_err(Into::into));
            }
            let mut child = command.spawn().unwrap();
            let lines = BufReader::new(child.stderr.take().unwrap()).lines();
            let tell = tell.clone();
            std::thread::spawn(move || {
                let mut lines = lines.map_while(std::io::Result::ok);
                while let Some(line) = lines.next() {
                    let said = match line.strip_prefix(MARK) {
                        Some(said) => said.into(),
                        // A panic begins with an empty line; all of it is one thing said.
                        None if line.is_empty() => lines.by_ref().collect::<Vec<_>>().join("\n"),
                        None => line,
                    };
                    if tell.send((rank, Instant::now(), said)).is_err() {
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
    /// The next thing that each of `ranks` says, by rank, and when the last of them said it.
    pub(crate) fn hear(&self, ranks: &[usize]) -> (Vec<String>, Instant) {
        let mut said = vec![None; ranks.len()];
        let mut last = Instant::now();
        while said.iter().any(Option::is_none) {
            let (rank, at, text) = self
                .heard
                .recv_timeout(PATIENCE)
                .unwrap_or_else(|_| panic!("ranks {ranks:?} said only {said:?}"));
            if let Some(place) = ranks.iter().position(|one| *one == rank) {
                said[place] = Some(text);
                last = at;
            }
        }
        (said.into_iter().flatten().collect(), last)
    }

    /// Lets ranks go on that wait for it.
    pub(crate) fn go_on(&mut self, ranks: &[usize]) {
        for rank in ranks {
            let stdin = self.children[*rank].stdin.as_mut().unwrap();
            stdin.write_all(b"\n").unwrap();
        }
    }

    /// Waits until the process of `rank` has ended.
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
