//! Where the table comes from by which a communicator chooses its algorithms, and communicators
//! with another table.
//!
//! *May import* what the room may.

use super::Communicator;
use crate::error::{Error, Result};
use crate::plan::record::{TuningMismatch, TuningRecord};
use crate::plan::select::TuningTable;
use std::fmt;

/// Where a communicator's table of link speeds comes from. The same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TuningOrigin {
    /// `RINGTREE_TUNING`, or [`Builder::tuning`](crate::Builder::tuning).
    Setting,
    /// [`Communicator::with_tuning`] took it over, from a checkpoint for example.
    Kept,
    /// The ranks measured it when they met.
    Measured,
    /// The built-in one: there is nothing to measure, or the ranks are simulated.
    BuiltIn,
}

impl fmt::Display for TuningOrigin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Setting => "set by RINGTREE_TUNING or the program",
            Self::Kept => "kept by an earlier run",
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
    /// The table by which algorithms are chosen, the same on all ranks: measured when the
    /// communicator of all ranks was made, unless `RINGTREE_TUNING` or
    /// [`Builder::tuning`](crate::Builder::tuning) gave it. Another table may choose other
    /// algorithms, which sum in another order.
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
    ///             Ok((as_then.tuning().tcp.alpha_s, as_then.tuning_origin()))
    ///         }
    ///         Adoption::Refused(why) => panic!("{why}"),
    ///     }
    /// });
    /// assert_eq!(ends, vec![Ok::<_, ringtree::Error>((1e-3, TuningOrigin::Kept)); 3]);
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
