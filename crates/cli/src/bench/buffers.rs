//! What a measured collective is called on: memory of the host, or of a device.

use super::case::Case;
use crate::expected::exact::Inputs;
use crate::expected::promise::Promise;
#[cfg(feature = "cuda")]
use ringtree::comm::device_buffer::DeviceBuffer;
#[cfg(feature = "cuda")]
use ringtree::device::{Device, Stream};
use ringtree::plan::Collective;
use ringtree::{Communicator, Element, Error, Layout, Result};
use std::ops::DerefMut;

/// The buffers of a rank.
pub(super) trait Buffers {
    /// The call that is measured.
    fn call(&mut self, comm: &Communicator, case: &Case) -> Result<()>;

    /// Waits until all calls made are over.
    fn settle(&self, comm: &Communicator) -> Result<()>;

    /// Puts `rank`'s inputs in.
    fn fill(&mut self, inputs: &Inputs, rank: usize) -> Result<()>;

    fn fill_with_zeros(&mut self) -> Result<()>;

    /// How many elements of the result are not what was promised.
    fn count_wrong(&self, promise: &Promise) -> Result<usize>;
}

/// A buffer in touched memory, or an error where the system has not that much.
pub(super) fn zeros<T: Element>(count: usize) -> Result<Vec<T>> {
    let mut buffer: Vec<T> = Vec::new();
    buffer.try_reserve_exact(count).map_err(|_| {
        let bytes = count.saturating_mul(size_of::<T>());
        Error::system(format!(
            "no memory for a buffer of {bytes} bytes: choose smaller --sizes"
        ))
    })?;
    buffer.resize(count, T::zeroed());
    Ok(buffer)
}

/// Memory of the host; the input is empty where the result replaces it.
pub(super) struct OfHost<B> {
    pub(super) input: B,
    pub(super) output: B,
}

impl<T: Element, B: DerefMut<Target = [T]>> Buffers for OfHost<B> {
    fn call(&mut self, comm: &Communicator, case: &Case) -> Result<()> {
        let (input, output): (&[T], &mut [T]) = (&self.input, &mut self.output);
        let block = comm.block(output.len());
        match (case.collective, case.in_place) {
            (collective @ (Collective::Broadcast | Collective::Barrier), _)
            | (collective, true) => comm.collective(collective, output, case.op, case.root),
            (Collective::AllReduce, false) => comm.all_reduce_into(input, output, case.op),
            (Collective::Reduce, false) => comm.reduce_into(input, output, case.op, case.root),
            (Collective::ReduceScatter, false) => {
                comm.reduce_scatter_into(input, &mut output[block], case.op)
            }
            (Collective::AllGather, false) => comm.all_gather_into(&input[block], output),
            (Collective::Gather, false) => comm.gather_into(&input[block], output, case.root),
            (Collective::Scatter, false) => comm.scatter_into(input, &mut output[block], case.root),
            (Collective::AllToAll, false) => {
                comm.all_to_all_into(input, Layout::Even, output, Layout::Even)
            }
        }
    }

    fn settle(&self, _: &Communicator) -> Result<()> {
        Ok(())
    }

    fn fill(&mut self, inputs: &Inputs, rank: usize) -> Result<()> {
        inputs.fill(rank, 0, bytemuck::cast_slice_mut(&mut self.output));
        if !self.input.is_empty() {
            self.input.copy_from_slice(&self.output);
        }
        Ok(())
    }

    fn fill_with_zeros(&mut self) -> Result<()> {
        self.input.fill(T::zeroed());
        self.output.fill(T::zeroed());
        Ok(())
    }

    fn count_wrong(&self, promise: &Promise) -> Result<usize> {
        let output: &[T] = &self.output;
        Ok(promise.count_wrong(bytemuck::cast_slice(output)))
    }
}

/// Memory of a device, where calls are made in place.
#[cfg(feature = "cuda")]
pub(super) struct OfDevice<T: Element> {
    buffer: DeviceBuffer<T>,
    /// What is written to it.
    content: Vec<T>,
}

#[cfg(feature = "cuda")]
impl<T: Element> OfDevice<T> {
    pub(super) fn new((device, stream): &(Device, Stream), count: usize) -> Result<Self> {
        let content = zeros(count)?;
        Ok(Self {
            buffer: DeviceBuffer::new(device, stream, &content)?,
            content,
        })
    }
}

#[cfg(feature = "cuda")]
impl<T: Element> Buffers for OfDevice<T> {
    fn call(&mut self, comm: &Communicator, case: &Case) -> Result<()> {
        comm.collective(case.collective, &mut self.buffer, case.op, case.root)
    }

    fn settle(&self, comm: &Communicator) -> Result<()> {
        comm.synchronize()
    }

    fn fill(&mut self, inputs: &Inputs, rank: usize) -> Result<()> {
        inputs.fill(rank, 0, bytemuck::cast_slice_mut(&mut self.content));
        self.buffer.write(&self.content)
    }

    fn fill_with_zeros(&mut self) -> Result<()> {
        self.content.fill(T::zeroed());
        self.buffer.write(&self.content)
    }

    fn count_wrong(&self, promise: &Promise) -> Result<usize> {
        Ok(promise.count_wrong(bytemuck::cast_slice(&self.buffer.read()?)))
    }
}
