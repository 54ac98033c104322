//! The choice of an algorithm: a pure function of what every rank of a communicator shares.
//!
//! Ranks that choose differently deadlock, so nothing local (clock, load, buffer address) enters:
//! the collective, the bytes, the element size, the ranks and one [`TuningTable`], which the
//! ranks compare when they connect.

use super::algorithms::{Entry, REGISTRY, entry};
use super::cost::{LinkCost, Question, payload_bytes};
use super::ir::Request;
use super::spec::{Algorithm, Collective};
use super::units::{Bytes, Seconds};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Seconds a message over loopback TCP between two processes of one host.
const TCP_ALPHA_S: f64 = 12e-6;
/// Seconds a byte over loopback TCP.
const TCP_BETA_S_PER_BYTE: f64 = 0.35e-9;
/// Seconds a byte of f32 summed from cache.
const TCP_GAMMA_S_PER_BYTE: f64 = 0.06e-9;

/// The measured speed of the links, one entry a class of link. Agreed once per communicator and
/// never changed under it.
///
/// ```
/// use ringtree::plan::select::TuningTable;
///
/// let text = TuningTable::default().to_string();
/// assert_eq!(TuningTable::parse(&text), Ok(TuningTable::default()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TuningTable {
    /// Connections over TCP.
    pub tcp: LinkCost,
}

impl Default for TuningTable {
    fn default() -> Self {
        Self {
            tcp: LinkCost {
                alpha_s: TCP_ALPHA_S,
                beta_s_per_byte: TCP_BETA_S_PER_BYTE,
                gamma_s_per_byte: TCP_GAMMA_S_PER_BYTE,
            },
        }
    }
}

impl TuningTable {
    /// The table written as JSON, one object a class of link:
    /// `{"tcp": {"alpha_s": 12e-6, "beta_s_per_byte": 0.35e-9, "gamma_s_per_byte": 0.06e-9}}`.
    ///
    /// # Errors
    /// A sentence: the text is no such JSON, or a number is negative or not finite.
    pub fn parse(text: &str) -> Result<Self, String> {
        let table: Self = serde_json::from_str(text)
            .map_err(|error| format!("the tuning table is malformed: {error}"))?;
        let LinkCost {
            alpha_s,
            beta_s_per_byte,
            gamma_s_per_byte,
        } = table.tcp;
        for (name, value) in [
            ("alpha_s", alpha_s),
            ("beta_s_per_byte", beta_s_per_byte),
            ("gamma_s_per_byte", gamma_s_per_byte),
        ] {
            if !value.is_finite() || value < 0.0 {
                return Err(format!(
                    "the tuning table's tcp.{name} is {value}; it must be at least 0 and finite"
                ));
            }
        }
        Ok(table)
    }

    /// The links a choice is made for.
    #[must_use]
    pub const fn link(&self) -> LinkCost {
        self.tcp
    }

