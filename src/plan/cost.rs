//! The price of a plan in the α-β-γ model: one port a rank, full duplex.

use super::spec::Collective;

/// What one link costs: a message of m bytes takes α + β·m, folding m bytes γ·m.
#[derive(Clone, Copy, Debug, PartialEq)]
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
