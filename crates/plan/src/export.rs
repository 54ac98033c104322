//! Exports plans for use by other programs, as a flat list of the transfers of all ranks and as a
//! JSON object.

use super::cost::Traffic;
use super::ir::{ChunkRange, Plan, Round, Source, Step};
use super::spec::{Algorithm, Collective};
use crate::error::PlanError;
use crate::spec::moves_blocks;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};

/// A movement of chunks from one rank to another, or within a rank.
///
/// *Replay.* All transfers in a round read the state before the round. The transfers are then
/// applied in list order. Each transfer either replaces the content of its target or is reduced
/// into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Transfer {
    /// The round, counted from 0. Local copies and reductions are in separate rounds.
    pub round: usize,
    /// The index of the message to which this transfer belongs, or `None` for a local copy or
    /// reduction.
    pub message: Option<usize>,
    /// The sending rank.
    pub from: usize,
    /// The first chunk that is read.
    pub from_chunk: usize,
    /// The receiving rank.
    pub to: usize,
    /// The first chunk that is written.
    pub to_chunk: usize,
    /// Number of chunks.
    pub chunks: usize,
    /// `true` if the chunks are reduced into the existing content, or `false` if they replace it.
    pub reduce: bool,
}

/// Returns all transfers in `plans`, round by round. `plans` contains one plan per rank, in rank
/// order.
///
/// # Errors
/// Returns an error if the plans are not consistent with each other. This is the case if a
/// receive has no matching send in the same round, if a send has no matching receive, or if the
/// lengths of a send and its receive differ. [`super::verify`] explains such faults in more detail.
pub fn transfers(plans: &[Plan]) -> Result<Vec<Transfer>, PlanError> {
    let mut list = List::default();
    let rounds = plans.iter().map(|plan| plan.rounds.len()).max();
    for index in 0..rounds.unwrap_or(0) {
        let rounds: Vec<&Round> = plans
            .iter()
            .map(|plan| plan.rounds.get(index).unwrap_or(const { &Vec::new() }))
            .collect();
        list.add_messages(&rounds)?;
        list.add_local(&rounds);
        let is_empty = rounds.iter().all(|round| round.is_empty());
        list.round += usize::from(!is_empty);
    }
    Ok(list.transfers)
}

/// Returns the transfers in a form that is suitable for other programs.
///
/// If content moves between blocks, as in an all-to-all, each rank's chunks are listed twice: first
/// the chunks that the rank reads and then the chunks that it writes, followed by its scratch. A
/// replay therefore does not need to know what a chunk holds at a given time.
///
/// # Errors
/// Returns the same errors as [`transfers`].
pub fn exported(plans: &[Plan]) -> Result<Vec<Transfer>, PlanError> {
    let listed = transfers(plans)?;
    let Some(first) = plans.first() else {
        return Ok(listed);
    };
    if !moves_blocks(first.request.collective) {
        return Ok(listed);
    }
    let chunks = first.chunks;
    let mut is_written = vec![vec![false; chunks]; plans.len()];
    let mut apart = Vec::new();
    for round in listed.chunk_by(|one, next| one.round == next.round) {
        let single = |one: &Transfer| {
            let Transfer { chunks, .. } = *one;
            let one = *one;
            (0..chunks).map(move |at| Transfer {
                from_chunk: one.from_chunk + at,
                to_chunk: one.to_chunk + at,
                chunks: 1,
                ..one
            })
        };
        let singles: Vec<Transfer> = round.iter().flat_map(single).collect();
        apart.extend(singles.iter().map(|one| {
            let is_input = one.from_chunk < chunks && !is_written[one.from][one.from_chunk];
            Transfer {
                from_chunk: one.from_chunk + if is_input { 0 } else { chunks },
                to_chunk: one.to_chunk + chunks,
                ..*one
            }
        }));
        for one in singles.iter().filter(|one| one.to_chunk < chunks) {
            is_written[one.to][one.to_chunk] = true;
        }
    }
    // A chunk that no transfer has written still holds the rank's own block. Copy it to the
    // chunks that the rank writes.
    let round = apart.last().map_or(0, |last| last.round + 1);
    for (rank, is_written) in is_written.iter().enumerate() {
        let left = is_written.iter().enumerate().filter(|(_, is)| !**is);
        apart.extend(left.map(|(chunk, _)| Transfer {
            round,
            message: None,
            from: rank,
            from_chunk: chunk,
            to: rank,
            to_chunk: chunk + chunks,
            chunks: 1,
            reduce: false,
        }));
    }
    Ok(apart)
}

