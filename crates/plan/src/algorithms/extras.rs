//! Members that exchange in groups of k, out of any number of ranks: of the ranks that are too many
//! each is folded into a member first and is handed the result last.
//!
//! ```text
//! 6 ranks, 2 of them extra:   1→0  3→2   │   0 2 4 5 are members 0 1 2 3   │   0→1  2→3
//! ```
//!
//! There are k^⌊log_k n⌋ members, or a multiple of that, as large as the ranks allow: then the last
//! group is smaller than k. An extra rank is the neighbour of its member, which comes before it, so
//! members keep the order of the ranks.
//! Source: Thakur, Rabenseifner, Gropp (IJHPCA 2005), §4.5.

use super::blocks::whole;
use crate::ir::{Request, Round, Source, Step};
use crate::layout::part_start;
use std::ops::Range;

/// The members among the ranks, and how many of them exchange with one another, level by level.
pub(super) struct Members {
    world_size: usize,
    /// How many there are.
    pub(super) count: usize,
    /// The sizes of the groups; their product is `count`.
    pub(super) groups: Vec<usize>,
}

impl Members {
    /// Those among `world_size` ranks that exchange in groups of `radix`.
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

    /// Whether there are extra ranks.
    pub(super) fn has_extras(&self) -> bool {
        self.count < self.world_size
    }

    /// The most extra ranks that a member has.
    pub(super) fn extras_max(&self) -> usize {
        self.world_size.div_ceil(self.count) - 1
    }

    /// How many messages that wait for one another the extra ranks add: a member's result contains
    /// its own extras, but if it alone has any, no other member waits for those before that.
    pub(super) fn hops(&self) -> usize {
        (self.world_size - self.count).min(self.count).min(2)
    }

    /// The rank that is this member.
    pub(super) fn rank_of(&self, member: usize) -> usize {
        part_start(self.world_size, self.count, member)
    }

    /// The ranks that are this member's extras.
    fn extras_of(&self, member: usize) -> Range<usize> {
        self.rank_of(member) + 1..self.rank_of(member + 1)
    }

    /// The member that `rank` is, or whose extra it is.
    fn member_of(&self, rank: usize) -> usize {
        let (each, longer) = (self.world_size / self.count, self.world_size % self.count);
        let in_longer = longer * (each + 1);
        if rank < in_longer {
            rank / (each + 1)
        } else {
            longer + (rank - in_longer) / each
        }
    }

    /// The rounds between folding the extra ranks in and handing them the result, with those two;
    /// `of_member` makes the rounds of a member, all as many.
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
            let peers = extras.clone().map(Source::Peer);
            first.push(Step::Receive {
                sources: [Source::Own].into_iter().chain(peers).collect(),
                ranges: whole(chunks),
                completes: false,
            });
            last.extend(extras.map(|extra| Step::send(extra, whole(chunks))));
        }
        let mut rounds = vec![first];
        rounds.extend(of_member(member));
        rounds.push(last);
        rounds
    }
}
