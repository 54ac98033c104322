//! Implements the parent's side: starts processes of this same program in different roles and
//! receives their answers.

use crate::ROLE;
use crate::arrangement::{Case, RANKS};
use crate::rank::{MARK, RANK};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum time that ranks may take to answer. A batch that has started takes seconds.
const PATIENCE: Duration = Duration::from_secs(45);
/// Maximum time that processes may take to exit.
const GRACE: Duration = Duration::from_secs(2);

/// Maximum number of lines that are kept of a process's output other than its answers.
const PRINTED_MAX: usize = 4;

/// The index of a player and its answer, or `None` if the player will not answer again.
type Heard = (usize, Option<String>);

/// A process that runs in one of the roles.
struct Player {
    name: String,
    child: Child,
    orders: ChildStdin,
    /// The last lines that the process printed other than its answers, such as NCCL's error
    /// messages.
    printed: Arc<Mutex<VecDeque<String>>>,
}

impl Player {
    fn start(
        index: usize,
        name: String,
        mut command: Command,
        heard: Sender<Heard>,
    ) -> Result<Self, String> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{name}: cannot start its process: {error}"))?;
        let output = child.stdout.take().expect("invariant: it is piped");
        let orders = child.stdin.take().expect("invariant: it is piped");
        let printed = Arc::new(Mutex::new(VecDeque::new()));
        let keep = Arc::clone(&printed);
        std::thread::spawn(move || {
            // Keep reading even if nobody receives the answers any more.
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some((_, said)) = line.split_once(MARK) {
                    let _ = heard.send((index, Some(said.to_owned())));
                } else if !line.trim().is_empty() {
                    let mut kept = keep.lock().unwrap_or_else(PoisonError::into_inner);
                    kept.push_back(line);
                    let too_many = kept.len().saturating_sub(PRINTED_MAX);
                    kept.drain(..too_many);
                }
            }
            let _ = heard.send((index, None));
        });
        Ok(Self {
            name,
            child,
            orders,
            printed,
        })
    }

    /// Returns a clause with the last lines that the process printed, to be appended to a message
    /// about its failure.
    fn last_words(&self) -> String {
        let printed = self.printed.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = printed.iter().map(|line| line.trim());
        match lines.collect::<Vec<_>>().join(" | ").as_str() {
            "" => String::new(),
            words => format!("; it printed: {words}"),
        }
    }

    fn tell(&mut self, line: &str) {
        // If the process has exited, its exit and the reason are reported later.
        let _ = writeln!(self.orders, "{line}").and_then(|()| self.orders.flush());
    }
}

/// Processes that each have at most one unanswered request. When this value is dropped, the
/// processes are asked to exit, and those that do not exit are killed.
pub(crate) struct Players {
    players: Vec<Player>,
    heard: Receiver<Heard>,
    grace: Duration,
}

