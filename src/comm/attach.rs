//! Giving a communicator a device.

mod options;
mod sharing;

pub use options::{AttachOptions, HandOver};

use super::device_buffer::DeviceBuffer;
use super::on_device::Attached;
use super::{Communicator, Parts};
use crate::device::published::Published;
use crate::device::{Device, Memory, Stream};
use crate::dtype::Element;
use crate::engine::device::links::{DeviceLinks, Path, slots_bytes};
use crate::engine::device::registered::Registration;
use crate::error::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

impl Communicator {
    /// From now on collectives take buffers on `device` too, in place: all-reduce, broadcast,
    /// reduce, reduce-scatter and all-gather. All ranks call it, each with its device, in the order
    /// of their calls on this communicator. Ranks on one host that use one GPU, or with
    /// [peer access](AttachOptions::peer_access) GPUs that reach each other, hand each other
    /// segments in the GPU's memory; all others through their hosts, in pinned memory and over
    /// whatever the communicator goes over.
    ///
    /// Such a collective returns at once. It begins when what the buffer's stream was told before
    /// is done, and what that stream is told afterwards begins when it has ended, well or not:
    /// after the communicator's timeout at the latest, or when the job has failed, the stream goes
    /// on, and the buffer's content is unspecified. [`Communicator::synchronize`] says how it
    /// ended, and after a failure so does every later call. Where the device has no word
    /// operations, the call itself waits.
    ///
    /// Whoever attaches again parts with the device before, and its registered buffers are
    /// ordinary ones. The last communicator of a process waits at its end for those that have its
    /// device's memory mapped, [`DEVICE_FAREWELL`](crate::limits::DEVICE_FAREWELL) at most.
    ///
    /// ```
    /// use ringtree::comm::device_buffer::DeviceBuffer;
    /// use ringtree::device::{Device, fake::Fake};
    /// use ringtree::{Communicator, ReduceOp};
    /// use std::sync::Arc;
    ///
    /// # fn rank(comm: &Communicator) -> ringtree::Result<()> {
    /// // On a machine with a GPU: ringtree::device::cuda::Cuda::open(comm.local_rank())?
    /// let device: Arc<dyn Device> = Arc::new(Fake::new());
    /// comm.attach(&device)?;
    /// let stream = device.stream()?;
    /// let mut gradients = DeviceBuffer::new(&device, &stream, &[1.0f32; 1000])?;
    /// comm.all_reduce(&mut gradients, ReduceOp::Sum)?;
    /// comm.synchronize()?;
    /// assert_eq!(gradients.read()?[999], comm.world_size() as f32);
    /// # Ok(()) }
    /// # let builder = Communicator::builder().rank(0).world_size(1);
    /// # rank(&builder.rendezvous("127.0.0.1:0").connect().unwrap()).unwrap();
    /// ```
    ///
    /// # Errors
    /// Any of [`Error`]; [`Error::Device`] is the device's. After any but [`Error::Usage`] the
    /// communicator has failed.
    pub fn attach(&self, device: &Arc<dyn Device>) -> Result<()> {
        self.attach_with(device, AttachOptions::new())
    }

    /// As [`Communicator::attach`], by options.
    ///
    /// # Errors
    /// As there; [`Error::Usage`] for options that are not possible.
    pub fn attach_with(&self, device: &Arc<dyn Device>, options: AttachOptions) -> Result<()> {
        options.check()?;
        self.try_attach(device, options).inspect_err(|error| {
            if !matches!(error, Error::Usage(_)) {
                self.fail(error);
            }
        })
    }

    fn try_attach(&self, device: &Arc<dyn Device>, options: AttachOptions) -> Result<()> {
        // What is under way uses the slots that are there so far.
        self.synchronize()?;
        let reach = self.introduce(device, options)?;
        // From here on nothing is refused that could be.
        self.detach()?;
        let mut signals = match options.hand_over {
            HandOver::Hosts => Vec::new(),
            HandOver::Streams => self.exchange_words(device)?,
        };
        let (rank, segment_bytes) = (self.rank(), options.segment_bytes);
        let row_bytes = slots_bytes(segment_bytes);
        let partners = reach.partners(rank);
        let rows_of = |rank: usize| reach.partners(rank).len();
        let own = match partners.len() {
            0 => None,
            rows => Some(device.allocate(rows * row_bytes)?),
        };
        let (theirs, published) =
            self.share(device, own.as_ref(), &partners, row_bytes, rows_of)?;
        // In each rank's slots a row for each of its partners.
        let row = |memory: &Memory, of: usize, reader: usize| {
            let place = reach.partners(of).iter().position(|one| *one == reader);
            let place = place.expect("invariant: partners are so both ways");
            memory.span(place * row_bytes, row_bytes)
        };
        let mut path = |peer: usize| -> Result<Option<Path>> {
            Ok(match (&own, &theirs[peer]) {
                _ if peer == rank => None,
                (Some(own), Some(theirs)) => Some(Path::Mapped {
                    own: row(own, rank, peer)?,
                    theirs: row(theirs, peer, rank)?,
                    signals: signals.get_mut(peer).and_then(Option::take),
                }),
                _ => Some(Path::Staged),
            })
        };
        let paths = (0..self.world_size())
            .map(&mut path)
            .collect::<Result<_>>()?;
        self.link(device, segment_bytes, paths, published)?;
        // Nobody hands over what some rank cannot take yet.
        self.barrier()?;
        // All ranks have closed what they had mapped of the device before.
        self.0.parts.runtime.free_estates(Duration::ZERO);
        Ok(())
    }

