//! Collectives on device buffers.
//!
//! The buffer is staged: copied to pinned memory of the host in pieces, each of which is an
//! ordinary operation of the engine, and copied back. The caller's thread posts the pieces first
//! and then tells the driver everything (`device::staging`); from there on the engine has all it
//! needs. If the caller's thread is held up in the driver, the engine goes on, and its deadlines
//! end the call.

mod pieces;

use super::buffer::DeviceMemory;
use super::collectives::forced;
use super::{Communicator, Issued, Parts};
use crate::device::Device;
use crate::device::staging::{Lane, Piece, StreamGate, entries};
use crate::dtype::Dtype;
use crate::engine::Ticket;
use crate::engine::bind::Placement;
use crate::engine::cache::{Key, Prepared};
use crate::engine::gate::Gate;
use crate::engine::group::{Memory as HostMemory, Order, Start};
use crate::error::{Error, Result};
use crate::limits::{
    DEVICE_CLOSE_MAX, DEVICE_ENTRIES_MAX, DEVICE_PINNED_BYTES_MAX, DEVICE_SLEEP,
    PROGRAMS_CACHED_MAX,
};
use crate::plan::spec::{Algorithm, Collective};
use crate::protocol::call::{Call, Medium};
use crate::sys::cuda::{Memory, Pinned};
use pieces::Whole;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// What a communicator has of its device.
pub(super) struct Attached {
    device: Device,
    /// None only while it is being dropped.
    lane: Option<Lane>,
    /// What is under way, oldest first.
    rounds: VecDeque<Round>,
    /// How the first call that failed ended.
    failure: Option<Error>,
    cuts: HashMap<Call, Arc<Cut>>,
}

/// A call, cut.
struct Cut {
    rounds: Vec<Vec<Piece>>,
    /// What to run for the pieces, in the order of all rounds.
    prepared: Vec<Arc<Prepared>>,
}

/// Pieces of a call that were begun together.
struct Round {
    number: u32,
    tickets: Vec<Ticket>,
    entries: usize,
    pinned_bytes: usize,
    pinned: Arc<Pinned>,
    /// Kept until the round has ended; leaked if it does not.
    _memory: Memory,
}

/// A piece's gate, as the engine has it.
struct PieceGate(StreamGate);

impl Gate for PieceGate {
    fn is_ready(&self) -> bool {
        self.0.is_ready()
    }

    fn open(&self, _succeeded: bool) {
        // Whether it succeeded is told by the ticket: the stream goes on in any case.
        self.0.open();
    }
}

impl Attached {
    pub(super) fn new(device: &Device) -> Result<Self> {
        Ok(Self {
            device: device.clone(),
            lane: Some(Lane::take(device.gpu())?),
            rounds: VecDeque::new(),
            failure: None,
            cuts: HashMap::new(),
        })
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    fn lane(&mut self) -> &mut Lane {
        self.lane.as_mut().expect("invariant: not dropped")
    }

    fn has_ended(&self, round: u32) -> bool {
        self.lane.as_ref().is_none_or(|lane| lane.has_ended(round))
    }

    /// Lets go of the oldest round, with which everything is through.
    fn retire(&mut self) {
        if let Some(round) = self.rounds.pop_front() {
            round.pinned.give_back(self.device.gpu());
        }
    }

    /// Whether a round more may be begun.
    fn has_room(&self, entries: usize, pinned_bytes: usize) -> bool {
        let under_way = |of: fn(&Round) -> usize| self.rounds.iter().map(of).sum::<usize>();
        under_way(|round| round.entries) + entries <= DEVICE_ENTRIES_MAX
            && under_way(|round| round.pinned_bytes) + pinned_bytes <= DEVICE_PINNED_BYTES_MAX
    }
}

impl Drop for Attached {
    /// All calls have ended, so the streams come to their end, unless the GPU or a user's stream
    /// stands still: then what they use is leaked.
    fn drop(&mut self) {
        let Some(lane) = self.lane.take() else { return };
        let end = Instant::now() + DEVICE_CLOSE_MAX;
        while let Some(round) = self.rounds.pop_front() {
            while !lane.has_ended(round.number) && Instant::now() < end {
                std::thread::sleep(DEVICE_SLEEP);
            }
            if !lane.has_ended(round.number) {
                self.rounds.push_front(round);
                std::mem::forget(std::mem::take(&mut self.rounds));
                std::mem::forget(lane);
                return;
            }
            round.pinned.give_back(self.device.gpu());
        }
        match self.failure {
            // Something may have been enqueued that no round tells of.
            Some(_) => std::mem::forget(lane),
            None => lane.give_back(),
        }
    }
}

impl Communicator {
    /// What device buffers travel over, as `bench` names it: the
    /// [transport](Communicator::transport) of the hosts. Nothing, as long as no device is
    /// attached.
    #[must_use]
    pub fn device_transport(&self) -> Option<String> {
        let issued = self.enter().ok()?;
        issued.attached.as_ref()?;
        Some(self.transport().to_owned())
    }

