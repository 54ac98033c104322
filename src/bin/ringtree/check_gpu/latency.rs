//! Where the time of the smallest call goes: its steps one by one, beside the whole.
//!
//! Two ranks reduce 8 bytes flat. Nothing of such a call overlaps, so the sum of its steps should
//! be about what it takes; what is over is the library's own work, and its naps between looks.

use super::probe::{by_host_us, median, row, until_done, us};
use super::rank::{Orders, Rank, Said};
use ringtree::comm::device_buffer::DeviceBuffer;
use ringtree::device::Fold;
use ringtree::plan::Algorithm;
use ringtree::{Dtype, ReduceOp, Result};
use std::time::Instant;

/// The columns of the table: by slots, and on memory that the peer reads where it lies.
pub(super) const COLUMNS: &[&str] = &["step", "slots_us", "registered_us"];
/// Rows that are gone back to.
pub(super) const SUM: &str = "sum of these";
pub(super) const WHOLE: &str = "the whole call, measured";

/// Calls, and steps, that are timed after the first few.
const TURNS: usize = 200;
const WARM_UP_TURNS: usize = 20;
/// Elements of f32.
const COUNT: usize = 2;
/// Bytes of a token and of an acknowledgement, or a little more.
const MESSAGE_BYTES: usize = 16;

/// As one of two ranks. Rank 0 tells.
pub(super) fn measure(_: &Orders, rank: &Rank) -> Result<()> {
    let Rank { comm, device, .. } = rank;
    let words = device.words(1)?;
    let gate_us = match device.description().word_operations {
        true => by_host_us(rank, &words)?,
        false => 0.0,
    };
    let event_us = rank.seen_us(&|| Ok(()))?;
    let memory = device.allocate(4096)?;
    let bytes = COUNT * size_of::<f32>();
    let (left, right) = (memory.span(0, bytes)?, memory.span(1024, bytes)?);
    let copy_us = rank.seen_us(&|| rank.stream.copy(&left, &right))?;
    let (sources, destinations) = ([left.clone(), right], [left]);
    let fold = Fold::new(Dtype::F32, ReduceOp::Sum, &sources, &destinations, None)?;
    let fold_us = rank.seen_us(&|| rank.stream.fold(&fold))?;
    let message_us = message_us(rank)?;

    comm.use_algorithm(Some(Algorithm::Flat))?;
    let mut slots = DeviceBuffer::new(device, &rank.stream, &[0.0f32; COUNT])?;
    let mut registered = comm.alloc_on_device::<f32>(&rank.stream, COUNT)?;
    let (slots_calls_us, slots_us) = call_us(rank, &mut slots)?;
    let (registered_calls_us, registered_us) = call_us(rank, &mut registered)?;
    let steps = [
        ("the call returns", slots_calls_us, registered_calls_us),
        ("host sees that the stream is there", event_us, event_us),
        ("copy to a slot, seen done", copy_us, 0.0),
        ("host sees that the bytes are there", 0.0, event_us),
        ("token to the peer's host", message_us, message_us),
        ("fold, seen done", fold_us, fold_us),
        ("acknowledgement back", 0.0, message_us),
        ("host opens the gate, seen behind it", gate_us, gate_us),
    ];
    if comm.rank() == 0 {
        Said::Checked(2).say();
        for (what, slots, registered) in steps {
            let cell = |time_us: f64| match time_us > 0.0 {
                true => us(time_us),
                false => "-".into(),
            };
            row(what, cell(slots), &cell(registered));
        }
        let slots_sum_us: f64 = steps.iter().map(|step| step.1).sum();
        let registered_sum_us: f64 = steps.iter().map(|step| step.2).sum();
        row(SUM, us(slots_sum_us), &us(registered_sum_us));
        row(WHOLE, us(slots_us), &us(registered_us));
        row(
            "the rest: the library's work, its naps",
            us(slots_us - slots_sum_us),
            &us(registered_us - registered_sum_us),
        );
    }
    // Nobody drops what a peer still reads.
    comm.barrier()
}

/// Until a call has returned, and until the stream has passed it.
fn call_us(rank: &Rank, buffer: &mut DeviceBuffer<f32>) -> Result<(f64, f64)> {
    let Rank {
        comm,
        device,
        stream,
    } = rank;
    let behind = device.event()?;
    let (mut calls_us, mut wholes_us) = (Vec::new(), Vec::new());
    for turn in 0..WARM_UP_TURNS + TURNS {
        comm.barrier()?;
        let start = Instant::now();
        comm.all_reduce(buffer, ReduceOp::Sum)?;
        let call_us = start.elapsed().as_secs_f64() * 1e6;
        stream.record(&behind)?;
        comm.synchronize()?;
        until_done(&behind)?;
        if turn >= WARM_UP_TURNS {
            calls_us.push(call_us);
            wholes_us.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    Ok((median(calls_us), median(wholes_us)))
}

/// A message of the size of a token, one way.
fn message_us(rank: &Rank) -> Result<f64> {
    let comm = &rank.comm;
    let peer = 1 - comm.rank();
    let mut bytes = [0u8; MESSAGE_BYTES];
    let mut times_us = Vec::new();
    for turn in 0..WARM_UP_TURNS + TURNS {
        let start = Instant::now();
        if comm.rank() == 0 {
            comm.send(&bytes, peer)?;
            comm.recv(&mut bytes, peer)?;
        } else {
            comm.recv(&mut bytes, peer)?;
            comm.send(&bytes, peer)?;
        }
        if turn >= WARM_UP_TURNS {
            times_us.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
        }
    }
    Ok(median(times_us))
}

impl Rank {
    /// From telling the stream until the host has seen it done.
    fn seen_us(&self, tell: &dyn Fn() -> Result<()>) -> Result<f64> {
        let event = self.device.event()?;
        let mut times_us = Vec::new();
        for turn in 0..WARM_UP_TURNS + TURNS {
            let start = Instant::now();
            tell()?;
            self.stream.record(&event)?;
            until_done(&event)?;
            if turn >= WARM_UP_TURNS {
                times_us.push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
        Ok(median(times_us))
    }
}
