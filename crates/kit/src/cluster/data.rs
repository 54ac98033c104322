//! Generates the input of a call when it starts, and checks its result when it completes, so that
//! no data has to be stored per rank.

use crate::script::Call;
use ringtree::ReduceOp;
use ringtree::plan::{Collective, Layout};
use ringtree_cli::expected::exact::Inputs;
use ringtree_cli::expected::result::ExpectedResult;
use std::collections::VecDeque;

/// Maximum number of expected reductions that are cached to check the results of other ranks.
const EXPECTED_MAX: usize = 16;

/// The data of a run.
pub(super) struct Data {
    seed: u64,
    world_size: usize,
    expected: VecDeque<((Call, u64), Vec<u8>)>,
}

impl Data {
    pub(super) fn new(seed: u64, world_size: usize) -> Self {
        Self {
            seed,
            world_size,
            expected: VecDeque::new(),
        }
    }

    fn inputs(&self, call: &Call, sequence: u64) -> Inputs {
        let seed = self.seed.wrapping_add(sequence);
        let op = call.op.unwrap_or(ReduceOp::Sum);
        Inputs::new(call.dtype, op, self.world_size, seed)
    }

    /// Returns the input of `rank`.
    pub(super) fn input(&self, rank: usize, call: &Call, sequence: u64) -> Vec<u8> {
        if call.collective() == Some(Collective::Barrier) {
            return vec![0];
        }
        let mut bytes = vec![0u8; call.count * call.dtype.size()];
        self.inputs(call, sequence).fill(rank, 0, &mut bytes);
        bytes
    }

    /// Returns the number of wrong elements in the result on `rank`. Elements that the collective
    /// leaves unspecified are not counted.
    pub(super) fn count_wrong(
        &mut self,
        rank: usize,
        call: &Call,
        sequence: u64,
        result: &[u8],
    ) -> usize {
        let Some(collective) = call.collective() else {
            return 0;
        };
        let promise = ExpectedResult {
            collective,
            root: call.root,
            inputs: self.inputs(call, sequence),
            rank,
            world_size: self.world_size,
            layout: Layout::Even,
        };
        let (size, world_size) = (call.dtype.size(), self.world_size);
        match collective {
            Collective::AllReduce => differences(self.reduction(call, sequence), result, size),
            Collective::Reduce if rank == call.root => {
                differences(self.reduction(call, sequence), result, size)
            }
            Collective::ReduceScatter => {
                let own = Layout::Even.block(rank, world_size, call.count);
                let own = own.start * size..own.end * size;
                let all = self.reduction(call, sequence);
                differences(&all[own.clone()], &result[own], size)
            }
            _ => promise.count_wrong(result),
        }
    }

    /// Returns the reduction over all ranks. Computing it costs as much as generating all inputs,
    /// so it is cached.
    fn reduction(&mut self, call: &Call, sequence: u64) -> &[u8] {
        let key = (*call, sequence);
        let known = self.expected.iter().position(|(each, _)| *each == key);
        let at = known.unwrap_or_else(|| {
            let mut bytes = vec![0; call.count * call.dtype.size()];
            self.inputs(call, sequence).expected(0, &mut bytes);
            if self.expected.len() == EXPECTED_MAX {
                self.expected.pop_front();
            }
            self.expected.push_back((key, bytes));
            self.expected.len() - 1
        });
        &self.expected[at].1
    }
}

fn differences(expected: &[u8], result: &[u8], size: usize) -> usize {
    let pairs = expected.chunks(size).zip(result.chunks(size));
    pairs.filter(|(left, right)| left != right).count()
}
