//! Compares the result of a collective with the expected result.

use crate::expected::exact::Inputs;
use ringtree::plan::{Collective, Layout};

/// A collective that every rank has issued with its part of `inputs`.
///
/// ```
/// use ringtree_cli::expected::exact::Inputs;
/// use ringtree_cli::expected::result::ExpectedResult;
/// use ringtree::plan::Collective;
/// use ringtree::{Dtype, Layout, ReduceOp};
///
/// let inputs = Inputs::new(Dtype::U8, ReduceOp::Sum, 2, 7);
/// let mut content = [0; 4];
/// inputs.fill(0, 0, &mut content);
/// let promise = |rank| ExpectedResult {
///     collective: Collective::Broadcast,
///     root: 0,
///     inputs,
///     rank,
///     world_size: 2,
///     layout: Layout::Even,
/// };
/// assert_eq!(promise(1).count_wrong(&content), 0);
/// content[2] += 1;
/// assert_eq!(promise(1).count_wrong(&content), 1);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ExpectedResult<'a> {
    /// The collective that was issued.
    pub collective: Collective,
    /// The root. Ignored if the collective has no root.
    pub root: usize,
    /// The inputs of all ranks.
    pub inputs: Inputs,
    /// The rank whose result is compared.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// The division of the buffer into blocks.
    pub layout: Layout<'a>,
}

impl ExpectedResult<'_> {
    /// Returns the number of wrong elements in `result`, which contains the bytes of this rank's
    /// complete buffer after an in-place call. Parts of the buffer that the collective leaves
    /// unspecified are ignored.
    #[must_use]
    pub fn count_wrong(&self, result: &[u8]) -> usize {
        let Self {
            inputs, rank, root, ..
        } = self;
        let size = inputs.dtype().size();
        let elements = |rank| {
            let count = result.len() / size;
            self.layout.block(rank, self.world_size, count)
        };
        let block = |rank| {
            let elements = elements(rank);
            &result[elements.start * size..elements.end * size]
        };
        let moved = |from: usize, first| inputs.count_wrong_input(from, first, block(from));
        let ranks = 0..self.world_size;
        match self.collective {
            Collective::AllReduce => inputs.count_wrong(0, result),
            Collective::Reduce if rank == root => inputs.count_wrong(0, result),
            Collective::Broadcast => inputs.count_wrong_input(*root, 0, result),
            Collective::ReduceScatter => inputs.count_wrong(elements(*rank).start, block(*rank)),
            Collective::Scatter => {
                inputs.count_wrong_input(*root, elements(*rank).start, block(*rank))
            }
            Collective::Gather if rank != root => 0,
            Collective::AllGather | Collective::Gather => {
                ranks.map(|from| moved(from, elements(from).start)).sum()
            }
            Collective::AllToAll => ranks.map(|from| moved(from, elements(*rank).start)).sum(),
            Collective::Reduce | Collective::Barrier => 0,
        }
    }
}
