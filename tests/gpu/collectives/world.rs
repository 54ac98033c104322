//! Ranks as processes on the pretended driver: this test binary starts itself.

use crate::address::own_address;
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
/// In front of what a rank has to say, among the lines of the test harness.
const MARK: &str = "says: ";
/// Who takes this long hangs: far longer than any timeout here, and a busy machine's delays.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a rank of a role does; what it says is compared by the test.
pub(crate) type Act = fn(&Rank) -> Result<String>;

/// Ranks to start.
pub(crate) struct World {
    ranks: usize,
    settings: Vec<(&'static str, String)>,
    /// Settings of single ranks.
    of_ranks: Vec<(usize, &'static str, &'static str)>,
}

pub(crate) fn ok(ranks: usize) -> Vec<&'static str> {
    vec!["ok"; ranks]
}

impl World {
    /// Ranks whose buffers take a path: `mapped`, or staged over `shm` or `tcp`.
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

    /// A setting of one rank.
    pub(crate) fn of_rank(mut self, rank: usize, name: &'static str, value: &'static str) -> Self {
        self.of_ranks.push((rank, name, value));
        self
    }

    /// Another path than the one that was asked for.
    pub(crate) fn expecting(self, path: &str) -> Self {
        self.with(PATH, path)
    }

    /// The timeout of calls that are to run into it.
    pub(crate) fn impatient(self) -> Self {
        self.with("RINGTREE_TIMEOUT_MS", "1500")
    }

    /// Runs the ranks and compares what each says. One that ends otherwise says how.
    pub(crate) fn expect(&self, role: &str, expected: Vec<&str>) {
        let said = self.run(role);
        assert_eq!(said, expected, "{role} with {:?}", self.settings);
    }

    /// What each rank says.
    pub(crate) fn run(&self, role: &str) -> Vec<String> {
        let rendezvous = own_address();
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
        children.into_iter().map(|child| said(child, end)).collect()
    }
}

fn said(mut child: Child, end: Instant) -> String {
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
    let said = text.lines().find_map(|line| line.strip_prefix(MARK));
    said.map_or_else(|| format!("nothing: {text}"), str::to_owned)
}

/// In a process that was started: does what its role says.
pub(crate) fn child(act: impl Fn(&str) -> Option<Act>) {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let act = act(&role).expect("a role");
    let said = Rank::join().and_then(|rank| act(&rank));
    // Without unwinding anything: what is left over at the end of a process is the system's.
    eprintln!("{MARK}{}", said.unwrap_or_else(|error| error.to_string()));
    std::process::exit(0);
}

pub(crate) struct Rank {
    pub(crate) comm: Communicator,
    pub(crate) device: Device,
    pub(crate) stream: Stream,
}

impl Rank {
    fn join() -> Result<Self> {
        let ordinal = match std::env::var_os("GPU_OF_ITS_OWN") {
            Some(_) => {
                Builder::from_env().map(|_| std::env::var("RANK").unwrap().parse().unwrap())?
            }
            None => 0,
        };
        let device = Device::open(ordinal)?;
        let comm = Communicator::from_env()?;
        if let Err(error) = comm.attach(&device) {
            // Where a setting is refused, the communicator is fine.
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

/// `mapped`, or the transport of the staged path. `None` if no device is attached.
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