#[derive(Default)]
struct List {
    round: usize,
    messages: usize,
    transfers: Vec<Transfer>,
}

/// The messages of a round that have not been received yet, oldest first, indexed by (from, to).
type Mail<'a> = BTreeMap<(usize, usize), VecDeque<(usize, &'a [ChunkRange])>>;

impl List {
    fn add_messages(&mut self, rounds: &[&Round]) -> Result<(), PlanError> {
        let mut mail = self.post(rounds);
        for (to, round) in rounds.iter().enumerate() {
            for step in round.iter() {
                let Step::Receive {
                    sources, ranges, ..
                } = step
                else {
                    continue;
                };
                let mut reduce = sources.contains(&Source::Own);
                for source in sources {
                    let Source::Peer(from) = *source else {
                        continue;
                    };
                    let (message, sent) = mail
                        .get_mut(&(from, to))
                        .and_then(VecDeque::pop_front)
                        .ok_or_else(|| {
                        let round = self.round;
                        refused!(
                            Invalid,
                            "round {round}: rank {to} expects a message from rank {from}"
                        )
                    })?;
                    self.add_message(message, (from, sent), (to, ranges), reduce)?;
                    // If the rank's own chunks are not an operand, the first operand is stored.
                    reduce = true;
                }
            }
        }
        if let Some(((from, to), _)) = mail.iter().find(|(_, waiting)| !waiting.is_empty()) {
            let round = self.round;
            return Err(refused!(
                Invalid,
                "round {round}: rank {to} does not receive the message from rank {from}"
            ));
        }
        Ok(())
    }

    /// Collects the messages of a round and numbers them in the order of sender and step.
    fn post<'a>(&mut self, rounds: &[&'a Round]) -> Mail<'a> {
        let mut mail = Mail::new();
        for (from, round) in rounds.iter().enumerate() {
            for step in round.iter() {
                let Step::Send { peers, ranges } = step else {
                    continue;
                };
                for to in peers {
                    let message = (self.messages, ranges.as_slice());
                    mail.entry((from, *to)).or_default().push_back(message);
                    self.messages += 1;
                }
            }
        }
        mail
    }

    /// Adds a message as one or more transfers. It is split wherever a range ends on either side.
    fn add_message(
        &mut self,
        message: usize,
        (from, sent): (usize, &[ChunkRange]),
        (to, received): (usize, &[ChunkRange]),
        reduce: bool,
    ) -> Result<(), PlanError> {
        let (mut sent, mut received) = (sent.to_vec(), received.to_vec());
        sent.reverse();
        received.reverse();
        while let (Some(source), Some(target)) = (sent.last_mut(), received.last_mut()) {
            let chunks = source.count.min(target.count);
            self.transfers.push(Transfer {
                round: self.round,
                message: Some(message),
                from,
                from_chunk: source.first,
                to,
                to_chunk: target.first,
                chunks,
                reduce,
            });
            *source = ChunkRange::new(source.first + chunks, source.count - chunks);
            *target = ChunkRange::new(target.first + chunks, target.count - chunks);
            sent.pop_if(|range| range.count == 0);
            received.pop_if(|range| range.count == 0);
        }
        if sent.is_empty() && received.is_empty() {
            return Ok(());
        }
        let round = self.round;
        Err(refused!(
            Invalid,
            "round {round}: rank {from} sends rank {to} a message of unexpected length"
        ))
    }

    /// Adds the local steps of a round. No local step uses a chunk that another local step writes.
    fn add_local(&mut self, rounds: &[&Round]) {
        for (rank, round) in rounds.iter().enumerate() {
            for step in round.iter() {
                let (from, to) = match step {
                    Step::Copy { from, to } => (std::slice::from_ref(from), *to),
                    Step::Reduce { from, to, .. } => (from.as_slice(), *to),
                    Step::Send { .. } | Step::Receive { .. } => continue,
                };
                // If the rank's own chunks are not an operand, the first operand is stored.
                let mut reduce = from.contains(&to);
                for one in from.iter().filter(|one| **one != to) {
                    self.transfers.push(Transfer {
                        round: self.round,
                        message: None,
                        from: rank,
                        from_chunk: one.first,
                        to: rank,
                        to_chunk: to.first,
                        chunks: to.count,
                        reduce,
                    });
                    reduce = true;
                }
            }
        }
    }
}

