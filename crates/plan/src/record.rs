//! Defines the record that saves a tuning table for later runs, together with the conditions under
//! which the table applies.
//!
//! *May import* `plan` and the base files.

use super::topology::Topology;
use super::tuning::{TuningTable, fnv_1a};
use crate::error::PlanError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Version of the selection logic. It is increased whenever a change could cause a different
/// algorithm to be chosen for the same table.
pub const TABLE_VERSION: u32 = 2;

/// A tuning table, together with the conditions under which it applies: the number of ranks, which
/// of them share a host, and the version of the selection logic.
///
/// A checkpoint stores the record as text, so that a later run with the same number and placement
/// of ranks can sum in the same order (see `Communicator::with_tuning`).
///
/// ```
/// use ringtree::plan::Topology;
/// use ringtree::plan::internal::record::{fits, of};
/// use ringtree::tuning::{TuningMismatch, TuningRecord, TuningTable};
///
/// let kept = of(TuningTable::default(), &Topology::of(&[0; 4]));
/// let read = kept.to_string().parse::<TuningRecord>().unwrap();
/// assert_eq!((&read, read.table()), (&kept, TuningTable::default()));
/// assert_eq!(fits(&read, &Topology::of(&[0; 4])), Ok(()));
/// let of_five = TuningMismatch::Ranks { kept: 4, own: 5 };
/// assert_eq!(fits(&read, &Topology::of(&[0; 5])), Err(of_five));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TuningRecord {
    version: u32,
    ranks: usize,
    hosts: usize,
    /// Hash of the placement of ranks on hosts and of hosts at sites. A hash is stored because the
    /// placement itself could consist of 100,000 numbers.
    placement: u64,
    table: TuningTable,
}

/// The reason why a saved tuning table is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TuningMismatch {
    /// `RINGTREE_TUNING` or the builder specifies a different table, and that table takes
    /// precedence.
    Setting,
    /// This version of the library chooses different algorithms for the same table.
    Version {
        /// The version that saved the table.
        kept: u32,
        /// The version of this library.
        own: u32,
    },
    /// The table was measured with a different number of ranks.
    Ranks {
        /// Number of ranks in the record.
        kept: usize,
        /// Number of ranks in this run.
        own: usize,
    },
    /// The table was measured with a different placement of ranks on hosts or of hosts at sites.
    Placement {
        /// Number of hosts in the record.
        kept: usize,
        /// Number of hosts in this run.
        own: usize,
    },
}

/// Formats the reason and its consequence on one line.
impl fmt::Display for TuningMismatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the saved tuning table is not used: ")?;
        match self {
            Self::Setting => {
                formatter.write_str("RINGTREE_TUNING or the builder sets a different one")
            }
            Self::Version { kept, own } => write!(
                formatter,
                "it has version {kept}, but this library uses version {own}"
            ),
            Self::Ranks { kept, own } => {
                write!(formatter, "it is for {kept} ranks, but this run has {own}")
            }
            Self::Placement { kept, own } => write!(
                formatter,
                "it is for a different placement of ranks on hosts ({kept} hosts then, {own} now)"
            ),
        }?;
        formatter.write_str(
            "; sums may differ in their last bits from those of the run that saved the table",
        )
    }
}

impl TuningRecord {
    /// Returns the table.
    #[must_use]
    pub const fn table(&self) -> TuningTable {
        self.table
    }

    /// Returns a hash of the complete record. The ranks use it to check that their records are the
    /// same.
    #[doc(hidden)]
    #[must_use]
    pub fn hash(&self) -> u64 {
        fnv_1a(self.to_string().into_bytes())
    }
}

/// Formats the record as one line of JSON.
impl fmt::Display for TuningRecord {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text =
            serde_json::to_string(self).expect("invariant: a struct of numbers is valid JSON");
        formatter.write_str(&text)
    }
}

/// Parses text produced by [`Display`](fmt::Display). Returns an error if the text is
/// malformed.
impl FromStr for TuningRecord {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let malformed = |error| refused!(Invalid, "the saved tuning table is malformed: {error}");
        let record: Self = serde_json::from_str(text).map_err(malformed)?;
        record.table.check()?;
        Ok(record)
    }
}

/// Creates a record of `table` for ranks that are placed according to `topology`.
#[must_use]
pub fn of(table: TuningTable, topology: &Topology) -> TuningRecord {
    TuningRecord {
        version: TABLE_VERSION,
        ranks: topology.world_size,
        hosts: topology.host_count(),
        placement: placement(topology),
        table,
    }
}

/// Checks that the table applies to ranks that are placed according to `topology`.
///
/// # Errors
/// Returns the reason why the table does not apply.
pub fn fits(record: &TuningRecord, topology: &Topology) -> Result<(), TuningMismatch> {
    let own = of(record.table, topology);
    if record.version != own.version {
        let (kept, own) = (record.version, own.version);
        return Err(TuningMismatch::Version { kept, own });
    }
    if record.ranks != own.ranks {
        let (kept, own) = (record.ranks, own.ranks);
        return Err(TuningMismatch::Ranks { kept, own });
    }
    if (record.hosts, record.placement) != (own.hosts, own.placement) {
        let (kept, own) = (record.hosts, own.hosts);
        return Err(TuningMismatch::Placement { kept, own });
    }
    Ok(())
}

/// Hashes the host of each rank and, if there are several sites, the site of each host.
fn placement(topology: &Topology) -> u64 {
    let hosts = (0..topology.world_size).map(|rank| topology.host_of(rank));
    let sites = (0..topology.host_count()).map(|host| topology.site_of(host));
    let sites = sites.filter(|_| topology.site_count() > 1);
    let numbers = hosts.chain(sites).map(|number| number as u64);
    fnv_1a(numbers.flat_map(u64::to_le_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inapplicable_and_malformed_records_are_rejected() {
        let kept = of(TuningTable::default(), &Topology::of(&[0, 0, 1, 1]));
        assert_eq!(fits(&kept, &Topology::of(&[5, 5, 2, 2])), Ok(()));
        let other = fits(&kept, &Topology::of(&[0, 1, 0, 1]));
        assert_eq!(other, Err(TuningMismatch::Placement { kept: 2, own: 2 }));
        let at_sites = fits(
            &kept,
            &crate::topology::at_sites(&[0, 0, 1, 1], &[0, 0, 1, 1]),
        );
        assert_eq!(at_sites, Err(TuningMismatch::Placement { kept: 2, own: 2 }));
        let older = TuningRecord { version: 0, ..kept };
        let why = fits(&older, &Topology::of(&[0, 0, 1, 1])).unwrap_err();
        let line = why.to_string();
        assert!(
            line.contains("version 0") && line.contains("last bits"),
            "{line}"
        );
        let plain = TuningTable::default()
            .to_string()
            .parse::<TuningRecord>()
            .unwrap_err();
        assert!(plain.to_string().contains("malformed"), "{plain}");
        let text = TuningRecord {
            table: negative(),
            ..older
        }
        .to_string();
        assert!(text.parse::<TuningRecord>().is_err());
    }

    fn negative() -> TuningTable {
        let mut table = TuningTable::default();
        table.tcp.alpha_s = -1.0;
        table
    }
}
