//! Giving a communicator a device.

use super::device_buffer::DeviceBuffer;
use super::on_device::Attached;
use super::{Communicator, Parts};
use crate::device::published::{self, Published};
use crate::device::{Device, Exported, HANDLE_BYTES, Memory, Span, Stream, Words};
use crate::dtype::Element;
use crate::engine::device::links::{DeviceLinks, Path, SLOTS};
use crate::engine::device::registered::Registration;
use crate::engine::device::signals::Signals;
use crate::error::{Error, Result};
use crate::limits::DEVICE_SEGMENT_BYTES;
use std::sync::Arc;

/// What a rank tells the others of its device.
const RECORD_BYTES: usize = 3 + 16 + HANDLE_BYTES + 8 + 8;

/// How the ranks of a communicator use their devices together; the same on all ranks.
///
/// ```
/// use ringtree::comm::attach::AttachOptions;
/// use ringtree::device::{Device, fake::Fake};
/// use std::sync::Arc;
///
/// let ends = ringtree::simulate(2, |comm| {
///     let device: Arc<dyn Device> = Arc::new(Fake::new());
///     comm.attach_with(&device, AttachOptions::new().segment_bytes(1 << 20))
/// });
/// assert_eq!(ends, [Ok(()), Ok(())]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachOptions {
    segment_bytes: usize,
    hand_over: HandOver,
}

/// By whom a rank is told that a segment is in the GPU's memory, or was read there, where two ranks
/// share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandOver {
    /// By their hosts, which look at events and send each other messages. Streams of the library
    /// wait for nobody.
    #[default]
    Hosts,
    /// By their streams, which write words in the other's host memory and wait for their own. The
    /// hosts run ahead and only see the end. This takes devices with word operations; and a
    /// stream that waits keeps those of its process waiting that the driver puts in the same queue
    /// of the GPU.
    Streams,
}

impl AttachOptions {
    /// What [`Communicator::attach`] uses.
    #[must_use]
    pub fn new() -> Self {
        Self {
            segment_bytes: DEVICE_SEGMENT_BYTES,
            hand_over: HandOver::Hosts,
        }
    }

    /// By whom ranks on one GPU hand each other segments.
    #[must_use]
    pub fn hand_over(mut self, by: HandOver) -> Self {
        self.hand_over = by;
        self
    }

    /// How much ranks hand each other at once: a multiple of 16. A slot takes as much memory, and
    /// each peer has several.
    #[must_use]
    pub fn segment_bytes(mut self, bytes: usize) -> Self {
        self.segment_bytes = bytes;
        self
    }

    fn check(self) -> Result<()> {
        let bytes = self.segment_bytes;
        if bytes == 0 || !bytes.is_multiple_of(16) {
            let why = format!("segments of {bytes} bytes: a multiple of 16 is needed");
            return Err(Error::Usage(why));
        }
        Ok(())
    }
}

impl Default for AttachOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// A rank's device, as the others must know it.
struct Record {
    unique_id: [u8; 16],
    /// What all ranks must ask for alike: the length of a segment, or of the memory.
    asked: u64,
    hand_over: HandOver,
    /// Whether its streams can wait for words.
    word_operations: bool,
    /// The slots that peers on the same GPU may map.
    exported: Option<Exported>,
}

impl Record {
    fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[1] = u8::from(self.hand_over == HandOver::Streams);
        bytes[2] = u8::from(self.word_operations);
        bytes[3..19].copy_from_slice(&self.unique_id);
        bytes[19..27].copy_from_slice(&self.asked.to_le_bytes());
        if let Some(exported) = &self.exported {
            bytes[0] = 1;
            bytes[27..35].copy_from_slice(&exported.offset.to_le_bytes());
            bytes[35..].copy_from_slice(&exported.handle);
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let mut unique_id = [0; 16];
        unique_id.copy_from_slice(&bytes[3..19]);
        let mut handle = [0; HANDLE_BYTES];
        handle.copy_from_slice(&bytes[35..RECORD_BYTES]);
        Self {
            unique_id,
            asked: word(19),
            hand_over: match bytes[1] {
                0 => HandOver::Hosts,
                _ => HandOver::Streams,
            },
            word_operations: bytes[2] == 1,
            exported: (bytes[0] == 1).then(|| Exported {
                handle,
                offset: word(27),
            }),
        }
    }
}

