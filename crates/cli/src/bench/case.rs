//! What is measured: one call on buffers of one size.

#[cfg(feature = "cuda")]
use ringtree::device::{Device, Stream};
use ringtree::plan::Collective;
use ringtree::{Dtype, ReduceOp};

/// What to measure.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) collective: Collective,
    pub(crate) dtype: Dtype,
    pub(crate) op: ReduceOp,
    pub(crate) root: usize,
    /// Bytes of the whole buffer, as asked for; the elements and blocks that fit are moved.
    pub(crate) bytes: usize,
    pub(crate) iterations: Option<usize>,
    pub(crate) in_place: bool,
    pub(crate) memory: Memory,
}

/// Where the buffers live.
#[derive(Clone, Debug)]
pub(crate) enum Memory {
    /// On the host.
    Host,
    /// On the host, in memory that peers read.
    Shared,
    /// On a device, used on a stream.
    #[cfg(feature = "cuda")]
    Device((Device, Stream)),
}