/// The JSON object that `ringtree plan --format json` prints on a single line for each algorithm.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// The collective.
    pub collective: &'static str,
    /// The algorithm.
    pub algorithm: String,
    /// Number of ranks.
    pub ranks: usize,
    /// The root, or 0 if the collective has no root.
    pub root: usize,
    /// Number of chunks in a rank's buffer. Like all of the following counts, it is null if there
    /// is no plan.
    pub chunks: Option<usize>,
    /// Number of scratch chunks, which follow the buffer's chunks.
    pub scratch: Option<usize>,
    /// Number of rounds that contain messages.
    pub rounds: Option<usize>,
    /// Total number of messages that all ranks send. It is also null if there are too many messages
    /// to count.
    pub messages: Option<usize>,
    /// Number of bytes sent by the busiest rank.
    pub max_bytes_sent_per_rank: Option<usize>,
    /// The predicted time, in microseconds.
    pub time_us: Option<f64>,
    /// Result of the verifier, or null if the verifier did not run.
    pub verified: Option<bool>,
    /// `true` if all ranks end up with the same bits, or null if the verifier did not run.
    pub bits_agree: Option<bool>,
    /// The reason why there is no plan or why verification failed, or null if neither is the case.
    pub why_not: Option<String>,
    /// All transfers. Absent if there are more than [`crate::limits::DRAWN_RANKS_MAX`] ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sends: Option<Vec<Transfer>>,
}

impl Report {
    /// Creates the report for an algorithm that does not implement the collective. `why_not` states
    /// the reason.
    #[must_use]
    pub fn unsupported(
        (collective, algorithm): (Collective, Algorithm),
        (ranks, root): (usize, usize),
        why_not: String,
    ) -> Self {
        Self {
            collective: collective.name(),
            algorithm: algorithm.to_string(),
            ranks,
            root,
            why_not: Some(why_not),
            ..Self::default()
        }
    }

    /// Creates the report for an algorithm, before verification, from the algorithm's traffic and
    /// its predicted time in seconds.
    #[must_use]
    pub fn priced(
        names: (Collective, Algorithm),
        size: (usize, usize),
        traffic: &Traffic,
        time_s: f64,
    ) -> Self {
        Self {
            chunks: Some(traffic.chunks * if moves_blocks(names.0) { 2 } else { 1 }),
            scratch: Some(traffic.scratch),
            rounds: Some(traffic.rounds),
            messages: traffic.messages,
            max_bytes_sent_per_rank: Some(traffic.max_bytes_sent_per_rank),
            time_us: Some((time_s * 1e10).round() / 1e4),
            why_not: None,
            ..Self::unsupported(names, size, String::new())
        }
    }

    /// Returns the object as a single line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("invariant: names and numbers are valid JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::{Transfer, transfers};
    use crate::ir::{ChunkRange, Plan, Request, Round, Source, Step};
    use crate::spec::{Algorithm, Collective};
    use crate::topology::Hosts;

