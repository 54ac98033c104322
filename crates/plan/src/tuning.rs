//! What links cost, one class of link a line; the table that all ranks share.

use super::price::{LinkCost, UplinkCost};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A message over loopback TCP between two processes of one host, on its way and at each end; a
/// byte of it; a byte of f32 summed from cache.
const TCP: LinkCost = LinkCost {
    alpha_s: 6e-6,
    overhead_s: 3e-6,
    beta_s_per_byte: 0.371e-9,
    gamma_s_per_byte: 0.06e-9,
};
/// A cache line handed from one core to another; a look at one that another peer hands over beside
/// it; a byte copied into or out of a segment that stays
/// in cache; a byte of an operand folded there.
const SHM: LinkCost = LinkCost {
    alpha_s: 0.15e-6,
    overhead_s: 0.0375e-6,
    beta_s_per_byte: 0.03e-9,
    gamma_s_per_byte: 0.03e-9,
};

/// How many times slower than a port an uplink counts, on the way and a byte, where the table has
/// no numbers for it: hosts are put at different sites because what lies between is slow.
const UPLINK_FACTOR: f64 = 10.0;

/// See [`TuningTable::rounded`]: the cube root of 10, so that 10, 1 and 0.1 Gbit/s (0.8, 8 and 80
/// ns a byte) are all near the middle between two limits. Half a step is a factor of 1.47.
const STEP: f64 = 2.154_434_690_031_884;

/// No network is so many steps faster than loopback. Where cores are busy, a difference of two
/// measured times may say so nevertheless.
const STEPS_BELOW: usize = 4;

/// The measured speed of the links, one entry a class of link. Agreed once per communicator and
/// never changed under it.
///
/// ```
/// use ringtree::TuningTable;
///
/// let text = TuningTable::default().to_string();
/// assert_eq!(TuningTable::parse(&text), Ok(TuningTable::default()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TuningTable {
    /// Connections over TCP: between hosts, and wherever memory cannot be shared.
    pub tcp: LinkCost,
    /// Memory that the ranks of a host share: L a hand-over, o a look for one more message, G a
    /// byte copied, γ a byte of an operand folded.
    #[serde(default = "shm")]
    pub shm: LinkCost,
    /// The way between sites, where hosts are at several (`RINGTREE_SITE`).
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
    /// The table written as JSON, one object a class of link:
    /// `{"tcp": {"alpha_s": 6e-6, "overhead_s": 3e-6, "beta_s_per_byte": 0.371e-9,
    /// "gamma_s_per_byte": 0.06e-9}}`, and likewise `shm`; without it, the built-in numbers stand.
    /// The way between sites has two numbers, `"uplink": {"alpha_s": 0.25e-3, "beta_s_per_byte":
    /// 80e-9}`; without it, see [`TuningTable::between_sites`].
    ///
    /// # Errors
    /// A sentence: the text is no such JSON, or a number is negative or not finite.
    pub fn parse(text: &str) -> Result<Self, String> {
        let table: Self = serde_json::from_str(text)
            .map_err(|error| format!("the tuning table is malformed: {error}"))?;
        table.check()?;
        Ok(table)
    }

    /// The way between sites: as the table says, or else ten times as long and ten times as slow as
    /// `tcp`.
    ///
    /// ```
    /// use ringtree::TuningTable;
    /// let table = TuningTable::default();
    /// assert_eq!(table.between_sites().beta_s_per_byte, 10.0 * table.tcp.beta_s_per_byte);
    /// ```
    #[must_use]
    pub fn between_sites(&self) -> UplinkCost {
        self.uplink.unwrap_or(UplinkCost {
            alpha_s: UPLINK_FACTOR * self.tcp.alpha_s,
            beta_s_per_byte: UPLINK_FACTOR * self.tcp.beta_s_per_byte,
        })
    }

    /// The table with the network's numbers rounded to the nearest of steps around the built-in
    /// ones, three a power of ten, at least a twentieth, and with the built-in numbers of shared
    /// memory. A choice between algorithms seldom needs more, and two measurements of the same
    /// network round alike unless they differ by much or are near the middle between two steps.
    ///
    /// ```
    /// use ringtree::TuningTable;
    /// let built_in = TuningTable::default();
    /// let mut found = built_in;
    /// found.tcp.alpha_s *= 1.4; // less than half a step away
    /// assert_eq!(found.rounded(), built_in);
    /// found.tcp.alpha_s *= 1.4;
    /// assert!((found.rounded().tcp.alpha_s / built_in.tcp.alpha_s - 2.154).abs() < 1e-3);
    /// ```
    #[must_use]
    pub fn rounded(&self) -> Self {
        // Products alone, so that all ranks get the same bits whatever their libraries.
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
        let (found, usual) = (self.tcp, TCP);
        let uplink = |found: UplinkCost| UplinkCost {
            alpha_s: near(found.alpha_s, usual.alpha_s),
            beta_s_per_byte: near(found.beta_s_per_byte, usual.beta_s_per_byte),
        };
        Self {
            tcp: LinkCost {
                alpha_s: near(found.alpha_s, usual.alpha_s),
                overhead_s: near(found.overhead_s, usual.overhead_s),
                beta_s_per_byte: near(found.beta_s_per_byte, usual.beta_s_per_byte),
                gamma_s_per_byte: near(found.gamma_s_per_byte, usual.gamma_s_per_byte),
            },
            shm: SHM,
            uplink: self.uplink.map(uplink),
        }
    }

    /// Whether its numbers can be.
    pub(super) fn check(&self) -> Result<(), String> {
        for (class, name, value) in self.numbers() {
            if !value.is_finite() || value < 0.0 {
                return Err(format!(
                    "the tuning table's {class}.{name} is {value}; \
                     it must be at least 0 and finite"
                ));
            }
        }
        Ok(())
    }

    /// Class, name and value of every number.
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

    /// A hash of the table's numbers (64-bit FNV-1a over their bits): equal on ranks with equal
    /// tables, on every platform and in every version that has the same classes.
    #[must_use]
    pub fn hash(&self) -> u64 {
        const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
        const PRIME: u64 = 0x0000_0100_0000_01b3;
        self.numbers()
            // Adding zero turns −0 into +0, which compares equal and so must hash equal.
            .flat_map(|(_, _, value)| (value + 0.0).to_bits().to_le_bytes())
            .fold(OFFSET, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(PRIME)
            })
    }
}

impl fmt::Display for TuningTable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = serde_json::to_string_pretty(self)
            .expect("invariant: a struct of numbers is valid JSON");
        formatter.write_str(&text)
    }
}
