//! Tests GPU work that training code typically enqueues after a collective, on drivers in which the
//! enqueuing call waits. It must never delay collectives, whatever the driver is doing.

use super::world::{Act, PATHS, Rank, World, ok};
use cudarc::driver::{CudaContext, CudaStream, DevicePtr, sys};
use ringtree::ErrorKind;
use ringtree::comm::Memory as Found;
use ringtree::cuda::{DeviceBuffer, Memory};
use ringtree::internal::cuda::load_kernels;
use ringtree::{Buffer, ReduceOp, Result};
use std::sync::Arc;
use std::time::Duration;

const COUNT: usize = 400_003;
const HABITS: [&str; 9] = [
    "address", "first", "nothing", "loss", "queue", "load", "free", "capture", "allocate",
];

pub(crate) fn act(role: &str) -> Option<Act> {
    (role == "habits").then_some(habits as Act)
}

fn every_habit(settings: &[(&'static str, &str)]) {
    for path in PATHS {
        let mut world = World::new(2, path);
        for (name, value) in settings {
            world = world.with(name, value);
        }
        world.expect("habits", ok(2));
    }
}

#[test]
fn habits_do_not_block_calls_on_lenient_driver() {
    every_habit(&[]);
}

#[test]
fn habits_do_not_block_calls_if_waiting_calls_hold_a_lock() {
    every_habit(&[("STRICT", "1")]);
}

#[test]
fn habits_do_not_block_calls_if_streams_share_queue_and_lock() {
    every_habit(&[("STRICT", "1"), ("CHANNELS", "one")]);
}

#[test]
fn habits_do_not_block_calls_if_priorities_share_queues() {
    every_habit(&[("CHANNELS", "priority")]);
}

/// Some machines allow only one thread to use the GPU, so the engine and the control thread must
/// not call the driver.
#[test]
fn only_callers_thread_enters_driver() {
    every_habit(&[("STRICT", "1"), ("ONE_THREAD", "1")]);
}

fn habits(rank: &Rank) -> Result<String> {
    HABITS.iter().try_for_each(|habit| behind(rank, habit))?;
    Ok("ok".into())
}

fn behind(rank: &Rank, habit: &str) -> Result<()> {
    let Rank { comm, device, .. } = rank;
    let context = CudaContext::new(0).unwrap();
    let (user, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let loss = user.clone_htod(&[0.5f32]).unwrap();
    let mut scratch = user.clone_htod(&[0.0f32]).unwrap();
    let unrelated = user.alloc_zeros::<f32>(1000).unwrap();
    let value = |at: usize| (at % 1000 + comm.rank()) as f32;
    let content: Vec<_> = (0..COUNT).map(value).collect();
    let slice = user.clone_htod(&content).unwrap();
    let memory = device.wrap_slice(slice, &user)?;
    let stream = device.wrap_stream(user.clone())?;
    let mut gradients = DeviceBuffer::<f32>::from_memory(device, &stream, memory);
    let mut sums = 1;
    if habit != "first" {
        comm.all_reduce(&mut gradients, ReduceOp::Sum)?;
        comm.synchronize()?;
        sums += 1;
    }
    comm.barrier()?;
    if comm.rank() == 1 {
        std::thread::sleep(Duration::from_millis(100));
    }
    comm.all_reduce(&mut gradients, ReduceOp::Sum)?;
    match habit {
        // Reads the loss of this step while gradients are in transit, as training loops do.
        "loss" => drop(user.clone_dtoh(&loss).unwrap()),
        "queue" => (0..1500).for_each(|_| user.memcpy_dtod(&loss, &mut scratch).unwrap()),
        // Loads a module, as the first launch of a kernel does with lazy loading.
        "load" => {
            let binary = load_kernels(device, "\u{7f}ELF");
            assert!(binary.is_err_and(|error| error.kind() == ErrorKind::Usage));
            load_kernels(device, ".version 8.4\n.visible .entry x(")?;
        }
        "free" => drop(unrelated),
        // Captures a graph on an unrelated stream and continues to issue calls meanwhile.
        "capture" => {
            let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
            other.begin_capture(mode).unwrap();
            comm.all_reduce(&mut gradients, ReduceOp::Max)?;
            let mut another = DeviceBuffer::new(device, &rank.stream, &[1.0f32; 5000])?;
            comm.all_reduce(&mut another, ReduceOp::Sum)?;
            let captured = device.wrap_stream(other.clone())?;
            let Found::Device(found) = another.memory() else {
                panic!("the buffer must be on a device");
            };
            let mut refused = DeviceBuffer::<f32>::from_memory(device, &captured, found.memory);
            let end = comm.all_reduce(&mut refused, ReduceOp::Sum);
            assert!(
                matches!(&end, Err(error) if error.kind() == ErrorKind::Usage),
                "{end:?}"
            );
            comm.synchronize()?;
            let mut graph = std::ptr::null_mut();
            // SAFETY: the stream is alive, its context current; there is room for the pointer.
            let code = unsafe { sys::cuStreamEndCapture(other.cu_stream(), &raw mut graph) };
            assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
            assert_eq!(another.read()?, [2.0; 5000]);
        }
        "allocate" => {
            let memory = user.alloc_zeros::<f32>(5000).unwrap();
            assert_eq!(user.clone_dtoh(&memory).unwrap(), [0.0; 5000]);
        }
        // Reduces part of an allocation, given only its address.
        "address" => part_of_an_address(rank, &user)?,
        _ => {}
    }
    comm.synchronize()?;
    let factor = if sums == 2 { 2 } else { 1 };
    let sum = |at: usize| (factor * (2 * (at % 1000) + 1)) as f32;
    let read = gradients.read()?;
    let wrong = (0..COUNT).find(|at| read[*at] != sum(*at));
    assert_eq!(wrong, None, "{habit}");
    comm.barrier()
}

fn part_of_an_address(rank: &Rank, user: &Arc<CudaStream>) -> Result<()> {
    const HALF: usize = 5000;
    let Rank { comm, device, .. } = rank;
    let stream = device.wrap_stream(user.clone())?;
    let owner = user.alloc_zeros::<f32>(2 * HALF).unwrap();
    let (address, recording) = owner.device_ptr(user);
    drop(recording);
    // SAFETY: the owner is dropped at the end, after all work on the memory.
    let memory = unsafe { Memory::from_raw(address, 2 * HALF * size_of::<f32>(), &stream) };
    let whole = DeviceBuffer::<f32>::from_memory(device, &stream, memory);
    let mut end = whole.slice(HALF..2 * HALF)?;
    end.write(&[1.0; HALF])?;
    comm.all_reduce(&mut end, ReduceOp::Sum)?;
    comm.synchronize()?;
    let read = user.clone_dtoh(&owner).unwrap();
    assert_eq!(read[..HALF], [0.0; HALF]);
    assert_eq!(read[HALF..], [2.0; HALF]);
    let error = whole.slice(1..2 * HALF + 1).unwrap_err();
    assert!(error.kind() == ErrorKind::Usage && error.to_string().contains("out of range"));
    Ok(())
}
