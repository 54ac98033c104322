//! Runs ranks as processes on the fake driver, started from this test binary.

use crate::address::reserved_address;
use crate::driver;
use ringtree::Builder;
use ringtree::cuda::{Device, Stream};
use ringtree::{Communicator, Result};
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ROLE: &str = "RINGTREE_TEST_ROLE";
const PATH: &str = "RINGTREE_TEST_PATH";
pub(crate) const PATHS: [&str; 3] = ["mapped", "shm", "tcp"];
/// Prefix that distinguishes a rank's result from the lines of the test harness.
const REPORT_PREFIX: &str = "rank result: ";
/// Time after which a rank counts as hung. It is far longer than any timeout in these tests and
/// than any delay on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The code that a rank runs for a role. The test compares its result.
pub(crate) type Act = fn(&Rank) -> Result<String>;

/// The ranks to start and their settings.
pub(crate) struct World {
    ranks: usize,
    settings: Vec<(&'static str, String)>,
    /// Settings of individual ranks, as (rank, variable, value).
    of_ranks: Vec<(usize, &'static str, &'static str)>,
}

pub(crate) fn ok(ranks: usize) -> Vec<&'static str> {
    vec!["ok"; ranks]
}

impl World {
    /// Creates ranks whose buffers use a path: `mapped`, or staged over `shm` or `tcp`.
    pub(crate) fn new(ranks: usize, path: &'static str) -> Self {
        let transport = if path == "tcp" { "tcp" } else { "shm" };
        let settings = vec![
            ("RINGTREE_TRANSPORT", transport.to_owned()),
            ("RINGTREE_TIMEOUT_MS", "20000".to_owned()),
            (PATH, path.to_owned()),
        ];
        let world = Self {
            ranks,
            settings,
            of_ranks: Vec::new(),
        };
        match path {
            "shm" => world.with("NO_IPC", "1"),
            _ => world,
        }
    }

    pub(crate) fn with(mut self, name: &'static str, value: &str) -> Self {
        self.settings.push((name, value.to_owned()));
        self
    }

    /// Sets a variable for one rank.
    pub(crate) fn of_rank(mut self, rank: usize, name: &'static str, value: &'static str) -> Self {
        self.of_ranks.push((rank, name, value));
        self
    }

    /// Expects the ranks to use a different path than the requested one.
    pub(crate) fn expecting(self, path: &str) -> Self {
        self.with(PATH, path)
    }

    /// Shortens the timeout, for tests whose calls must time out.
    pub(crate) fn impatient(self) -> Self {
        self.with("RINGTREE_TIMEOUT_MS", "1500")
    }

    /// Runs the ranks and compares their results. A rank that fails reports the cause.
    pub(crate) fn expect(&self, role: &str, expected: Vec<&str>) {
        let result = self.run(role);
        assert_eq!(result, expected, "{role} with {:?}", self.settings);
    }

    /// Runs the ranks and returns the result of each.
    pub(crate) fn run(&self, role: &str) -> Vec<String> {
        let rendezvous = reserved_address();
        let start = |rank: usize| {
            let numbers = [("RANK", rank), ("LOCAL_RANK", rank)];
            let sizes = [("WORLD_SIZE", self.ranks), ("LOCAL_WORLD_SIZE", self.ranks)];
            let numbers = numbers.into_iter().chain(sizes);
            let own = self.of_ranks.iter().filter(|one| one.0 == rank);
            Command::new(std::env::current_exe().unwrap())
                .args(["collectives::child_entry", "--exact", "--nocapture"])
                .env("LD_LIBRARY_PATH", driver::folder())
                .env(ROLE, role)
                .envs(numbers.map(|(name, number)| (name, number.to_string())))
                .env("RINGTREE_RENDEZVOUS", &rendezvous)
                .env("RINGTREE_TUNING", "built-in")
                .envs(self.settings.iter().cloned())
                .envs(own.map(|one| (one.1, one.2)))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let children: Vec<_> = (0..self.ranks).map(start).collect();
        let end = Instant::now() + PATIENCE;
        children
            .into_iter()
            .map(|child| result_of(child, end))
            .collect()
    }
}

fn result_of(mut child: Child, end: Instant) -> String {
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            child.kill().unwrap();
            child.wait().unwrap();
            return "nothing: it hangs".into();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut text = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    let result = text
        .lines()
        .find_map(|line| line.strip_prefix(REPORT_PREFIX));
    result.map_or_else(|| format!("nothing: {text}"), str::to_owned)
}

/// Runs the given role in a process started by [`World::run`].
pub(crate) fn child(act: impl Fn(&str) -> Option<Act>) {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let act = act(&role).expect("the role must exist");
    let result = Rank::join().and_then(|rank| act(&rank));
    // Exit without unwinding, so that the system releases all that remains.
    eprintln!(
        "{REPORT_PREFIX}{}",
        result.unwrap_or_else(|error| error.to_string())
    );
    std::process::exit(0);
}

pub(crate) struct Rank {
    pub(crate) comm: Communicator,
    pub(crate) device: Device,
    pub(crate) stream: Stream,
}

impl Rank {
    fn join() -> Result<Self> {
        let ordinal = match std::env::var_os("GPU_PER_RANK") {
            Some(_) => {
                Builder::from_env().map(|_| std::env::var("RANK").unwrap().parse().unwrap())?
            }
            None => 0,
        };
        let device = Device::open(ordinal)?;
        let comm = Communicator::from_env()?;
        if let Err(error) = comm.attach(&device) {
            // The communicator must still be usable after a setting was rejected.
            comm.barrier()?;
            return Err(error);
        }
        let path = transport(&comm);
        assert_eq!(path, std::env::var(PATH).ok(), "{}", comm.info());
        Ok(Self {
            stream: device.stream()?,
            comm,
            device,
        })
    }
}

/// Returns `mapped` or the transport of the staged path; `None` if no device is attached.
pub(crate) fn transport(comm: &Communicator) -> Option<String> {
    let info = comm.info();
    let over = |name| {
        if name == "mapped" {
            name
        } else {
            info.transport
        }
    };
    info.device_path.map(|path| over(path).to_owned())
}
