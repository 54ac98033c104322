//! Runs collectives on device buffers. `docs/internals/gpu.md` describes both paths.
//!
//! - *Mapped*: if all ranks are on one host and their GPUs can read each other's memory, the
//!   caller's thread enqueues the complete collective on the GPU's streams (`device::mapped`).
//! - *Staged*: otherwise, the buffer is copied to pinned host memory in pieces and copied back.
//!   Each piece is an ordinary operation of the engine (`device::staging`).
//!
//! On both paths, the caller's thread posts operations to the engine before it enters the driver,
//! so that the engine has everything that it needs. If the driver blocks the thread, the engine
//! continues to run, and its deadlines end the call.

mod cut;
mod path;
mod pieces;
#[cfg(test)]
mod tests;

use super::buffer::DeviceMemory;
use super::collectives::forced;
use super::{Communicator, Issued, Parts};
use crate::device::Device;
use crate::device::lane::Lane;
use crate::device::mapped::{self, Windows};
use crate::device::staging::Piece;
use crate::dtype::Dtype;
use crate::engine::Ticket;
use crate::engine::cache::Prepared;
use crate::engine::gate::Gate;
use crate::engine::group::{Memory as HostMemory, Order, Start};
use crate::error::{Error, Result};
use crate::limits::{
    DEVICE_CLOSE_MAX, DEVICE_ENTRIES_MAX, DEVICE_GRACE, DEVICE_PINNED_BYTES_MAX, DEVICE_SLEEP,
    PROGRAMS_CACHED_MAX,
};
use crate::plan::{Algorithm, Collective};
use crate::protocol::call::{Call, Medium, Split};
use crate::sys::cuda::{Memory, Pinned};
use crate::sys::memory::Region;
use cut::{Cut, Mapped, Staged};
pub(super) use path::Path;
use pieces::Whole;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

/// A device that is attached to a communicator, with the calls that are in flight on it.
pub(super) struct Attached {
    device: Device,
    /// `None` only while this value is being dropped.
    lane: Option<Lane>,
    path: Path,
    /// Rounds in flight, oldest first.
    rounds: VecDeque<Round>,
    /// Error of the first call that failed.
    failure: Option<Error>,
    /// Results of splitting earlier calls, for reuse.
    cuts: HashMap<Call, Arc<Cut>>,
}

/// Pieces of a call that were enqueued together.
struct Round {
    number: u32,
    /// Timeout of the call.
    timeout: Duration,
    tickets: Vec<Ticket>,
    entries: usize,
    pinned_bytes: usize,
    /// Host memory that staged pieces pass through.
    pinned: Option<Arc<Pinned>>,
    /// The user's memory. It is kept alive until the round has ended, and leaked if the round never
    /// ends.
    _memory: Memory,
}

