//! What a collective promises of buffers whose inputs are known.

use crate::expected::exact::Inputs;
use ringtree::plan::layout::Layout;
use ringtree::plan::spec::Collective;

/// A call that every rank makes with its part of `inputs`.
///
/// ```
/// use ringtree_cli::expected::exact::Inputs;
/// use ringtree_cli::expected::promise::Promise;
/// use ringtree::{Collective, Dtype, Layout, ReduceOp};
///
/// let inputs = Inputs::new(Dtype::U8, ReduceOp::Sum, 2, 7);
/// let mut content = [0; 4];
/// inputs.fill(0, 0, &mut content);
/// let promise = |rank| Promise {
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
pub struct Promise<'a> {
    /// What was called.
    pub collective: Collective,
    /// From or to which rank, where the collective has a root.
    pub root: usize,
    /// What the ranks gave.
    pub inputs: Inputs,
    /// Whose result is looked at.
    pub rank: usize,
    /// How many ranks there are.
    pub world_size: usize,
    /// How the buffer is split into blocks.
    pub layout: Layout<'a>,
}

impl Promise<'_> {
    /// How many elements of `result`, the bytes of the whole buffer of this rank after a call in
    /// place, are not what was promised; 0 where nothing was.
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
