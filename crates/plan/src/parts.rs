//! What a predicted time is made of.

use super::ir::Request;
use super::price::LinkCost;
use super::select::predicted_s;
use super::tuning::TuningTable;
use super::units::Seconds;
use std::fmt;

/// By what share a number of the links is made larger and smaller, to see what hangs on it.
const NUDGE: f64 = 1.0 / 64.0;
/// The same where the order in which messages come to an uplink may change with it, and the time by
/// a jump.
const NUDGE_BETWEEN_SITES: f64 = 1.0 / 4.0;

/// The parts of a predicted time, in seconds; [`super::cost`] says what the letters stand for. They
/// add up to the whole. A price is a sum of the links' numbers, each so many times; where it is the
/// greatest of several sums, that one counts. Among several sites the parts are estimates.
///
/// ```
/// use ringtree::TuningTable;
/// use ringtree::plan::parts::Parts;
/// use ringtree::plan::select::predicted_s;
/// use ringtree::plan::{Algorithm, Collective, Hosts, Request};
///
/// let request = Request {
///     collective: Collective::AllReduce,
///     algorithm: Algorithm::Circulant,
///     world_size: 8,
///     rank: 0,
///     root: 0,
///     pieces: 1,
///     hosts: Hosts::APART,
/// };
/// let table = TuningTable::default();
/// let parts = Parts::of(&request, 1 << 20, &table)?;
/// // Six rounds, one after another.
/// assert!((parts.way_s - 6.0 * table.tcp.alpha_s).abs() < 1e-9);
/// let whole_s = predicted_s(&request, 1 << 20, &table)?;
/// assert!((parts.sum_s() - whole_s).abs() < 1e-9);
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parts {
    /// L: on the way.
    pub way_s: f64,
    /// o: for each message at its ends.
    pub messages_s: f64,
    /// G: for each byte.
    pub bytes_s: f64,
    /// γ: for each byte folded.
    pub folds_s: f64,
}

impl Parts {
    /// Those of what [`predicted_s`] says.
    ///
    /// # Errors
    /// Those of [`predicted_s`].
    pub fn of(request: &Request, bytes: usize, table: &TuningTable) -> Result<Self, String> {
        let nudge = match request.topology().site_count() {
            1 => NUDGE,
            _ => NUDGE_BETWEEN_SITES,
        };
        let hangs_on = |part: Part| {
            let with = |factor| predicted_s(request, bytes, &nudged(table, part, factor));
            let (more_s, less_s) = (with(1.0 + nudge)?, with(1.0 - nudge)?);
            Ok::<_, String>(((more_s - less_s) / (2.0 * nudge)).max(0.0))
        };
        let parts = Self {
            way_s: hangs_on(Part::Way)?,
            messages_s: hangs_on(Part::Messages)?,
            bytes_s: hangs_on(Part::Bytes)?,
            folds_s: hangs_on(Part::Folds)?,
        };
        let sum_s = parts.sum_s();
        let share = match sum_s > 0.0 {
            true => predicted_s(request, bytes, table)? / sum_s,
            false => 1.0,
        };
        Ok(Self {
            way_s: parts.way_s * share,
            messages_s: parts.messages_s * share,
            bytes_s: parts.bytes_s * share,
            folds_s: parts.folds_s * share,
        })
    }

    /// All together.
    #[must_use]
    pub fn sum_s(&self) -> f64 {
        self.way_s + self.messages_s + self.bytes_s + self.folds_s
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Differences of floating-point numbers that should be equal.
        let shown = |part_s: f64| {
            let counts = part_s > 1e-9 * self.sum_s();
            Seconds(if counts { part_s } else { 0.0 })
        };
        write!(
            formatter,
            "{} are on the way (L), {} for messages (o), {} for bytes (G), {} for folds (γ)",
            shown(self.way_s),
            shown(self.messages_s),
            shown(self.bytes_s),
            shown(self.folds_s)
        )
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Way,
    Messages,
    Bytes,
    Folds,
}

/// The table with one of its numbers, of every class of link, times `factor`.
fn nudged(table: &TuningTable, part: Part, factor: f64) -> TuningTable {
    let times = |number: f64, of: Part| if of == part { number * factor } else { number };
    let link = |link: LinkCost| LinkCost {
        alpha_s: times(link.alpha_s, Part::Way),
        overhead_s: times(link.overhead_s, Part::Messages),
        beta_s_per_byte: times(link.beta_s_per_byte, Part::Bytes),
        gamma_s_per_byte: times(link.gamma_s_per_byte, Part::Folds),
    };
    let mut uplink = table.between_sites();
    uplink.alpha_s = times(uplink.alpha_s, Part::Way);
    uplink.beta_s_per_byte = times(uplink.beta_s_per_byte, Part::Bytes);
    TuningTable {
        tcp: link(table.tcp),
        shm: link(table.shm),
        uplink: Some(uplink),
    }
}
