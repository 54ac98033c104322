//! Collectives on device buffers.

use super::buffer::DeviceMemory;
use super::collectives::Ask;
use super::host::Shared;
use super::planned::Wanted;
use super::shared_buffer::SharedBuffer;
use super::{Communicator, Issued, Parts};
use crate::device::published::Published;
use crate::device::{Device, Words};
use crate::dtype::Dtype;
use crate::engine::Ticket;
use crate::engine::device::links::{DeviceLinks, Staging};
use crate::engine::device::{Gate, OnDevice};
use crate::engine::posting::Posting;
use crate::error::{Error, Result};
use crate::limits::DEVICE_CALLS_MAX;
use crate::plan::on_device::FAN_IN_MAX;
use crate::plan::spec::Algorithm;
use std::collections::VecDeque;
use std::sync::Arc;

/// What a communicator has of its device.
pub(super) struct Attached {
    device: Arc<dyn Device>,
    /// What users' streams wait for, in turns.
    words: Words,
    /// How often a stream was told to wait for one of them.
    gates: u32,
    /// What is under way, oldest first.
    tickets: VecDeque<Ticket>,
    /// How the first that failed ended.
    failure: Option<Error>,
    /// What ranks of this process find.
    published: Vec<Published>,
    /// By which the ranks of this host say that they have closed what they mapped.
    farewell: Option<Shared>,
    /// Bears the word by which this rank takes back what it lent.
    _withdrawals: SharedBuffer<u8>,
}

impl Attached {
    /// Nothing is under way yet.
    pub(super) fn new(
        device: &Arc<dyn Device>,
        published: Option<Published>,
        farewell: Option<Shared>,
        withdrawals: SharedBuffer<u8>,
    ) -> Result<Self> {
        Ok(Self {
            device: Arc::clone(device),
            words: device.words(DEVICE_CALLS_MAX)?,
            gates: 0,
            tickets: VecDeque::new(),
            failure: None,
            published: published.into_iter().collect(),
            farewell,
            _withdrawals: withdrawals,
        })
    }

    /// The next gate, closed. Fewer calls are under way than there are words.
    fn gate(&mut self) -> Result<Gate> {
        self.gates = self.gates.wrapping_add(1);
        let value = self.gates;
        let word = self.words.word(value as usize % DEVICE_CALLS_MAX)?;
        // Words are compared as if on a circle, so it must not be too far behind.
        word.store(value.wrapping_sub(1));
        Ok(Gate::new(word, value))
    }

    pub(super) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// What it takes to part with the others, once.
    pub(super) fn farewell(&mut self) -> Option<Shared> {
        self.farewell.take()
    }

    pub(super) fn publish(&mut self, published: Option<Published>) {
        self.published.extend(published);
    }
}

impl Communicator {
    /// What device buffers travel over, as `bench` names it: `cuda` where ranks hand each other
    /// memory of the device, the [transport](Communicator::transport) where it goes through their
    /// hosts, `cuda+tcp` for both. Nothing, as long as no device is attached.
    #[must_use]
    pub fn device_transport(&self) -> Option<String> {
        let Parts { runtime, group, .. } = &self.0.parts;
        let ways = runtime.with_group(*group, |group| {
            group.device_links().map(|links| links.mapped_and_staged())
        });
        Some(match ways.flatten()? {
            (_, 0) => "cuda".to_owned(),
            (0, _) => self.transport().to_owned(),
            _ => format!("cuda+{}", self.transport()),
        })
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

    /// Waits until at most `most` collectives on devices are under way; tells of one that failed
    /// every time.
    fn drain(&self, attached: &mut Attached, most: usize) -> Result<()> {
        if let Some(failure) = &attached.failure {
            return Err(failure.clone());
        }
        let drained = self.wait_until(attached, most);
        attached.failure = drained.clone().err();
        drained
    }

    fn wait_until(&self, attached: &mut Attached, most: usize) -> Result<()> {
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
        let is_registered =
            self.links(|links| links.registered().number_of(span.memory()).is_some());
        let wanted = Wanted {
            on_device: true,
            lends: is_registered.unwrap_or(false),
            ..self.wanted(ask, count, dtype)?
        };
        // Before the call has a number: the others may make another one.
        let algorithm = self
            .plan(&mut issued.planned, issued.algorithm, wanted)?
            .algorithm;
        self.check_fan_in(algorithm)?;
        self.drain(attached, DEVICE_CALLS_MAX - 1)?;
        // A stream of another device is refused before the call has a number.
        let ready = attached.device.event()?;
        stream.record(&ready)?;
        let (sequence, planned) = self.issue(issued, wanted)?;
        let planned = planned.clone();
        self.make_ways(attached, planned.prepared.program.peers())?;
        let has_words = attached.device.description().word_operations;
        let gate = has_words.then(|| attached.gate()).transpose()?;
        if let Some(gate) = &gate {
            gate.close(&*stream)?;
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

    fn check_fan_in(&self, algorithm: Algorithm) -> Result<()> {
        let is_wide = matches!(algorithm, Algorithm::Flat | Algorithm::TwoShot);
        if is_wide && self.world_size() > FAN_IN_MAX {
            return Err(Error::Usage(format!(
                "{algorithm} folds more than {FAN_IN_MAX} buffers at once with so many ranks, \
                 which no device does; choose another algorithm"
            )));
        }
        Ok(())
    }

    /// Does something with the way over devices.
    pub(super) fn links<R>(&self, act: impl FnOnce(&mut DeviceLinks) -> R) -> Option<R> {
        let Parts { runtime, group, .. } = &self.0.parts;
        let done = runtime.with_group(*group, |group| group.device_links().map(act));
        done.flatten()
    }

    /// Allocates what it takes to reach `peers`, while no stream waits for this communicator.
    fn make_ways(&self, attached: &mut Attached, peers: impl Iterator<Item = usize>) -> Result<()> {
        let unmade = self.links(|links| {
            let unmade: Vec<_> = peers.filter(|peer| !links.is_made(*peer)).collect();
            (unmade, links.segment_bytes())
        });
        let Some((unmade, segment_bytes)) = unmade.filter(|(unmade, _)| !unmade.is_empty()) else {
            return Ok(());
        };
        self.drain(attached, 0)?;
        for peer in unmade {
            // With the engine free: allocating may wait for a stream that waits for a call of
            // another communicator, which whoever polls the engine ends.
            let staging = Staging::new(&*attached.device, segment_bytes)?;
            self.links(|links| links.install(peer, staging));
        }
        Ok(())
    }
}
