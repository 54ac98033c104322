//! Collectives on device buffers.

use super::buffer::DeviceMemory;
use super::collectives::Ask;
use super::planned::Wanted;
use super::{Communicator, Issued, Parts};
use crate::device::published::{self, Published};
use crate::device::{Device, Exported, HANDLE_BYTES, Memory, Words};
use crate::dtype::Dtype;
use crate::engine::Ticket;
use crate::engine::device::links::{DeviceLinks, Path, SLOTS};
use crate::engine::device::{Gate, OnDevice};
use crate::engine::posting::Posting;
use crate::error::{Error, Result};
use crate::limits::{DEVICE_CALLS_MAX, DEVICE_SEGMENT_BYTES};
use crate::plan::on_device::FAN_IN_MAX;
use crate::plan::spec::Algorithm;
use std::collections::VecDeque;
use std::sync::Arc;

/// What a communicator has of its device.
pub(super) struct Attached {
    device: Arc<dyn Device>,
    /// What users' streams wait for, in turns.
    words: Words,
    /// What is under way, oldest first.
    tickets: VecDeque<Ticket>,
    _published: Option<Published>,
}

/// What a rank tells the others of its device.
const RECORD_BYTES: usize = 1 + 16 + HANDLE_BYTES + 8 + 8;

/// A rank's device, as the others must know it.
struct Record {
    unique_id: [u8; 16],
    segment_bytes: u64,
    /// The slots that peers on the same GPU may map.
    exported: Option<Exported>,
}