    /// Creates plans with the given rounds, four chunks and eight scratch chunks.
    fn plans(rounds_of_ranks: Vec<Vec<Round>>) -> Vec<Plan> {
        let world_size = rounds_of_ranks.len();
        let request = |rank| Request {
            collective: Collective::AllReduce,
            algorithm: Algorithm::Flat,
            world_size,
            rank,
            root: 0,
            pieces: 1,
            hosts: Hosts::APART,
        };
        rounds_of_ranks
            .into_iter()
            .enumerate()
            .map(|(rank, rounds)| Plan {
                request: request(rank),
                chunks: 4,
                scratch: 8,
                rounds,
            })
            .collect()
    }

    fn range(first: usize, count: usize) -> ChunkRange {
        ChunkRange::new(first, count)
    }

    #[test]
    fn wrapping_range_is_one_message_with_two_transfers() {
        let send = Step::send(1, vec![range(3, 1), range(0, 2)]);
        let store = Step::store(0, vec![range(4, 3)]);
        let entry = |from_chunk, to_chunk, chunks| Transfer {
            round: 0,
            message: Some(0),
            from: 0,
            from_chunk,
            to: 1,
            to_chunk,
            chunks,
            reduce: false,
        };
        let listed = transfers(&plans(vec![vec![vec![send]], vec![vec![store]]]));
        assert_eq!(listed, Ok(vec![entry(3, 4, 1), entry(0, 5, 2)]));
    }

    #[test]
    fn first_operand_is_stored_unless_own_chunks_are_an_operand() {
        let gather = |sources| Step::Receive {
            sources,
            ranges: vec![range(0, 1)],
            completes: true,
        };
        let send = || vec![vec![Step::send(0, vec![range(0, 1)])]];
        let folds = |sources| -> Vec<(usize, bool)> {
            let listed = transfers(&plans(vec![vec![vec![gather(sources)]], send(), send()]));
            let listed = listed.unwrap();
            listed.iter().map(|one| (one.from, one.reduce)).collect()
        };
        let peers = vec![Source::Peer(2), Source::Peer(1)];
        assert_eq!(folds(peers), [(2, false), (1, true)]);
        let with_own = vec![Source::Peer(2), Source::Own, Source::Peer(1)];
        assert_eq!(folds(with_own), [(2, true), (1, true)]);
    }

    #[test]
    fn local_steps_form_a_separate_round() {
        let copy = Step::Copy {
            from: range(0, 1),
            to: range(4, 1),
        };
        let fold = |from: Vec<ChunkRange>| Step::Reduce {
            from,
            to: range(1, 1),
            completes: false,
        };
        let later = vec![Step::send(1, vec![range(1, 1)])];
        let stored = vec![Step::store(0, vec![range(1, 1)])];
        let with_own = vec![range(5, 1), range(1, 1), range(9, 1)];
        let listed = transfers(&plans(vec![
            vec![vec![copy, fold(with_own)], later],
            vec![vec![fold(vec![range(5, 1), range(9, 1)])], stored],
        ]));
        let listed = listed.unwrap();
        let rounds: Vec<_> = listed
            .iter()
            .map(|one| (one.round, one.message, one.to, one.from_chunk, one.reduce))
            .collect();
        assert_eq!(
            rounds,
            [
                (0, None, 0, 0, false),
                (0, None, 0, 5, true),
                (0, None, 0, 9, true),
                (0, None, 1, 5, false),
                (0, None, 1, 9, true),
                (1, Some(0), 1, 1, false),
            ]
        );
    }

    #[test]
    fn inconsistent_plans_are_rejected() {
        let send = |count| vec![vec![Step::send(1, vec![range(0, count)])]];
        let store = |count| vec![vec![Step::store(0, vec![range(0, count)])]];
        let fault = |one, other| transfers(&plans(vec![one, other])).unwrap_err().to_string();
        assert!(fault(vec![], store(1)).contains("rank 1 expects a message from rank 0"));
        assert!(fault(send(1), vec![]).contains("rank 1 does not receive the message from rank 0"));
        assert!(fault(send(1), store(2)).contains("unexpected length"));
    }
}
