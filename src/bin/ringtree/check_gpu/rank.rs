//! What the processes do that the checker starts: each a part of the check, as one rank of several
//! or alone. What they find goes to the checker line by line ([`Said`]).

use super::cases::{Found, SEGMENT_BYTES};
use super::{Plant, benchmarks, endings, folds, kernels, latency, probe};
use crate::gpu;
use ringtree::bootstrap::TransportChoice;
use ringtree::comm::attach::AttachOptions;
use ringtree::comm::builder::Builder;
use ringtree::device::fake::{Faults, Options};
use ringtree::device::{Device, Stream};
use ringtree::{Communicator, Error, Result};
use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

/// A part of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Part {
    /// What the machine has and what things cost.
    Probe,
    /// What the smallest call consists of.
    Latency,
    /// Kernels against those of the CPU.
    Kernels,
    /// Few of them, for a tool that makes them slow.
    FewKernels,
    /// Collectives among ranks that are threads.
    Threads,
    /// Collectives among ranks that are processes.
    Cases,
    /// A rank that is killed while others' streams wait for it.
    Killed,
    /// A rank that stands still meanwhile.
    Stopped,
    /// The speed of folds.
    Folds,
    /// That of all-reduce.
    AllReduce,
    /// The same on memory that peers read where it lies.
    AllReduceRegistered,
}

/// What a rank says to the checker: a line of a word and the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// So many things were checked.
    Checked(usize),
    /// Something is wrong.
    Found(String),
    /// A line of the part's table.
    Row(Vec<String>),
    /// It has come to where the checker waits for it.
    There,
    /// It has done its part.
    Done,
}

impl Said {
    /// Says it.
    pub(super) fn say(&self) {
        let text = match self {
            Said::Checked(count) => format!("checked {count}"),
            Said::Found(text) => format!("found {}", text.replace('\n', " ")),
            Said::Row(cells) => format!("row {}", cells.join("\t")),
            Said::There => "there".into(),
            Said::Done => "done".into(),
        };
        let mut out = std::io::stdout().lock();
        // Who no longer listens has given up on this process.
        let _ = writeln!(out, "{text}").and_then(|()| out.flush());
    }

    /// What a line says; nothing, if it is none of these.
    pub(super) fn heard(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        Some(match word {
            "checked" => Said::Checked(rest.parse().ok()?),
            "found" => Said::Found(rest.into()),
            "row" => Said::Row(rest.split('\t').map(str::to_owned).collect()),
            "there" => Said::There,
            "done" => Said::Done,
            _ => return None,
        })
    }
}

/// What the checker told this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Orders {
    pub(super) part: Part,
    pub(super) is_fake: bool,
    pub(super) plant: Option<Plant>,
    /// How many threads, where ranks are threads.
    pub(super) ranks: usize,
    /// Which lengths are checked.
    pub(super) turn: usize,
    /// The largest buffer that is measured.
    pub(super) bytes_max: usize,
}

impl Orders {
    /// The device that is checked.
    pub(super) fn device(&self) -> Result<Arc<dyn Device>> {
        let faults = Faults {
            skip_fold: (self.plant == Some(Plant::SkippedFold)).then_some(0),
            skip_wait: (self.plant == Some(Plant::EarlyRelease)).then_some(1),
        };
        let options = Options {
            faults,
            ..Options::default()
        };
        gpu::open(0, self.is_fake.then_some(options))
    }

    /// Those of `sizes` that are not too large, or the largest that is not.
    pub(super) fn sizes(&self, sizes: &[usize]) -> Vec<usize> {
        let fit = sizes.iter().filter(|bytes| **bytes <= self.bytes_max);
        let fit: Vec<_> = fit.copied().collect();
        match fit.is_empty() {
            true => vec![self.bytes_max],
            false => fit,
        }
    }

