//! Checks GPU operations that training code performs while a collective is in flight.
//!
//! Each of these habits makes the driver wait inside a call, with or without holding a lock. A
//! habit must not delay a collective indefinitely, and a collective must not delay a habit
//! indefinitely.

use super::messages::{Message, Rank};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, sys};
use ringtree::cuda::Device;
use ringtree::cuda::DeviceBuffer;
use ringtree::internal::cuda::{allocate, description, load_kernels};
use ringtree::{Error, ErrorKind, ReduceOp, Result};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

const COUNT: usize = 400_003;
/// The delay before the second rank makes its call.
const LATE: Duration = Duration::from_millis(100);

/// Something that training code does.
pub(super) struct Habit {
    pub(super) name: &'static str,
    act: fn(&User) -> std::result::Result<(), String>,
}

/// The GPU objects that the training code uses.
struct User {
    device: Device,
    stream: Arc<CudaStream>,
    other: Arc<CudaStream>,
    loss: CudaSlice<f32>,
}

fn text(error: impl Debug) -> String {
    format!("{error:?}")
}

pub(super) const HABITS: [Habit; 7] = [
    Habit {
        name: "does nothing",
        act: |_| Ok(()),
    },
    Habit {
        name: "reads a scalar",
        act: |user| user.stream.clone_dtoh(&user.loss).map(drop).map_err(text),
    },
    Habit {
        name: "frees memory",
        act: |user| {
            // Free through `cuMemFree`, which may wait for every stream. If the GPU has a memory
            // pool, cudarc would return a slice to the pool without waiting.
            drop(allocate(&user.device, 4000).map_err(text)?);
            user.other.synchronize().map_err(text)
        },
    },
    Habit {
        name: "launches a kernel for the first time",
        act: |user| {
            const KERNEL: &str =
                ".version 8.4\n.target sm_80\n.address_size 64\n.visible .entry first() { ret; }";
            load_kernels(&user.device, KERNEL).map_err(text)
        },
    },
    Habit {
        name: "queues 2,000 operations",
        act: |user| {
            let mut to = user.stream.alloc_zeros::<f32>(1).map_err(text)?;
            (0..2000).try_for_each(|_| user.stream.memcpy_dtod(&user.loss, &mut to).map_err(text))
        },
    },
    Habit {
        name: "captures a graph",
        act: |user| {
            let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
            user.other.begin_capture(mode).map_err(text)?;
            std::thread::sleep(3 * LATE);
            let flags =
                sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
            user.other.end_capture(flags).map(drop).map_err(text)
        },
    },
    Habit {
        name: "allocates memory",
        act: |user| {
            // Allocate through `cuMemAlloc` first, and then through cudarc.
            let _memory = allocate(&user.device, 4 << 20).map_err(text)?;
            let slice = user.stream.alloc_zeros::<f32>(1 << 20).map_err(text)?;
            user.stream.clone_dtoh(&slice).map(drop).map_err(text)
        },
    },
];

/// Performs habit `number` as one of two ranks, after issuing a collective that rank 1 joins late.
pub(super) fn check(rank: &Rank, number: usize) -> Result<()> {
    let failed = |error: String| Error::new(ErrorKind::Device, error);
    let Rank { comm, device, .. } = rank;
    let user = user(device).map_err(failed)?;
    let value = |at: usize| (at % 1000 + comm.rank()) as f32;
    let content: Vec<_> = (0..COUNT).map(value).collect();
    let slice = user
        .stream
        .clone_htod(&content)
        .map_err(text)
        .map_err(failed)?;
    let memory = device.wrap_slice(slice, &user.stream)?;
    let stream = device.wrap_stream(Arc::clone(&user.stream))?;
    let mut gradients = DeviceBuffer::<f32>::from_memory(device, &stream, memory);
    comm.barrier()?;
    if comm.rank() == 1 {
        std::thread::sleep(LATE);
    }
    comm.all_reduce(&mut gradients, ReduceOp::Sum)?;
    (HABITS[number].act)(&user).map_err(failed)?;
    comm.synchronize()?;
    let sum = |at: usize| (2 * (at % 1000) + 1) as f32;
    let read = gradients.read()?;
    let wrong = (0..COUNT).filter(|at| read[*at] != sum(*at)).count();
    if wrong > 0 {
        rank.found(&format!("{wrong} wrong elements"));
    }
    Message::Checked(1).print();
    comm.barrier()
}

fn user(device: &Device) -> std::result::Result<User, String> {
    let context = CudaContext::new(description(device).ordinal).map_err(text)?;
    let stream = context.new_stream().map_err(text)?;
    Ok(User {
        other: context.new_stream().map_err(text)?,
        loss: stream.clone_htod(&[0.5f32]).map_err(text)?,
        stream,
        device: device.clone(),
    })
}
