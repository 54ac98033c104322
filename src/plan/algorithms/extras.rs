//! A power of two out of any number of ranks: the extra ranks are folded in first and are handed
//! the result last.
//!
//! ```text
//! 6 ranks, 2 of them extra:   1→0  3→2   │   0 2 4 5 are members 0 1 2 3   │   0→1  2→3
//! ```
//!
//! The pairs are adjacent and the lower one stays, so members keep the order of the ranks.
//! Source: Thakur, Rabenseifner, Gropp (IJHPCA 2005), §4.5.

use super::blocks::whole;
use crate::plan::ir::{Request, Round, Step};

/// ⌊log₂ n⌋: 2 to this power is how many members there are.
pub(super) fn levels(world_size: usize) -> usize {
    world_size.ilog2() as usize
}

/// Whether there are extra ranks.
pub(super) fn any(world_size: usize) -> bool {
    !world_size.is_power_of_two()
}

/// The rank that is this member.
pub(super) fn rank_of(member: usize, world_size: usize) -> usize {
    let extras = world_size - (1 << levels(world_size));
    if member < extras {
        2 * member
    } else {
        member + extras
    }
}

/// The rounds of `members` between folding the extra ranks in and handing them the result;
/// `members` makes the rounds of a member, all as many.
pub(super) fn around(
    request: &Request,
    chunks: usize,
    rounds_between: usize,
    members: impl Fn(usize) -> Vec<Round>,
) -> Vec<Round> {
    let (rank, n) = (request.rank, request.world_size);
    let extras = n - (1 << levels(n));
    if extras == 0 {
        return members(rank);
    }
    let in_a_pair = rank < 2 * extras;
    if in_a_pair && rank % 2 == 1 {
        let mut rounds = vec![Vec::new(); rounds_between + 2];
        rounds[0].push(Step::send(rank - 1, whole(chunks)));
        rounds[rounds_between + 1].push(Step::store(rank - 1, whole(chunks)));
        return rounds;
    }
    let member = if in_a_pair { rank / 2 } else { rank - extras };
    let (mut first, mut last) = (Vec::new(), Vec::new());
    if in_a_pair {
        first.push(Step::reduce(rank + 1, whole(chunks), false));
        last.push(Step::send(rank + 1, whole(chunks)));
    }
    let mut rounds = vec![first];
    rounds.extend(members(member));
    rounds.push(last);
    rounds
}
