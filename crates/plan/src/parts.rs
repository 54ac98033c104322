//! The components of a predicted time.

use super::units::Seconds;
use std::fmt;

/// The components of a predicted time, in seconds. They add up to the predicted time. For the
/// meaning of L, o, G and γ, see [`LinkCost`](crate::LinkCost).
///
/// A predicted time is a sum of link costs, each multiplied by a factor. If the predicted time is
/// the largest of several such sums, the components are those of the largest sum. If the ranks are
/// at several sites, the components are estimates.
///
/// ```
/// use ringtree::tuning::TuningTable;
/// use ringtree::plan::internal::select::parts;
/// use ringtree::plan::predicted_s;
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
/// let parts = parts(&request, 1 << 20, &table)?;
/// // Six rounds in sequence.
/// assert!((parts.way_s - 6.0 * table.tcp.alpha_s).abs() < 1e-9);
/// let whole_s = predicted_s(&request, 1 << 20, &table)?;
/// let sum_s = parts.way_s + parts.messages_s + parts.bytes_s + parts.folds_s;
/// assert!((sum_s - whole_s).abs() < 1e-9);
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parts {
    /// L: time due to latency.
    pub way_s: f64,
    /// o: time due to the overhead at both ends of each message.
    pub messages_s: f64,
    /// G: time to transfer the bytes.
    pub bytes_s: f64,
    /// γ: time to reduce the bytes.
    pub folds_s: f64,
}

impl Parts {
    /// Returns the sum of all components.
    pub(crate) fn sum_s(&self) -> f64 {
        self.way_s + self.messages_s + self.bytes_s + self.folds_s
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rounding leaves small differences where a component should be zero.
        let shown = |part_s: f64| {
            let counts = part_s > 1e-9 * self.sum_s();
            Seconds(if counts { part_s } else { 0.0 })
        };
        write!(
            formatter,
            "{} of latency (L), {} of overhead (o), {} for bytes (G), and {} for reduction (γ)",
            shown(self.way_s),
            shown(self.messages_s),
            shown(self.bytes_s),
            shown(self.folds_s)
        )
    }
}