    /// Which way device buffers go, and why, in one line. Nothing, as long as no device is
    /// attached.
    #[must_use]
    pub fn device_path(&self) -> Option<String> {
        let over = self.device_transport()?;
        Some(format!(
            "staged: through pinned memory of the hosts, over {over}; the way through GPUs' memory \
             is not built"
        ))
    }

    /// Waits until all collectives on device buffers have ended, and their results are in place;
    /// says how they ended.
    ///
    /// # Errors
    /// The first error, if any of them failed.
    pub fn synchronize(&self) -> Result<()> {
        let mut issued = self.enter()?;
        match &mut issued.attached {
            Some(attached) => self.settle(attached, |attached| attached.rounds.is_empty()),
            None => Ok(()),
        }
    }

    /// Waits for the oldest rounds until it `is_enough`, and lets go of those that have ended;
    /// tells of a call that failed every time.
    fn settle(&self, attached: &mut Attached, is_enough: impl Fn(&Attached) -> bool) -> Result<()> {
        if let Some(failure) = &attached.failure {
            return Err(failure.clone());
        }
        let has_ended = |attached: &Attached| {
            let oldest = attached.rounds.front();
            oldest.is_some_and(|round| attached.has_ended(round.number))
        };
        while has_ended(attached) || !is_enough(attached) {
            if let Err(error) = self.settle_one(attached) {
                attached.failure = Some(error.clone());
                return Err(error);
            }
        }
        Ok(())
    }

    /// Waits for the oldest round.
    fn settle_one(&self, attached: &mut Attached) -> Result<()> {
        let Parts {
            runtime, timeout, ..
        } = &self.0.parts;
        let Some(round) = attached.rounds.front_mut() else {
            return Ok(());
        };
        let number = round.number;
        for ticket in std::mem::take(&mut round.tickets) {
            runtime.wait(ticket).1?;
        }
        if !runtime.wait_for_stream(|| attached.has_ended(number), *timeout) {
            let error = Error::Deadline(format!(
                "rank {}: the GPU has not copied a result in place within {:.1} s; look at what \
                 else it was told to do",
                self.rank(),
                timeout.as_secs_f64()
            ));
            self.fail(&error);
            return Err(error);
        }
        attached.retire();
        Ok(())
    }

    /// Starts a collective on device memory.
    pub(super) fn on_device(
        &self,
        issued: &mut Issued,
        call: Call,
        memory: DeviceMemory,
    ) -> Result<()> {
        let Some(mut attached) = issued.attached.take() else {
            return Err(Error::Usage(
                "the buffer is on a device, but none is attached: call attach first".into(),
            ));
        };
        let done = self.start_on_device(issued, &mut attached, call, &memory);
        issued.attached = Some(attached);
        done
    }

    fn start_on_device(
        &self,
        issued: &mut Issued,
        attached: &mut Attached,
        call: Call,
        on: &DeviceMemory,
    ) -> Result<()> {
        // What is refused has no number: the others may make another call.
        on.stream.refuse_capture()?;
        on.stream.check_gpu(attached.device.gpu())?;
        self.check_peer("root", call.root)?;
        let call = Call {
            algorithm: forced(issued.algorithm, call),
            medium: Medium::Device,
            ..call
        };
        let cut = self.cut(issued, attached, call)?;
        self.settle(attached, |_| true)?;
        issued.collectives += 1;
        let begun = self.begin(attached, &cut, issued.collectives, on);
        // The others have this call before them, or are in it.
        begun.inspect_err(|error| {
            self.fail(error);
            attached.failure.get_or_insert_with(|| error.clone());
        })
    }