/// Where the slots of the ranks of a host lie: in each one's memory a row for every other.
struct Slots {
    /// The ranks, ascending.
    neighbours: Vec<usize>,
    row_bytes: usize,
}

impl Slots {
    fn bytes(&self) -> usize {
        self.neighbours.len() * self.row_bytes
    }

    /// Memory for the own slots, where there is anybody to read them.
    fn own(&self, device: &Arc<dyn Device>) -> Result<Option<Memory>> {
        match self.neighbours.len() {
            0 | 1 => Ok(None),
            _ => device.allocate(self.bytes()).map(Some),
        }
    }

    fn place(&self, rank: usize) -> Option<usize> {
        self.neighbours.iter().position(|each| *each == rank)
    }

    /// The row in `memory` that is for `rank`.
    fn row(&self, memory: &Memory, rank: usize) -> Result<Span> {
        let place = self.place(rank).unwrap_or(self.neighbours.len());
        memory.span(place * self.row_bytes, self.row_bytes)
    }
}

impl Communicator {
    /// From now on collectives take buffers on `device` too, in place: all-reduce, broadcast,
    /// reduce, reduce-scatter and all-gather. All ranks call it, each with its device, in the order
    /// of their calls on this communicator. Ranks on one host that use one GPU hand each other
    /// segments in its memory; all others through their hosts, in pinned memory and over whatever
    /// the communicator goes over.
    ///
    /// Such a collective returns at once. It begins when what the buffer's stream was told before
    /// is done, and what that stream is told afterwards begins when it has ended, well or not:
    /// after the communicator's timeout at the latest, or when the job has failed, the stream goes
    /// on, and the buffer's content is unspecified. [`Communicator::synchronize`] says how it
    /// ended, and after a failure so does every later call. Where the device has no word
    /// operations, the call itself waits.
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
        let segment_bytes = options.segment_bytes;
        // What is under way uses the slots that are there so far.
        self.synchronize()?;
        let neighbours = self.0.parts.runtime.neighbours();
        let slots = Slots {
            neighbours,
            row_bytes: SLOTS * segment_bytes,
        };
        let own = slots.own(device)?;
        let (theirs, published) = self.share(
            device,
            own.as_ref(),
            slots.bytes(),
            (segment_bytes as u64, options.hand_over),
        )?;
        let mut signals = match options.hand_over {
            HandOver::Hosts => Vec::new(),
            HandOver::Streams => self.exchange_words(device)?,
        };
        let mut path = |peer: usize| -> Result<Option<Path>> {
            Ok(match (&own, &theirs[peer]) {
                _ if peer == self.rank() => None,
                (Some(own), Some(theirs)) => Some(Path::Mapped {
                    own: slots.row(own, peer)?,
                    theirs: slots.row(theirs, self.rank())?,
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
        self.barrier()
    }

    /// Exports `own`, imports what the others on this GPU have exported, and publishes; what is
    /// returned of a peer is mapped both ways. `asked` must be the same on all ranks.
    fn share(
        &self,
        device: &Arc<dyn Device>,
        own: Option<&Memory>,
        bytes: usize,
        (asked, hand_over): (u64, HandOver),
    ) -> Result<(Vec<Option<Memory>>, Option<Published>)> {
        let record = Record {
            unique_id: device.description().unique_id,
            asked,
            hand_over,
            word_operations: device.description().word_operations,
            exported: own.map(|own| device.export(own)).transpose()?,
        };
        let published = own.zip(record.exported.as_ref());
        let published = published.map(|(own, exported)| Published::new(exported, own));
        let records = self.gather(&record)?;
        let neighbours = self.0.parts.runtime.neighbours();
        let import = |peer: usize| {
            let is_near = peer != self.rank()
                && neighbours.contains(&peer)
                && records[peer].unique_id == record.unique_id;
            let exported = records[peer].exported.as_ref().filter(|_| is_near)?;
            let imported = || device.import(exported, bytes).ok();
            published::find(exported).or_else(imported)
        };
        let theirs: Vec<_> = (0..self.world_size()).map(import).collect();
        let mapped = self.agreed(&theirs)?;
        let both_ways = theirs.into_iter().zip(mapped);
        let theirs = both_ways.map(|(theirs, mapped)| theirs.filter(|_| mapped));
        Ok((theirs.collect(), published))
    }

    /// A buffer like [`DeviceBuffer::new`]'s on the attached device, of `count` zeros, that the
    /// other ranks on the same GPU read where it lies: segments need not be copied into slots, and
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
        // How it is handed over was settled when the device was attached.
        let asked = (bytes as u64, HandOver::Hosts);
        let (theirs, published) = self.share(device, Some(own), bytes, asked)?;
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

    /// All ranks' records.
    fn gather(&self, own: &Record) -> Result<Vec<Record>> {
        let rank = self.rank();
        let mut records = vec![0; self.world_size() * RECORD_BYTES];
        records[rank * RECORD_BYTES..][..RECORD_BYTES].copy_from_slice(&own.encode());
        self.all_gather(&mut records)?;
        let records: Vec<_> = records.chunks(RECORD_BYTES).map(Record::decode).collect();
        let is_other = |one: &Record| one.asked != own.asked;
        if let Some(other) = records.iter().position(is_other) {
            return Err(Error::Mismatch(format!(
                "rank {rank} asks its device for {} bytes (a segment or a buffer), rank {other} \
                 for {}",
                own.asked, records[other].asked
            )));
        }
        if let Some(other) = records
            .iter()
            .position(|one| one.hand_over != own.hand_over)
        {
            return Err(Error::Mismatch(format!(
                "rank {rank} attaches its device with hand-over by {:?}, rank {other} by {:?}",
                own.hand_over, records[other].hand_over
            )));
        }
        let has_none = |one: &Record| own.hand_over == HandOver::Streams && !one.word_operations;
        if let Some(without) = records.iter().position(has_none) {
            return Err(Error::Usage(format!(
                "the streams of rank {without}'s device cannot wait for words; attach it with \
                 HandOver::Hosts"
            )));
        }
        Ok(records)
    }

    /// Words by which the streams of this rank and of those that share its memory wait for each
    /// other; by rank.
    fn exchange_words(&self, device: &Arc<dyn Device>) -> Result<Vec<Option<Signals>>> {
        let Parts {
            runtime,
            group,
            timeout,
            ..
        } = &self.0.parts;
        let neighbours = runtime.neighbours();
        if neighbours.len() < 2 {
            return Ok(Vec::new());
        }
        let own = device.words(neighbours.len() * Signals::WORDS)?;
        let files = runtime.hand_out(*group, own.file(), own.file_bytes(), *timeout)?;
        let place = |rank: usize| {
            let place = neighbours.iter().position(|each| *each == rank);
            place.unwrap_or(neighbours.len()) * Signals::WORDS
        };
        let pair = |words: &Words, at: usize| Ok([words.word(at)?, words.word(at + 1)?]);
        let mut signals: Vec<_> = (0..self.world_size()).map(|_| None).collect();
        for (peer, file) in files {
            let theirs = device.open_words(file)?;
            let both = (pair(&own, place(peer))?, pair(&theirs, place(self.rank()))?);
            signals[peer] = Some(Signals::new(both.0, both.1));
        }
        // Before the next file is handed out.
        self.barrier()?;
        Ok(signals)
    }

    /// Which peers can be read and can read: both ends must know.
    fn agreed(&self, theirs: &[Option<Memory>]) -> Result<Vec<bool>> {
        let (rank, world_size) = (self.rank(), self.world_size());
        let mut maps = vec![0u8; world_size * world_size];
        for (to, theirs) in maps[rank * world_size..].iter_mut().zip(theirs) {
            *to = u8::from(theirs.is_some());
        }
        self.all_gather(&mut maps)?;
        let maps = |rank: usize, peer: usize| maps[rank * world_size + peer] == 1;
        Ok((0..world_size)
            .map(|peer| maps(rank, peer) && maps(peer, rank))
            .collect())
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
        let number = self.next_number(&mut issued)?;
        let Parts {
            runtime,
            group,
            timeout,
            ..
        } = &self.0.parts;
        let acknowledgements = runtime.transport(number, self.world_size(), *timeout)?;
        let links = DeviceLinks::new(Arc::clone(device), segment_bytes, paths, acknowledgements)?;
        runtime.with_group(*group, |group| group.attach(links));
        issued.attached = Some(Attached::new(device, published, withdrawals)?);
        Ok(())
    }
}
