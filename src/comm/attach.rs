//! Attaches devices to communicators.

use super::Communicator;
use super::device_buffer::DeviceBuffer;
use super::on_device::Attached;
use crate::device::{Device, Stream};
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::random;
use std::sync::OnceLock;

/// Length, in bytes, of the mark that ranks compare to detect whether any of them share a process.
const MARK_BYTES: usize = 16;

impl Communicator {
    /// Attaches `device` so that every in-place collective also accepts buffers on that device. All
    /// ranks must make this call, each passing its own device, in the same order relative to their
    /// other calls on this communicator. Several ranks may share a GPU, but each rank must be a
    /// separate process.
    ///
    /// This call may block until all work on the GPU has completed. The first such call in a
    /// process makes the driver compile kernels.
    ///
    /// # Streams
    /// A collective on a device buffer is ordered on the buffer's stream. It starts once all work
    /// that was enqueued before it is done. Work that is enqueued after it starts once the
    /// collective has completed or failed. The call returns immediately unless many operations are
    /// already in flight, and you may use the GPU in the meantime.
    ///
    /// [`Communicator::synchronize`] waits for the result. If the call times out or the job fails,
    /// the stream continues and the contents of the buffer are unspecified. `synchronize` and every
    /// later call then return the error.
    ///
    /// If the ranks use several communicators on the same GPU, all ranks must issue the calls on
    /// these communicators in the same overall order, because the GPU may run all of the calls
    /// through one queue.
    ///
    /// # Paths
    /// If all ranks are processes on the same host and their GPUs can map each other's memory, the
    /// GPUs read that memory in place (the *mapped* path). Otherwise, data is copied through host
    /// memory (the *staged* path). `attach` selects the same path for all ranks.
    /// [`Communicator::info`] shows this path and the reason why it was selected. On the
    /// mapped path, a communicator uses 64 MiB of GPU memory.
    ///
    /// To choose the path yourself, set `RINGTREE_DEVICE_PATH` or call
    /// [`Builder::device_path`](crate::Builder::device_path). If any rank selects `staged`, all
    /// ranks use the staged path. If any rank selects `mapped` but the mapped path is not possible,
    /// all ranks get the same error.
    ///
    /// ```no_run
    /// use ringtree::cuda::{Device, DeviceBuffer};
    /// use ringtree::{Communicator, ReduceOp};
    ///
    /// # fn main() -> ringtree::Result<()> {
    /// let comm = Communicator::from_env()?;
    /// let device = Device::open(comm.local_rank())?;
    /// comm.attach(&device)?;
    /// let stream = device.stream()?;
    /// let mut gradients = DeviceBuffer::new(&device, &stream, &[1.0f32; 1000])?;
    /// comm.all_reduce(&mut gradients, ReduceOp::Sum)?;
    /// comm.synchronize()?;
    /// assert_eq!(gradients.read()?[999], comm.world_size() as f32);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors), or an [`Error`] of
    /// one of the following kinds:
    /// - [`ErrorKind::Usage`](crate::ErrorKind::Usage) on all ranks if two ranks are threads of the
    ///   same process, or if a rank requires the mapped path but that path is not possible.
    /// - [`ErrorKind::Device`](crate::ErrorKind::Device) if the driver fails.
    ///
    /// After an error of any kind other than `Usage`, the communicator has failed.
    pub fn attach(&self, device: &Device) -> Result<()> {
        // Return the first error, because a peer may have left due to an error that has not reached
        // this rank yet.
        self.try_attach(device)
            .map_err(|error| self.first_cause(error))
    }

    fn try_attach(&self, device: &Device) -> Result<()> {
        self.synchronize()?;
        if self.core.parts.transport_name == "sim" {
            return Err(Error::usage(
                "cannot attach a device: simulated ranks are threads of one process; start each \
                 rank as a separate process",
            ));
        }
        let mut marks = vec![[0; MARK_BYTES]; self.world_size()];
        marks[self.rank()] = own_mark()?;
        self.all_gather(marks.as_flattened_mut())?;
        for (rank, mark) in marks.iter().enumerate() {
            if let Some(other) = marks[..rank].iter().position(|one| one == mark) {
                return Err(Error::usage(format!(
                    "cannot attach a device: ranks {other} and {rank} are threads of one process \
                     and would wait for each other in the driver; start each rank as a separate \
                     process"
                )));
            }
        }
        let attached = Attached::new(device, self.find_path(device)?)?;
        self.enter()?.attached = Some(attached);
        Ok(())
    }

    /// Creates a zero-initialized buffer of `count` elements on the attached device, for use on
    /// `stream`.
    ///
    /// ```no_run
    /// use ringtree::cuda::Device;
    /// use ringtree::{Communicator, ReduceOp};
    ///
    /// # fn main() -> ringtree::Result<()> {
    /// let comm = Communicator::from_env()?;
    /// let device = Device::open(comm.local_rank())?;
    /// comm.attach(&device)?;
    /// let mut gradients = comm.alloc_on_device::<f32>(&device.stream()?, 1000)?;
    /// gradients.write(&[0.5; 1000])?;
    /// comm.all_reduce(&mut gradients, ReduceOp::Sum)?;
    /// assert_eq!(gradients.read()?[0], 0.5 * comm.world_size() as f32);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Returns an [`Error`] of kind [`ErrorKind::Usage`](crate::ErrorKind::Usage) if no device is
    /// attached, if `stream` belongs to a different GPU, or if the size in bytes overflows. Returns
    /// an [`Error`] of kind [`ErrorKind::Device`](crate::ErrorKind::Device) if the driver fails.
    pub fn alloc_on_device<T: Element>(
        &self,
        stream: &Stream,
        count: usize,
    ) -> Result<DeviceBuffer<T>> {
        let issued = self.enter()?;
        let attached = issued.attached.as_ref();
        let device = attached.map(|attached| attached.device().clone());
        drop(issued);
        let device =
            device.ok_or_else(|| Error::usage("no device is attached; call attach first"))?;
        DeviceBuffer::zeros(&device, stream, count)
    }
}

/// Returns random bytes that identify this process.
fn own_mark() -> Result<[u8; MARK_BYTES]> {
    static MARK: OnceLock<[u8; MARK_BYTES]> = OnceLock::new();
    if let Some(mark) = MARK.get() {
        return Ok(*mark);
    }
    let mark = random::bytes().map_err(|error| Error::io("cannot get random bytes", &error))?;
    Ok(*MARK.get_or_init(|| mark))
}
