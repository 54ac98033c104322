//! The table of link costs that all ranks agree on. It has one entry per class of link.

use super::price::{LinkCost, UplinkCost};
use crate::error::PlanError;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Built-in TCP costs: the latency of a message over loopback between two processes, its overhead
/// at each end, the time to send a byte, and the time to sum a byte of f32 from cache.
const TCP: LinkCost = LinkCost {
    alpha_s: 6e-6,
    overhead_s: 3e-6,
    beta_s_per_byte: 0.371e-9,
    gamma_s_per_byte: 0.06e-9,
};
/// Built-in shared-memory costs: the time to pass a cache line to another core, to poll one more
/// line that another peer passes at the same time, to copy a byte to or from a segment that stays
/// in cache, and to reduce a byte of an operand in such a segment.
const SHM: LinkCost = LinkCost {
    alpha_s: 0.15e-6,
    overhead_s: 0.0375e-6,
    beta_s_per_byte: 0.03e-9,
    gamma_s_per_byte: 0.03e-9,
};

/// Factor by which an uplink's latency and time per byte exceed those of a port if the table has no
/// uplink entry. Hosts are assigned to different sites because the link between them is slow.
const UPLINK_FACTOR: f64 = 10.0;

/// Ratio between neighboring steps in [`rounded`]: the cube root of 10. With this ratio, 10, 1 and
/// 0.1 Gbit/s (0.8, 8 and 80 ns per byte) all fall near the middle between two rounding limits.
/// Half a step is a factor of 1.47.
const STEP: f64 = 2.154_434_690_031_884;

/// Number of steps below the built-in cost. More steps are not needed, because no network is that
/// much faster than loopback. On busy cores, the difference between two measured times may
/// nevertheless suggest a lower cost.
const STEPS_BELOW: usize = 4;

/// The measured link costs, with one entry per class of link. The ranks agree on a table once per
/// communicator, and the table does not change after that.
///
/// ```
/// use ringtree::tuning::TuningTable;
///
/// let text = TuningTable::default().to_string();
/// assert_eq!(TuningTable::parse(&text), Ok(TuningTable::default()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TuningTable {
    /// Costs of TCP connections, which are used between hosts and wherever ranks cannot share
    /// memory.
    pub tcp: LinkCost,
    /// Costs of memory that is shared by the ranks on a host. L is the cost per handoff, o the cost
    /// per additional message polled, G the cost per byte copied, and γ the cost per operand
    /// byte reduced.
    #[serde(default = "shm")]
    pub shm: LinkCost,
    /// Costs of the uplinks between sites, if the hosts are at more than one site (see
    /// `RINGTREE_SITE`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink: Option<UplinkCost>,
}

const fn shm() -> LinkCost {
    SHM
}

impl Default for TuningTable {
    fn default() -> Self {
        Self {
            tcp: TCP,
            shm: SHM,
            uplink: None,
        }
    }
}

impl TuningTable {
    /// Parses a table from JSON that contains one object per class of link:
    ///
    /// ```json
    /// {"tcp": {"alpha_s": 6e-6, "overhead_s": 3e-6, "beta_s_per_byte": 0.371e-9,
    ///          "gamma_s_per_byte": 0.06e-9},
    ///  "uplink": {"alpha_s": 0.25e-3, "beta_s_per_byte": 80e-9}}
    /// ```
    ///
    /// `shm` has the same fields as `tcp`. If `shm` is missing, the built-in shared-memory costs
    /// are used. If `uplink` is missing, an uplink has ten times the latency and ten times the time
    /// per byte of `tcp`.
    ///
    /// # Errors
    /// Returns an error if the text is not a valid table, or if a cost is negative or not
    /// finite.
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        let table: Self = serde_json::from_str(text)
            .map_err(|error| refused!(Invalid, "the tuning table is malformed: {error}"))?;
        table.check()?;
        Ok(table)
    }

    /// Checks that all costs are finite and not negative.
    pub(super) fn check(&self) -> Result<(), PlanError> {
        for (class, name, value) in self.numbers() {
            if !value.is_finite() || value < 0.0 {
                return Err(refused!(
                    Invalid,
                    "{class}.{name} in the tuning table is {value}, but must be finite and at \
                     least 0"
                ));
            }
        }
        Ok(())
    }

    /// Returns the class, name and value of every cost.
    fn numbers(&self) -> impl Iterator<Item = (&'static str, &'static str, f64)> + use<> {
        let of_link = |class, link: LinkCost| {
            [
                (class, "alpha_s", link.alpha_s),
                (class, "overhead_s", link.overhead_s),
                (class, "beta_s_per_byte", link.beta_s_per_byte),
                (class, "gamma_s_per_byte", link.gamma_s_per_byte),
            ]
        };
        let of_uplink = |link: UplinkCost| {
            [
                ("uplink", "alpha_s", link.alpha_s),
                ("uplink", "beta_s_per_byte", link.beta_s_per_byte),
            ]
        };
        let links = of_link("tcp", self.tcp)
            .into_iter()
            .chain(of_link("shm", self.shm));
        links.chain(self.uplink.into_iter().flat_map(of_uplink))
    }
}