    /// Parts with the device that was attached before, if there is one.
    fn detach(&self) -> Result<()> {
        let mut issued = self.enter()?;
        let words = issued.attached.as_mut().and_then(Attached::farewell);
        let Parts {
            runtime,
            group,
            timeout,
            ..
        } = &self.0.parts;
        runtime.part(*group, *timeout, words);
        Ok(())
    }

    /// A buffer like [`DeviceBuffer::new`]'s on the attached device, of `count` zeros, that the
    /// ranks whose memory is mapped read where it lies: segments need not be copied into slots, and
    /// a message is handed over at once, however long. All ranks call it with the same `count`, in
    /// the order of their calls on this communicator. Its memory stays until the communicator goes.
    ///
    /// ```
    /// use ringtree::device::{Device, fake::Fake};
    /// use ringtree::{Communicator, ReduceOp};
    /// use std::sync::Arc;
    ///
    /// # fn rank(comm: &Communicator) -> ringtree::Result<()> {
    /// let device: Arc<dyn Device> = Arc::new(Fake::new());
    /// comm.attach(&device)?;
    /// let mut gradients = comm.alloc_on_device::<f32>(&device.stream()?, 1000)?;
    /// gradients.write(&[0.5; 1000])?;
    /// comm.all_reduce(&mut gradients, ReduceOp::Sum)?;
    /// assert_eq!(gradients.read()?[0], 0.5 * comm.world_size() as f32);
    /// # Ok(()) }
    /// # let builder = Communicator::builder().rank(0).world_size(1);
    /// # rank(&builder.rendezvous("127.0.0.1:0").connect().unwrap()).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] if no device is attached; [`Error::Mismatch`] if another rank wants another
    /// size; the device's. After any but [`Error::Usage`] the communicator has failed.
    pub fn alloc_on_device<T: Element>(
        &self,
        stream: &Arc<dyn Stream>,
        count: usize,
    ) -> Result<DeviceBuffer<T>> {
        self.synchronize()?;
        let device = {
            let issued = self.enter()?;
            let attached = issued.attached.as_ref();
            let device = attached.map(|attached| Arc::clone(attached.device()));
            device.ok_or_else(|| Error::Usage("no device is attached: call attach first".into()))?
        };
        let zeros = vec![T::zeroed(); count];
        let buffer = DeviceBuffer::new(&device, stream, &zeros)?;
        let registered = self.register(&device, &buffer);
        registered.inspect_err(|error| self.fail(error))?;
        Ok(buffer)
    }

    fn register<T: Element>(
        &self,
        device: &Arc<dyn Device>,
        buffer: &DeviceBuffer<T>,
    ) -> Result<()> {
        let own = buffer.device_memory();
        let bytes = own.bytes();
        let others = 0..self.world_size();
        let partners = self.links(|links| others.filter(|peer| links.is_mapped(*peer)).collect());
        let partners: Vec<_> = partners.unwrap_or_default();
        let (theirs, published) = self.share(device, Some(own), &partners, bytes, |_| 1)?;
        let mut issued = self.enter()?;
        issued.allocations += 1;
        let registration = Registration {
            number: issued.allocations,
            own: own.clone(),
            theirs,
        };
        if let Some(attached) = &mut issued.attached {
            attached.publish(published);
        }
        drop(issued);
        self.links(|links| links.registered().add(registration));
        // Nobody lends what some rank does not know yet.
        self.barrier()
    }

    fn link(
        &self,
        device: &Arc<dyn Device>,
        segment_bytes: usize,
        paths: Vec<Option<Path>>,
        published: Option<Published>,
    ) -> Result<()> {
        let withdrawals = self.alloc(1)?;
        let mut issued = self.enter()?;
        let Parts {
            runtime,
            group,
            timeout,
            ..
        } = &self.0.parts;
        let farewell = runtime.words(*group, *timeout)?;
        let acknowledgements = runtime.acknowledgements(*group, self.world_size(), *timeout)?;
        let links = DeviceLinks::new(Arc::clone(device), segment_bytes, paths, acknowledgements)?;
        runtime.with_group(*group, |group| group.attach(links));
        issued.attached = Some(Attached::new(device, published, farewell, withdrawals)?);
        Ok(())
    }
}
