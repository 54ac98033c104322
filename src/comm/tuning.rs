//! Where the table comes from by which a communicator chooses its algorithms, and communicators
//! with another table.
//!
//! *May import* what the room may.

use super::{Communicator, Parts};
use crate::bootstrap::TuningSource;
use crate::bootstrap::settings::Settings;
use crate::bootstrap::tuning::{JOB_TUNING, TUNING};
use crate::control::Membership;
use crate::control::report::Report;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::plan::record::{TuningMismatch, TuningRecord};
use crate::plan::select::{TuningTable, choose_concurrent};
use crate::plan::topology::Sharing;
use crate::plan::{Algorithm, Collective, Topology};
use crate::protocol::founding::FIRST_MADE;
use crate::whole_file;
use std::fmt;
use std::path::Path;

/// Number of the group in which the links are measured. Groups created later have higher numbers.
/// A separate group leaves call 1 of the world to the user's first call.
pub(super) const MEASURING: u32 = FIRST_MADE - 1;

/// Where a communicator's table of link speeds comes from. The same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TuningOrigin {
    /// `RINGTREE_TUNING`, or [`Builder::tuning`](crate::Builder::tuning).
    Setting,
    /// [`Communicator::with_tuning`] took it over, from a checkpoint for example.
    Kept,
    /// The launcher handed it on: it was measured in an earlier attempt of the job.
    Launcher,
    /// The ranks, of several hosts, measured it when they met, and rounded it.
    Measured,
    /// The built-in one: the ranks are those of one machine, or simulated.
    BuiltIn,
}

impl fmt::Display for TuningOrigin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Setting => "set by RINGTREE_TUNING or the program",
            Self::Kept => "kept by an earlier run",
            Self::Launcher => "measured in an earlier attempt of the job",
            Self::Measured => "measured when the ranks met",
            Self::BuiltIn => "built-in",
        })
    }
}

/// What became of a kept table: see [`Communicator::with_tuning`].
#[derive(Debug)]
#[must_use]
pub enum Adoption {
    /// A new communicator of the same ranks, which chooses by the table.
    Adopted(Communicator),
    /// The table is not used. Printed, the reason is one line, which says that bits may differ.
    Refused(TuningMismatch),
}

/// The table of link speeds.
impl Communicator {
    /// The table by which algorithms are chosen, the same on all ranks: the built-in one where
    /// they are those of one machine. On several hosts it was measured when the communicator of
    /// all ranks was made, and rounded to coarse steps, unless
    /// [`TuningOrigin`] says otherwise. Another table may choose other algorithms, which sum in
    /// another order.
    ///
    /// ```
    /// use ringtree::TuningTable;
    /// let tables = ringtree::simulate(2, |comm| comm.tuning());
    /// assert_eq!(tables, [TuningTable::default(); 2]);
    /// ```
    #[must_use]
    pub fn tuning(&self) -> TuningTable {
        self.0.parts.tuning
    }

    /// Where the table comes from.
    ///
    /// ```
    /// use ringtree::TuningOrigin;
    /// let origins = ringtree::simulate(2, |comm| comm.tuning_origin());
    /// assert_eq!(origins, [TuningOrigin::BuiltIn; 2]);
    /// ```
    #[must_use]
    pub fn tuning_origin(&self) -> TuningOrigin {
        self.0.parts.tuning_origin
    }

    /// The table with what it is good for, to be kept: a checkpoint holds its text.
    /// [`Communicator::with_tuning`] takes it back.
    #[must_use]
    pub fn tuning_record(&self) -> TuningRecord {
        TuningRecord::new(self.tuning(), &self.0.parts.topology())
    }

