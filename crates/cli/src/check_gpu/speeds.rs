//! Measures all-reduces of device buffers and the parts of these all-reduces.

use super::messages::{Message, Rank};
use crate::bench::case::{Case, Memory};
use crate::bench::measure::measure as measured;
use ringtree::ddp::Trace;
use ringtree::plan::Collective;
use ringtree::start::{DevicePathChoice, UniqueId};
use ringtree::{Communicator, Dtype, ReduceOp, Result};

/// Buffer sizes in bytes.
const SIZES: &[usize] = &[
    8,
    1 << 10,
    64 << 10,
    1 << 20,
    4 << 20,
    25 << 20,
    64 << 20,
    256 << 20,
];

/// The columns of the table. They include the time of the complete all-reduce; the time of only the
/// copies to the host and back, measured with a staged communicator of one rank; and the time of
/// the same all-reduce on host buffers.
pub(super) const COLUMNS: &[&str] = &["bytes", "whole_us", "copies_us", "host_us", "wrong"];

/// Runs the measurements as one of two ranks. Only rank 0 reports.
pub(super) fn measure(rank: &Rank, bytes_max: usize) -> Result<()> {
    let Rank {
        comm,
        device,
        stream,
    } = rank;
    let alone = Communicator::builder().rank(0).world_size(1);
    let alone = alone.device_path(DevicePathChoice::Staged);
    let alone = alone.unique_id(&UniqueId::on("127.0.0.1")?).connect()?;
    alone.attach(device)?;
    let on_device = || Memory::Device((device.clone(), stream.clone()));
    for bytes in SIZES.iter().filter(|bytes| **bytes <= bytes_max) {
        let time = |comm: &Communicator, memory| {
            let case = Case {
                collective: Collective::AllReduce,
                dtype: Dtype::F32,
                op: ReduceOp::Sum,
                root: 0,
                bytes: *bytes,
                iterations: None,
                in_place: true,
                memory,
            };
            measured(comm, &case, &Trace::off())
        };
        let whole = time(comm, on_device())?;
        let copies = time(&alone, on_device())?;
        let host = time(comm, Memory::Host)?;
        let wrong = whole.wrong + copies.wrong + host.wrong;
        if wrong > 0 {
            rank.found(&format!(
                "{wrong} wrong elements in all-reduces of {bytes} B"
            ));
        }
        Message::Checked(3).print();
        if comm.rank() == 0 {
            let mut row = vec![bytes.to_string()];
            row.extend([whole, copies, host].map(|one| format!("{:.1}", one.time_s * 1e6)));
            row.push(wrong.to_string());
            Message::Row(row).print();
        }
    }
    comm.barrier()
}
