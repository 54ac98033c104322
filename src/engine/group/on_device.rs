//! What a group does on its device.

use super::{ChannelKind, Group};
use crate::engine::device::links::{DeviceLinks, Parting};
use crate::engine::device::{DeviceOperation, OnDevice};
use crate::engine::posting::Posting;
use crate::error::{Error, Result};
use std::sync::Arc;

impl Group {
    /// Collectives can be on device buffers from now on.
    pub fn attach(&mut self, links: DeviceLinks) {
        self.collectives.device = Some(links);
    }

    /// Takes the way over devices away, once no call is on it and nothing lent.
    pub fn detach(&mut self) -> Option<DeviceLinks> {
        self.collectives.device.take()
    }

    /// The way over devices, if there is one.
    pub fn device_links(&mut self) -> Option<&mut DeviceLinks> {
        self.collectives.device.as_mut()
    }

    /// Starts a collective on a device's memory; returns its slot.
    pub(in crate::engine) fn post_on_device(
        &mut self,
        posting: Posting,
        on: OnDevice,
    ) -> Result<usize> {
        let made = |peer| {
            let device = self.collectives.device.as_ref();
            device.is_some_and(|links| links.is_made(peer))
        };
        if !posting.prepared.program.peers().all(made) {
            return Err(Error::Usage("no device is attached".into()));
        }
        let Some(links) = &self.collectives.device else {
            return Err(Error::Usage("no device is attached".into()));
        };
        let prepared = Arc::clone(&posting.prepared);
        let operation = DeviceOperation::new(prepared, posting.sequence, on, links);
        let slot = self.post(ChannelKind::Collectives, posting);
        let slot = slot.map_err(|(error, _)| error)?;
        self.collectives.slots[slot].on_device = Some(Box::new(operation));
        Ok(slot)
    }

    /// Whether something is under way on a device.
    pub(in crate::engine) fn awaits_device(&self) -> bool {
        let mut slots = self.collectives.queue.iter();
        slots.any(|slot| self.collectives.slots[*slot].on_device.is_some()) || self.is_draining()
    }

    /// Whether a device's stream has not come to its end since the group failed.
    pub(super) fn is_draining(&self) -> bool {
        let device = self.collectives.device.as_ref();
        device.is_some_and(DeviceLinks::is_draining)
    }

    /// Whether slots are lent to ranks that will give them back.
    pub(super) fn is_lending(&self) -> bool {
        let device = self.collectives.device.as_ref();
        let is_there = |peer: usize| !self.session.is_gone(peer);
        !self.session.is_troubled() && device.is_some_and(|links| links.borrowers().any(is_there))
    }

    /// Lets go of what ranks have of each other's memory, before this one leaves; those that are
    /// gone have nothing any more.
    pub fn part(&mut self) -> Option<Parting> {
        let mut parting = self.collectives.device.as_mut()?.part();
        let session = &self.session;
        parting.readers.retain(|peer| !session.is_gone(*peer));
        Some(parting)
    }

    /// Whether something is wrong.
    #[must_use]
    pub fn is_troubled(&self) -> bool {
        self.session.is_troubled()
    }
}
