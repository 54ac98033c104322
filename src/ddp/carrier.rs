//! Averages gradients that are stored outside host memory.

use super::hooks::BucketInfo;
use crate::comm::Communicator;
use crate::error::Result;
use std::ops::Range;

/// Stores buckets of gradients outside host memory, for example on a GPU, and averages them there.
///
/// Pass the carrier to [`with_carrier`](super::carried::with_carrier). The resulting model decides
/// when each bucket is launched and whether a step is valid. In every step, for each gradient, the
/// training loop gets the gradient's place from [`place`](super::carried::place), has the carrier
/// write the gradient to that place, and calls [`DataParallel::ready`](super::DataParallel::ready).
///
#[cfg_attr(feature = "cuda", doc = "```no_run")]
#[cfg_attr(not(feature = "cuda"), doc = "```ignore")]
/// use ringtree::ddp::{DataParallel, Options, Parameter};
/// use ringtree::internal::ddp::{BucketInfo, Carrier, place, with_carrier};
/// use ringtree::cuda::{Device, DeviceBuffer, Stream};
/// use ringtree::{Communicator, Dtype, ReduceOp, Result};
/// use std::sync::{Arc, Mutex};
///
/// /// Buckets of f32 on a device, shared with the training loop.
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
/// let mut model = with_carrier(comm, weight, Options::new(), carrier)?;
/// let bucket = place(&mut model, 0)?.bucket.index;
/// // In a real program, a kernel writes the gradient there.
/// buckets.lock().unwrap()[bucket].write(&[1.0, comm.rank() as f32])?;
/// model.ready(0)?;
/// model.wait()?;
/// let averages = buckets.lock().unwrap();
/// assert_eq!(averages[bucket].read()?[0], 1.0);
/// # Ok(()) }
/// ```
pub trait Carrier: Send {
    /// Prepares for averaging buckets over `comm`. Only the carrier uses this communicator for
    /// device buffers. This method is called once on every rank.
    ///
    /// # Errors
    /// Returns an error if the preparation fails. The model is then not registered.
    fn attach(&mut self, comm: &Communicator) -> Result<()>;

    /// Begins a step with `buckets`. The elements of a bucket must be treated as zero until a
    /// gradient is written to them. The averages of the previous step are no longer read.
    ///
    /// # Errors
    /// Returns an error if the step cannot begin. Training then fails on all ranks.
    fn begin(&mut self, buckets: &[BucketInfo]) -> Result<()>;

    /// Starts averaging a bucket and returns immediately. This method is called once per step for
    /// each bucket, in the same order on all ranks.
    ///
    /// # Errors
    /// Returns an error if averaging cannot start. Training then fails on all ranks.
    fn launch(&mut self, comm: &Communicator, bucket: &BucketInfo) -> Result<()>;

    /// Waits until all averages in a launched bucket have been computed.
    ///
    /// # Errors
    /// Returns an error if averaging fails. Training then fails on all ranks.
    fn land(&mut self, comm: &Communicator, bucket: &BucketInfo) -> Result<()>;
}

/// Location of a gradient that a [`Carrier`] stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// The bucket that contains the gradient.
    pub bucket: &'a BucketInfo,
    /// Range of the parameter's elements in the bucket.
    pub range: Range<usize>,
    /// `true` if this is the parameter's first gradient in the step. Any later gradients must be
    /// added to the first one.
    pub is_first: bool,
}
