//! Launches the reduction kernels.

use super::check;
use super::driver::Address;
use super::launch;
use super::memory::Span;
use super::stream::Stream;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::op::ReduceOp;

/// The arithmetic that a reduction performs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reduction {
    pub(crate) dtype: Dtype,
    pub(crate) op: ReduceOp,
    /// The divisor of the result, if any.
    pub(crate) divisor: Option<usize>,
}

impl Stream {
    /// Reduces `bytes` bytes of each source in `from`, in the given order, into `to`. The
    /// destination may be one of the sources. Otherwise, it must not overlap any source.
    ///
    /// # Errors
    /// Returns `ErrorKind::Usage` if a range is out of bounds, if memory belongs to a different
    /// GPU, or if the operator is not defined for the type. Returns `ErrorKind::Device` if the
    /// kernels are not loaded, or if the driver reports an error.
    pub(crate) fn reduce(
        &self,
        how: Reduction,
        from: &[Span<'_>],
        to: Span<'_>,
        bytes: usize,
    ) -> Result<()> {
        let gpu = self.gpu();
        let address = |(memory, at): &Span<'_>| -> Result<Address> {
            self.check_gpu(memory.gpu())?;
            memory.address(*at, bytes)
        };
        let sources = from.iter().map(address).collect::<Result<Vec<_>>>()?;
        let launch = launch::reduce(
            how.dtype,
            how.op,
            &sources,
            address(&to)?,
            bytes / how.dtype.size(),
            how.divisor,
            gpu.facts().multiprocessors as u32,
        );
        let launch = launch
            .ok_or_else(|| Error::usage(format!("{} is not defined for {}", how.op, how.dtype)))?;
        let Some(function) = gpu.kernel(launch.entry) else {
            return Err(Error::device(format!("{:?} is not loaded", launch.entry)));
        };
        let mut arguments = launch.arguments;
        let mut pointers = [(&raw mut arguments).cast()];
        let _entered = gpu.enter()?;
        // SAFETY: the kernel takes a single argument by value, `arguments`, which the driver copies
        // in the call.
        // It reads and writes the elements at the argument's addresses and nothing else
        // (`cuda/README.md`, tested access by access), and these are in memories, as was checked
        // when the addresses were computed. Those live until the stream has finished, see `Memory`.
        let code = unsafe {
            (gpu.api.launch_kernel)(
                function,
                launch.blocks,
                1,
                1,
                launch.threads,
                1,
                1,
                0,
                self.raw(),
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        check(code, "cuLaunchKernel")
    }
}
