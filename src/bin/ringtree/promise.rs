//! What a collective promises of a buffer whose inputs are known.

use ringtree::Element;
use ringtree::plan::Collective;
use ringtree::plan::layout::part_start;
use ringtree::reduce::exact::Inputs;

/// A call that every rank made with its part of `inputs`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    pub(crate) collective: Collective,
    pub(crate) root: usize,
    pub(crate) inputs: Inputs,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
}

impl Promise {
    /// How many elements of `result`, the whole buffer of this rank, are not what was promised.
    pub(crate) fn count_wrong<T: Element>(&self, result: &[T]) -> usize {
        let start = |rank| part_start(result.len(), self.world_size, rank);
        let block = |rank| bytemuck::cast_slice(&result[start(rank)..start(rank + 1)]);
        let (inputs, all) = (&self.inputs, bytemuck::cast_slice(result));
        match self.collective {
            Collective::AllReduce => inputs.count_wrong(0, all),
            Collective::Reduce if self.rank == self.root => inputs.count_wrong(0, all),
            Collective::Reduce | Collective::Barrier => 0,
            Collective::Broadcast => inputs.count_wrong_input(self.root, 0, all),
            Collective::ReduceScatter => inputs.count_wrong(start(self.rank), block(self.rank)),
            Collective::AllGather => (0..self.world_size)
                .map(|from| inputs.count_wrong_input(from, start(from), block(from)))
                .sum(),
        }
    }
}
