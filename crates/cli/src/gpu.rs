//! The GPUs that a command works on.

use crate::bench::case::Memory;
use ringtree::device::{self, Device};
use ringtree::{Communicator, Result};

/// The path of collectives on device buffers.
pub(crate) const PATH: &str = "mapped where ranks can map each other's GPU memory, staged through \
                               the hosts elsewhere (RINGTREE_DEVICE_PATH)";

/// Checks that this process may use a GPU.
///
/// # Errors
/// [`ringtree::Error::no_device`] says in one line why there is no GPU.
pub(crate) fn find() -> Result<()> {
    device::count().map(drop)
}

/// Returns the GPU of the rank `local_rank` of a host; ranks share GPUs where there are more of
/// them.
///
/// # Errors
/// [`ringtree::Error::no_device`]: there is no GPU, or it cannot be opened.
pub(crate) fn open(local_rank: usize) -> Result<Device> {
    Device::open(local_rank % device::count()?)
}

/// Attaches this rank's GPU and returns a stream for buffers on it.
///
/// # Errors
/// [`ringtree::Error::no_device`]: there is no GPU. Those of [`Communicator::attach`].
pub(crate) fn memory(comm: &Communicator) -> Result<Memory> {
    let device = open(comm.local_rank())?;
    comm.attach(&device)?;
    if comm.rank() == 0 {
        // Beside the table, which may be for a program.
        eprintln!(
            "device buffers are {}",
            comm.device_path().unwrap_or_default()
        );
    }
    let stream = device.stream()?;
    Ok(Memory::Device((device, stream)))
}

/// Returns the GPUs that this process may use, or why there is none, in one line.
pub(crate) fn listed() -> String {
    let one = |ordinal| match Device::open(ordinal) {
        Ok(gpu) => {
            let found = gpu.description();
            let (gib, version) = (found.memory_bytes >> 30, found.driver_version);
            format!(
                "{ordinal}: {}, {gib} GiB, {} multiprocessors, driver for CUDA {}.{}",
                found.name,
                found.multiprocessors,
                version / 1000,
                version % 1000 / 10
            )
        }
        Err(error) => format!("{ordinal}: {error}"),
    };
    match device::count() {
        Ok(count) => (0..count).map(one).collect::<Vec<_>>().join("; "),
        Err(error) => error.to_string(),
    }
}
