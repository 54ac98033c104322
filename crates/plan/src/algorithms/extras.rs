//! For any number of ranks, selects members that exchange data in groups of k. The contribution of
//! each extra rank is first reduced into that of a member, and the extra rank receives the result
//! at the end.
//!
//! ```text
//! 6 ranks, 2 of them extra:   1→0  3→2   │   0 2 4 5 are members 0 1 2 3   │   0→1  2→3
//! ```
//!
//! There are k^⌊log_k n⌋ members, or the largest multiple of that number that does not exceed the
//! number of ranks. In the latter case, the last group is smaller than k. Extra ranks directly
//! follow their member, so the members are in rank order. Source: Thakur, Rabenseifner, Gropp
//! (IJHPCA 2005), §4.5.

use super::blocks::whole;
use crate::ir::{Request, Round, Step};
use crate::layout::part_start;
use std::ops::Range;

/// The members among the ranks, and the groups in which the members exchange data, level by level.
pub(super) struct Members {
    world_size: usize,
    /// Number of members.
    pub(super) count: usize,
    /// Sizes of the groups, whose product is `count`.
    pub(super) groups: Vec<usize>,
}

impl Members {
    /// Selects, from `world_size` ranks, the members that exchange data in groups of `radix`.
    pub(super) fn new(world_size: usize, radix: usize) -> Self {
        let (mut count, mut groups) = (1, Vec::new());
        while count <= world_size / radix {
            groups.push(radix);
            count *= radix;
        }
        let last = world_size / count;
        if last > 1 {
            groups.push(last);
            count *= last;
        }
        Self {
            world_size,
            count,
            groups,
        }
    }

    /// Returns whether there are extra ranks.
    pub(super) fn has_extras(&self) -> bool {
        self.count < self.world_size
    }

    /// Returns the largest number of extra ranks that belong to one member.
    pub(super) fn extras_max(&self) -> usize {
        self.world_size.div_ceil(self.count) - 1
    }

    /// Returns the number of messages that the extra ranks add to the longest chain of messages
    /// that wait for one another. If only one member has extra ranks, they add only one message,
    /// because the messages that this member receives from others do not contain their
    /// contributions.
    pub(super) fn hops(&self) -> usize {
        (self.world_size - self.count).min(self.count).min(2)
    }

    /// Returns the rank of a member.
    pub(super) fn rank_of(&self, member: usize) -> usize {
        part_start(self.world_size, self.count, member)
    }

    /// Returns the extra ranks that belong to a member.
    fn extras_of(&self, member: usize) -> Range<usize> {
        self.rank_of(member) + 1..self.rank_of(member + 1)
    }

    /// Returns the index of the member that `rank` is or, for an extra rank, to which it belongs.
    fn member_of(&self, rank: usize) -> usize {
        let (each, longer) = (self.world_size / self.count, self.world_size % self.count);
        let in_longer = longer * (each + 1);
        if rank < in_longer {
            rank / (each + 1)
        } else {
            longer + (rank - in_longer) / each
        }
    }

    /// Returns the rounds of a rank: one that reduces the contributions of the extra ranks,
    /// `rounds_between` rounds among the members, and one that sends the result to the extra ranks.
    /// `of_member` returns the rounds of a member. If there are no extra ranks, the first and the
    /// last round are omitted.
    pub(super) fn around(
        &self,
        request: &Request,
        chunks: usize,
        rounds_between: usize,
        of_member: impl Fn(usize) -> Vec<Round>,
    ) -> Vec<Round> {
        let member = self.member_of(request.rank);
        if !self.has_extras() {
            return of_member(member);
        }
        let leader = self.rank_of(member);
        if leader != request.rank {
            let mut rounds = vec![Vec::new(); rounds_between + 2];
            rounds[0].push(Step::send(leader, whole(chunks)));
            rounds[rounds_between + 1].push(Step::store(leader, whole(chunks)));
            return rounds;
        }
        let extras = self.extras_of(member);
        let (mut first, mut last) = (Vec::new(), Vec::new());
        if !extras.is_empty() {
            first.push(Step::reduce_all(extras.clone(), whole(chunks), false));
            last.extend(extras.map(|extra| Step::send(extra, whole(chunks))));
        }
        let mut rounds = vec![first];
        rounds.extend(of_member(member));
        rounds.push(last);
        rounds
    }
}
