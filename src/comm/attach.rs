//! Giving a communicator a device.

use super::Communicator;
use super::device_buffer::DeviceBuffer;
use super::on_device::Attached;
use crate::device::{Device, Stream};
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::random;
use std::sync::OnceLock;

/// Bytes by which processes tell each other apart.
const MARK_BYTES: usize = 16;

impl Communicator {
    /// From now on every collective in place takes buffers on `device` too. All ranks call this,
    /// each with its device, in the order of their calls on this communicator. Several ranks may
    /// use one GPU; each is a process of its own.
    ///
    /// Such a collective returns at once, unless much is under way already. It begins when what the
    /// buffer's stream was told before is done, and what that stream is told afterwards begins when
    /// it has ended, well or not: after the communicator's timeout at the latest, or when the job
    /// has failed, the stream goes on, and the buffer's content is unspecified.
    /// [`Communicator::synchronize`] says how it ended, and after a failure so does every later
    /// call. Meanwhile the caller may do on the GPU whatever it likes.
    ///
    /// Where the ranks are processes of one host and their GPUs can map each other's memory, which
    /// this call finds out, GPUs read it where it lies; elsewhere buffers pass through the hosts
    /// ([`Communicator::device_path`] says which and why). `RINGTREE_DEVICE_PATH`, or
    /// [`Builder::device_path`](crate::Builder::device_path), asks for one of the two: where one
    /// rank is told `staged`, all ranks stage; where one is told `mapped` and it cannot be had, all
    /// ranks get the same error. On the mapped path a communicator takes 64 MiB of the GPU's
    /// memory. This call may wait for what the GPU was told to do, and the first of a process has
    /// the driver compile kernels.
    ///
    /// Ranks that use several communicators with one GPU make their calls on all of them in the
    /// same order, since the GPU may carry all of them out through one queue.
    ///
    /// ```no_run
    /// use ringtree::{Communicator, Device, DeviceBuffer, ReduceOp};
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
    /// Any of [`Error`]; [`Error::device`] is the device's; [`Error::usage`], on all ranks, where
    /// some are threads of one process, or where one demands the mapped path and it cannot be had.
    /// After any but [`Error::usage`] the communicator has failed.
    pub fn attach(&self, device: &Device) -> Result<()> {
        // A rank may have left because of an error that this rank has not heard of yet.
        self.try_attach(device)
            .map_err(|error| self.first_cause(error))
    }

    fn try_attach(&self, device: &Device) -> Result<()> {
        self.synchronize()?;
        if self.transport() == "sim" {
            return Err(Error::usage(
                "simulated ranks are threads of one process: collectives on devices are among \
                 processes",
            ));
        }
        let mut marks = vec![[0; MARK_BYTES]; self.world_size()];
        marks[self.rank()] = own_mark()?;
        self.all_gather(marks.as_flattened_mut())?;
        for (rank, mark) in marks.iter().enumerate() {
            if let Some(other) = marks[..rank].iter().position(|one| one == mark) {
                return Err(Error::usage(format!(
                    "ranks {other} and {rank} are threads of one process: collectives on devices \
                     are among processes, as threads would wait for each other in the driver"
                )));
            }
        }
        let attached = Attached::new(device, self.find_path(device)?)?;
        self.enter()?.attached = Some(attached);
        Ok(())
    }

    /// A buffer like [`DeviceBuffer::new`]'s on the attached device, of `count` zeros.
    ///
    /// ```no_run
    /// use ringtree::{Communicator, Device, ReduceOp};
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
    /// [`Error::usage`] if no device is attached; the device's.
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
            device.ok_or_else(|| Error::usage("no device is attached: call attach first"))?;
        DeviceBuffer::zeros(&device, stream, count)
    }
}

/// What no other process has.
fn own_mark() -> Result<[u8; MARK_BYTES]> {
    static MARK: OnceLock<[u8; MARK_BYTES]> = OnceLock::new();
    if let Some(mark) = MARK.get() {
        return Ok(*mark);
    }
    let mark = random::bytes().map_err(|error| Error::io("no random number", &error))?;
    Ok(*MARK.get_or_init(|| mark))
}