    /// A communicator of the same ranks that chooses its algorithms by a kept table, so that sums
    /// have the bits that they had in the run that kept it. A table never changes under a
    /// communicator: this one keeps its own. Otherwise the new one is a
    /// [duplicate](Communicator::duplicate). All ranks call it with the same record, in the order
    /// of their calls.
    ///
    /// The table is refused unless it is for as many ranks, on hosts shared in the same way, and
    /// of this version; and if `RINGTREE_TUNING` or the builder gives another, which goes first.
    /// Then no communicator is made.
    ///
    /// ```
    /// use ringtree::{Adoption, TuningOrigin, TuningTable};
    /// use ringtree::sim::simulate::World;
    ///
    /// let mut slow = World::new(3);
    /// slow.tuning.tcp.alpha_s = 1e-3;
    /// let kept = slow.run(|comm| comm.tuning_record().to_string()).remove(0);
    /// let ends = ringtree::simulate(3, |comm| {
    ///     let record = kept.parse().expect("a record's text");
    ///     match comm.with_tuning(&record)? {
    ///         Adoption::Adopted(as_then) => {
    ///             as_then.barrier()?;
    ///             let alpha_s = as_then.tuning().tcp.alpha_s;
    ///             Ok::<_, ringtree::Error>((alpha_s, as_then.tuning_origin()))
    ///         }
    ///         Adoption::Refused(why) => panic!("{why}"),
    ///     }
    /// });
    /// assert_eq!(ends, vec![Ok((1e-3, TuningOrigin::Kept)); 3]);
    /// ```
    ///
    /// # Errors
    /// [`Error::usage`] on all ranks if one gives another record; those of
    /// [`Communicator::duplicate`].
    pub fn with_tuning(&self, kept: &TuningRecord) -> Result<Adoption> {
        let mut told = vec![0u64; self.world_size()];
        told[self.rank()] = kept.hash();
        self.all_gather(&mut told)?;
        if let Some(rank) = told.iter().position(|hash| *hash != told[0]) {
            return Err(Error::usage(format!(
                "rank {rank} gives with_tuning another table than rank 0; all ranks must give the \
                 same, such as that of the checkpoint that they loaded together"
            )));
        }
        if let Err(why) = kept.fits(&self.0.parts.topology()) {
            return Ok(Adoption::Refused(why));
        }
        let is_set = self.tuning_origin() == TuningOrigin::Setting;
        if is_set && kept.table() != self.tuning() {
            return Ok(Adoption::Refused(TuningMismatch::Setting));
        }
        let origin = if is_set {
            TuningOrigin::Setting
        } else {
            TuningOrigin::Kept
        };
        self.duplicate_by(kept.table(), origin)
            .map(Adoption::Adopted)
    }
}

impl Communicator {
    /// Returns the best algorithm for `calls` concurrent all-reduces of `count` elements
    /// ([`choose_concurrent`]). Returns `None` where the choice for a single call applies: the
    /// program or a setting names an algorithm or an order of sums, or all ranks share one host.
    pub(crate) fn algorithm_among(
        &self,
        count: usize,
        dtype: Dtype,
        calls: usize,
    ) -> Option<Algorithm> {
        let topology = self.0.parts.topology();
        let is_free = self.algorithm().is_none() && !self.is_reproducible();
        if !is_free || calls < 2 || topology.sharing() == Sharing::All {
            return None;
        }
        let (size, table) = (dtype.size(), self.tuning());
        let sum = Collective::AllReduce;
        let choice = choose_concurrent(calls, sum, &topology, count * size, size, &table);
        choice.ok().map(|choice| choice.algorithm)
    }
}

/// What is known of the table before the ranks meet.
pub(super) enum Start {
    /// A setting gives it.
    Set(TuningTable),
    /// The launcher hands on that of an earlier attempt.
    HandedOn(TuningRecord),
    /// It is measured where ranks have a network between them.
    Open,
    /// It is measured wherever there are other ranks: a setting asks for that.
    ToMeasure,
}

impl Start {
    /// What the settings say.
    ///
    /// # Errors
    /// [`Error::configuration`] for a text that is no table.
    pub(super) fn of(settings: &Settings) -> Result<Self> {
        let wrong = |name: &str, what| Error::configuration(format!("{name}: {what}"));
        match &settings.tuning {
            TuningSource::Measured => Ok(Self::Open),
            TuningSource::MeasuredInto(_) => Ok(Self::ToMeasure),
            TuningSource::BuiltIn => Ok(Self::Set(TuningTable::default())),
            TuningSource::HandedOn(text) => {
                let record = text.parse().map(Self::HandedOn);
                record.map_err(|what: String| wrong(JOB_TUNING, what))
            }
            TuningSource::Text { origin, text } => {
                let table = TuningTable::parse(text).map(Self::Set);
                table.map_err(|what| wrong(TUNING, format!("{origin}: {what}")))
            }
        }
    }

