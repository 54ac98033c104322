//! Provides the table of link speeds that a communicator uses to choose algorithms.
//!
//! *May import* the same modules as its parent.

use super::measure::measure;
use super::{Communicator, Parts};
use crate::bootstrap::TuningSource;
use crate::bootstrap::settings::Settings;
use crate::bootstrap::tuning::{JOB_TUNING, TUNING};
use crate::control::Membership;
use crate::control::report::Report;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::event;
use crate::plan::internal::record::{self, fits};
use crate::plan::internal::topology::{Sharing, sharing};
use crate::plan::internal::tuning::rounded;
use crate::plan::{
    Algorithm, Collective, PlanError, Topology, TuningMismatch, TuningRecord, TuningTable,
    choose_concurrent,
};
use crate::protocol::group_creation::FIRST_MADE;
use crate::whole_file;
use std::fmt;
use std::path::Path;

/// Number of the group in which the links are measured. Groups that are created later have higher
/// group numbers. Because a separate group is used, the user's first call is call 1 of the world.
pub(super) const MEASURING_GROUP: u32 = FIRST_MADE - 1;

/// The source of a communicator's table of link speeds. It is the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TuningOrigin {
    /// The `RINGTREE_TUNING` setting or a call to [`Builder::tuning`](crate::Builder::tuning).
    Setting,
    /// A record, for example from a checkpoint, that [`Communicator::duplicate_with`] adopted.
    Kept,
    /// A measurement from an earlier attempt to run the job, passed on by the launcher.
    Launcher,
    /// A measurement that ranks on several hosts made at startup, rounded.
    Measured,
    /// The built-in table, which is used if the ranks are simulated or are all on one machine.
    BuiltIn,
}

impl fmt::Display for TuningOrigin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Setting => "set by RINGTREE_TUNING or the program",
            Self::Kept => "saved by an earlier run",
            Self::Launcher => "measured before the job was restarted",
            Self::Measured => "measured at startup",
            Self::BuiltIn => "built-in",
        })
    }
}

/// Methods concerning the table of link speeds.
impl Communicator {
    /// Returns the [table](TuningRecord::table) that is used to choose algorithms, together with
    /// the placement of ranks on hosts for which it is valid. You can store the record in a
    /// checkpoint and pass it to [`Communicator::duplicate_with`] in a later run.
    ///
    /// The table is the same on all ranks. If all ranks are on one machine, it is the built-in
    /// table. If the ranks are on several hosts, the table was measured at startup and rounded to
    /// coarse steps, unless [`Communicator::info`] shows a different source. With a different
    /// table, different algorithms may be chosen, and these may sum in a different order.
    ///
    /// ```
    /// use ringtree::tuning::TuningTable;
    /// let tables = ringtree::simulate(2, |comm| comm.tuning().table());
    /// assert_eq!(tables, [TuningTable::default(); 2]);
    /// ```
    #[must_use]
    pub fn tuning(&self) -> TuningRecord {
        record::of(self.table(), &self.core.parts.topology())
    }

    /// Returns the table that is used to choose algorithms.
    pub(crate) fn table(&self) -> TuningTable {
        self.core.parts.tuning
    }

