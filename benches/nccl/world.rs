//! The parent's side: processes of this very program that play parts, and what they say.

use crate::ROLE;
use crate::arrangement::{Case, RANKS};
use crate::rank::{MARK, RANK};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// How long an answer may take: the slowest batch that is begun takes a tenth of it.
const PATIENCE: Duration = Duration::from_secs(120);

/// A process that plays a part. When this is dropped, it is told to end, and then killed.
pub(crate) struct Player {
    name: String,
    child: Child,
    orders: Option<ChildStdin>,
    answers: Receiver<String>,
    /// How long it may take to end by itself.
    grace: Duration,
}

impl Player {
    pub(crate) fn start(
        name: &str,
        role: &str,
        settings: &[(String, String)],
        adapt: impl FnOnce(&mut Command),
    ) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command
            .env(ROLE, role)
            .envs(settings.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        adapt(&mut command);
        let mut child = command
            .spawn()
            .map_err(|error| format!("{name} cannot be started: {error}"))?;
        let output = child.stdout.take().expect("invariant: it is piped");
        let (heard, answers) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            for line in lines {
                if let Some((_, said)) = line.split_once(MARK) {
                    // Nobody listens any more: what is said is read all the same.
                    let _ = heard.send(said.to_owned());
                }
            }
        });
        Ok(Self {
            name: name.to_owned(),
            orders: child.stdin.take(),
            child,
            answers,
            grace: Duration::from_secs(2),
        })
    }

    /// As it was, but with `grace` to end by itself.
    pub(crate) fn with_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    pub(crate) fn tell(&mut self, line: &str) -> Result<(), String> {
        let orders = self.orders.as_mut().expect("invariant: open until dropped");
        let told = writeln!(orders, "{line}").and_then(|()| orders.flush());
        // What it said before it died says more than that it is gone.
        told.or_else(|_| self.hear(PATIENCE).map(|_| ()))
    }

    /// The next answer.
    pub(crate) fn hear(&mut self, patience: Duration) -> Result<String, String> {
        let name = &self.name;
        match self.answers.recv_timeout(patience) {
            Ok(said) => match said.strip_prefix("failed ") {
                Some(why) => Err(format!("{name}: {why}")),
                None => Ok(said),
            },
            Err(RecvTimeoutError::Timeout) => Err(format!(
                "{name} said nothing for {patience:?}, and was ended"
            )),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait().map_err(|error| error.to_string())?;
                Err(format!("{name} ended ({status}); what it printed says why"))
            }
        }
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        if let Some(mut orders) = self.orders.take() {
            let _ = writeln!(orders, "end");
        }
        // Its answers end with it.
        let end = loop {
            match self.answers.recv_timeout(self.grace) {
                Ok(_) => {}
                Err(end) => break end,
            }
        };
        if end == RecvTimeoutError::Timeout {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// The ranks of one library.
pub(crate) struct World {
    ranks: Vec<Player>,
}

impl World {
    /// Starts the ranks of the library called `role`, and waits until they have found each other.
    pub(crate) fn start(
        role: &str,
        settings: impl Fn(usize) -> Vec<(String, String)>,
    ) -> Result<Self, String> {
        let mut ranks = Vec::with_capacity(RANKS);
        for rank in 0..RANKS {
            let mut own = settings(rank);
            own.push((RANK.into(), rank.to_string()));
            let name = format!("rank {rank} of {role}");
            ranks.push(Player::start(&name, role, &own, |_| {})?);
        }
        if role == "nccl" {
            let said = ranks[0].hear(PATIENCE)?;
            let id = said.strip_prefix("id ").ok_or("rank 0 gave no id")?;
            for rank in &mut ranks[1..] {
                rank.tell(id)?;
            }
        }
        let mut world = Self { ranks };
        for rank in &mut world.ranks {
            rank.hear(PATIENCE)?;
        }
        Ok(world)
    }

    /// Tells all ranks the same; returns what they say, as numbers.
    fn ask(&mut self, line: &str) -> Result<Vec<u64>, String> {
        for rank in &mut self.ranks {
            rank.tell(line)?;
        }
        let mut numbers = Vec::with_capacity(RANKS);
        for rank in &mut self.ranks {
            let said = rank.hear(PATIENCE)?;
            let number = said.parse();
            numbers.push(number.map_err(|_| format!("{}: '{said}' is no number", rank.name))?);
        }
        Ok(numbers)
    }

    /// Prepares `case` with a checked call; returns how many elements were wrong.
    pub(crate) fn prepare(&mut self, case: Case) -> Result<usize, String> {
        let wrong = self.ask(&format!("case {}", case.to_line()))?;
        Ok(wrong.iter().sum::<u64>() as usize)
    }

    /// As [`World::prepare`], of the case that is prepared.
    pub(crate) fn check(&mut self) -> Result<usize, String> {
        Ok(self.ask("check")?.iter().sum::<u64>() as usize)
    }

    /// What `calls` calls took the slowest rank.
    pub(crate) fn batch(&mut self, calls: u64) -> Result<Duration, String> {
        let nanoseconds = self.ask(&format!("batch {calls}"))?;
        let slowest = nanoseconds.into_iter().max();
        Ok(Duration::from_nanos(
            slowest.expect("invariant: there are ranks"),
        ))
    }
}