impl Players {
    /// Starts one process of this program for each name, in the role `role`.
    pub(crate) fn start(
        role: &str,
        names: &[String],
        adapt: impl Fn(usize, &mut Command),
    ) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let (sender, heard) = channel();
        let players = Vec::with_capacity(names.len());
        let mut all = Self {
            players,
            heard,
            grace: GRACE,
        };
        for (index, name) in names.iter().enumerate() {
            let mut command = Command::new(&program);
            command.env(ROLE, role);
            adapt(index, &mut command);
            let player = Player::start(index, name.clone(), command, sender.clone())?;
            all.players.push(player);
        }
        Ok(all)
    }

    /// Starts a single process.
    pub(crate) fn one(
        role: &str,
        name: &str,
        adapt: impl Fn(&mut Command),
    ) -> Result<Self, String> {
        Self::start(role, &[name.to_owned()], |_, command| adapt(command))
    }

    /// Sets the maximum time that the processes may take to exit.
    pub(crate) fn with_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Returns the next answers of `count` players, in the order of the players. Returns an error
    /// as soon as any player fails or exits.
    pub(crate) fn hear(&mut self, count: usize, patience: Duration) -> Result<Vec<String>, String> {
        let deadline = Instant::now() + patience;
        let mut answers: Vec<Option<String>> = vec![None; self.players.len()];
        while answers.iter().flatten().count() < count {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.heard.recv_timeout(left) {
                Ok((index, Some(said))) => {
                    if let Some(why) = said.strip_prefix("failed ") {
                        self.hear_out(index);
                        let player = &self.players[index];
                        return Err(format!("{}: {why}{}", player.name, player.last_words()));
                    }
                    answers[index] = Some(said);
                }
                Ok((index, None)) => return Err(self.obituary(index)),
                Err(RecvTimeoutError::Timeout) => {
                    let silent = answers.iter().position(Option::is_none).unwrap_or(0);
                    let player = &self.players[silent];
                    let (name, words) = (&player.name, player.last_words());
                    return Err(format!("{name} did not answer within {patience:?}{words}"));
                }
                Err(RecvTimeoutError::Disconnected) => return Err("no process is left".into()),
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Waits until a player that has failed exits, because its output, such as NCCL's messages, may
    /// arrive only then.
    fn hear_out(&mut self, index: usize) {
        let deadline = Instant::now() + GRACE;
        let left = || deadline.saturating_duration_since(Instant::now());
        while let Ok((who, said)) = self.heard.recv_timeout(left()) {
            if who == index && said.is_none() {
                break;
            }
        }
    }

    fn obituary(&mut self, index: usize) -> String {
        let player = &mut self.players[index];
        let status = player.child.wait();
        let (name, words) = (&player.name, player.last_words());
        match status {
            Ok(status) => format!("{name} exited ({status}){words}"),
            Err(error) => format!("{name} exited: {error}"),
        }
    }
}

impl Drop for Players {
    fn drop(&mut self) {
        for player in &mut self.players {
            player.tell("end");
        }
        let deadline = Instant::now() + self.grace;
        for Player { child, .. } in &mut self.players {
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = child.kill();
            // A process that hangs in the driver may survive SIGKILL. Leave it to the system.
            let deadline = Instant::now() + GRACE;
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// The ranks of one library, and the path that rank 0 reports.
pub(crate) struct World {
    ranks: Players,
    pub(crate) path: String,
}

impl World {
    /// Starts the ranks of the library called `role` and waits until they have connected to each
    /// other.
    pub(crate) fn start(
        role: &str,
        settings: impl Fn(usize) -> Vec<(String, String)>,
    ) -> Result<Self, String> {
        let names: Vec<_> = (0..RANKS)
            .map(|rank| format!("rank {rank} of {role}"))
            .collect();
        let mut ranks = Players::start(role, &names, |rank, command| {
            command.envs(settings(rank)).env(RANK, rank.to_string());
        })?;
        if role == "nccl" {
            let said = ranks.hear(1, PATIENCE)?.remove(0);
            let id = said
                .strip_prefix("id ")
                .ok_or("rank 0 did not send an id")?;
            for rank in &mut ranks.players[1..] {
                rank.tell(id);
            }
        }
        let said = ranks.hear(RANKS, PATIENCE)?.remove(0);
        let path = said.strip_prefix("joined ").unwrap_or_default().to_owned();
        Ok(Self { ranks, path })
    }

    /// Sends the same line to all ranks and returns their answers, which are numbers.
    fn ask(&mut self, line: &str) -> Result<Vec<u64>, String> {
        for rank in &mut self.ranks.players {
            rank.tell(line);
        }
        let said = self.ranks.hear(RANKS, PATIENCE)?;
        let numbers = said.iter().map(|text| {
            let number = text.parse();
            number.map_err(|_| format!("'{text}' is not an answer to '{line}'"))
        });
        numbers.collect()
    }

    /// Prepares `case`, issues a checked call and returns the number of wrong elements.
    pub(crate) fn prepare(&mut self, case: Case) -> Result<usize, String> {
        let wrong = self.ask(&format!("case {}", case.to_line()))?;
        Ok(wrong.iter().sum::<u64>() as usize)
    }

    /// Like [`World::prepare`], but checks the case that is already prepared.
    pub(crate) fn check(&mut self) -> Result<usize, String> {
        Ok(self.ask("check")?.iter().sum::<u64>() as usize)
    }

    /// Returns the time that the slowest rank took for `calls` calls.
    pub(crate) fn batch(&mut self, calls: u64) -> Result<Duration, String> {
        let nanoseconds = self.ask(&format!("batch {calls}"))?;
        let slowest = nanoseconds.into_iter().max();
        Ok(Duration::from_nanos(
            slowest.expect("invariant: there are ranks"),
        ))
    }
}
