//! Plans for other programs: every transfer of every rank as one flat list, and the JSON object.

use super::cost::Traffic;
use super::ir::{ChunkRange, Plan, Round, Source, Step};
use super::spec::{Algorithm, Collective};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};

/// Chunks that move from one rank to another, or within a rank.
///
/// *Replay.* All transfers of a round read the state before the round; then they are applied in
/// list order: stored, or folded into what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Transfer {
    /// The round, from 0; a round of local copies and folds has a number of its own.
    pub round: usize,
    /// Which message of the collective it is part of; none for a local copy or fold.
    pub message: Option<usize>,
    /// The rank that sends.
    pub from: usize,
    /// The first chunk read.
    pub from_chunk: usize,
    /// The rank that receives.
    pub to: usize,
    /// The first chunk written.
    pub to_chunk: usize,
    /// How many chunks.
    pub chunks: usize,
    /// Whether what arrives is folded into what is there, rather than stored.
    pub reduce: bool,
}

/// Every transfer of `plans` (one a rank, in rank order), in rounds.
///
/// # Errors
/// A sentence, when the plans do not fit together: a receive without its send in the same round,
/// a send without a receive, or lengths that differ. [`super::verify`] explains more.
pub fn transfers(plans: &[Plan]) -> Result<Vec<Transfer>, String> {
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

/// The transfers as other programs get them.
///
/// Where content moves between blocks (all-to-all), a rank has its chunks twice: those that it
/// reads, then those that it writes, then its scratch. So a replay need not know what a chunk holds
/// when.
///
/// # Errors
/// Those of [`transfers`].
pub fn exported(plans: &[Plan]) -> Result<Vec<Transfer>, String> {
    let listed = transfers(plans)?;
    let Some(first) = plans.first() else {
        return Ok(listed);
    };
    if !first.request.collective.moves_blocks() {
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
    // What no message has written is where it was: the block of a rank for itself.
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

/// The messages of a round that wait for their receive: by (from, to), oldest first.
type Mail<'a> = BTreeMap<(usize, usize), VecDeque<(usize, &'a [ChunkRange])>>;

impl List {
    fn add_messages(&mut self, rounds: &[&Round]) -> Result<(), String> {
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
                        format!("round {round}: rank {to} expects a message of rank {from}")
                    })?;
                    self.add_message(message, (from, sent), (to, ranges), reduce)?;
                    // The first operand is stored when the own chunks are not one.
                    reduce = true;
                }
            }
        }
        if let Some(((from, to), _)) = mail.iter().find(|(_, waiting)| !waiting.is_empty()) {
            let round = self.round;
            return Err(format!(
                "round {round}: rank {to} ignores a message of rank {from}"
            ));
        }
        Ok(())
    }

    /// Numbers the messages of a round, in the order of sender and step.
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

    /// Cuts one message at every border of a range on either side.
    fn add_message(
        &mut self,
        message: usize,
        (from, sent): (usize, &[ChunkRange]),
        (to, received): (usize, &[ChunkRange]),
        reduce: bool,
    ) -> Result<(), String> {
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
        Err(format!(
            "round {round}: rank {from} sends rank {to} a message of another length than expected"
        ))
    }

    /// The local steps of a round, of which none touches what another one writes.
    fn add_local(&mut self, rounds: &[&Round]) {
        for (rank, round) in rounds.iter().enumerate() {
            for step in round.iter() {
                let (from, to) = match step {
                    Step::Copy { from, to } => (std::slice::from_ref(from), *to),
                    Step::Reduce { from, to, .. } => (from.as_slice(), *to),
                    Step::Send { .. } | Step::Receive { .. } => continue,
                };
                // The first operand is stored when the own chunks are not one.
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

/// What `ringtree plan --format json` prints for one algorithm, one object a line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// What is done.
    pub collective: &'static str,
    /// How.
    pub algorithm: String,
    /// How many ranks.
    pub ranks: usize,
    /// The root; 0 where the collective has none.
    pub root: usize,
    /// Chunks of a rank's buffer; null when unsupported, as all counts below.
    pub chunks: Option<usize>,
    /// Chunks of scratch after them.
    pub scratch: Option<usize>,
    /// Rounds with messages.
    pub rounds: Option<usize>,
    /// Messages over all ranks; null also where they are too many to count.
    pub messages: Option<usize>,
    /// Bytes that the rank which sends most sends.
    pub max_bytes_sent_per_rank: Option<usize>,
    /// The predicted time in microseconds.
    pub time_us: Option<f64>,
    /// Whether the proof succeeded; null when it was not run.
    pub verified: Option<bool>,
    /// Whether all ranks end with the same bits; null when the proof was not run.
    pub bits_agree: Option<bool>,
    /// Why there is no plan, or why its proof failed; null when all is well.
    pub why_not: Option<String>,
    /// Every transfer; absent for more ranks than [`crate::limits::DRAWN_RANKS_MAX`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sends: Option<Vec<Transfer>>,
}

impl Report {
    /// The report of an algorithm that does not carry out the collective, and why.
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
            chunks: None,
            scratch: None,
            rounds: None,
            messages: None,
            max_bytes_sent_per_rank: None,
            time_us: None,
            verified: None,
            bits_agree: None,
            why_not: Some(why_not),
            sends: None,
        }
    }

    /// The report of an algorithm that costs `traffic` and `time_s` seconds; not yet verified.
    #[must_use]
    pub fn priced(
        names: (Collective, Algorithm),
        size: (usize, usize),
        traffic: &Traffic,
        time_s: f64,
    ) -> Self {
        Self {
            chunks: Some(traffic.chunks * if names.0.moves_blocks() { 2 } else { 1 }),
            scratch: Some(traffic.scratch),
            rounds: Some(traffic.rounds),
            messages: traffic.messages,
            max_bytes_sent_per_rank: Some(traffic.max_bytes_sent_per_rank),
            time_us: Some((time_s * 1e10).round() / 1e4),
            why_not: None,
            ..Self::unsupported(names, size, String::new())
        }
    }

    /// The object as one line of JSON.
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

    /// Hand-written plans of four chunks and eight of scratch.
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
    fn a_wrapping_range_is_one_message_of_two_entries() {
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
    fn the_first_operand_is_stored_where_the_own_chunks_are_none() {
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
    fn local_steps_share_a_round_which_has_a_number_of_its_own() {
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
    fn plans_that_do_not_fit_together_are_named() {
        let send = |count| vec![vec![Step::send(1, vec![range(0, count)])]];
        let store = |count| vec![vec![Step::store(0, vec![range(0, count)])]];
        let fault = |one, other| transfers(&plans(vec![one, other])).unwrap_err();
        assert!(fault(vec![], store(1)).contains("rank 1 expects a message of rank 0"));
        assert!(fault(send(1), vec![]).contains("rank 1 ignores a message of rank 0"));
        assert!(fault(send(1), store(2)).contains("another length"));
    }
}