impl Record {
    fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[1..17].copy_from_slice(&self.unique_id);
        bytes[17..25].copy_from_slice(&self.segment_bytes.to_le_bytes());
        if let Some(exported) = &self.exported {
            bytes[0] = 1;
            bytes[25..33].copy_from_slice(&exported.offset.to_le_bytes());
            bytes[33..].copy_from_slice(&exported.handle);
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
        unique_id.copy_from_slice(&bytes[1..17]);
        let mut handle = [0; HANDLE_BYTES];
        handle.copy_from_slice(&bytes[33..RECORD_BYTES]);
        Self {
            unique_id,
            segment_bytes: word(17),
            exported: (bytes[0] == 1).then(|| Exported {
                handle,
                offset: word(25),
            }),
        }
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
    /// is done, and what that stream is told afterwards begins when it has ended, well or not: after
    /// the communicator's timeout at the latest, or when the job has failed, the stream goes on, and
    /// the buffer's content is unspecified. [`Communicator::synchronize`] says how it ended, and
    /// after a failure so does every later call. Where the device has no word operations, the call
    /// itself waits.
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
    /// # let comm = Communicator::builder().rank(0).world_size(1).rendezvous("127.0.0.1:0").connect();
    /// # rank(&comm.unwrap()).unwrap();
    /// ```
    ///
    /// # Errors
    /// Any of [`Error`]; [`Error::Device`] is the device's. After any but [`Error::Usage`] the
    /// communicator has failed.
    pub fn attach(&self, device: &Arc<dyn Device>) -> Result<()> {
        self.attach_in_segments(device, DEVICE_SEGMENT_BYTES)
    }

    /// As [`Communicator::attach`], with another length of what ranks hand each other at once, a
    /// multiple of 16, the same on all ranks. A slot takes as much memory, and each peer has
    /// several.
    ///
    /// # Errors
    /// As there.
    pub fn attach_in_segments(&self, device: &Arc<dyn Device>, segment_bytes: usize) -> Result<()> {
        if segment_bytes == 0 || !segment_bytes.is_multiple_of(16) {
            let why = format!("segments of {segment_bytes} bytes: a multiple of 16 is needed");
            return Err(Error::Usage(why));
        }
        self.try_attach(device, segment_bytes).inspect_err(|error| {
            if !matches!(error, Error::Usage(_)) {
                self.fail(error);
            }
        })
    }

    fn try_attach(&self, device: &Arc<dyn Device>, segment_bytes: usize) -> Result<()> {
        let (rank, world_size) = (self.rank(), self.world_size());
        let neighbours = self.0.parts.runtime.neighbours();
        let row_bytes = SLOTS * segment_bytes;
        let own = match neighbours.len() {
            0 | 1 => None,
            places => Some(device.allocate(places * row_bytes)?),
        };
        let exported = own.as_ref().map(|own| device.export(own)).transpose()?;
        let record = Record {
            unique_id: device.description().unique_id,
            segment_bytes: segment_bytes as u64,
            exported,
        };
        let published = own.as_ref().zip(record.exported.as_ref());
        let published = published.map(|(own, exported)| Published::new(exported, own));
        let mut records = vec![0; world_size * RECORD_BYTES];
        records[rank * RECORD_BYTES..][..RECORD_BYTES].copy_from_slice(&record.encode());
        self.all_gather(&mut records)?;
        let records: Vec<_> = records.chunks(RECORD_BYTES).map(Record::decode).collect();
        if let Some(other) = records
            .iter()
            .position(|one| one.segment_bytes != segment_bytes as u64)
        {
            return Err(Error::Mismatch(format!(
                "rank {rank} attaches its device in segments of {segment_bytes} bytes, rank \
                 {other} of {}",
                records[other].segment_bytes
            )));
        }
        let is_near = |peer: &usize| {
            *peer != rank
                && neighbours.contains(peer)
                && records[*peer].unique_id == record.unique_id
        };
        let memory_bytes = neighbours.len() * row_bytes;
        let theirs = (0..world_size).map(|peer| {
            let exported = records[peer].exported.as_ref().filter(|_| is_near(&peer));
            let exported = exported?;
            published::find(exported).or_else(|| device.import(exported, memory_bytes).ok())
        });
        let theirs: Vec<Option<Memory>> = theirs.collect();
        let mapped = self.agreed(&theirs)?;
        let place = |rank: usize| neighbours.iter().position(|each| *each == rank);
        let row = |memory: &Memory, of: usize| {
            let place = place(of).ok_or_else(|| Error::Usage("no neighbour".into()))?;
            memory.span(place * row_bytes, row_bytes)
        };
        let path = |peer: usize| -> Result<Option<Path>> {
            Ok(match (&own, &theirs[peer]) {
                _ if peer == rank => None,
                (Some(own), Some(theirs)) if mapped[peer] => Some(Path::Mapped {
                    own: row(own, peer)?,
                    theirs: row(theirs, rank)?,
                }),
                _ => Some(Path::Staged),
            })
        };
        let paths = (0..world_size).map(path).collect::<Result<_>>()?;
        self.link(device, segment_bytes, paths, published)?;
        // Nobody hands over what some rank cannot take yet.
        self.barrier()
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
        issued.attached = Some(Attached {
            device: Arc::clone(device),
            words: device.words(DEVICE_CALLS_MAX)?,
            tickets: VecDeque::new(),
            _published: published,
        });
        Ok(())
    }

    /// Waits until all collectives on device buffers have ended, and says how.
    ///
    /// # Errors
    /// The first cause, if any of them failed.
    pub fn synchronize(&self) -> Result<()> {
        let mut issued = self.enter()?;
        match &mut issued.attached {
            Some(attached) => self.drain(attached, 0),
            None => Ok(()),
        }
    }

    /// Waits until at most `most` collectives on devices are under way.
    fn drain(&self, attached: &mut Attached, most: usize) -> Result<()> {
        let runtime = &self.0.parts.runtime;
        while attached.tickets.len() > most {
            if let Some(ticket) = attached.tickets.pop_front() {
                runtime.wait(ticket).1?;
            }
        }
        // Those that have ended meanwhile.
        while let Some(ticket) = attached.tickets.front() {
            match runtime.take(*ticket) {
                Some(end) => {
                    attached.tickets.pop_front();
                    end?;
                }
                None => break,
            }
        }
        Ok(())
    }

    /// Starts a collective on device memory.
    pub(super) fn on_device(
        &self,
        issued: &mut Issued,
        ask: Ask,
        dtype: Dtype,
        memory: DeviceMemory,
    ) -> Result<()> {
        let Some(mut attached) = issued.attached.take() else {
            return Err(Error::Usage(
                "the buffer is on a device, but none is attached: call attach first".into(),
            ));
        };
        let done = self.start_on_device(issued, &mut attached, ask, dtype, memory);
        issued.attached = Some(attached);
        // The others have this call before them, or are in it.
        done.inspect_err(|error| {
            if matches!(error, Error::Device(_) | Error::System(_)) {
                self.fail(error);
            }
        })
    }

    fn start_on_device(
        &self,
        issued: &mut Issued,
        attached: &mut Attached,
        ask: Ask,
        dtype: Dtype,
        memory: DeviceMemory,
    ) -> Result<()> {
        let DeviceMemory {
            span,
            count,
            stream,
        } = memory;
        stream.refuse_capture()?;
        let wanted = Wanted {
            on_device: true,
            ..self.wanted(ask, count, dtype)?
        };
        self.drain(attached, DEVICE_CALLS_MAX - 1)?;
        let (sequence, planned) = self.issue(issued, wanted)?;
        let planned = planned.clone();
        let is_wide = matches!(planned.algorithm, Algorithm::Flat | Algorithm::TwoShot);
        if is_wide && self.world_size() > FAN_IN_MAX {
            return Err(Error::Usage(format!(
                "{} folds more than {FAN_IN_MAX} buffers at once with so many ranks, which no \
                 device does; choose another algorithm",
                planned.algorithm
            )));
        }
        self.make_ways(attached, planned.prepared.program.peers())?;
        let ready = attached.device.event()?;
        stream.record(&ready)?;
        let has_words = attached.device.description().word_operations;
        // The low bits tell neighbours apart, as words are compared.
        let value = sequence as u32;
        let word = attached.words.word(sequence as usize % DEVICE_CALLS_MAX)?;
        let gate = has_words.then_some(Gate { word, value });
        if let Some(gate) = &gate {
            stream.wait_word(&gate.word, value)?;
        }
        let on = OnDevice {
            buffer: span,
            dtype,
            op: ask.op,
            ready,
            gate,
        };
        let posting: Posting = planned.owning(sequence, Vec::new(), self.0.parts.timeout);
        let Parts { runtime, group, .. } = &self.0.parts;
        let ticket = runtime.post_on_device(*group, posting, on)?;
        attached.tickets.push_back(ticket);
        if has_words {
            return Ok(());
        }
        self.drain(attached, 0)
    }

    /// Allocates what it takes to reach `peers`, while no stream waits for this host.
    fn make_ways(
        &self,
        attached: &mut Attached,
        peers: impl Iterator<Item = usize> + Clone,
    ) -> Result<()> {
        let Parts { runtime, group, .. } = &self.0.parts;
        let are_made = runtime.with_group(*group, |group| {
            let links = group.device_links();
            links.is_none_or(|links| peers.clone().all(|peer| links.is_made(peer)))
        });
        if are_made.unwrap_or(true) {
            return Ok(());
        }
        self.drain(attached, 0)?;
        let made = runtime.with_group(*group, |group| {
            let Some(links) = group.device_links() else {
                return Ok(());
            };
            peers.map(|peer| links.make(peer)).collect()
        });
        made.unwrap_or(Ok(()))
    }
}
