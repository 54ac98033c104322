//! Measures ringtree on GPU buffers. Only this module uses ringtree's communicators.

use crate::arrangement::Case;
use crate::rank::{Library, own_gpu};
use ringtree::cuda::DeviceBuffer;
use ringtree::cuda::{Device, Stream};
use ringtree::internal::calls::device_path_line;
use ringtree::plan::Collective;
use ringtree::{Communicator, Error, ReduceOp};
use std::ops::Range;

/// A ringtree rank.
pub(crate) struct Own {
    comm: Communicator,
    device: Device,
    stream: Stream,
    case: Case,
    /// All collectives work in place, so this buffer holds the data of all ranks. The
    /// benchmark runs NCCL's all-gather and reduce-scatter out of place, because cudarc's safe API
    /// cannot borrow one buffer twice.
    buffer: DeviceBuffer<f32>,
}

fn failed(error: Error) -> String {
    format!("ringtree: {error}")
}

impl Own {
    /// Joins the other ranks, as specified by the environment.
    pub(crate) fn join() -> Result<Self, String> {
        let gpu = own_gpu()?;
        Self::try_join(gpu).map_err(failed)
    }

    fn try_join(gpu: usize) -> ringtree::Result<Self> {
        let device = Device::open(gpu)?;
        let stream = device.stream()?;
        let comm = Communicator::from_env()?;
        comm.attach(&device)?;
        Ok(Self {
            comm,
            buffer: DeviceBuffer::new(&device, &stream, &[0.0])?,
            device,
            stream,
            case: Case {
                collective: Collective::AllReduce,
                bytes: 0,
            },
        })
    }

    /// Returns the range of `length` elements that this rank uses: all elements, or its block.
    fn part(&self, length: usize) -> Range<usize> {
        let start = match length == self.case.count() {
            true => 0,
            false => self.comm.rank() * self.case.block(),
        };
        start..start + length
    }
}

impl Library for Own {
    fn path(&self) -> String {
        device_path_line(&self.comm.info())
    }

    fn prepare(&mut self, case: Case) -> Result<(), String> {
        self.case = case;
        let zeros = vec![0.0; case.count()];
        self.buffer = DeviceBuffer::new(&self.device, &self.stream, &zeros).map_err(failed)?;
        Ok(())
    }

    fn load(&mut self, input: &[f32]) -> Result<(), String> {
        let mut whole = vec![0.0; self.case.count()];
        whole[self.part(input.len())].copy_from_slice(input);
        self.buffer.write(&whole).map_err(failed)
    }

    fn call(&mut self) -> Result<(), String> {
        let Self { comm, buffer, .. } = self;
        match self.case.collective {
            Collective::Broadcast => comm.broadcast(buffer, 0),
            Collective::AllGather => comm.all_gather(buffer),
            Collective::ReduceScatter => comm.reduce_scatter(buffer, ReduceOp::Sum),
            _ => comm.all_reduce(buffer, ReduceOp::Sum),
        }
        .map_err(failed)
    }

    fn settle(&mut self) -> Result<(), String> {
        self.comm.synchronize().map_err(failed)?;
        self.stream.synchronize().map_err(failed)
    }

    fn barrier(&mut self) -> Result<(), String> {
        self.comm.barrier().map_err(failed)
    }

    fn result(&mut self) -> Result<Vec<f32>, String> {
        let whole = self.buffer.read().map_err(failed)?;
        Ok(whole[self.part(self.case.output())].to_vec())
    }
}
