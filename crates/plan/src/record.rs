//! A tuning table that outlives the process that measured it, and for which ranks it holds.
//!
//! *May import* `plan` and the base files.

use super::topology::Topology;
use super::tuning::TuningTable;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Raised whenever equal tables of two versions would choose different algorithms.
pub const TABLE_VERSION: u32 = 2;

/// A tuning table with what it is good for: how many ranks, which of them share a host, and by
/// which version of the chooser. A checkpoint keeps it as text, so that a later run of the same
/// shape sums in the same order (`Communicator::with_tuning`).
///
/// ```
/// use ringtree::{TuningMismatch, TuningRecord, TuningTable, plan::Topology};
///
/// let kept = TuningRecord::new(TuningTable::default(), &Topology::together(4));
/// let read = kept.to_string().parse::<TuningRecord>().unwrap();
/// assert_eq!((&read, read.table()), (&kept, TuningTable::default()));
/// assert_eq!(read.fits(&Topology::together(4)), Ok(()));
/// let of_five = TuningMismatch::Ranks { kept: 4, own: 5 };
/// assert_eq!(read.fits(&Topology::together(5)), Err(of_five));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TuningRecord {
    version: u32,
    ranks: usize,
    hosts: usize,
    /// A hash of which ranks share a host, and which hosts a site; the list itself could have
    /// 100,000 numbers.
    placement: u64,
    table: TuningTable,
}

/// Why a kept table is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TuningMismatch {
    /// `RINGTREE_TUNING` or the builder gives another table, which goes first.
    Setting,
    /// This version of the library chooses differently by the same table.
    Version {
        /// The version that the table was kept by.
        kept: u32,
        /// This one's.
        own: u32,
    },
    /// It was measured among another number of ranks.
    Ranks {
        /// How many.
        kept: usize,
        /// How many there are.
        own: usize,
    },
    /// It was measured where other ranks shared hosts.
    Placement {
        /// On how many hosts the ranks were.
        kept: usize,
        /// On how many they are.
        own: usize,
    },
}

/// One line: why, what follows, and what to do.
impl fmt::Display for TuningMismatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the kept table of link speeds is not used: ")?;
        match self {
            Self::Setting => formatter.write_str("RINGTREE_TUNING or the builder gives another"),
            Self::Version { kept, own } => write!(
                formatter,
                "it is of version {kept}, and this library chooses by version {own}"
            ),
            Self::Ranks { kept, own } => {
                write!(formatter, "it is for {kept} ranks, and there are {own}")
            }
            Self::Placement { kept, own } => write!(
                formatter,
                "its ranks shared {kept} hosts in another way than these ranks share {own}"
            ),
        }?;
        formatter
            .write_str("; sums may differ in their last bits from those of the run that kept it")
    }
}

impl TuningRecord {
    /// `table`, as measured or given among ranks that share hosts like this.
    #[must_use]
    pub fn new(table: TuningTable, topology: &Topology) -> Self {
        Self {
            version: TABLE_VERSION,
            ranks: topology.world_size,
            hosts: topology.host_count(),
            placement: placement(topology),
            table,
        }
    }

    /// The table.
    #[must_use]
    pub const fn table(&self) -> TuningTable {
        self.table
    }

    /// A hash of all of it, by which ranks see whether theirs are the same.
    #[doc(hidden)]
    #[must_use]
    pub fn hash(&self) -> u64 {
        fnv_1a(self.to_string().into_bytes())
    }

    /// Whether the table holds for ranks that share hosts like this.
    ///
    /// # Errors
    /// Why it does not.
    pub fn fits(&self, topology: &Topology) -> Result<(), TuningMismatch> {
        let Self {
            version,
            ranks,
            hosts,
            placement,
            ..
        } = *self;
        let own = Self::new(self.table, topology);
        if version != own.version {
            return Err(TuningMismatch::Version {
                kept: version,
                own: own.version,
            });
        }
        if ranks != own.ranks {
            return Err(TuningMismatch::Ranks {
                kept: ranks,
                own: own.ranks,
            });
        }
        if (hosts, placement) != (own.hosts, own.placement) {
            return Err(TuningMismatch::Placement {
                kept: hosts,
                own: own.hosts,
            });
        }
        Ok(())
    }
}

/// One line of JSON.
impl fmt::Display for TuningRecord {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text =
            serde_json::to_string(self).expect("invariant: a struct of numbers is valid JSON");
        formatter.write_str(&text)
    }
}

/// The record in a text that [`Display`](fmt::Display) wrote. What is wrong with another text is a
/// sentence.
impl FromStr for TuningRecord {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = |error| format!("the kept table of link speeds is malformed: {error}");
        let record: Self = serde_json::from_str(text).map_err(malformed)?;
        record.table.check()?;
        Ok(record)
    }
}

/// A hash over the number of each rank's host, then of each host's site where there are several.
fn placement(topology: &Topology) -> u64 {
    let hosts = (0..topology.world_size).map(|rank| topology.host_of(rank));
    let sites = (0..topology.host_count()).map(|host| topology.site_of(host));
    let sites = sites.filter(|_| topology.site_count() > 1);
    let numbers = hosts.chain(sites).map(|number| number as u64);
    fnv_1a(numbers.flat_map(u64::to_le_bytes))
}

/// The hash, of 64 bits.
fn fnv_1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_says_why() {
        let kept = TuningRecord::new(TuningTable::default(), &Topology::of(&[0, 0, 1, 1]));
        assert_eq!(kept.fits(&Topology::of(&[5, 5, 2, 2])), Ok(()));
        let other = kept.fits(&Topology::of(&[0, 1, 0, 1]));
        assert_eq!(other, Err(TuningMismatch::Placement { kept: 2, own: 2 }));
        let at_sites = kept.fits(&Topology::at_sites(&[0, 0, 1, 1], &[0, 0, 1, 1]));
        assert_eq!(at_sites, Err(TuningMismatch::Placement { kept: 2, own: 2 }));
        let older = TuningRecord { version: 0, ..kept };
        let why = older.fits(&Topology::of(&[0, 0, 1, 1])).unwrap_err();
        let line = why.to_string();
        assert!(
            line.contains("of version 0") && line.contains("last bits"),
            "{line}"
        );
        let plain = TuningTable::default()
            .to_string()
            .parse::<TuningRecord>()
            .unwrap_err();
        assert!(plain.contains("malformed"), "{plain}");
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
