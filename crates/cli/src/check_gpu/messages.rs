//! Passes reports from the processes that the checker starts to the checker.

use crate::gpu;
use ringtree::Builder;
use ringtree::cuda::{Device, Stream};
use ringtree::{Communicator, Result};
use std::io::Write;

/// A part of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Part {
    /// Properties of the machine.
    Probe,
    /// Collectives with known results.
    Cases,
    /// GPU operations that training code performs during a collective.
    Habit,
    /// A rank that is killed while the other ranks' streams are waiting for it.
    Killed,
    /// A rank that is suspended while the other ranks' streams are waiting for it.
    Stopped,
    /// Times of all-reduces.
    Speed,
    /// The order of writes to peers' memory.
    Litmus,
}

/// A report from a rank to the checker: a line that consists of a word and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// The rank has performed the given number of checks.
    Checked(usize),
    /// A check failed, with this message.
    Found(String),
    /// A row of the part's table.
    Row(Vec<String>),
    /// The path to check is unavailable, for the given reason.
    NotHere(String),
    /// The rank has reached the point at which the checker waits for it.
    Reached,
    /// The rank has finished its part.
    Done,
}

impl Message {
    /// Prints the report.
    pub(super) fn print(&self) {
        let text = match self {
            Message::Checked(count) => format!("checked {count}"),
            Message::Found(text) => format!("found {}", text.replace('\n', " ")),
            Message::Row(cells) => format!("row {}", cells.join("\t")),
            Message::NotHere(why) => format!("nothere {why}"),
            Message::Reached => "there".into(),
            Message::Done => "done".into(),
        };
        let mut out = std::io::stdout().lock();
        // If this fails, the checker has stopped waiting for this process.
        let _ = writeln!(out, "{text}").and_then(|()| out.flush());
    }

    /// Parses a line. Returns `None` if it is not a report.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        Some(match word {
            "checked" => Message::Checked(rest.parse().ok()?),
            "found" => Message::Found(rest.into()),
            "row" => Message::Row(rest.split('\t').map(str::to_owned).collect()),
            "nothere" => Message::NotHere(rest.into()),
            "there" => Message::Reached,
            "done" => Message::Done,
            _ => return None,
        })
    }
}

/// A rank with its device and a stream on that device.
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

    /// Reports a failed check.
    pub(super) fn found(&self, what: &str) {
        Message::Found(format!("rank {}: {what}", self.comm.rank())).print();
    }
}
