//! Users' slices and streams, of cudarc's types, where CUDA is. Each rank is a process: a slice is
//! freed at once when it is dropped, and then no stream of its process may be waiting.

use crate::ranks::Rank;
use cudarc::driver::CudaContext;
use ringtree::comm::device_buffer::DeviceBuffer;
use ringtree::device::cuda::Cuda;
use ringtree::{ReduceOp, Result};

/// A slice takes part and is given back.
pub(crate) fn slices(rank: &Rank) -> Result<String> {
    let cuda = Cuda::open(0)?;
    let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
    let own = rank.comm.rank() as f32;
    let slice = stream.clone_htod(&vec![own; 10_000]).unwrap();
    let wrapped = cuda.wrap_stream(stream.clone())?;
    let memory = cuda.wrap_slice(slice, &stream)?;
    let mut buffer = DeviceBuffer::<f32>::from_memory(&rank.device, &wrapped, memory);
    for _ in 0..3 {
        rank.comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    }
    rank.comm.synchronize()?;
    let memory = buffer.into_memory();
    // Nobody but the caller has it any more.
    let slice = Cuda::unwrap_slice::<f32>(memory).unwrap();
    let sum = stream.clone_dtoh(&slice).unwrap();
    if sum == vec![4.0; 10_000] {
        return Ok("all right".into());
    }
    Ok(format!("it sums to {} and so on", sum[0]))
}
