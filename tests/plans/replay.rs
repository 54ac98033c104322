//! Runs plans on pseudo-random values, round by round. The messages of a round contain the values
//! from before the round. This module shares no code with the verifier.

use ringtree::plan::{ChunkRange, Collective, Plan, Source, Step};

/// Runs the plans on pseudo-random values. If a result is wrong, returns a message that names the
/// chunk and the rank.
pub(crate) fn replay(plans: &[Plan]) -> Result<(), String> {
    let request = &plans[0].request;
    let collective = request.collective;
    let chunks = plans[0].chunks;
    let block_of = |chunk: usize| chunk * request.world_size / chunks;
    let combine = |one: u64, other: u64| match collective {
        Collective::Barrier => one | other,
        _ => one.wrapping_add(other),
    };
    let input = |rank: usize, chunk: usize| match collective {
        Collective::Barrier => 1 << rank,
        _ => scrambled(rank as u64 * 1_000_003 + chunk as u64),
    };
    let mut state: Vec<Vec<u64>> = (0..plans.len())
        .map(|rank| {
            (0..chunks + plans[rank].scratch)
                .map(|chunk| input(rank, chunk))
                .collect()
        })
        .collect();
    for round in 0..plans[0].rounds.len() {
        state = after_round(plans, round, &state, combine)?;
    }
    for (rank, held) in state.iter().enumerate() {
        for (chunk, &number) in held[..chunks].iter().enumerate() {
            let all = || {
                (0..plans.len())
                    .map(|one| input(one, chunk))
                    .reduce(combine)
            };
            let expected = match collective {
                Collective::AllReduce | Collective::Barrier => all(),
                Collective::Reduce if rank == request.root => all(),
                Collective::ReduceScatter if rank == block_of(chunk) => all(),
                Collective::Reduce | Collective::ReduceScatter => continue,
                Collective::Gather if rank != request.root => continue,
                Collective::Scatter if rank != block_of(chunk) => continue,
                Collective::Broadcast | Collective::Scatter => Some(input(request.root, chunk)),
                Collective::AllGather | Collective::Gather => Some(input(block_of(chunk), chunk)),
                Collective::AllToAll => {
                    let pieces = chunks / plans.len();
                    let place = rank * pieces + chunk % pieces;
                    Some(input(block_of(chunk), place))
                }
            };
            if expected != Some(number) {
                return Err(format!("chunk {chunk} of rank {rank} is wrong"));
            }
        }
    }
    Ok(())
}

fn after_round(
    plans: &[Plan],
    round: usize,
    before: &[Vec<u64>],
    combine: impl Fn(u64, u64) -> u64,
) -> Result<Vec<Vec<u64>>, String> {
    let mut after = before.to_vec();
    let mut taken = vec![vec![0; plans.len()]; plans.len()];
    for (rank, plan) in plans.iter().enumerate() {
        for step in plan.rounds.get(round).ok_or("a rank has fewer rounds")? {
            match step {
                Step::Send { .. } => {}
                Step::Receive {
                    sources, ranges, ..
                } => {
                    let targets = flat(ranges);
                    let mut folds = sources.contains(&Source::Own);
                    for source in sources {
                        let Source::Peer(peer) = *source else {
                            continue;
                        };
                        let sent = sent_to(&plans[peer], round, rank);
                        let message = sent.get(taken[peer][rank]).ok_or("a message is missing")?;
                        taken[peer][rank] += 1;
                        if message.len() != targets.len() {
                            return Err("a message has a different length".to_owned());
                        }
                        for (&target, &chunk) in targets.iter().zip(message) {
                            let arrived = before[peer][chunk];
                            let slot = &mut after[rank][target];
                            *slot = if folds {
                                combine(*slot, arrived)
                            } else {
                                arrived
                            };
                        }
                        folds = true;
                    }
                }
                Step::Copy { from, to } => {
                    for (source, target) in flat(&[*from]).into_iter().zip(flat(&[*to])) {
                        after[rank][target] = before[rank][source];
                    }
                }
                Step::Reduce { from, to, .. } => {
                    for (place, target) in flat(&[*to]).into_iter().enumerate() {
                        let operands = from.iter().map(|one| before[rank][one.first + place]);
                        after[rank][target] = operands.reduce(&combine).ok_or("no operands")?;
                    }
                }
            }
        }
    }
    Ok(after)
}

fn sent_to(plan: &Plan, round: usize, to: usize) -> Vec<Vec<usize>> {
    let sent = |step: &Step| match step {
        Step::Send { peers, ranges } if peers.contains(&to) => Some(flat(ranges)),
        _ => None,
    };
    plan.rounds[round].iter().filter_map(sent).collect()
}

fn flat(ranges: &[ChunkRange]) -> Vec<usize> {
    ranges
        .iter()
        .flat_map(|range| range.first..range.end())
        .collect()
}

fn scrambled(number: u64) -> u64 {
    let product = (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (product ^ (product >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}