    /// Creates a [duplicate](Communicator::duplicate) that uses the table from an earlier run to
    /// choose algorithms, so that sums have the same bits as in that run. The table used by this
    /// communicator does not change. All ranks must make this call with the same record and in the
    /// same order relative to their other calls on this communicator.
    ///
    /// Returns the reason instead of a communicator if the record is for a different number of
    /// ranks, a different placement of ranks on hosts, or a different version of ringtree. Also
    /// returns the reason if `RINGTREE_TUNING` or the builder sets a different table, because that
    /// table takes precedence. The reason prints as a one-line warning that the bits of sums may
    /// differ.
    ///
    /// ```
    /// use ringtree::tuning::TuningOrigin;
    /// use ringtree::sim::World;
    ///
    /// let mut slow = World::new(3);
    /// slow.tuning.tcp.alpha_s = 1e-3;
    /// let kept = slow.run(|comm| comm.tuning().to_string()).remove(0);
    /// let ends = ringtree::simulate(3, |comm| {
    ///     let record = kept.parse().expect("a record's text");
    ///     match comm.duplicate_with(&record)? {
    ///         Ok(as_then) => {
    ///             as_then.barrier()?;
    ///             let alpha_s = as_then.tuning().table().tcp.alpha_s;
    ///             Ok::<_, ringtree::Error>((alpha_s, as_then.info().tuning_origin))
    ///         }
    ///         Err(why) => panic!("{why}"),
    ///     }
    /// });
    /// assert_eq!(ends, vec![Ok((1e-3, TuningOrigin::Kept)); 3]);
    /// ```
    ///
    /// # Errors
    /// Returns an [`Error`] of kind [`ErrorKind::Usage`](crate::ErrorKind::Usage) on all ranks if
    /// two ranks pass different records. Otherwise, returns the same errors as
    /// [`Communicator::duplicate`].
    pub fn duplicate_with(&self, kept: &TuningRecord) -> Result<Result<Self, TuningMismatch>> {
        let mut told = vec![0u64; self.world_size()];
        told[self.rank()] = kept.hash();
        self.all_gather(&mut told)?;
        if let Some(rank) = told.iter().position(|hash| *hash != told[0]) {
            return Err(Error::usage(format!(
                "rank {rank} and rank 0 passed different records to duplicate_with; pass the same \
                 record on all ranks, such as the one from the checkpoint that they all loaded"
            )));
        }
        if let Err(why) = fits(kept, &self.core.parts.topology()) {
            return Ok(Err(why));
        }
        let origin = match self.core.parts.tuning_origin {
            TuningOrigin::Setting if kept.table() == self.table() => TuningOrigin::Setting,
            TuningOrigin::Setting => return Ok(Err(TuningMismatch::Setting)),
            _ => TuningOrigin::Kept,
        };
        self.duplicate_by(kept.table(), origin).map(Ok)
    }
}

impl Communicator {
    /// Returns the best algorithm for `calls` concurrent all-reduces of `count` elements
    /// ([`choose_concurrent`]). Returns `None` if the algorithm should be chosen as for a single
    /// call. This is the case if there are fewer than two calls, if the program or a setting
    /// specifies the algorithm or the order of sums, or if all ranks share one host.
    pub(crate) fn algorithm_among(
        &self,
        count: usize,
        dtype: Dtype,
        calls: usize,
    ) -> Option<Algorithm> {
        let topology = self.core.parts.topology();
        let is_free = self.algorithm().is_none() && !self.core.parts.is_reproducible;
        if !is_free || calls < 2 || sharing(&topology) == Sharing::All {
            return None;
        }
        let (size, table) = (dtype.size(), self.table());
        let sum = Collective::AllReduce;
        let choice = choose_concurrent(calls, sum, &topology, count * size, size, &table);
        choice.ok().map(|choice| choice.algorithm)
    }
}

/// Source of the table of link speeds, as determined before the ranks connect.
pub(super) enum Start {
    /// A table from a setting.
    Set(TuningTable),
    /// The record from an earlier attempt, passed on by the launcher.
    FromLauncher(TuningRecord),
    /// No table. The ranks measure one unless they are all on the same machine.
    Open,
    /// No table. A setting requires the ranks to measure one if there is more than one rank.
    ToMeasure,
}

impl Start {
    /// Determines the source from `settings`.
    ///
    /// # Errors
    /// Returns an [`Error`] of kind [`ErrorKind::Configuration`](crate::ErrorKind::Configuration)
    /// if the text of a table or record is malformed.
    pub(super) fn of(settings: &Settings) -> Result<Self> {
        let wrong = |name: &str, what: String| Error::configuration(format!("{name}: {what}"));
        match &settings.tuning {
            TuningSource::Measured => Ok(Self::Open),
            TuningSource::MeasuredInto(_) => Ok(Self::ToMeasure),
            TuningSource::BuiltIn => Ok(Self::Set(TuningTable::default())),
            TuningSource::HandedOn(text) => {
                let record = text.parse().map(Self::FromLauncher);
                record.map_err(|what: PlanError| wrong(JOB_TUNING, what.into()))
            }
            TuningSource::Text { origin, text } => {
                let table = TuningTable::parse(text).map(Self::Set);
                table.map_err(|what| wrong(TUNING, format!("{origin}: {what}")))
            }
        }
    }

