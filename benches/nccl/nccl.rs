//! Measures NCCL on GPU buffers, using cudarc's safe calls.
//!
//! If a library or a symbol is missing, cudarc panics, which ends only this process. The parent has
//! already examined the libraries in a different process, and it reports how this process ends.

use crate::arrangement::{Case, RANKS};
use crate::rank::{Library, own_gpu, own_rank};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DriverError};
use cudarc::nccl::result::{NcclError, NcclStatus};
use cudarc::nccl::safe::{Comm, Id, ReduceOp};
use ringtree::plan::Collective;
use std::ffi::c_char;
use std::sync::Arc;

/// An NCCL rank.
pub(crate) struct Nccl {
    comm: Comm,
    stream: Arc<CudaStream>,
    case: Case,
    input: CudaSlice<f32>,
    output: CudaSlice<f32>,
    /// The buffer that is summed as a barrier.
    token: CudaSlice<f32>,
}

fn refused(error: NcclError) -> String {
    format!("NCCL: {:?}; set NCCL_DEBUG=INFO to see more", error.0)
}

fn failed(error: DriverError) -> String {
    format!("CUDA: {error}")
}

/// Treats everything except success as a failure, because these communicators block.
fn succeeded(answer: Result<NcclStatus, NcclError>) -> Result<(), String> {
    match answer.map_err(refused)? {
        NcclStatus::Success => Ok(()),
        NcclStatus::InProgress => Err("NCCL: a call is still in progress".into()),
        NcclStatus::NumResults => Err("NCCL: an unknown result".into()),
    }
}

impl Nccl {
    /// Creates the ID of a new job, as hexadecimal digits.
    pub(crate) fn make_id() -> Result<String, String> {
        let id = Id::new().map_err(refused)?;
        let bytes = id.internal().iter().flat_map(|byte| byte.to_ne_bytes());
        Ok(bytes.map(|byte| format!("{byte:02x}")).collect())
    }

    /// Joins the other ranks.
    pub(crate) fn join(id: &str) -> Result<Self, String> {
        let unreadable = || "cannot read the id of NCCL's job".to_owned();
        let mut bytes = [0 as c_char; 128];
        for (index, byte) in bytes.iter_mut().enumerate() {
            let digits = id.get(2 * index..2 * index + 2).ok_or_else(unreadable)?;
            let value = u8::from_str_radix(digits, 16).map_err(|_| unreadable())?;
            *byte = c_char::from_ne_bytes([value]);
        }
        let context = CudaContext::new(own_gpu()?).map_err(failed)?;
        // With a separate stream, cudarc would record events around every NCCL call.
        let stream = context.default_stream();
        let comm = Comm::from_rank(stream.clone(), own_rank()?, RANKS, Id::uninit(bytes));
        let one = || stream.alloc_zeros::<f32>(1).map_err(failed);
        Ok(Self {
            comm: comm.map_err(refused)?,
            case: Case {
                collective: Collective::AllReduce,
                bytes: 0,
            },
            input: one()?,
            output: one()?,
            token: one()?,
            stream,
        })
    }
}

impl Library for Nccl {
    fn path(&self) -> String {
        // NCCL has no call that returns its path, but NCCL_DEBUG=INFO shows it.
        String::new()
    }

    fn prepare(&mut self, case: Case) -> Result<(), String> {
        let zeros = |count| self.stream.alloc_zeros::<f32>(count).map_err(failed);
        let input = if case.is_in_place() { 1 } else { case.input() };
        self.case = case;
        (self.input, self.output) = (zeros(input)?, zeros(case.output())?);
        Ok(())
    }

    fn load(&mut self, input: &[f32]) -> Result<(), String> {
        let place = match self.case.is_in_place() {
            true => &mut self.output,
            false => &mut self.input,
        };
        self.stream.memcpy_htod(input, place).map_err(failed)
    }

    fn call(&mut self) -> Result<(), String> {
        let Self { input, output, .. } = self;
        succeeded(match self.case.collective {
            Collective::Broadcast => self.comm.broadcast_in_place(output, 0),
            Collective::AllGather => self.comm.all_gather(input, output),
            Collective::ReduceScatter => self.comm.reduce_scatter(input, output, &ReduceOp::Sum),
            _ => self.comm.all_reduce_in_place(output, &ReduceOp::Sum),
        })
    }

    fn settle(&mut self) -> Result<(), String> {
        self.stream.synchronize().map_err(failed)
    }

    fn barrier(&mut self) -> Result<(), String> {
        let summed = self
            .comm
            .all_reduce_in_place(&mut self.token, &ReduceOp::Sum);
        succeeded(summed)?;
        self.settle()
    }

    fn result(&mut self) -> Result<Vec<f32>, String> {
        self.stream.clone_dtoh(&self.output).map_err(failed)
    }
}
