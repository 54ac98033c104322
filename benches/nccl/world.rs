//! The parent's side: processes of this very program that play parts, and what they say.

use crate::ROLE;
use crate::arrangement::{Case, RANKS};
use crate::rank::{MARK, RANK};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long ranks may take to answer; a batch that is begun takes seconds.
const PATIENCE: Duration = Duration::from_secs(45);
/// How long they may take to end.
const GRACE: Duration = Duration::from_secs(2);

/// Lines that are kept of what a process prints beside its answers.
const PRINTED_MAX: usize = 4;

/// What player so-and-so said, or that it says nothing more.
type Heard = (usize, Option<String>);

/// A process that plays a part.
struct Player {
    name: String,
    child: Child,
    orders: ChildStdin,
    /// The last of what it printed beside its answers: NCCL's complaints.
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
            .map_err(|error| format!("{name} cannot be started: {error}"))?;
        let output = child.stdout.take().expect("invariant: it is piped");
        let orders = child.stdin.take().expect("invariant: it is piped");
        let printed = Arc::new(Mutex::new(VecDeque::new()));
        let keep = Arc::clone(&printed);
        std::thread::spawn(move || {
            // Where nobody listens any more, what is said is read all the same.
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

    /// The end of a sentence about its failure: what it printed last.
    fn last_words(&self) -> String {
        let printed = self.printed.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = printed.iter().map(|line| line.trim());
        match lines.collect::<Vec<_>>().join(" | ").as_str() {
            "" => String::new(),
            words => format!("; it printed: {words}"),
        }
    }

    fn tell(&mut self, line: &str) {
        // If it is gone, that will be heard, and with it why.
        let _ = writeln!(self.orders, "{line}").and_then(|()| self.orders.flush());
    }
}

/// Processes that one answer is expected of at a time. When dropped, they are told to end, and
/// those that do not are killed.
pub(crate) struct Players {
    players: Vec<Player>,
    heard: Receiver<Heard>,
    grace: Duration,
}

impl Players {
    /// Starts one process for each name, as this program in the part of `role`.
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

    /// A single one.
    pub(crate) fn one(
        role: &str,
        name: &str,
        adapt: impl Fn(&mut Command),
    ) -> Result<Self, String> {
        Self::start(role, &[name.to_owned()], |_, command| adapt(command))
    }

    /// As it was, but with `grace` to end in.
    pub(crate) fn with_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// The next answers of `count` players, in the players' order; an error as soon as any player
    /// fails or ends.
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
                    return Err(format!("{name} said nothing for {patience:?}{words}"));
                }
                Err(RecvTimeoutError::Disconnected) => return Err("nobody is left".into()),
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Waits for the end of one that has failed: what NCCL prints may come no sooner.
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
            Ok(status) => format!("{name} ended ({status}){words}"),
            Err(error) => format!("{name} ended: {error}"),
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
            // One that hangs in the driver may not go even then, and is left to the system.
            let deadline = Instant::now() + GRACE;
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// The ranks of one library, and what rank 0 says of its path.
pub(crate) struct World {
    ranks: Players,
    pub(crate) path: String,
}

impl World {
    /// Starts the ranks of the library called `role`, and waits until they have found each other.
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
            let id = said.strip_prefix("id ").ok_or("rank 0 gave no id")?;
            for rank in &mut ranks.players[1..] {
                rank.tell(id);
            }
        }
        let said = ranks.hear(RANKS, PATIENCE)?.remove(0);
        let path = said.strip_prefix("joined ").unwrap_or_default().to_owned();
        Ok(Self { ranks, path })
    }

    /// Tells all ranks the same; returns what they say, as numbers.
    fn ask(&mut self, line: &str) -> Result<Vec<u64>, String> {
        for rank in &mut self.ranks.players {
            rank.tell(line);
        }
        let said = self.ranks.hear(RANKS, PATIENCE)?;
        let numbers = said.iter().map(|text| {
            let number = text.parse();
            number.map_err(|_| format!("'{text}' is no answer to '{line}'"))
        });
        numbers.collect()
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
