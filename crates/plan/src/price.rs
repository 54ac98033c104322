//! Types that describe costs: the costs of a link, the closed form of an algorithm's cost, and the
//! inputs for choosing the number of pieces. These types are used by [`super::cost`].

use super::spec::Collective;
use serde::{Deserialize, Serialize};

/// The costs of a link in the LogGP model. A message of m bytes occupies its sender's port for o +
/// m·G, then travels for L, and then occupies its receiver's port for m·G + o. Reducing m bytes
/// takes m·γ.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkCost {
    /// L: latency in seconds. Messages that do not depend on each other incur it at the same time.
    pub alpha_s: f64,
    /// o: time in seconds for which a message occupies its sender and, later, its receiver.
    pub overhead_s: f64,
    /// G: time in seconds per byte at a port.
    pub beta_s_per_byte: f64,
    /// γ: time in seconds per byte reduced.
    pub gamma_s_per_byte: f64,
}

/// One of the costs of a link ([`LinkCost`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// L: latency in seconds or, in shared memory, the time that a handoff takes.
    Alpha,
    /// o: overhead in seconds per message at each end. In shared memory, this is a quarter of the
    /// handoff time.
    Overhead,
    /// G: time in seconds per byte moved.
    Beta,
    /// γ: time in seconds per byte reduced.
    Gamma,
}

impl Number {
    /// All costs of a link.
    pub(crate) const ALL: [Self; 4] = [Self::Alpha, Self::Overhead, Self::Beta, Self::Gamma];

    /// Returns a mutable reference to this cost in `link`.
    pub(crate) fn of(self, link: &mut LinkCost) -> &mut f64 {
        match self {
            Number::Alpha => &mut link.alpha_s,
            Number::Overhead => &mut link.overhead_s,
            Number::Beta => &mut link.beta_s_per_byte,
            Number::Gamma => &mut link.gamma_s_per_byte,
        }
    }
}

/// The costs of the path between two sites, in addition to the costs of the ports at both ends.
/// Each site has one uplink with two directions. In each direction, the bytes from all ranks at the
/// site pass through the uplink in sequence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UplinkCost {
    /// L: latency in seconds from a rank at one site to a rank at another site.
    pub alpha_s: f64,
    /// G: time per byte on an uplink, in seconds.
    pub beta_s_per_byte: f64,
}

/// The closed form of an algorithm's cost. Volumes are given as fractions of the complete buffer of
/// m bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Number of rounds that contain messages.
    pub rounds: usize,
    /// Number of messages on the longest path, where each message has to wait for the previous one.
    /// Each of them costs L, plus o at its receiver.
    pub hops: f64,
    /// Number of messages that pass in sequence through the busiest port on that path. Each of them
    /// costs o.
    pub messages_on_path: f64,
    /// Fraction of m that passes through the busiest port on the critical path.
    pub volume_on_path: f64,
    /// Fraction of m that is reduced on the critical path.
    pub folded_on_path: f64,
    /// Fraction of m that the busiest rank sends.
    pub max_sent_per_rank: f64,
}

impl Cost {
    /// Returns the cost of this stage followed by `next`, which is the sum of both costs in every
    /// field.
    pub(crate) fn then(&self, next: &Self) -> Self {
        Self {
            rounds: self.rounds + next.rounds,
            hops: self.hops + next.hops,
            messages_on_path: self.messages_on_path + next.messages_on_path,
            volume_on_path: self.volume_on_path + next.volume_on_path,
            folded_on_path: self.folded_on_path + next.folded_on_path,
            max_sent_per_rank: self.max_sent_per_rank + next.max_sent_per_rank,
        }
    }

    /// Returns the predicted time, in seconds, for a buffer of `bytes` bytes:
    ///
    /// L·hops + o·(messages + hops) + bytes·(G·volume + γ·folded)
    ///
    /// ```
    /// use ringtree::plan::{Cost, LinkCost};
    ///
    /// // A binomial broadcast over 8 ranks: three rounds, each carrying the whole buffer.
    /// let cost = Cost {
    ///     rounds: 3,
    ///     hops: 3.0,
    ///     messages_on_path: 3.0,
    ///     volume_on_path: 3.0,
    ///     folded_on_path: 0.0,
    ///     max_sent_per_rank: 3.0,
    /// };
    /// let link = LinkCost {
    ///     alpha_s: 0.01,
    ///     overhead_s: 0.0,
    ///     beta_s_per_byte: 1e-6,
    ///     gamma_s_per_byte: 0.0,
    /// };
    /// assert_eq!(cost.time_s(5_000_000, &link), 15.03);
    /// ```
    #[must_use]
    pub fn time_s(&self, bytes: usize, link: &LinkCost) -> f64 {
        let per_byte = link.beta_s_per_byte * self.volume_on_path
            + link.gamma_s_per_byte * self.folded_on_path;
        link.alpha_s * self.hops
            + link.overhead_s * (self.messages_on_path + self.hops)
            + bytes as f64 * per_byte
    }
}

/// The inputs for choosing the number of pieces.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Question {
    /// The collective.
    pub collective: Collective,
    /// Number of ranks.
    pub world_size: usize,
    /// Size of the complete buffer, in bytes.
    pub bytes: usize,
    /// The link costs.
    pub link: LinkCost,
}
