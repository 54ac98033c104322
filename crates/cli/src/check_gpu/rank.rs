//! Runs a part of the check as one of several ranks, in a process that the checker starts.

use super::messages::{Message, Part, Rank};
use super::{Arguments, cases, failures, litmus, probe, speeds, usage_patterns};
use ringtree::{Error, ErrorKind, Result};

/// Runs a part as the rank that the environment specifies. Reports an error as a failed check.
pub(super) fn run_part(part: Part, arguments: &Arguments) {
    let done = Rank::join().and_then(|rank| {
        let done = act(part, arguments, &rank);
        done.map_err(|error| named(rank.comm.rank(), &error))
    });
    if let Err(error) = done {
        Message::Found(error.to_string()).print();
    }
    Message::Done.print();
}

fn act(part: Part, arguments: &Arguments, rank: &Rank) -> Result<()> {
    let info = rank.comm.info();
    if arguments.mapped && info.device_path != Some("mapped") {
        Message::NotHere(info.device_path_reason).print();
        return Ok(());
    }
    let Arguments {
        turn, bytes_max, ..
    } = *arguments;
    match part {
        Part::Probe => probe::tell(rank),
        Part::Cases => cases::check(rank, turn, bytes_max),
        Part::Habit => usage_patterns::check(rank, turn),
        Part::Killed | Part::Stopped => failures::meet(part, rank),
        Part::Speed => speeds::measure(rank, bytes_max),
        Part::Litmus => litmus::check(rank, bytes_max),
    }
}

fn named(rank: usize, error: &Error) -> Error {
    let text = error.to_string();
    let text = match text.starts_with("rank ") {
        true => text,
        false => format!("rank {rank}: {text}"),
    };
    Error::new(ErrorKind::System, text)
}
