//! Describes and explains the choice of an algorithm.

use super::cost::payload_bytes;
use super::parts::Parts;
use super::spec::{Algorithm, Collective};
use super::units::{Bytes, Seconds};
use std::fmt;

/// Largest relative difference between predictions that differ only by rounding.
pub(super) const TIE_TOLERANCE: f64 = 1e-4;

/// The chosen algorithm and the best alternative to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The collective.
    pub collective: Collective,
    /// Number of ranks.
    pub world_size: usize,
    /// Size of the complete buffer, in bytes.
    pub bytes: usize,
    /// The chosen algorithm.
    pub algorithm: Algorithm,
    /// Number of pieces per block.
    pub pieces: usize,
    /// Number of rounds that contain messages.
    pub rounds: usize,
    /// The predicted time, in seconds.
    pub predicted_s: f64,
    /// The best alternative and its predicted time, or `None` if the algorithm was forced or is the
    /// only candidate.
    pub runner_up: Option<(Algorithm, f64)>,
    /// `true` if the caller requested the algorithm.
    pub is_forced: bool,
    /// The components of the predicted time, if they have been computed.
    pub breakdown: Option<Parts>,
}

/// Explains the choice in a single line that states the algorithm, its predicted time, the best
/// alternative and the components of the predicted time.
impl fmt::Display for Choice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.line())?;
        match &self.breakdown {
            Some(parts) => {
                let whole = Seconds(self.predicted_s);
                write!(formatter, "; breakdown of the {whole}: {parts}")
            }
            None => Ok(()),
        }
    }
}

impl Choice {
    fn line(&self) -> String {
        let call = match payload_bytes(self.collective, self.bytes) {
            0 => self.collective.to_string(),
            bytes => format!("{} of {}", self.collective, Bytes(bytes as f64)),
        };
        let what = format!("{call} over {} ranks: {}", self.world_size, self.algorithm);
        if self.world_size == 1 {
            return format!("{what}, because a single rank has no peers");
        }
        let pieces = match self.pieces {
            1 => String::new(),
            pieces => format!(", {pieces} pieces per block"),
        };
        let time = format!(
            "predicted {} in {}{pieces}",
            Seconds(self.predicted_s),
            match self.rounds {
                1 => "1 round".to_owned(),
                rounds => format!("{rounds} rounds"),
            }
        );
        match self.runner_up {
            _ if self.is_forced => format!("{what}, as requested; {time}"),
            None => format!("{what}, the only candidate; {time}"),
            Some((next, next_s)) => {
                let more_percent = 100.0 * (next_s / self.predicted_s - 1.0);
                let other = format!("at {} ({more_percent:+.0} %)", Seconds(next_s));
                match next_s * (1.0 + TIE_TOLERANCE) < self.predicted_s {
                    true => format!("{what}, {time}; {next} {other} is no faster in practice"),
                    false => format!("{what}, {time}; next best {next} {other}"),
                }
            }
        }
    }
}
