//! Holds the buffers of a measured collective in host or device memory.

use super::case::Case;
use crate::expected::exact::Inputs;
use crate::expected::result::ExpectedResult;
#[cfg(feature = "cuda")]
use ringtree::cuda::DeviceBuffer;
#[cfg(feature = "cuda")]
use ringtree::cuda::{Device, Stream};
use ringtree::plan::Collective;
use ringtree::{Communicator, Element, Error, ErrorKind, Result};
use std::ops::DerefMut;

/// A rank's buffers.
pub(super) trait Buffers {
    /// Issues the call to be measured.
    fn call(&mut self, comm: &Communicator, case: &Case) -> Result<()>;

    /// Waits until all issued calls have completed.
    fn settle(&self, comm: &Communicator) -> Result<()>;

    /// Fills the buffers with `rank`'s inputs.
    fn fill(&mut self, inputs: &Inputs, rank: usize) -> Result<()>;

    fn fill_with_zeros(&mut self) -> Result<()>;

    /// Returns the number of elements in the result that differ from the expected values.
    fn count_wrong(&self, promise: &ExpectedResult) -> Result<usize>;
}

/// Allocates a buffer of zeros and touches its memory.
///
/// # Errors
/// Returns `ErrorKind::System` if the memory cannot be allocated.
pub(super) fn zeros<T: Element>(count: usize) -> Result<Vec<T>> {
    let mut buffer: Vec<T> = Vec::new();
    buffer.try_reserve_exact(count).map_err(|_| {
        let bytes = count.saturating_mul(size_of::<T>());
        Error::new(
            ErrorKind::System,
            format!("cannot allocate a buffer of {bytes} bytes; pass smaller --sizes"),
        )
    })?;
    buffer.resize(count, T::zeroed());
    Ok(buffer)
}

/// Buffers in host memory. The input is empty if the result replaces it.
pub(super) struct HostBuffers<B> {
    pub(super) input: B,
    pub(super) output: B,
}

impl<T: Element, B: DerefMut<Target = [T]>> Buffers for HostBuffers<B> {
    fn call(&mut self, comm: &Communicator, case: &Case) -> Result<()> {
        let (input, output): (&[T], &mut [T]) = (&self.input, &mut self.output);
        let block = comm.block(output.len());
        match (case.collective, case.in_place) {
            (collective @ (Collective::Broadcast | Collective::Barrier), _)
            | (collective, true) => {
                ringtree::internal::calls::collective(comm, collective, output, case.op, case.root)
            }
            (Collective::AllReduce, false) => comm.all_reduce_into(input, output, case.op),
            (Collective::Reduce, false) => comm.reduce_into(input, output, case.op, case.root),
            (Collective::ReduceScatter, false) => {
                comm.reduce_scatter_into(input, &mut output[block], case.op)
            }
            (Collective::AllGather, false) => comm.all_gather_into(&input[block], output),
            (Collective::Gather, false) => comm.gather_into(&input[block], output, case.root),
            (Collective::Scatter, false) => comm.scatter_into(input, &mut output[block], case.root),
            (Collective::AllToAll, false) => comm.all_to_all_into(input, output),
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

    fn count_wrong(&self, promise: &ExpectedResult) -> Result<usize> {
        let output: &[T] = &self.output;
        Ok(promise.count_wrong(bytemuck::cast_slice(output)))
    }
}

/// A buffer in device memory, on which calls operate in place.
#[cfg(feature = "cuda")]
pub(super) struct DeviceBuffers<T: Element> {
    buffer: DeviceBuffer<T>,
    /// A host buffer whose contents are written to `buffer`.
    content: Vec<T>,
}

#[cfg(feature = "cuda")]
impl<T: Element> DeviceBuffers<T> {
    pub(super) fn new((device, stream): &(Device, Stream), count: usize) -> Result<Self> {
        let content = zeros(count)?;
        Ok(Self {
            buffer: DeviceBuffer::new(device, stream, &content)?,
            content,
        })
    }
}

#[cfg(feature = "cuda")]
impl<T: Element> Buffers for DeviceBuffers<T> {
    fn call(&mut self, comm: &Communicator, case: &Case) -> Result<()> {
        ringtree::internal::calls::collective(
            comm,
            case.collective,
            &mut self.buffer,
            case.op,
            case.root,
        )
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

    fn count_wrong(&self, promise: &ExpectedResult) -> Result<usize> {
        Ok(promise.count_wrong(bytemuck::cast_slice(&self.buffer.read()?)))
    }
}
