//! What passes between the checker and the processes that it starts: orders to them, and what they
//! find, line by line.

use crate::gpu;
use ringtree::comm::builder::Builder;
use ringtree::device::{Device, Stream};
use ringtree::{Communicator, Result};
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

/// A rank, its device and a stream of it.
pub(super) struct Rank {
    pub(super) comm: Communicator,
    pub(super) device: Device,
    pub(super) stream: Stream,
}

impl Rank {
    pub(super) fn join() -> Result<Self> {
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
