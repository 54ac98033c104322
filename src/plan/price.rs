//! The types of prices: what a link costs, what an algorithm takes of it, and what a number of
//! pieces is chosen from. [`super::cost`] computes with them.

use super::spec::Collective;
use serde::{Deserialize, Serialize};

/// What one link costs: a message of m bytes takes α + β·m, folding m bytes γ·m.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkCost {
    /// Seconds a message.
    pub alpha_s: f64,
    /// Seconds a byte on the wire.
    pub beta_s_per_byte: f64,
    /// Seconds a byte folded.
    pub gamma_s_per_byte: f64,
}

/// The closed form of an algorithm's cost, in units of the whole buffer of m bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Rounds with messages.
    pub rounds: usize,
    /// α terms on the critical path (one-ported: a rank that sends k messages in a round pays k).
    pub messages_on_path: f64,
    /// Fraction of m that passes the busiest port on the critical path.
    pub volume_on_path: f64,
    /// Fraction of m folded on the critical path.
    pub folded_on_path: f64,
    /// Fraction of m that the rank which sends most sends.
    pub max_sent_per_rank: f64,
}

impl Cost {
    /// Seconds for a buffer of `bytes`: α·messages + bytes·(β·volume + γ·folded).
    ///
    /// ```
    /// use ringtree::plan::price::{Cost, LinkCost};
    ///
    /// // A binomial broadcast over 8 ranks: three rounds, each carrying the whole buffer.
    /// let cost = Cost {
    ///     rounds: 3,
    ///     messages_on_path: 3.0,
    ///     volume_on_path: 3.0,
    ///     folded_on_path: 0.0,
    ///     max_sent_per_rank: 3.0,
    /// };
    /// let link = LinkCost { alpha_s: 0.0, beta_s_per_byte: 1e-6, gamma_s_per_byte: 0.0 };
    /// assert_eq!(cost.time_s(5_000_000, &link), 15.0);
    /// ```
    #[must_use]
    pub fn time_s(&self, bytes: usize, link: &LinkCost) -> f64 {
        let per_byte = link.beta_s_per_byte * self.volume_on_path
            + link.gamma_s_per_byte * self.folded_on_path;
        link.alpha_s * self.messages_on_path + bytes as f64 * per_byte
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