impl Attached {
    pub(super) fn new(device: &Device, path: Path) -> Result<Self> {
        Ok(Self {
            device: device.clone(),
            lane: Some(Lane::take(device.gpu())?),
            path,
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

    /// Returns the lane, and the windows through which the GPUs read each other's memory.
    fn mapped(&mut self) -> (&mut Lane, &mut Windows) {
        let lane = self.lane.as_mut().expect("invariant: not dropped");
        match &mut self.path {
            Path::Mapped(windows) => (lane, windows),
            Path::Staged(_) => unreachable!("invariant: mapped calls use the mapped path"),
        }
    }

    fn has_ended(&self, round: u32) -> bool {
        self.lane.as_ref().is_none_or(|lane| lane.has_ended(round))
    }

    /// Releases the oldest round, which has ended.
    fn retire(&mut self) {
        let round = self.rounds.pop_front();
        if let Some(pinned) = round.and_then(|round| round.pinned) {
            self.device.gpu().return_pinned(pinned);
        }
    }

    /// Returns `true` if the limits allow another round of this size.
    fn has_room(&self, entries: usize, pinned_bytes: usize) -> bool {
        let under_way = |of: fn(&Round) -> usize| self.rounds.iter().map(of).sum::<usize>();
        under_way(|round| round.entries) + entries <= DEVICE_ENTRIES_MAX
            && under_way(|round| round.pinned_bytes) + pinned_bytes <= DEVICE_PINNED_BYTES_MAX
    }
}

impl Drop for Attached {
    /// Waits at most [`DEVICE_CLOSE_MAX`] for the rounds in flight. All calls have ended, so the
    /// streams finish soon, unless the GPU or a user's stream is stuck. In that case, the memory
    /// that the streams use is leaked.
    fn drop(&mut self) {
        let Some(lane) = self.lane.take() else { return };
        let path = std::mem::replace(&mut self.path, Path::Staged(String::new()));
        let end = Instant::now() + DEVICE_CLOSE_MAX;
        while let Some(round) = self.rounds.front() {
            while !lane.has_ended(round.number) && Instant::now() < end {
                std::thread::sleep(DEVICE_SLEEP);
            }
            if !lane.has_ended(round.number) {
                std::mem::forget((std::mem::take(&mut self.rounds), lane, path));
                return;
            }
            self.retire();
        }
        match self.failure {
            // After a failure, the streams may still have entries that do not belong to any round.
            Some(_) => std::mem::forget((lane, path)),
            None => {
                lane.give_back();
                path.retire();
            }
        }
    }
}

impl Communicator {
    /// Returns the path for device buffers and the reason why it was selected, or `None` if no
    /// device is attached.
    pub(super) fn device_path(&self) -> Option<(&'static str, String)> {
        let issued = self.enter().ok()?;
        Some(match &issued.attached.as_ref()?.path {
            Path::Mapped(_) => ("mapped", "the GPUs read each other's memory".to_owned()),
            Path::Staged(why) => ("staged", why.clone()),
        })
    }

    /// Waits until all collectives on device buffers have ended and their results are in the
    /// buffers.
    ///
    /// # Errors
    /// If a collective has failed, returns the first [error](Communicator#errors).
    pub fn synchronize(&self) -> Result<()> {
        let mut issued = self.enter()?;
        match &mut issued.attached {
            Some(attached) => self.settle(attached, |attached| attached.rounds.is_empty()),
            None => Ok(()),
        }
    }

    /// Waits for rounds, oldest first, until `is_enough` returns `true`. Also releases all rounds
    /// that have ended. Once a call has failed, returns its error every time.
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
        let runtime = self.core.parts.runtime.get()?;
        let Some(round) = attached.rounds.front_mut() else {
            return Ok(());
        };
        let number = round.number;
        for ticket in std::mem::take(&mut round.tickets) {
            runtime.wait(ticket).1?;
        }
        // Only the last round of a mapped call has a ticket, which is that of the call's barrier.
        // If a peer delays an earlier round, the barrier, which was posted before all rounds, fails
        // at its deadline and names the peer.
        let at_most = round.timeout.saturating_add(DEVICE_GRACE);
        if !runtime.wait_for_stream(|| attached.has_ended(number), at_most) {
            let error = Error::deadline(format!(
                "rank {}: the GPU has not completed a collective within {:.1} s; check what other \
                 work was enqueued on it",
                self.rank(),
                at_most.as_secs_f64()
            ));
            let error = error.with_rank(self.rank()).with_elapsed(at_most);
            self.abort(&error);
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
            return Err(Error::usage(
                "the buffer is on a device, but no device is attached; call attach first",
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
        // A call that is rejected here does not get a sequence number, so the ranks can continue
        // with a different call.
        if call.split != Split::Even {
            return Err(Error::usage(
                "device buffers support only an even layout; use host memory for other layouts",
            ));
        }
        if let Some(op) = call.op.filter(|op| op.factor().is_some()) {
            return Err(Error::usage(format!(
                "{op} requires a buffer in host memory; multiply on the device and use sum"
            )));
        }
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
        // The other ranks are waiting for this call or will issue it, so they must get the error.
        begun.inspect_err(|error| {
            self.abort(error);
            attached.failure.get_or_insert_with(|| error.clone());
        })
    }

    /// Splits `call` into rounds. If the same call was split before, returns the cached rounds.
    fn cut(&self, issued: &mut Issued, attached: &mut Attached, call: Call) -> Result<Arc<Cut>> {
        if let Some(cut) = attached.cuts.get(&call) {
            return Ok(Arc::clone(cut));
        }
        let collective = call.collective();
        let whole = Whole {
            collective: collective.expect("invariant: only collectives are made on devices"),
            count: call.count,
            element_bytes: call.dtype.size(),
            rank: self.rank(),
            world_size: self.world_size(),
            root: call.root,
        };
        let is_mapped = matches!(attached.path, Path::Mapped(_));
        let cut = Arc::new(Cut::new(issued, call, &whole, is_mapped)?);
        if attached.cuts.len() >= PROGRAMS_CACHED_MAX {
            attached.cuts.clear();
        }
        attached.cuts.insert(call, Arc::clone(&cut));
        Ok(cut)
    }

    /// Enqueues all rounds of a call, and makes the buffer's stream wait for them.
    fn begin(
        &self,
        attached: &mut Attached,
        cut: &Cut,
        sequence: u64,
        on: &DeviceMemory,
    ) -> Result<()> {
        let begun = match cut {
            Cut::Staged(rounds) => rounds.iter().enumerate().try_for_each(|(nth, round)| {
                self.begin_staged(attached, round, sequence, on, nth == 0)
            }),
            Cut::Mapped(mapped) => self.begin_mapped(attached, mapped, sequence, on),
        };
        // After a failure, entries that were already enqueued may still use the buffer. Therefore,
        // its memory is leaked, and the user's next work on the buffer must wait for these entries.
        if begun.is_err() {
            std::mem::forget(on.memory.clone());
        }
        begun.and(attached.lane().join(&on.stream))
    }

    /// Waits until the limits allow a round of this size or until no round is in flight.
    fn make_room(
        &self,
        attached: &mut Attached,
        entries: usize,
        pinned_bytes: usize,
    ) -> Result<()> {
        self.settle(attached, |attached| {
            attached.rounds.is_empty() || attached.has_room(entries, pinned_bytes)
        })
    }

    fn begin_staged(
        &self,
        attached: &mut Attached,
        round: &Staged,
        sequence: u64,
        on: &DeviceMemory,
        is_first: bool,
    ) -> Result<()> {
        let (entries, pinned_bytes) = (round.entries(), round.pinned_bytes());
        self.make_room(attached, entries, pinned_bytes)?;
        let pinned = attached.device.gpu().take_pinned(pinned_bytes)?;
        let mut tickets = Vec::with_capacity(round.pieces.len());
        for (Piece { host_at, bytes, .. }, prepared) in round.pieces.iter().zip(&round.prepared) {
            let region = pinned.region(*host_at, *bytes)?;
            let gate = attached.lane().next_gate();
            tickets.push(self.post_gated(prepared, sequence, region, Box::new(gate))?);
        }
        let lane = attached.lane();
        if is_first {
            lane.begin(&on.stream)?;
        }
        let number = lane.enqueue(&on.memory, &pinned, &round.pieces)?;
        attached.rounds.push_back(Round {
            timeout: self.timeout,
            number,
            tickets,
            entries,
            pinned_bytes,
            pinned: Some(pinned),
            _memory: on.memory.clone(),
        });
        Ok(())
    }

    fn begin_mapped(
        &self,
        attached: &mut Attached,
        call: &Mapped,
        sequence: u64,
        on: &DeviceMemory,
    ) -> Result<()> {
        let (lane, windows) = attached.mapped();
        let gate = windows.next_gate(lane, call.rounds.len());
        // The operand of a barrier is one byte.
        let region = Region::own(vec![0u8]);
        let ticket = self.post_gated(&call.barrier, sequence, region, Box::new(gate))?;
        lane.begin(&on.stream)?;
        let mut tickets = vec![ticket];
        for (nth, scripts) in call.rounds.iter().enumerate() {
            let entries = mapped::entries(scripts);
            self.make_room(attached, entries, 0)?;
            let (lane, windows) = attached.mapped();
            if windows.is_released() {
                // Late writes by peers may overwrite the released words, so no further entry may
                // wait for those words.
                let runtime = self.core.parts.runtime.get()?;
                let ended = tickets.drain(..).try_for_each(|one| runtime.wait(one).1);
                return ended.and(Err(Error::system("the call has failed")));
            }
            let number = windows.enqueue(lane, &on.memory, scripts, call.reduction)?;
            let is_last = nth + 1 == call.rounds.len();
            attached.rounds.push_back(Round {
                timeout: self.timeout,
                number,
                // The last round gets the barrier's ticket, because the barrier completes the call.
                tickets: tickets.split_off(usize::from(!is_last)),
                entries,
                pinned_bytes: 0,
                pinned: None,
                _memory: on.memory.clone(),
            });
        }
        Ok(())
    }

    /// Posts an operation that begins when its gate is ready.
    fn post_gated(
        &self,
        prepared: &Arc<Prepared>,
        sequence: u64,
        region: Region,
        gate: Box<dyn Gate>,
    ) -> Result<Ticket> {
        let Parts { runtime, group, .. } = &self.core.parts;
        let mut start = Start {
            prepared,
            sequence,
            memory: &mut HostMemory::in_place(region),
            timeout: self.timeout,
            gate: Some(gate),
        };
        runtime.get()?.post(*group, Order::Collectives, &mut start)
    }
}

/// Like [`Communicator::plan_for`], but predicts a call on a device buffer. Returns the
/// algorithm for the first piece and the total predicted time of all pieces, in seconds.
///
/// # Errors
/// Returns an [`Error`] of kind [`ErrorKind::Usage`](crate::ErrorKind::Usage) if `root` is out
/// of range.
pub fn plan_on_device(
    comm: &Communicator,
    collective: Collective,
    count: usize,
    dtype: Dtype,
    root: usize,
) -> Result<(Algorithm, f64)> {
    let rounds = pieces::rounds(&Whole {
        collective,
        count,
        element_bytes: dtype.size(),
        rank: comm.rank(),
        world_size: comm.world_size(),
        root,
    });
    let pieces = rounds.iter().flatten();
    let choices = pieces.map(|piece| comm.plan_for(collective, piece.count, dtype, root));
    let choices: Vec<_> = choices.collect::<Result<_>>()?;
    let whole_s = choices.iter().map(|choice| choice.predicted_s).sum();
    Ok((choices[0].algorithm, whole_s))
}