/// Returns the costs of the uplinks between sites. If the table has no `uplink` entry, the
/// latency and the time per byte are ten times those of `tcp`.
///
/// ```
/// use ringtree::plan::internal::tuning::between_sites;
/// use ringtree::tuning::TuningTable;
/// let table = TuningTable::default();
/// assert_eq!(between_sites(&table).beta_s_per_byte, 10.0 * table.tcp.beta_s_per_byte);
/// ```
#[must_use]
pub fn between_sites(table: &TuningTable) -> UplinkCost {
    table.uplink.unwrap_or(UplinkCost {
        alpha_s: UPLINK_FACTOR * table.tcp.alpha_s,
        beta_s_per_byte: UPLINK_FACTOR * table.tcp.beta_s_per_byte,
    })
}

/// Returns the table with its network costs rounded and with the built-in shared-memory costs.
///
/// Each network cost is rounded to the nearest of a series of steps around the built-in cost.
/// There are three steps per power of ten, and the lowest step is about a twentieth of the
/// built-in cost. Choosing an algorithm seldom requires more precision. Two measurements of the
/// same network are rounded to the same table unless they differ greatly or are near the
/// midpoint between two steps.
///
/// ```
/// use ringtree::plan::internal::tuning::rounded;
/// use ringtree::tuning::TuningTable;
/// let built_in = TuningTable::default();
/// let mut found = built_in;
/// found.tcp.alpha_s *= 1.4; // less than half a step away
/// assert_eq!(rounded(&found), built_in);
/// found.tcp.alpha_s *= 1.4;
/// assert!((rounded(&found).tcp.alpha_s / built_in.tcp.alpha_s - 2.154).abs() < 1e-3);
/// ```
#[must_use]
pub fn rounded(table: &TuningTable) -> TuningTable {
    // Use only correctly rounded operations, so that all ranks get the same bits with any math
    // library.
    let near = |found: f64, usual: f64| {
        let (found, half, mut near) = (found.max(0.0), STEP.sqrt(), usual);
        for _ in 0..STEPS_BELOW {
            if found < near / half {
                near /= STEP;
            }
        }
        while found > near * half {
            near *= STEP;
        }
        near
    };
    let (found, usual) = (table.tcp, TCP);
    let uplink = |found: UplinkCost| UplinkCost {
        alpha_s: near(found.alpha_s, usual.alpha_s),
        beta_s_per_byte: near(found.beta_s_per_byte, usual.beta_s_per_byte),
    };
    TuningTable {
        tcp: LinkCost {
            alpha_s: near(found.alpha_s, usual.alpha_s),
            overhead_s: near(found.overhead_s, usual.overhead_s),
            beta_s_per_byte: near(found.beta_s_per_byte, usual.beta_s_per_byte),
            gamma_s_per_byte: near(found.gamma_s_per_byte, usual.gamma_s_per_byte),
        },
        shm: SHM,
        uplink: table.uplink.map(uplink),
    }
}

/// Returns a hash of the costs (64-bit FNV-1a over their bits). Equal tables have equal hashes
/// on all ranks, on every platform, and in every version with the same classes of link.
#[must_use]
pub fn hash(table: &TuningTable) -> u64 {
    // Adding zero turns −0 into +0. The two compare equal, so they must have the same hash.
    let bytes = |(_, _, value): (_, _, f64)| (value + 0.0).to_bits().to_le_bytes();
    fnv_1a(table.numbers().flat_map(bytes))
}

/// Returns the 64-bit FNV-1a hash of `bytes`.
pub fn fnv_1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

impl fmt::Display for TuningTable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = serde_json::to_string_pretty(self)
            .expect("invariant: a struct of numbers is valid JSON");
        formatter.write_str(&text)
    }
}
