//! How devices are attached.

use crate::error::{Error, Result};
use crate::limits::DEVICE_SEGMENT_BYTES;

/// How the ranks of a communicator use their devices together; the same on all ranks.
///
/// ```
/// use ringtree::comm::attach::AttachOptions;
/// use ringtree::device::{Device, fake::Fake};
/// use std::sync::Arc;
///
/// let ends = ringtree::simulate(2, |comm| {
///     let device: Arc<dyn Device> = Arc::new(Fake::new());
///     comm.attach_with(&device, AttachOptions::new().segment_bytes(1 << 20))
/// });
/// assert_eq!(ends, [Ok(()), Ok(())]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachOptions {
    pub(super) segment_bytes: usize,
    pub(super) peer_access: bool,
    pub(super) hand_over: HandOver,
}

/// By whom a rank is told that a segment is in the GPU's memory, or was read there, where two ranks
/// share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandOver {
    /// By their hosts, which look at events and send each other messages. Streams of the library
    /// wait for nobody.
    #[default]
    Hosts,
    /// By their streams, which write words in the other's host memory and wait for their own. The
    /// hosts run ahead and only see the end. This takes devices with word operations; and a
    /// stream that waits keeps those of its process waiting that the driver puts in the same queue
    /// of the GPU.
    Streams,
}

impl AttachOptions {
    /// What [`Communicator::attach`] uses.
    #[must_use]
    pub fn new() -> Self {
        Self {
            segment_bytes: DEVICE_SEGMENT_BYTES,
            peer_access: false,
            hand_over: HandOver::Hosts,
        }
    }

    /// By whom ranks that have mapped each other's memory hand each other segments.
    #[must_use]
    pub fn hand_over(mut self, by: HandOver) -> Self {
        self.hand_over = by;
        self
    }

    /// How much ranks hand each other at once: a multiple of 16. A slot takes as much memory, and
    /// each peer has several.
    #[must_use]
    pub fn segment_bytes(mut self, bytes: usize) -> Self {
        self.segment_bytes = bytes;
        self
    }

    /// Whether ranks of one host that use different GPUs read each other's memory too, where both
    /// GPUs can; otherwise they go through their hosts. Off unless it is asked for: it has not been
    /// seen on real GPUs.
    ///
    /// ```
    /// use ringtree::comm::attach::AttachOptions;
    /// use ringtree::device::{Device, fake::{Fake, Options}};
    /// use std::sync::Arc;
    ///
    /// # fn rank(comm: &ringtree::Communicator) -> ringtree::Result<()> {
    /// let gpu = comm.local_rank() as u8;
    /// let options = Options { gpu, peers: &[0, 1], ..Options::default() };
    /// let device: Arc<dyn Device> = Arc::new(Fake::with(options));
    /// comm.attach_with(&device, AttachOptions::new().peer_access(true))
    /// # }
    /// # let builder = ringtree::Communicator::builder().rank(0).world_size(1);
    /// # rank(&builder.rendezvous("127.0.0.1:0").connect().unwrap()).unwrap();
    /// ```
    #[must_use]
    pub fn peer_access(mut self, is_wanted: bool) -> Self {
        self.peer_access = is_wanted;
        self
    }

    pub(super) fn check(self) -> Result<()> {
        let bytes = self.segment_bytes;
        if bytes == 0 || !bytes.is_multiple_of(16) {
            let why = format!("segments of {bytes} bytes: a multiple of 16 is needed");
            return Err(Error::Usage(why));
        }
        Ok(())
    }
}

impl Default for AttachOptions {
    fn default() -> Self {
        Self::new()
    }
}