    /// The call, cut as it was before, or anew.
    fn cut(&self, issued: &mut Issued, attached: &mut Attached, call: Call) -> Result<Arc<Cut>> {
        if let Some(cut) = attached.cuts.get(&call) {
            return Ok(Arc::clone(cut));
        }
        let collective = call.collective();
        let rounds = pieces::rounds(&Whole {
            collective: collective.expect("invariant: only collectives are made on devices"),
            count: call.count,
            element_bytes: call.dtype.size(),
            rank: self.rank(),
            world_size: self.world_size(),
            root: call.root,
        });
        // Most pieces are equally long.
        let mut by_count: HashMap<usize, Arc<Prepared>> = HashMap::new();
        let mut prepared: Vec<Arc<Prepared>> = Vec::new();
        for piece in rounds.iter().flatten() {
            if let Some(same) = by_count.get(&piece.count) {
                prepared.push(Arc::clone(same));
                continue;
            }
            let own = issued.cache.get(Key {
                call: Call {
                    count: piece.count,
                    ..call
                },
                placement: Placement::InPlace,
                is_exposed: false,
            })?;
            // All pieces are the one call that the user made.
            let algorithm = prepared.first().map_or(own.call, |first| first.call);
            let whole = Call {
                algorithm: algorithm.algorithm,
                pieces: algorithm.pieces,
                ..call
            };
            let own = Arc::new(Prepared {
                call: whole,
                digest: whole.digest(),
                program: own.program.clone(),
                arithmetic: own.arithmetic,
                predicted_s: own.predicted_s,
            });
            by_count.insert(piece.count, Arc::clone(&own));
            prepared.push(own);
        }
        let cut = Arc::new(Cut { rounds, prepared });
        if attached.cuts.len() >= PROGRAMS_CACHED_MAX {
            attached.cuts.clear();
        }
        attached.cuts.insert(call, Arc::clone(&cut));
        Ok(cut)
    }

    /// Begins all rounds of a call, and has the buffer's stream wait for them.
    fn begin(
        &self,
        attached: &mut Attached,
        cut: &Cut,
        sequence: u64,
        on: &DeviceMemory,
    ) -> Result<()> {
        let mut prepared = cut.prepared.iter();
        let mut begun = Ok(());
        for (nth, pieces) in cut.rounds.iter().enumerate() {
            let bytes = pieces.last().map_or(0, |piece| piece.host_at + piece.bytes);
            let room = |attached: &Attached| {
                attached.rounds.is_empty() || attached.has_room(entries(pieces), bytes)
            };
            begun = self.settle(attached, room).and_then(|()| {
                let pinned = Pinned::take(attached.device.gpu(), bytes)?;
                let tickets = self.post(attached, &mut prepared, sequence, &pinned, pieces)?;
                let lane = attached.lane();
                if nth == 0 {
                    lane.begin(&on.stream)?;
                }
                let number = lane.enqueue(&on.memory, &pinned, pieces)?;
                attached.rounds.push_back(Round {
                    number,
                    tickets,
                    entries: entries(pieces),
                    pinned_bytes: bytes,
                    pinned,
                    _memory: on.memory.clone(),
                });
                Ok(())
            });
            if begun.is_err() {
                break;
            }
        }
        if begun.is_err() {
            // What was enqueued comes before whatever the user does next with the buffer.
            std::mem::forget(on.memory.clone());
            let _ = attached.lane().join(&on.stream);
            return begun;
        }
        attached.lane().join(&on.stream)
    }

    /// Posts the pieces of a round.
    fn post<'a>(
        &self,
        attached: &mut Attached,
        prepared: &mut impl Iterator<Item = &'a Arc<Prepared>>,
        sequence: u64,
        pinned: &Arc<Pinned>,
        pieces: &[Piece],
    ) -> Result<Vec<Ticket>> {
        let Parts {
            runtime,
            group,
            timeout,
            ..
        } = &self.0.parts;
        let mut tickets = Vec::with_capacity(pieces.len());
        for (piece, prepared) in pieces.iter().zip(prepared) {
            let region = pinned.region(piece.host_at, piece.bytes)?;
            let mut start = Start {
                prepared,
                sequence,
                memory: &mut HostMemory::in_place(region),
                timeout: *timeout,
                gate: Some(Box::new(PieceGate(attached.lane().next_gate()))),
            };
            tickets.push(runtime.post(*group, Order::Collectives, &mut start)?);
        }
        Ok(tickets)
    }

    /// As [`Communicator::preview`], of a buffer on a device: what would run for its first piece,
    /// and what all of them are expected to take.
    ///
    /// # Errors
    /// [`Error::Usage`] if `root` is no rank, or another thread is in the communicator.
    pub fn preview_on_device(
        &self,
        collective: Collective,
        count: usize,
        dtype: Dtype,
        root: usize,
    ) -> Result<(Algorithm, f64)> {
        let rounds = pieces::rounds(&Whole {
            collective,
            count,
            element_bytes: dtype.size(),
            rank: self.rank(),
            world_size: self.world_size(),
            root,
        });
        let pieces = rounds.iter().flatten();
        let previews = pieces.map(|piece| self.preview(collective, piece.count, dtype, root));
        let previews: Vec<_> = previews.collect::<Result<_>>()?;
        Ok((previews[0].0, previews.iter().map(|one| one.1).sum()))
    }
}
