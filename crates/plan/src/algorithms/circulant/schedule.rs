//! Determines which piece each rank receives in each round of the pipelined broadcast.
//!
//! In round t, every rank receives from the rank `skip` positions before it and sends to the rank
//! `skip` positions after it. The k skips are used in turn. In k successive rounds, which are
//! called a turn, a rank receives k different pieces. In the next turn, the index of each piece is
//! higher by k. Therefore, k indexes per rank, relative to the turn, are sufficient. One of them is
//! the rank's *own* level, at which a piece first reaches the rank from the root over the edges of
//! the greedy path (largest skips first). The other k−1 indexes refer to pieces from the previous
//! turn.
//!
//! The indexes come from a depth-first search over greedy paths that tries far ends first. The
//! search assigns to round j the last path that ends at least `skip(j)` and less than `skip(j+1)`
//! positions before the rank. Each level is used once. The search is due to Träff (arXiv
//! 2407.18004, §2.3). This file does not argue that the result is a broadcast, but `verify` proves
//! it for every n that the tests cover.

use super::skips;

/// The schedule for n ≥ 2 ranks and b pieces. Ranks are virtual: 0 is the root.
pub(super) struct Schedule {
    skips: Vec<usize>,
    pieces: usize,
    /// Number of rounds that are omitted from the first turn so that the last round completes a
    /// turn.
    omitted_rounds: usize,
}

impl Schedule {
    pub(super) fn new(world_size: usize, pieces: usize) -> Self {
        let skips = skips(world_size, 2);
        let levels = skips.len() - 1;
        let omitted_rounds = (levels - (pieces - 1) % levels) % levels;
        Self {
            skips,
            pieces,
            omitted_rounds,
        }
    }

    /// Returns the number of rounds, b − 1 + ⌈log₂ n⌉.
    pub(super) fn rounds(&self) -> usize {
        self.pieces - 1 + self.levels()
    }

    pub(super) fn levels(&self) -> usize {
        self.skips.len() - 1
    }

    /// Returns the level whose skip is used in `round`.
    pub(super) fn level(&self, round: usize) -> usize {
        (round + self.omitted_rounds) % self.levels()
    }

    pub(super) fn skip(&self, level: usize) -> usize {
        self.skips[level]
    }

    /// Returns the piece that `rank` receives in each round. It receives each piece once: pieces
    /// that the turns would repeat at the end are omitted. The root receives nothing.
    pub(super) fn received(&self, rank: usize) -> Vec<Option<usize>> {
        if rank == 0 {
            return vec![None; self.rounds()];
        }
        let in_a_turn = self.received_in_a_turn(rank);
        let mut has = vec![false; self.pieces];
        let piece_of = |round: usize| {
            let turns_passed = (round + self.omitted_rounds) / self.levels() * self.levels();
            let number = in_a_turn[self.level(round)] + turns_passed as isize;
            let piece = usize::try_from(number - self.omitted_rounds as isize).ok()?;
            let piece = piece.min(self.pieces - 1);
            (!std::mem::replace(&mut has[piece], true)).then_some(piece)
        };
        (0..self.rounds()).map(piece_of).collect()
    }

    /// Returns the index, relative to the turn, of the piece that `rank` receives at each level.
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

    /// Returns the last and smallest level of the greedy path from the root to `rank`.
    fn own_level(&self, rank: usize) -> usize {
        let mut left = rank;
        for level in (0..self.levels()).rev() {
            if left == self.skips[level] {
                return level;
            }
            if left > self.skips[level] {
                left -= self.skips[level];
            }
        }
        self.levels()
    }
}

struct Search<'a> {
    skips: &'a [usize],
    /// The rank plus the number of ranks, so that paths may begin before the root.
    target: usize,
    used: Vec<bool>,
    /// The levels found so far, one for each round of a turn.
    found: Vec<usize>,
}

impl Search<'_> {
    /// Extends the greedy path that ends at `position` by levels from `highest` down. Only ends
    /// before `bound` are considered.
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
