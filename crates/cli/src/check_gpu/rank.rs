//! Runs a part of the check as one of several ranks, in a process that the checker starts.

use super::said::{Orders, Part, Rank, Said};
use super::{cases, endings, habits, litmus, probe, speeds};
use ringtree::{Error, ErrorKind, Result};

impl Orders {
    /// Runs the part as the rank that the environment specifies. Reports an error as a failed
    /// check.
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
        let info = rank.comm.info();
        if self.is_mapped && info.device_path != Some("mapped") {
            Said::NotHere(info.device_path_reason).say();
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
        true => Error::new(ErrorKind::System, text),
        false => Error::new(ErrorKind::System, format!("rank {rank}: {text}")),
    }
}
