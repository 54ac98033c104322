//! Holds a rank's part of a channel's shared memory. The rank's links are created from this part,
//! either all together or one by one, as the peers' regions arrive.

use super::exposed::PeerMemories;
use super::layout::{KERNEL_FENCE, Layout};
use super::local::Local;
use super::ring::{INLINE_BYTES, Receiver, Sender};
use super::{CurrentCell, PayloadSource, SharedLink, Wake};
use crate::limits::LINK_GRACE;
use crate::link::{Link, LinkError, Message, Payload};
use crate::sys::barrier::is_kernel_fencing;
use crate::sys::shared::{OwnBytes, OwnRegion, OwnWords, PeerRegion, ReadWords};
use std::sync::Arc;
use std::time::Duration;

/// The parts from which a rank's links are created.
pub(crate) struct LinkParts {
    layout: Layout,
    channel: (u32, u16),
    /// The ranks that share the memory, in ascending order, including this rank.
    ranks: Vec<usize>,
    /// This rank's place among these ranks.
    place: usize,
    words: OwnWords,
    /// The rows, indexed by place. This rank's own row is for messages to several peers.
    rows: Vec<Option<OwnBytes>>,
    /// The memory that each rank exposes, indexed by place.
    memories: Vec<PeerMemories>,
    wake: Wake,
}

impl LinkParts {
    /// Creates the parts of rank `ranks[place]`, which owns `own`. `ranks` must be in ascending
    /// order. `channel` is the pair `(group, epoch)`.
    #[must_use]
    pub(crate) fn new(
        layout: Layout,
        channel: (u32, u16),
        (ranks, place): (&[usize], usize),
        own: OwnRegion,
        wake: &Wake,
    ) -> Self {
        let (words, rows) = own.into_rows(ranks.len());
        Self {
            layout,
            channel,
            place,
            words,
            rows: rows.into_iter().map(Some).collect(),
            memories: ranks.iter().map(|_| PeerMemories::default()).collect(),
            ranks: ranks.to_vec(),
            wake: Arc::clone(wake),
        }
    }

    fn row(&mut self, place: usize) -> Option<OwnBytes> {
        self.rows.get_mut(place).and_then(Option::take)
    }

    /// Creates the link to `peer`, whose region is `theirs`. Returns `None` if `peer` is not one of
    /// the ranks, or if the link to it has already been created.
    pub(crate) fn link(&mut self, peer: usize, theirs: PeerRegion) -> Option<SharedLink> {
        let (layout, place) = (self.layout, self.place);
        let their_place = self.ranks.iter().position(|each| *each == peer)?;
        let row = self.row(their_place).filter(|_| their_place != place)?;
        // A peer writes this word before it passes on the descriptor of its region.
        let is_kernel_fencing = is_kernel_fencing() && theirs.load(KERNEL_FENCE) == 1;
        Some(SharedLink {
            peer,
            channel: self.channel,
            own: self.words.clone(),
            row,
            theirs,
            sender: Sender::new(layout.ring(their_place), layout.acknowledgement(place)),
            receiver: Receiver::new(layout.ring(place), layout.acknowledgement(their_place)),
            segment_bytes: layout.segment_bytes(),
            slot_next: 0,
            slots: vec![0; layout.row_slots()],
            position: 0,
            their_row: layout.slot(place, 0),
            their_staging: layout.slot(their_place, 0),
            current: CurrentCell {
                bytes: 0,
                taken: 0,
                source: PayloadSource::Inline,
                inline: [0; INLINE_BYTES],
            },
            memories: self.memories[their_place].clone(),
            is_unflushed: false,
            woken: 0,
            is_kernel_fencing,
            wake: Arc::clone(&self.wake),
        })
    }

    /// Creates the state that all links share. Returns `None` if it has already been created.
    pub(crate) fn local(&mut self) -> Option<Local> {
        let row = self.row(self.place)?;
        let peers = self
            .ranks
            .iter()
            .copied()
            .zip(self.memories.iter().cloned());
        let own = self.ranks[self.place];
        let peers = peers.filter(|(peer, _)| *peer != own).collect();
        let segments = (self.layout.row_slots(), self.layout.segment_bytes());
        Some(Local::new(row, segments, peers))
    }
}

/// A function that returns a link, or `None` until the link can be created.
pub(crate) type Source = Box<dyn FnMut() -> Result<Option<SharedLink>, LinkError> + Send>;

/// A [`SharedLink`] that is created when the peer's region arrives. Until then, nothing moves.
pub(crate) struct LaterLink {
    source: Source,
    made: Option<SharedLink>,
}

impl LaterLink {
    /// Creates a link that calls `source` until it returns a [`SharedLink`].
    #[must_use]
    pub(crate) fn new(source: Source) -> Self {
        Self { source, made: None }
    }

    #[inline]
    fn made(&mut self) -> Result<Option<&mut SharedLink>, LinkError> {
        if self.made.is_none() {
            self.made = (self.source)()?;
        }
        Ok(self.made.as_mut())
    }
}

impl Link for LaterLink {
    fn send(
        &mut self,
        message: &Message,
        offset: usize,
        payload: Payload<'_>,
    ) -> Result<usize, LinkError> {
        match self.made()? {
            Some(link) => link.send(message, offset, payload),
            None => Ok(0),
        }
    }

    fn receive(
        &mut self,
        message: &Message,
        offset: usize,
        into: &mut [u8],
    ) -> Result<usize, LinkError> {
        match self.made()? {
            Some(link) => link.receive(message, offset, into),
            None => Ok(0),
        }
    }

    fn fetch(&mut self, message: &Message, offset: usize) -> Result<usize, LinkError> {
        match self.made()? {
            Some(link) => link.fetch(message, offset),
            None => Ok(0),
        }
    }

    fn view(&self, bytes: usize) -> &[u8] {
        self.made.as_ref().map_or(&[], |link| link.view(bytes))
    }

    fn consume(&mut self, bytes: usize) -> Result<(), LinkError> {
        match &mut self.made {
            Some(link) => link.consume(bytes),
            None => Ok(()),
        }
    }

    fn is_ready(&self) -> bool {
        self.made.as_ref().is_none_or(SharedLink::is_ready)
    }

    fn has_arrived(&mut self) -> Result<bool, LinkError> {
        self.made()?.map_or(Ok(false), Link::has_arrived)
    }

    fn drain_time_after_goodbye(&self) -> Option<Duration> {
        let made = self.made.as_ref();
        made.map_or(Some(LINK_GRACE), SharedLink::drain_time_after_goodbye)
    }

    fn capacity(&self) -> usize {
        self.made.as_ref().map_or(0, SharedLink::capacity)
    }

    fn has_room(&mut self) -> bool {
        // Return `true`, so that the caller calls `send`, which reports why the link cannot be
        // created.
        match self.made() {
            Ok(made) => made.is_some_and(SharedLink::has_room),
            Err(_) => true,
        }
    }

    fn position(&self) -> usize {
        self.made.as_ref().map_or(0, SharedLink::position)
    }

    fn is_acknowledged(&mut self, position: usize) -> bool {
        let link = self.made.as_mut();
        link.is_none_or(|link| link.is_acknowledged(position))
    }

    fn flush(&mut self) {
        if let Some(link) = &mut self.made {
            link.flush();
        }
    }
}
