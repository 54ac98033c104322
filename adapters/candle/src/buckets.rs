//! Stores gradients in buckets on the model's device and averages them there.

use crate::elements::for_element;
use crate::lane::Lane;
use candle_core::{DType, Device, Result, Shape, Tensor};
use ringtree::cuda::DeviceBuffer;
use ringtree::cuda::Memory;
use ringtree::internal::ddp::{BucketInfo, Carrier, Place};
use ringtree::{Communicator, Dtype, Element, ReduceOp};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The buckets of a model, shared by its replica and its reducer.
#[derive(Clone)]
pub(crate) struct Buckets(Arc<Mutex<State>>);

struct State {
    device: Device,
    lane: Box<dyn Lane>,
    buckets: Vec<Bucket>,
}

/// The state of a bucket, which is a one-dimensional tensor. Each step creates a new tensor,
/// because the averages are views of it.
enum Bucket {
    /// No gradient has been written in this step.
    Zeros,
    /// Some gradients have been written. The other elements are zero.
    Filling(Tensor),
    /// The collective is in flight and uses the memory. Meanwhile, the tensor is empty. This
    /// reference to the memory prevents another thread from freeing it.
    InFlight(Tensor, Memory),
    /// The bucket contains the averages.
    Averaged(Tensor),
}

impl Buckets {
    /// Creates buckets on `device`. `lane` averages the buckets on the same device.
    pub(crate) fn new(device: &Device, lane: Box<dyn Lane>) -> Self {
        Self(Arc::new(Mutex::new(State {
            device: device.clone(),
            lane,
            buckets: Vec::new(),
        })))
    }

    /// Writes a gradient to its position in its bucket, or adds it to the gradient that is already
    /// there.
    pub(crate) fn put(&self, place: &Place<'_>, gradient: &Tensor) -> Result<()> {
        let (start, count) = (place.range.start, place.range.len());
        if gradient.elem_count() != count {
            let (bucket, found) = (place.bucket.index, gradient.elem_count());
            candle_core::bail!(
                "cannot store a gradient of {found} elements in bucket {bucket}: expected {count}"
            );
        }
        if count == 0 {
            return Ok(());
        }
        let mut state = self.lock();
        let flat = state.filling(place.bucket)?;
        // `slice_set` needs a contiguous tensor with the bucket's one dimension.
        let mut gradient = gradient.detach().contiguous()?.reshape(count)?;
        if !place.is_first {
            gradient = (flat.narrow(0, start, count)? + gradient)?;
        }
        flat.slice_set(&gradient, 0, start)
    }

    /// Returns the averaged gradient at `place` as a view of its bucket.
    pub(crate) fn averaged(&self, place: &Place<'_>, shape: &Shape) -> Result<Tensor> {
        let state = self.lock();
        match &state.buckets[place.bucket.index] {
            Bucket::Averaged(flat) => {
                let (start, count) = (place.range.start, place.range.len());
                flat.narrow(0, start, count)?.reshape(shape)
            }
            _ if shape.elem_count() == 0 => {
                Tensor::zeros(shape, type_of(place.bucket), &state.device)
            }
            _ => candle_core::bail!("bucket {} has not been averaged yet", place.bucket.index),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the tensor that collects the gradients of the step. Creates it if necessary.
    fn filling(&mut self, bucket: &BucketInfo) -> Result<Tensor> {
        let own = &mut self.buckets[bucket.index];
        match own {
            Bucket::Filling(flat) => Ok(flat.clone()),
            Bucket::Zeros => {
                let flat = Tensor::zeros(bucket.count, type_of(bucket), &self.device)?;
                *own = Bucket::Filling(flat.clone());
                Ok(flat)
            }
            Bucket::InFlight(..) | Bucket::Averaged(_) => {
                candle_core::bail!("bucket {} has already been launched", bucket.index)
            }
        }
    }

    fn launch(&mut self, comm: &Communicator, bucket: &BucketInfo) -> ringtree::Result<()> {
        let flat = self.filling(bucket).map_err(device_error)?;
        let memory = self.lane.take(&flat).map_err(device_error)?;
        let dtype = flat.dtype();
        self.buckets[bucket.index] = Bucket::InFlight(flat, memory.clone());
        let started = for_element!(dtype, T => Ok(self.average::<T>(comm, memory)));
        started.map_err(device_error)?
    }

    fn average<T: Element>(&self, comm: &Communicator, memory: Memory) -> ringtree::Result<()> {
        let (device, stream) = (self.lane.device(), self.lane.stream());
        let mut buffer = DeviceBuffer::<T>::from_memory(device, stream, memory);
        comm.all_reduce(&mut buffer, ReduceOp::Avg)
    }

    fn land(&mut self, index: usize) -> ringtree::Result<()> {
        let flying = std::mem::replace(&mut self.buckets[index], Bucket::Zeros);
        let Bucket::InFlight(flat, memory) = flying else {
            let why = format!("bucket {index} has not been launched");
            return Err(ringtree::Error::new(ringtree::ErrorKind::Usage, why));
        };
        self.lane.give_back(&flat, memory).map_err(device_error)?;
        self.buckets[index] = Bucket::Averaged(flat);
        Ok(())
    }
}

impl Carrier for Buckets {
    fn attach(&mut self, comm: &Communicator) -> ringtree::Result<()> {
        comm.attach(self.lock().lane.device())
    }

    fn begin(&mut self, buckets: &[BucketInfo]) -> ringtree::Result<()> {
        self.lock().buckets = buckets.iter().map(|_| Bucket::Zeros).collect();
        Ok(())
    }

    fn launch(&mut self, comm: &Communicator, bucket: &BucketInfo) -> ringtree::Result<()> {
        match bucket.count {
            0 => Ok(()),
            _ => self.lock().launch(comm, bucket),
        }
    }

    fn land(&mut self, comm: &Communicator, bucket: &BucketInfo) -> ringtree::Result<()> {
        // The collective uses the memory until `synchronize` has returned.
        comm.synchronize()?;
        match bucket.count {
            0 => Ok(()),
            _ => self.lock().land(bucket.index),
        }
    }
}

/// Returns the type of a bucket's elements.
fn type_of(bucket: &BucketInfo) -> DType {
    match bucket.parameters.first().map(|(_, one)| one.dtype) {
        Some(Dtype::F64) => DType::F64,
        Some(Dtype::F16) => DType::F16,
        Some(Dtype::Bf16) => DType::BF16,
        _ => DType::F32,
    }
}

fn device_error(error: candle_core::Error) -> ringtree::Error {
    ringtree::Error::new(ringtree::ErrorKind::Device, error.to_string())
}

#[cfg(test)]
mod tests;
