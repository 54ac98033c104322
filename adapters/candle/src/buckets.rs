//! Buckets of gradients that stay on the model's device: which gradient lies where, and who has the
//! memory when.

use crate::elements::for_element;
use crate::lane::Lane;
use candle_core::{DType, Device, Result, Shape, Tensor};
use ringtree::comm::device_buffer::DeviceBuffer;
use ringtree::ddp::{BucketInfo, Carrier, Place};
use ringtree::device::Memory;
use ringtree::{Communicator, Dtype, Element, ReduceOp};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The buckets of a model, which its replica and its reducer share.
#[derive(Clone)]
pub(crate) struct Buckets(Arc<Mutex<State>>);

struct State {
    device: Device,
    lane: Box<dyn Lane>,
    buckets: Vec<Bucket>,
}

/// A bucket is one tensor of one dimension, new in each step: the averages are views of it.
enum Bucket {
    /// Nothing came yet in this step.
    Zeros,
    /// Gradients come in; where none came there are zeros.
    Filling(Tensor),
    /// Under way. The tensor is empty; the collective has its memory, which is kept here too, so
    /// that it is not freed by another thread.
    Flying(Tensor, Memory),
    Averaged(Tensor),
}

impl Buckets {
    /// Buckets on `device`, averaged on `lane`, which is the same.
    pub(crate) fn new(device: &Device, lane: Box<dyn Lane>) -> Self {
        Self(Arc::new(Mutex::new(State {
            device: device.clone(),
            lane,
            buckets: Vec::new(),
        })))
    }

    /// Puts a gradient to its place, or adds it to what is there.
    pub(crate) fn put(&self, place: &Place<'_>, gradient: &Tensor) -> Result<()> {
        let (start, count) = (place.range.start, place.range.len());
        if gradient.elem_count() != count {
            let (bucket, found) = (place.bucket.index, gradient.elem_count());
            candle_core::bail!(
                "a gradient of {found} elements for {count} elements of bucket {bucket}"
            );
        }
        if count == 0 {
            return Ok(());
        }
        let mut state = self.lock();
        let flat = state.filling(place.bucket)?;
        // In one piece, of one dimension.
        let mut gradient = gradient.detach().contiguous()?.reshape(count)?;
        if !place.is_first {
            gradient = (flat.narrow(0, start, count)? + gradient)?;
        }
        flat.slice_set(&gradient, 0, start)
    }

    /// The averaged gradient at `place`: a view of its bucket.
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
            _ => candle_core::bail!("bucket {} is not averaged", place.bucket.index),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The tensor that takes gradients in.
    fn filling(&mut self, bucket: &BucketInfo) -> Result<Tensor> {
        let own = &mut self.buckets[bucket.index];
        match own {
            Bucket::Filling(flat) => Ok(flat.clone()),
            Bucket::Zeros => {
                let flat = Tensor::zeros(bucket.count, type_of(bucket), &self.device)?;
                *own = Bucket::Filling(flat.clone());
                Ok(flat)
            }
            Bucket::Flying(..) | Bucket::Averaged(_) => {
                candle_core::bail!("bucket {} was launched already", bucket.index)
            }
        }
    }

    fn launch(&mut self, comm: &Communicator, bucket: &BucketInfo) -> ringtree::Result<()> {
        let flat = self.filling(bucket).map_err(of_candle)?;
        let memory = self.lane.take(&flat).map_err(of_candle)?;
        let dtype = flat.dtype();
        self.buckets[bucket.index] = Bucket::Flying(flat, memory.clone());
        let started = for_element!(dtype, T => Ok(self.average::<T>(comm, memory)));
        started.map_err(of_candle)?
    }

    fn average<T: Element>(&self, comm: &Communicator, memory: Memory) -> ringtree::Result<()> {
        let (device, stream) = (self.lane.device(), self.lane.stream());
        let mut buffer = DeviceBuffer::<T>::from_memory(device, stream, memory);
        comm.all_reduce(&mut buffer, ReduceOp::Avg)
    }

    fn land(&mut self, index: usize) -> ringtree::Result<()> {
        let flying = std::mem::replace(&mut self.buckets[index], Bucket::Zeros);
        let Bucket::Flying(flat, memory) = flying else {
            let why = format!("bucket {index} is not under way");
            return Err(ringtree::Error::usage(why));
        };
        self.lane.give_back(&flat, memory).map_err(of_candle)?;
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
        // Until this has seen the collective's end, it has the memory too.
        comm.synchronize()?;
        match bucket.count {
            0 => Ok(()),
            _ => self.lock().land(bucket.index),
        }
    }
}

/// The type of a bucket's elements.
fn type_of(bucket: &BucketInfo) -> DType {
    match bucket.parameters.first().map(|(_, one)| one.dtype) {
        Some(Dtype::F64) => DType::F64,
        Some(Dtype::F16) => DType::F16,
        Some(Dtype::Bf16) => DType::BF16,
        _ => DType::F32,
    }
}

fn of_candle(error: candle_core::Error) -> ringtree::Error {
    ringtree::Error::device(error.to_string())
}

#[cfg(test)]
mod tests;
