//! What the processes do that the checker starts: each a part of the check, as one rank of several.
//! What they find goes to the checker line by line ([`Said`]).

use super::{cases, endings, habits, litmus, probe, speeds};
use crate::gpu;
use ringtree::comm::builder::Builder;
use ringtree::device::{Device, Stream};
use ringtree::{Communicator, Error, Result};
use std::io::Write;

/// A part of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Part {
    /// What the machine has.
    Probe,
    /// Collectives whose results are known.
    Cases,
    /// What training code does behind a collective.
    Habit,
    /// A rank that is killed while others' streams wait for it.
    Killed,
    /// A rank that stands still meanwhile.
    Stopped,
    /// How long all-reduces take.
    Speed,
    /// Whether GPUs read of each other's memory what was written last.
    Litmus,
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
    /// The path that was to be checked cannot be had, and why.
    NotHere(String),
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
            Said::NotHere(why) => format!("nothere {why}"),
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
            "nothere" => Said::NotHere(rest.into()),
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
    /// Which lengths are checked, or which habit.
    pub(super) turn: usize,
    /// The largest buffer that is measured.
    pub(super) bytes_max: usize,
    /// Whether nothing is to be checked where buffers are staged.
    pub(super) is_mapped: bool,
}

impl Orders {
    /// Does the part, as the rank that the environment says this is; whatever ends it early is said
    /// as found.
    pub(super) fn follow(&self) {
        let done = Rank::join().and_then(|rank| {
            let done = self.act(&rank);
            done.map_err(|error| named(rank.comm.rank(), &error))
        });
        if let Err(error) = done {
            Said::Found(error.to_string()).say();
        }
        Said::Done.say();
    }

    fn act(&self, rank: &Rank) -> Result<()> {
        let path = rank.comm.device_path().unwrap_or_default();
        if self.is_mapped && !path.starts_with("mapped") {
            // Behind what is done in its place.
            let why = path.splitn(3, ": ").last().unwrap_or_default();
            Said::NotHere(why.into()).say();
            return Ok(());
        }
        match self.part {
            Part::Probe => probe::tell(rank),
            Part::Cases => cases::check(rank, self.turn, self.bytes_max),
            Part::Habit => habits::check(rank, self.turn),
            Part::Killed | Part::Stopped => endings::meet(self, rank),
            Part::Speed => speeds::measure(rank, self.bytes_max),
            Part::Litmus => litmus::check(rank, self.bytes_max),
        }
    }
}

fn named(rank: usize, error: &Error) -> Error {
    let text = error.to_string();
    match text.starts_with("rank ") {
        true => Error::system(text),
        false => Error::system(format!("rank {rank}: {text}")),
    }
}

/// A rank, its device and a stream of it.
pub(super) struct Rank {
    pub(super) comm: Communicator,
    pub(super) device: Device,
    pub(super) stream: Stream,
}

impl Rank {
    fn join() -> Result<Self> {
        let comm = Builder::from_env()?.connect()?;
        let device = gpu::open(comm.local_rank())?;
        comm.attach(&device)?;
        Ok(Self {
            stream: device.stream()?,
            comm,
            device,
        })
    }

    /// Says that something is wrong.
    pub(super) fn found(&self, what: &str) {
        Said::Found(format!("rank {}: {what}", self.comm.rank())).say();
    }
}