    /// The table of these ranks, unless they are to measure it: a function of what all of them
    /// know.
    ///
    /// On one machine there is nothing to measure but how busy its cores are at this moment: the
    /// built-in table has what shared memory and loopback cost, and a choice depends on the ratios
    /// of its numbers alone.
    pub(super) fn known_by(
        &self,
        ranks: &Membership,
        topology: &Topology,
    ) -> Option<(TuningTable, TuningOrigin)> {
        let built_in = (TuningTable::default(), TuningOrigin::BuiltIn);
        match self {
            Self::Set(table) => return Some((*table, TuningOrigin::Setting)),
            Self::HandedOn(record) => match record.fits(topology) {
                Ok(()) => return Some((record.table(), TuningOrigin::Launcher)),
                Err(why) if ranks.rank == 0 => eprintln!("ringtree: {why}"),
                Err(_) => {}
            },
            Self::ToMeasure if ranks.world_size > 1 => return None,
            Self::Open | Self::ToMeasure => {}
        }
        ranks.are_of_one_machine().then_some(built_in)
    }
}

/// The table that the ranks measure together. If a setting names a file for it, the first rank of
/// each host keeps it there as it is; otherwise it is rounded, and rank 0 tells the launcher.
pub(super) fn measured(
    parts: &Parts,
    settings: &Settings,
    ranks: &Membership,
) -> Result<(TuningTable, TuningOrigin)> {
    let measuring = Communicator::assemble(Parts {
        group: MEASURING,
        ..parts.clone()
    });
    let table = measuring.measure()?;
    if let TuningSource::MeasuredInto(path) = &settings.tuning {
        let writes = ranks.is_first_of_host();
        keep(&measuring, path, writes.then_some(&table))?;
        return Ok((table, TuningOrigin::Setting));
    }
    let table = table.rounded();
    if ranks.rank == 0 {
        tell(&TuningRecord::new(table, &parts.topology()), settings);
    }
    Ok((table, TuningOrigin::Measured))
}

/// Leaves the table with the launcher, for later attempts, and tells the user what depends on it.
fn tell(record: &TuningRecord, settings: &Settings) {
    let link = record.table().tcp;
    let (alpha_us, overhead_us) = (link.alpha_s * 1e6, link.overhead_s * 1e6);
    let beta_ns = link.beta_s_per_byte * 1e9;
    if !settings.is_reproducible {
        eprintln!(
            "ringtree: algorithms are chosen for a network of {alpha_us:.3} µs on the way, \
             {overhead_us:.3} µs a message and {beta_ns:.3} ns a byte, as measured and rounded; \
             a start that measures another may \
             end with other bits; RINGTREE_TUNING=FILE keeps the table"
        );
    }
    if let Some(descriptor) = settings.report_fd
        && let Err(error) = Report::Table(record.to_string()).append(descriptor)
    {
        eprintln!(
            "ringtree: rank 0 cannot leave its table of link speeds with the launcher: {error}; \
             ranks that are started again measure anew, and may end with other bits"
        );
    }
}

/// Writes `table`, on the ranks that have it to write, to the file at `path`, whole or not at all.
/// Ends on all ranks when all have written; with the error of one, on all.
fn keep(comm: &Communicator, path: &Path, table: Option<&TuningTable>) -> Result<()> {
    let write = |table: &TuningTable| whole_file::replace(path, &[format!("{table}\n").as_bytes()]);
    if let Some(Err(error)) = table.map(write) {
        let path = path.display();
        comm.fail(&Error::configuration(format!(
            "{TUNING}={path}: rank {} cannot write the measured table there: {error}",
            comm.rank()
        )));
    }
    comm.barrier()
}
