//! Gradients outside host memory.

use super::hooks::BucketInfo;
use crate::comm::Communicator;
use crate::error::Result;
use std::ops::Range;

/// Keeps buckets of gradients outside host memory, such as on a GPU, and averages them there. A
/// trainer made by [`DataParallel::with_carrier`](super::DataParallel::with_carrier) decides which
/// bucket is launched when, and whether a step counts.
///
/// In every step the training loop asks where each gradient belongs
/// ([`DataParallel::place`](super::DataParallel::place)), has the carrier write it there, and marks
/// it as [`ready`](super::DataParallel::ready).
///
#[cfg_attr(feature = "cuda", doc = "```no_run")]
#[cfg_attr(not(feature = "cuda"), doc = "```ignore")]
/// use ringtree::ddp::{BucketInfo, Carrier, DataParallel, Options, Parameter};
/// use ringtree::{Communicator, Device, DeviceBuffer, Dtype, ReduceOp, Result, Stream};
/// use std::sync::{Arc, Mutex};
///
/// /// A bucket of f32 on a device. The trainer shares it.
/// struct OnDevice {
///     device: Device,
///     stream: Stream,
///     buckets: Arc<Mutex<Vec<DeviceBuffer<f32>>>>,
/// }
///
/// impl Carrier for OnDevice {
///     fn attach(&mut self, comm: &Communicator) -> Result<()> {
///         comm.attach(&self.device)
///     }
///     fn begin(&mut self, buckets: &[BucketInfo]) -> Result<()> {
///         let zeros = |bucket: &BucketInfo| {
///             DeviceBuffer::new(&self.device, &self.stream, &vec![0.0; bucket.count])
///         };
///         *self.buckets.lock().unwrap() = buckets.iter().map(zeros).collect::<Result<_>>()?;
///         Ok(())
///     }
///     fn launch(&mut self, comm: &Communicator, bucket: &BucketInfo) -> Result<()> {
///         comm.all_reduce(&mut self.buckets.lock().unwrap()[bucket.index], ReduceOp::Avg)
///     }
///     fn land(&mut self, comm: &Communicator, _: &BucketInfo) -> Result<()> {
///         comm.synchronize()
///     }
/// }
///
/// # fn rank(comm: &Communicator) -> Result<()> {
/// let device = Device::open(comm.local_rank())?;
/// let stream = device.stream()?;
/// let buckets = Arc::default();
/// let carrier = OnDevice { device, stream, buckets: Arc::clone(&buckets) };
/// let weight = vec![Parameter::new("weight", &[2], Dtype::F32)];
/// let mut model = DataParallel::with_carrier(comm, weight, Options::new(), carrier)?;
/// let bucket = model.place(0)?.bucket.index;
/// // A kernel would write the gradient there.
/// buckets.lock().unwrap()[bucket].write(&[1.0, comm.rank() as f32])?;
/// model.ready(0)?;
/// model.wait()?;
/// let averages = buckets.lock().unwrap();
/// assert_eq!(averages[bucket].read()?[0], 1.0);
/// # Ok(()) }
/// ```
pub trait Carrier: Send {
    /// Prepares to average buckets over `comm`, which only the carrier uses for device buffers. All
    /// ranks call it, once.
    ///
    /// # Errors
    /// Any; the model is not registered then.
    fn attach(&mut self, comm: &Communicator) -> Result<()>;

    /// Begins a step: all buckets, of this layout, count as zeros until a gradient is written. The
    /// averages of the step before are not read any more.
    ///
    /// # Errors
    /// Any; training has failed then, on all ranks.
    fn begin(&mut self, buckets: &[BucketInfo]) -> Result<()>;

    /// Starts averaging a bucket, and returns at once. All ranks call it for the same
    /// buckets in the same order, once a step.
    ///
    /// # Errors
    /// As for [`Carrier::begin`].
    fn launch(&mut self, comm: &Communicator, bucket: &BucketInfo) -> Result<()>;

    /// Waits until the averages of a launched bucket are complete.
    ///
    /// # Errors
    /// As for [`Carrier::begin`].
    fn land(&mut self, comm: &Communicator, bucket: &BucketInfo) -> Result<()>;
}

/// Where a gradient belongs that a [`Carrier`] keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// The bucket.
    pub bucket: &'a BucketInfo,
    /// The parameter's elements of it.
    pub range: Range<usize>,
    /// Whether this is the step's first gradient of the parameter. A later one is to be added.
    pub is_first: bool,
}
