//! Opens the GPUs used by a command.

use crate::bench::case::Memory;
use ringtree::cuda::{self, Device};
use ringtree::internal::calls::device_path_line;
use ringtree::internal::cuda::description;
use ringtree::{Communicator, Result};

/// The path that GPU buffers take, as shown by `ringtree doctor`.
pub(crate) const PATH: &str = "mapped if ranks can map each other's GPU memory, otherwise staged \
                               through host memory (RINGTREE_DEVICE_PATH)";

/// Checks that this process may use a GPU.
///
/// # Errors
/// Returns `ErrorKind::NoDevice` if it may not use one.
pub(crate) fn find() -> Result<()> {
    cuda::count().map(drop)
}

/// Opens the GPU for the rank with local rank `local_rank`. If there are more ranks than GPUs,
/// ranks share GPUs.
///
/// # Errors
/// Returns `ErrorKind::NoDevice` if there is no GPU or if it
/// cannot be opened.
pub(crate) fn open(local_rank: usize) -> Result<Device> {
    Device::open(local_rank % cuda::count()?)
}

/// Attaches this rank's GPU and returns a stream for buffers on it.
///
/// # Errors
/// Returns `ErrorKind::NoDevice` if there is no GPU. Also
/// returns the same errors as [`Communicator::attach`].
pub(crate) fn memory(comm: &Communicator) -> Result<Memory> {
    let device = open(comm.local_rank())?;
    comm.attach(&device)?;
    if comm.rank() == 0 {
        // This does not go to standard output, because a program may read the table from there.
        eprintln!("device buffers are {}", device_path_line(&comm.info()));
    }
    let stream = device.stream()?;
    Ok(Memory::Device((device, stream)))
}

/// Returns a line that lists the GPUs that this process may use, or gives the reason why there are
/// none.
pub(crate) fn listed() -> String {
    let one = |ordinal| match Device::open(ordinal) {
        Ok(gpu) => {
            let found = description(&gpu);
            let (gib, version) = (found.memory_bytes >> 30, found.driver_version);
            format!(
                "{ordinal}: {}, {gib} GiB, {} multiprocessors, driver supports CUDA {}.{}",
                found.name,
                found.multiprocessors,
                version / 1000,
                version % 1000 / 10
            )
        }
        Err(error) => format!("{ordinal}: {error}"),
    };
    match cuda::count() {
        Ok(count) => (0..count).map(one).collect::<Vec<_>>().join("; "),
        Err(error) => error.to_string(),
    }
}
