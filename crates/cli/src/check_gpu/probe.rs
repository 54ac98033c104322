//! Reports the GPUs on this machine.

use super::messages::{Message, Rank};
use ringtree::Result;
use ringtree::cuda::{self, Device};
use ringtree::internal::calls::device_path_line;
use ringtree::internal::cuda::description;

/// Runs the probe as one of the ranks. Only rank 0 reports.
pub(super) fn tell(rank: &Rank) -> Result<()> {
    Message::Checked(1).print();
    if rank.comm.rank() > 0 {
        return rank.comm.barrier();
    }
    for ordinal in 0..cuda::count()? {
        let device = Device::open(ordinal)?;
        let found = description(&device);
        let version = found.driver_version;
        let version = format!("{}.{}", version / 1000, version % 1000 / 10);
        row(&format!("GPU {ordinal}"), &found.name, "");
        row("driver's CUDA version", &version, "");
        row("memory", &(found.memory_bytes >> 30).to_string(), "GiB");
        row("multiprocessors", &found.multiprocessors.to_string(), "");
    }
    row(
        "device buffer path",
        &device_path_line(&rank.comm.info()),
        "",
    );
    rank.comm.barrier()
}

/// Reports a row of the probe table.
fn row(what: &str, value: &str, unit: &str) {
    Message::Row(vec![what.into(), value.into(), unit.into()]).print();
}
