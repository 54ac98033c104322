//! What a predicted time is made of.

use super::units::Seconds;
use std::fmt;

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
