//! The GPU that a command works on.

use ringtree::Result;
use ringtree::device::{self, Device};

/// The GPU of the rank `local_rank` of a host; ranks share GPUs where there are more of them.
///
/// # Errors
/// [`ringtree::Error::no_device`] says in one line why there is no GPU.
pub(crate) fn open(local_rank: usize) -> Result<Device> {
    Device::open(local_rank % device::count()?)
}
