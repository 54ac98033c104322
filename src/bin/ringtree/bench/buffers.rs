//! What a measured collective is called on: memory of the host, or of a device.

use super::case::Case;
use crate::promise::Promise;
use ringtree::comm::device_buffer::DeviceBuffer;
use ringtree::device::{Device, Stream};
use ringtree::plan::Collective;
use ringtree::reduce::exact::Inputs;
use ringtree::{Communicator, Element, Error, Result};
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
pub(super) struct OfHost<T, B> {
    pub(super) input: Vec<T>,
    pub(super) output: B,
}

impl<T: Element, B: DerefMut<Target = [T]>> Buffers for OfHost<T, B> {
    fn call(&mut self, comm: &Communicator, case: &Case) -> Result<()> {
        let (input, output): (&[T], &mut [T]) = (&self.input, &mut self.output);
        let block = comm.block(output.len());
        match (case.collective, case.in_place) {
            (Collective::AllReduce, true) => comm.all_reduce(output, case.op),
            (Collective::AllReduce, false) => comm.all_reduce_into(input, output, case.op),
            (Collective::Broadcast, _) => comm.broadcast(output, case.root),
            (Collective::Reduce, true) => comm.reduce(output, case.op, case.root),
            (Collective::Reduce, false) => comm.reduce_into(input, output, case.op, case.root),
            (Collective::ReduceScatter, true) => comm.reduce_scatter(output, case.op),
            (Collective::ReduceScatter, false) => {
                comm.reduce_scatter_into(input, &mut output[block], case.op)
            }
            (Collective::AllGather, true) => comm.all_gather(output),
            (Collective::AllGather, false) => comm.all_gather_into(&input[block], output),
            (Collective::Barrier, _) => comm.barrier(),
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
        Ok(promise.count_wrong(output))
    }
}

/// Memory of a device, where calls are made in place.
pub(super) struct OfDevice<T: Element> {
    buffer: DeviceBuffer<T>,
    /// What is written to it.
    content: Vec<T>,
}

impl<T: Element> OfDevice<T> {
    pub(super) fn new((device, stream): &(Device, Stream), count: usize) -> Result<Self> {
        let content = zeros(count)?;
        Ok(Self {
            buffer: DeviceBuffer::new(device, stream, &content)?,
            content,
        })
    }
}

impl<T: Element> Buffers for OfDevice<T> {
    fn call(&mut self, comm: &Communicator, case: &Case) -> Result<()> {
        let buffer = &mut self.buffer;
        match case.collective {
            Collective::AllReduce => comm.all_reduce(buffer, case.op),
            Collective::Broadcast => comm.broadcast(buffer, case.root),
            Collective::Reduce => comm.reduce(buffer, case.op, case.root),
            Collective::ReduceScatter => comm.reduce_scatter(buffer, case.op),
            Collective::AllGather => comm.all_gather(buffer),
            Collective::Barrier => comm.barrier(),
        }
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
        Ok(promise.count_wrong(&self.buffer.read()?))
    }
}
