//! Determines what each rank holds after each round by replaying the plan's transfers.

use crate::error::PlanError;
use crate::export::{Transfer, transfers};
use crate::ir::{Plan, Request};
use crate::limits::DRAWN_RANKS_MAX;
use crate::spec::{Collective, Demand, contributes, demands, reduces};

/// A replayed plan: its transfers, and what the ranks hold between rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Holdings {
    /// The transfers of each round.
    pub rounds: Vec<Vec<Transfer>>,
    /// The state before the first round and the states after each round. There is one more state
    /// than there are rounds.
    pub states: Vec<State>,
}

/// The state of all ranks at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Fraction of the final content that is present, from 0 to 1 (complete). Indexed by rank and
    /// then by chunk of the buffer. A partial sum that the rank has passed on counts as 0 because
    /// the rank no longer uses it.
    pub parts: Vec<Vec<f32>>,
    /// Complete chunks, as a fraction of all chunks that the collective owes to the ranks.
    pub complete_part: f32,
    /// Number of ranks that hold everything that they are supposed to receive from the collective.
    pub ranks_done: usize,
    /// Number of ranks that should receive data from the collective.
    pub ranks_owed: usize,
}

impl Holdings {
    /// Replays `plans`, which contains one plan per rank, in rank order.
    ///
    /// # Errors
    /// Returns an error if there are no plans, if there are too many ranks to draw, or if
    /// the plans are not consistent with each other.
    pub fn of(plans: &[Plan]) -> Result<Self, PlanError> {
        if plans.is_empty() {
            return Err(refused!(Invalid, "there are no plans to draw"));
        }
        if plans.len() > DRAWN_RANKS_MAX {
            return Err(refused!(
                Invalid,
                "cannot draw {} ranks: the limit is {DRAWN_RANKS_MAX}",
                plans.len()
            ));
        }
        let mut rounds: Vec<Vec<Transfer>> = Vec::new();
        for transfer in transfers(plans)? {
            if rounds.len() <= transfer.round {
                rounds.resize(transfer.round + 1, Vec::new());
            }
            rounds[transfer.round].push(transfer);
        }
        let mut replay = Replay::new(plans);
        let mut states = vec![replay.state()];
        for round in &rounds {
            replay.step(round);
            states.push(replay.state());
        }
        Ok(Self { rounds, states })
    }
}

/// The ranks whose contributions a chunk holds, with one bit per rank.
type Ranks = u64;

#[derive(Clone, Copy, Default)]
struct Cell {
    holds: Ranks,
    is_passed_on: bool,
}

struct Replay<'a> {
    request: &'a Request,
    chunks: usize,
    /// Cells, including scratch, indexed by rank and chunk.
    cells: Vec<Vec<Cell>>,
}

impl<'a> Replay<'a> {
    fn new(plans: &'a [Plan]) -> Self {
        let blank = |plan: &Plan| vec![Cell::default(); plan.chunks + plan.scratch];
        let mut replay = Self {
            request: &plans[0].request,
            chunks: plans[0].chunks,
            cells: plans.iter().map(blank).collect(),
        };
        let (collective, root) = (replay.request.collective, replay.request.root);
        for rank in 0..plans.len() {
            for chunk in 0..replay.chunks {
                if contributes(collective, rank, root, replay.owner(chunk)) {
                    replay.cells[rank][chunk].holds = 1 << rank;
                }
            }
        }
        replay
    }

    fn owner(&self, chunk: usize) -> usize {
        chunk * self.request.world_size / self.chunks
    }

    /// Returns whether the collective owes `rank` the final content of `chunk`.
    fn is_owed(&self, rank: usize, chunk: usize) -> bool {
        let (collective, root) = (self.request.collective, self.request.root);
        demands(collective, rank, root, self.owner(chunk)) != Demand::Anything
    }

    /// Returns the contributions that `chunk` holds once it is complete.
    fn wanted(&self, chunk: usize) -> Ranks {
        match self.request.collective {
            Collective::Broadcast | Collective::Scatter => 1 << self.request.root,
            Collective::AllGather | Collective::Gather | Collective::AllToAll => {
                1 << self.owner(chunk)
            }
            _ => Ranks::MAX >> (DRAWN_RANKS_MAX - self.request.world_size),
        }
    }

    fn part(&self, rank: usize, chunk: usize) -> f32 {
        let cell = self.cells[rank][chunk];
        let wanted = self.wanted(chunk);
        if cell.is_passed_on && cell.holds != wanted {
            return 0.0;
        }
        (cell.holds & wanted).count_ones() as f32 / wanted.count_ones() as f32
    }

    fn state(&self) -> State {
        let ranks = || 0..self.request.world_size;
        let parts = |rank| (0..self.chunks).map(move |chunk| self.part(rank, chunk));
        let are_complete = |rank: usize| {
            let owed = (0..self.chunks).filter(|chunk| self.is_owed(rank, *chunk));
            let is_complete = |chunk: usize| self.cells[rank][chunk].holds == self.wanted(chunk);
            owed.map(is_complete).collect::<Vec<bool>>()
        };
        let owed = ranks().map(are_complete).filter(|owed| !owed.is_empty());
        let owed: Vec<Vec<bool>> = owed.collect();
        let chunks = || owed.iter().flatten();
        let complete = chunks().filter(|is_complete| **is_complete).count();
        State {
            parts: ranks().map(|rank| parts(rank).collect()).collect(),
            complete_part: complete as f32 / chunks().count().max(1) as f32,
            ranks_done: owed.iter().filter(|rank| !rank.contains(&false)).count(),
            ranks_owed: owed.len(),
        }
    }

    fn step(&mut self, round: &[Transfer]) {
        let before = self.cells.clone();
        let is_reduction =
            reduces(self.request.collective) && self.request.collective != Collective::Barrier;
        if is_reduction {
            for one in round.iter().filter(|one| one.from != one.to) {
                for chunk in one.from_chunk..one.from_chunk + one.chunks {
                    self.cells[one.from][chunk].is_passed_on = true;
                }
            }
        }
        for one in round {
            for offset in 0..one.chunks {
                let arrived = before[one.from][one.from_chunk + offset].holds;
                let cell = &mut self.cells[one.to][one.to_chunk + offset];
                let kept = if one.reduce { cell.holds } else { 0 };
                *cell = Cell {
                    holds: kept | arrived,
                    is_passed_on: false,
                };
            }
        }
    }
}
