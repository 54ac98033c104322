//! Passes the memory of CUDA tensors to collectives and back to candle.

use crate::elements::for_element;
use crate::error::Result;
use crate::lane::Lane;
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaStorage;
use candle_core::{CpuStorage, CudaDevice, InplaceOp1, Layout, Tensor};
use ringtree::cuda::{Device, Memory, Stream};
use std::sync::{Mutex, PoisonError};

/// The GPU of a candle device, and its streams.
pub(crate) struct CudaLane {
    device: Device,
    /// The stream on which candle computes.
    compute_stream: Stream,
    /// The stream of the collectives. It is a separate stream, so that candle can compute the
    /// gradients of other layers at the same time.
    collective_stream: Stream,
}

impl CudaLane {
    /// Opens the GPU of `device`. candle and ringtree both use its primary context, which contains
    /// candle's memory.
    pub(crate) fn new(device: &CudaDevice) -> Result<Self> {
        let stream = device.cuda_stream();
        let device = Device::open(stream.context().ordinal())?;
        Ok(Self {
            compute_stream: device.wrap_stream(stream)?,
            collective_stream: device.stream()?,
            device,
        })
    }
}

impl Lane for CudaLane {
    fn device(&self) -> &Device {
        &self.device
    }

    fn stream(&self) -> &Stream {
        &self.collective_stream
    }

    fn take(&self, flat: &Tensor) -> candle_core::Result<Memory> {
        let swap = Swap::new(&self.device, None);
        flat.inplace_op1(&swap)?;
        let behind = self.collective_stream.wait_for(&self.compute_stream);
        behind.map_err(candle_core::Error::wrap)?;
        let taken = swap.into_memory();
        taken.ok_or_else(|| candle_core::Error::Msg("the bucket has no memory".into()))
    }

    fn give_back(&self, flat: &Tensor, memory: Memory) -> candle_core::Result<()> {
        flat.inplace_op1(&Swap::new(&self.device, Some(memory)))
    }
}

/// An operation that exchanges all memory of a tensor with `memory`, or with a placeholder if that
/// is `None`. Only in-place operations give access to a mutable storage in candle.
struct Swap<'a> {
    device: &'a Device,
    memory: Mutex<Option<Memory>>,
}

impl<'a> Swap<'a> {
    fn new(device: &'a Device, memory: Option<Memory>) -> Self {
        let memory = Mutex::new(memory);
        Self { device, memory }
    }

    fn into_memory(self) -> Option<Memory> {
        let memory = self.memory.into_inner();
        memory.unwrap_or_else(PoisonError::into_inner)
    }
}

impl InplaceOp1 for Swap<'_> {
    fn name(&self) -> &'static str {
        "swap-memory"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
        candle_core::bail!("a gradient bucket is not in GPU memory")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> candle_core::Result<()> {
        let stream = storage.device.cuda_stream();
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        for_element!(storage.dtype(), T => {
            match memory.take() {
                Some(memory) => {
                    // `synchronize` has returned, so all operations on the memory have completed.
                    let slice = Device::unwrap_slice::<T>(memory).map_err(|memory| {
                        candle_core::Error::Msg(format!("a collective is still using {memory:?}"))
                    })?;
                    *storage.as_cuda_slice_mut::<T>()? = slice;
                }
                None => {
                    // The placeholder needs one element, because CUDA cannot allocate zero bytes.
                    let placeholder = storage.device.alloc_zeros::<T>(1)?;
                    let own = storage.as_cuda_slice_mut::<T>()?;
                    let slice = std::mem::replace(own, placeholder);
                    let taken = self.device.wrap_slice(slice, &stream);
                    *memory = Some(taken.map_err(candle_core::Error::wrap)?);
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::buckets::Buckets;
    use crate::cuda::CudaLane;
    use candle_core::{Device, Tensor};
    use ringtree::ddp::{Options, Parameter};
    use ringtree::internal::ddp::{averaged_place, place, with_carrier};
    use ringtree::{Communicator, Dtype};

    /// Returns the gradient of parameter `number` on rank `rank`.
    fn gradient(rank: usize, number: usize, count: usize) -> Vec<f32> {
        let value = |at: usize| ((rank + 1) * (number * 10 + at)) as f32;
        (0..count).map(value).collect()
    }

    fn averaged(comm: &Communicator, device: &Device) -> Vec<Vec<f32>> {
        let counts = [3, 1, 8];
        let names = ["weight", "bias", "head"];
        let parameters = names.iter().zip(counts);
        let parameters = parameters.map(|(name, count)| Parameter::new(name, &[count], Dtype::F32));
        let lane = CudaLane::new(device.as_cuda_device().unwrap()).unwrap();
        let buckets = Buckets::new(device, Box::new(lane));
        let mut parallel =
            with_carrier(comm, parameters.collect(), Options::new(), buckets.clone()).unwrap();
        let mut averages = Vec::new();
        for _step in 0..2 {
            for number in [2, 0, 1] {
                let values = gradient(comm.rank(), number, counts[number]);
                let tensor = Tensor::from_vec(values, counts[number], device).unwrap();
                let place = place(&mut parallel, number).unwrap();
                buckets.put(&place, &tensor).unwrap();
                parallel.ready(number).unwrap();
            }
            parallel.wait().unwrap();
            averages = (0..3)
                .map(|number| {
                    let place = averaged_place(&parallel, number).unwrap().unwrap();
                    let average = buckets.averaged(&place, &counts[number].into()).unwrap();
                    average.to_vec1().unwrap()
                })
                .collect();
        }
        averages
    }

    #[test]
    fn gpu_tensors_are_averaged_in_place() {
        if let Err(error) = ringtree::cuda::count() {
            eprintln!("skipped: {error}");
            return;
        }
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let rendezvous = listener.local_addr().unwrap().to_string();
        drop(listener);
        let rank = |rank: usize| {
            let builder = Communicator::builder().rank(rank).world_size(2);
            let comm = builder.rendezvous(&rendezvous).connect().unwrap();
            let averages = averaged(&comm, &Device::new_cuda(0).unwrap());
            comm.barrier().unwrap();
            averages
        };
        let ends = std::thread::scope(|scope| {
            let other = scope.spawn(|| rank(1));
            [rank(0), other.join().unwrap()]
        });
        let mean = |(number, count): (usize, usize)| -> Vec<f32> {
            let own = gradient(0, number, count).into_iter();
            own.map(|value| value * 1.5).collect()
        };
        let expected: Vec<_> = [3, 1, 8].into_iter().enumerate().map(mean).collect();
        assert_eq!(ends, [expected.clone(), expected]);
    }
}