    /// A hash of the table's numbers (64-bit FNV-1a over their bits): equal on ranks with equal
    /// tables, on every platform and in every version that has the same classes.
    #[must_use]
    pub fn hash(&self) -> u64 {
        const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
        const PRIME: u64 = 0x0000_0100_0000_01b3;
        let link = self.tcp;
        [link.alpha_s, link.beta_s_per_byte, link.gamma_s_per_byte]
            .iter()
            // Adding zero turns −0 into +0, which compares equal and so must hash equal.
            .flat_map(|value| (value + 0.0).to_bits().to_le_bytes())
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

/// What was chosen, and what it was chosen over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// What was to be done.
    pub collective: Collective,
    /// How many ranks.
    pub world_size: usize,
    /// Bytes of the whole buffer.
    pub bytes: usize,
    /// How it will be done.
    pub algorithm: Algorithm,
    /// In how many pieces a block.
    pub pieces: usize,
    /// Rounds of messages.
    pub rounds: usize,
    /// The predicted time in seconds.
    pub predicted_s: f64,
    /// The best of the others and its time; none where the algorithm was forced or is the only one.
    pub runner_up: Option<(Algorithm, f64)>,
    /// Whether the caller named the algorithm.
    pub is_forced: bool,
}

impl Choice {
    /// One line: what was chosen, for how long, and over what.
    #[must_use]
    pub fn explain(&self) -> String {
        let size = match payload_bytes(self.collective, self.bytes) {
            0 => String::new(),
            bytes => format!(" of {}", Bytes(bytes as f64)),
        };
        let what = format!(
            "{}{size} over {} ranks: {}",
            self.collective, self.world_size, self.algorithm
        );
        if self.world_size == 1 {
            return format!("{what}, since one rank has nobody to talk to");
        }
        let pieces = match self.pieces {
            1 => String::new(),
            pieces => format!(", {pieces} pieces a block"),
        };
        let time = format!(
            "predicted {} in {} rounds{pieces}",
            Seconds(self.predicted_s),
            self.rounds
        );
        match self.runner_up {
            _ if self.is_forced => format!("{what}, as asked; {time}"),
            None => format!("{what}, the only one; {time}"),
            Some((next, next_s)) if next_s < self.predicted_s => format!(
                "{what}, {time}; {next} at {} counts as no faster, for its streams would meet",
                Seconds(next_s)
            ),
            Some((next, next_s)) => {
                format!("{what}, {time}; next best {next} at {}", Seconds(next_s))
            }
        }
    }
}

/// The algorithm with the least predicted time for `bytes` bytes of elements of `dtype_size`
/// bytes; `forced` names it instead. Among more than two ranks the ring is taken if its prediction
/// is within 10 % of the least, for it is the only one whose streams keep out of each other's way.
/// Ties go to the first in the registry's order.
///
/// ```
/// use ringtree::plan::Collective;
/// use ringtree::plan::select::{TuningTable, choose};
///
/// let table = TuningTable::default();
/// let choice = choose(Collective::AllReduce, 6, 25 << 20, 4, &table, None)?;
/// println!("{}", choice.explain());
/// assert!(choice.runner_up.is_some_and(|(_, seconds)| seconds >= 0.9 * choice.predicted_s));
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
/// A sentence: nothing carries out the collective, or the forced algorithm does not.
pub fn choose(
    collective: Collective,
    world_size: usize,
    bytes: usize,
    dtype_size: usize,
    table: &TuningTable,
    forced: Option<Algorithm>,
) -> Result<Choice, String> {
    let question = Question {
        collective,
        world_size,
        bytes,
        link: table.link(),
    };
    if let Some(algorithm) = forced {
        let entry = entry(collective, algorithm)
            .ok_or_else(|| format!("{algorithm} does not carry out {collective}"))?;
        let mut choice = offer(entry, &question, dtype_size);
        choice.is_forced = true;
        return Ok(choice);
    }
    let mut candidates: Vec<Choice> = REGISTRY
        .iter()
        .filter(|entry| entry.collectives.contains(&collective))
        .map(|entry| offer(entry, &question, dtype_size))
        .collect();
    candidates.sort_by(|one, other| one.predicted_s.total_cmp(&other.predicted_s));
    let least_s = candidates.first().map_or(0.0, |first| first.predicted_s);
    let calm = candidates.iter().position(|candidate| {
        let entry = entry(collective, candidate.algorithm);
        world_size > 2
            && entry.is_some_and(|entry| entry.has_one_sender)
            && candidate.predicted_s <= least_s * (1.0 + NO_DIFFERENCE)
    });
    if candidates.is_empty() {
        return Err(format!("no algorithm carries out {collective}"));
    }
    let mut choice = candidates.remove(calm.unwrap_or(0));
    choice.runner_up = candidates
        .first()
        .map(|next| (next.algorithm, next.predicted_s));
    Ok(choice)
}

/// Predictions that differ by less than this share tell less about which is faster than whether
/// streams meet in a port ([`Entry::has_one_sender`]). Where two meet they share the port unevenly,
/// and their acknowledgements wait behind data; over TCP that costs large messages up to half of
/// the speed, which the model does not know.
const NO_DIFFERENCE: f64 = 0.1;

/// What `entry` would make of the question.
fn offer(entry: &Entry, question: &Question, dtype_size: usize) -> Choice {
    let Question {
        collective,
        world_size,
        bytes,
        link,
    } = *question;
    // More chunks than elements would only send empty messages.
    let elements = (bytes / dtype_size.max(1)).max(1);
    let chunks_of_one_piece = (entry.chunks)(collective, world_size, 1).max(1);
    let pieces_max = (elements / chunks_of_one_piece).max(1);
    let pieces = if world_size == 1 {
        1
    } else {
        (entry.pieces)(question).clamp(1, pieces_max)
    };
    let cost = (entry.cost)(&Request {
        collective,
        algorithm: entry.algorithm,
        world_size,
        rank: 0,
        root: 0,
        pieces,
    });
    let alone = world_size == 1;
    Choice {
        collective,
        world_size,
        bytes,
        algorithm: entry.algorithm,
        pieces,
        rounds: if alone { 0 } else { cost.rounds },
        predicted_s: if alone {
            0.0
        } else {
            cost.time_s(payload_bytes(collective, bytes), &link)
        },
        runner_up: None,
        is_forced: false,
    }
}
