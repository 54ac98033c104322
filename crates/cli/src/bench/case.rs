//! Describes what to measure, which is a single call on buffers of a given size.

#[cfg(feature = "cuda")]
use ringtree::cuda::{Device, Stream};
use ringtree::plan::Collective;
use ringtree::{Dtype, ReduceOp};

/// A call to measure.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) collective: Collective,
    pub(crate) dtype: Dtype,
    pub(crate) op: ReduceOp,
    pub(crate) root: usize,
    /// The requested size of the complete buffer in bytes. The call uses as many whole elements and
    /// blocks as fit.
    pub(crate) bytes: usize,
    pub(crate) iterations: Option<usize>,
    pub(crate) in_place: bool,
    pub(crate) memory: Memory,
}

/// The memory that holds the buffers.
#[derive(Clone, Debug)]
pub(crate) enum Memory {
    /// Host memory.
    Host,
    /// Host memory that the other ranks on the host read in place.
    Shared,
    /// Device memory that is used on a stream.
    #[cfg(feature = "cuda")]
    Device((Device, Stream)),
}
