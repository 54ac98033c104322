//! The types of prices: what a link costs, what an algorithm takes of it, and what a number of
//! pieces is chosen from. [`super::cost`] computes with them.

use super::spec::Collective;
use serde::{Deserialize, Serialize};

/// What one link costs, in the LogGP model ([`super::cost`] has it): a message of m bytes keeps its
/// sender's port busy for o + m·G, is on its way for L, and keeps its receiver's port busy for
/// m·G + o. Folding m bytes takes m·γ.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkCost {
    /// L: seconds on the way, which messages that do not wait for each other spend at once.
    pub alpha_s: f64,
    /// o: seconds a message keeps its sender busy, and then its receiver.
    pub overhead_s: f64,
    /// G: seconds a byte at a port.
    pub beta_s_per_byte: f64,
    /// Seconds a byte folded.
    pub gamma_s_per_byte: f64,
}

/// What the way between two sites costs, beside the ports at both ends. Each site has one uplink,
/// with a way out and a way in: the bytes of all its ranks pass it one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UplinkCost {
    /// L: seconds on the way from a rank of one site to one of another.
    pub alpha_s: f64,
    /// G: seconds a byte at an uplink.
    pub beta_s_per_byte: f64,
}

/// The closed form of an algorithm's cost, in units of the whole buffer of m bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Rounds with messages.
    pub rounds: usize,
    /// Messages on the longest path that wait for one another: each is paid L, and o where it
    /// arrives.
    pub hops: f64,
    /// Messages that pass the busiest port on that path one after the other: each is paid o.
    pub messages_on_path: f64,
    /// Fraction of m that passes the busiest port on the critical path.
    pub volume_on_path: f64,
    /// Fraction of m folded on the critical path.
    pub folded_on_path: f64,
    /// Fraction of m that the rank which sends most sends.
    pub max_sent_per_rank: f64,
}

impl Cost {
    /// Seconds for a buffer of `bytes`: L·hops + o·(messages + hops) + bytes·(G·volume + γ·folded).
    ///
    /// ```
    /// use ringtree::plan::price::{Cost, LinkCost};
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

/// What a choice of pieces is made from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Question {
    /// What is to be done.
    pub collective: Collective,
    /// How many ranks.
    pub world_size: usize,
    /// Bytes of the whole buffer.
    pub bytes: usize,
    /// The links.
    pub link: LinkCost,
}
