//! Which piece each rank receives in which round of the pipelined broadcast.
//!
//! In round t every rank receives from `skip` ranks before it and sends to `skip` ranks behind it,
//! the k skips taking turns. In k successive rounds a rank receives k different pieces, and those
//! of the next k rounds are the same plus k: it suffices to know k numbers a rank, relative to the
//! turn. One is the rank's *own* level, at which a piece first reaches it from the root, over the
//! edges of the greedy path (largest skips first); the k−1 others are pieces of the turn before.
//!
//! The numbers come from a depth-first search over greedy paths, far ends first, that gives round
//! j the last path which ends at least `skip(j)` and less than `skip(j+1)` before the rank; each
//! level is used once. The search is Träff's (arXiv 2407.18004, §2.3). Whether its result is a
//! broadcast is not argued here but proven by `verify`, for every n the tests run.

use super::skips;

/// The schedule of a world of n ≥ 2 ranks and b pieces. Ranks are virtual: 0 is the root.
pub(super) struct Schedule {
    skips: Vec<usize>,
    pieces: usize,
    /// Turns that are left out at the beginning so that the last round closes a turn.
    left_out: usize,
}

impl Schedule {
    pub(super) fn new(world_size: usize, pieces: usize) -> Self {
        let skips = skips(world_size, 2);
        let levels = skips.len() - 1;
        let left_out = (levels - (pieces - 1) % levels) % levels;
        Self {
            skips,
            pieces,
            left_out,
        }
    }

    /// b − 1 + ⌈log₂ n⌉.
    pub(super) fn rounds(&self) -> usize {
        self.pieces - 1 + self.levels()
    }

    pub(super) fn levels(&self) -> usize {
        self.skips.len() - 1
    }

    /// The level whose turn it is in `round`.
    pub(super) fn level(&self, round: usize) -> usize {
        (round + self.left_out) % self.levels()
    }

    pub(super) fn skip(&self, level: usize) -> usize {
        self.skips[level]
    }

    /// The piece that `rank` receives in each round. Each piece is received once: what the turns
    /// would repeat at the end is left out, and the root receives nothing.
    pub(super) fn received(&self, rank: usize) -> Vec<Option<usize>> {
        if rank == 0 {
            return vec![None; self.rounds()];
        }
        let in_a_turn = self.received_in_a_turn(rank);
        let mut has = vec![false; self.pieces];
        let piece_of = |round: usize| {
            let turns_passed = (round + self.left_out) / self.levels() * self.levels();
            let number = in_a_turn[self.level(round)] + turns_passed as isize;
            let piece = usize::try_from(number - self.left_out as isize).ok()?;
            let piece = piece.min(self.pieces - 1);
            (!std::mem::replace(&mut has[piece], true)).then_some(piece)
        };
        (0..self.rounds()).map(piece_of).collect()
    }

    /// For each level the number of the piece received at that level, relative to the turn.
    fn received_in_a_turn(&self, rank: usize) -> Vec<isize> {
        let levels = self.levels();
        let own = self.own_level(rank);
        let mut search = Search {
            skips: &self.skips,
            target: self.skips[levels] + rank,
            used: vec![false; levels + 1],
            found: Vec::with_capacity(levels),
        };
        search.used[own] = true;
        search.descend(0, levels, 2 * self.skips[levels]);
        let relative = |level: usize| {
            if level == levels {
                own as isize
            } else {
                level as isize - levels as isize
            }
        };
        search.found.into_iter().map(relative).collect()
    }

    /// The last, smallest level of the greedy path from the root to `rank`.
    fn own_level(&self, rank: usize) -> usize {
        let mut left = rank;
        for level in (0..self.levels()).rev() {
            if left == self.skips[level] {
                return level;
            }
            left -= if left > self.skips[level] {
                self.skips[level]
            } else {
                0
            };
        }
        self.levels()
    }
}

struct Search<'a> {
    skips: &'a [usize],
    /// The rank, once round the circle, so that paths may come from before the root.
    target: usize,
    used: Vec<bool>,
    /// The level found for each round of a turn so far.
    found: Vec<usize>,
}

impl Search<'_> {
    /// Extends the greedy path that ends at `position` by levels from `highest` down; new ends lie
    /// before `bound`.
    fn descend(&mut self, position: usize, highest: usize, mut bound: usize) {
        for level in (0..=highest).rev() {
            let round = self.found.len();
            let end = position + self.skips[level];
            if round + 1 == self.skips.len() {
                return;
            }
            if self.used[level] || end >= bound || end + self.skips[round] > self.target {
                continue;
            }
            if end + self.skips[round + 1] <= self.target {
                self.descend(end, level, bound);
            }
            let round = self.found.len();
            let all_found = round + 1 == self.skips.len();
            if all_found || position + self.skips[round + 1] > self.target {
                return;
            }
            bound = end;
            self.found.push(level);
            self.used[level] = true;
        }
    }
}