    /// Returns the table for these ranks and its origin, or `None` if they must measure the table.
    /// The result depends only on values that all ranks know.
    ///
    /// On one machine, a measurement would only reflect how busy the cores are at the moment. The
    /// built-in table contains the costs of shared memory and loopback, and the choice of an
    /// algorithm depends only on the ratios between these costs.
    pub(super) fn known_by(
        &self,
        ranks: &Membership,
        topology: &Topology,
    ) -> Option<(TuningTable, TuningOrigin)> {
        let built_in = (TuningTable::default(), TuningOrigin::BuiltIn);
        match self {
            Self::Set(table) => return Some((*table, TuningOrigin::Setting)),
            Self::FromLauncher(record) => match fits(record, topology) {
                Ok(()) => return Some((record.table(), TuningOrigin::Launcher)),
                Err(why) if ranks.rank == 0 => event::warn(0, why.to_string()),
                Err(_) => {}
            },
            Self::ToMeasure if ranks.world_size > 1 => return None,
            Self::Open | Self::ToMeasure => {}
        }
        ranks.are_of_one_machine().then_some(built_in)
    }
}

/// Measures the table together with all other ranks. If a setting names a file for the table, the
/// first rank on each host writes the unrounded table to that file. Otherwise, the table is
/// rounded, and rank 0 passes it to the launcher.
pub(super) fn measured(
    parts: &Parts,
    settings: &Settings,
    ranks: &Membership,
) -> Result<(TuningTable, TuningOrigin)> {
    let measuring = Communicator::assemble(Parts {
        group: MEASURING_GROUP,
        ..parts.clone()
    });
    let table = measure(&measuring)?;
    if let TuningSource::MeasuredInto(path) = &settings.tuning {
        let writes = ranks.is_first_of_host();
        keep(&measuring, path, writes.then_some(&table))?;
        return Ok((table, TuningOrigin::Setting));
    }
    let table = rounded(&table);
    if ranks.rank == 0 {
        report_table(&record::of(table, &parts.topology()), settings);
    }
    Ok((table, TuningOrigin::Measured))
}

/// Reports the measured costs to the user unless sums are reproducible. If there is a launcher,
/// also passes the record to it for use in later attempts.
fn report_table(record: &TuningRecord, settings: &Settings) {
    let link = record.table().tcp;
    let (alpha_us, overhead_us) = (link.alpha_s * 1e6, link.overhead_s * 1e6);
    let beta_ns = link.beta_s_per_byte * 1e9;
    if !settings.is_reproducible {
        let text = format!(
            "measured network (rounded): latency {alpha_us:.3} µs, overhead {overhead_us:.3} µs \
             per message, {beta_ns:.3} ns per byte; if a later start measures different values, \
             the last bits of sums may differ; set RINGTREE_TUNING=FILE to keep this table"
        );
        event::warn(0, text);
    }
    if let Some(descriptor) = settings.report_fd
        && let Err(error) = Report::Table(record.to_string()).append(descriptor)
    {
        let text = format!(
            "rank 0 cannot pass its link speed table to the launcher: {error}; after a restart, \
             the ranks will measure again, and the last bits of sums may differ"
        );
        event::warn(0, text);
    }
}

/// Writes `table` atomically to the file at `path` on the ranks that pass a table. Returns on each
/// rank once all tables have been written. If one rank cannot write its table, all ranks get its
/// error.
fn keep(comm: &Communicator, path: &Path, table: Option<&TuningTable>) -> Result<()> {
    let write = |table: &TuningTable| whole_file::replace(path, &[format!("{table}\n").as_bytes()]);
    if let Some(Err(error)) = table.map(write) {
        let path = path.display();
        comm.abort(&Error::configuration(format!(
            "{TUNING}={path}: rank {} cannot write the measured table: {error}",
            comm.rank()
        )));
    }
    comm.barrier()
}