    /// Does the part; whatever ends it early is said as found.
    pub(super) fn follow(&self) {
        let done = match self.part {
            Part::Kernels => kernels::check(self, true),
            Part::FewKernels => kernels::check(self, false),
            Part::Folds => folds::measure(self),
            Part::Threads => self.threads(),
            Part::Cases => self.ranked(small, |rank| {
                rank.check_way();
                let found = rank.check(self.turn)?;
                tell(rank.comm.rank(), &found);
                rank.comm.barrier()
            }),
            Part::Killed | Part::Stopped => self.ranked(small, |rank| endings::meet(self, rank)),
            Part::Probe => self.ranked(small, |rank| probe::measure(self, rank)),
            Part::Latency => self.ranked(as_is, |rank| latency::measure(self, rank)),
            Part::AllReduce => self.ranked(as_is, |rank| {
                rank.check_way();
                benchmarks::all_reduce(self, rank, false)
            }),
            Part::AllReduceRegistered => self.ranked(as_is, |rank| {
                rank.check_way();
                benchmarks::all_reduce(self, rank, true)
            }),
        };
        if let Err(error) = done {
            Said::Found(error.to_string()).say();
        }
        Said::Done.say();
    }

    /// As the rank that the environment says this is.
    fn ranked(
        &self,
        options: fn() -> Result<AttachOptions>,
        act: impl FnOnce(&Rank) -> Result<()>,
    ) -> Result<()> {
        let comm = Builder::from_env()?.connect()?;
        let number = comm.rank();
        let device = self.device();
        let rank = device.and_then(|device| Rank::new(comm, &device, options()?));
        let done = rank.and_then(|rank| act(&rank));
        done.map_err(|error| named(number, &error))
    }

    /// Ranks that are threads of this process, with one device.
    fn threads(&self) -> Result<()> {
        let device = self.device()?;
        let rendezvous = free_address()?;
        let rank = |number: usize| -> Result<()> {
            let builder = Communicator::builder().rank(number).world_size(self.ranks);
            let builder = builder.rendezvous(&rendezvous).timeout(THREADS_TIMEOUT);
            let comm = builder.transport(TransportChoice::Shm).connect()?;
            let rank = Rank::new(comm, &device, small()?)?;
            rank.check_way();
            let found = rank.check(self.turn)?;
            tell(number, &found);
            // Nobody drops what a peer still reads.
            rank.comm.barrier()
        };
        std::thread::scope(|scope| {
            let rank = &rank;
            for number in 0..self.ranks {
                scope.spawn(move || {
                    if let Err(error) = rank(number) {
                        Said::Found(named(number, &error).to_string()).say();
                    }
                });
            }
        });
        Ok(())
    }
}

/// How ranks hand over where results count: in small pieces, so that messages have many.
fn small() -> Result<AttachOptions> {
    Ok(AttachOptions::from_env()?.segment_bytes(SEGMENT_BYTES))
}

/// How they do it where times count: as users have it.
fn as_is() -> Result<AttachOptions> {
    AttachOptions::from_env()
}

/// How long a call among threads may take.
const THREADS_TIMEOUT: Duration = Duration::from_secs(30);

fn named(rank: usize, error: &Error) -> Error {
    let text = error.to_string();
    match text.starts_with("rank ") {
        true => Error::System(text),
        false => Error::System(format!("rank {rank}: {text}")),
    }
}

fn tell(rank: usize, found: &Found) {
    Said::Checked(found.calls).say();
    for wrong in &found.wrong {
        Said::Found(format!("rank {rank}: {wrong}")).say();
    }
}

/// An address at which nobody listens.
pub(super) fn free_address() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let address = listener.map_err(|error| Error::system("an address to meet at", &error))?;
    Ok(address.to_string())
}

/// A rank, its device and a stream of it.
pub(super) struct Rank {
    pub(super) comm: Communicator,
    pub(super) device: Arc<dyn Device>,
    pub(super) stream: Arc<dyn Stream>,
}

impl Rank {
    fn new(comm: Communicator, device: &Arc<dyn Device>, options: AttachOptions) -> Result<Self> {
        comm.attach_with(device, options)?;
        Ok(Self {
            comm,
            stream: device.stream()?,
            device: Arc::clone(device),
        })
    }

    /// That segments go the way that is to be checked: with memory of the GPU, unless TCP was asked
    /// for. Where that cannot be mapped they would go through the hosts, and all be right.
    fn check_way(&self) {
        let over = self.comm.device_transport();
        let expected = match self.comm.transport() {
            "tcp" => "tcp",
            _ => "cuda",
        };
        if over.as_deref() != Some(expected) {
            let (rank, over) = (self.comm.rank(), over.unwrap_or_default());
            Said::Found(format!(
                "rank {rank}: segments travel over {over}, not {expected}: \
                 GPU memory of another process cannot be mapped here"
            ))
            .say();
        }
    }
}
