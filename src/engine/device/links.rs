//! What the ranks of a group hand each other on their devices, segment by segment.
//!
//! A message goes in segments of a fixed length, each through one of a few *slots* that its link
//! has in this direction, in turns. Where two ranks use one GPU the slots lie on it, in memory that
//! both have mapped: the sender's stream copies a segment in, and when it has, the host sends a
//! few bytes, the *token*; the reader's stream folds it from where it is, and when it has, the host
//! sends a byte back, the *acknowledgement*, on a transport of its own, for it must not queue
//! behind tokens. Elsewhere the slots are pinned host memory, the bytes themselves are sent, and
//! what comes is copied to the device, which folds it there.
//!
//! Memory that the ranks have *registered* is mapped by all that use the GPU. What lies there needs
//! no slot: the message's first token says where it is, the others say nothing, and all of it is
//! read at once.
//!
//! Where streams wait for each other by *signals*, token and acknowledgement are sent as soon as
//! the copy or the fold is enqueued, and mean no more than that: the streams see to the rest.
//!
//! Nothing of this trusts a peer with more than the content of its messages: how many segments come
//! and where they lie follows from the plan.

mod parting;
mod slots;

pub use parting::Parting;
pub(super) use slots::{ALIGNMENT_BYTES, Place};
pub use slots::{SLOTS, Staging, slots_bytes};

use super::registered::{Registered, Token};
use super::signals::Signals;
use crate::device::{Device, Event, Memory, Span, Stream};
use crate::engine::posting::{Broken, Failure};
use crate::error::Result;
use crate::limits::{DEVICE_DRAIN_NAPS, DEVICE_NAP};
use crate::transport::{LinkError, Message, Transport};
use slots::Slots;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// What is said of tokens: nothing but how many.
const ACKNOWLEDGEMENTS: [u8; 64] = [0; 64];

/// The way to a peer.
pub enum Path {
    /// Through memory of the GPU that both use.
    Mapped {
        /// Own slots, which the peer reads.
        own: Span,
        /// The peer's, which this rank reads.
        theirs: Span,
        /// By which the streams wait for each other, if they do.
        signals: Option<Box<Signals>>,
    },
    /// Through the hosts.
    Staged,
}

/// A group's way over its devices.
pub struct DeviceLinks {
    device: Arc<dyn Device>,
    stream: Arc<dyn Stream>,
    segment_bytes: usize,
    links: Vec<Option<Link>>,
    /// Where acknowledgements travel; none for the last moment alone.
    acknowledgements: Option<Box<dyn Transport>>,
    /// Events that nobody uses.
    events: Vec<Event>,
    registered: Registered,
    /// Behind what the stream was told before the ranks gave up.
    drained: Option<Event>,
}

struct Link {
    memory: Slots,
    signals: Option<Box<Signals>>,
    /// Segments taken for sending, and those of them whose slots are free again.
    taken: usize,
    freed: usize,
    /// Tokens sent, of which the acknowledgements are to come, and how many of the first came.
    lent: VecDeque<Message>,
    back: usize,
    /// Segments that came, and those of them that were read.
    arrived: usize,
    read: usize,
    /// What is being read, oldest first.
    reading: VecDeque<Reading>,
}

struct Reading {
    /// The message that the tokens came in, and which of them they are.
    message: Message,
    tokens: Range<usize>,
    /// Done when the segment is read; none where the streams see to that.
    event: Option<Event>,
}

impl DeviceLinks {
    /// Ways to all ranks that `paths` has one to, over `device`, in segments of `segment_bytes`, a
    /// multiple of 16; a mapped way has [`slots_bytes`] each way.
    ///
    /// # Errors
    /// The device's.
    pub fn new(
        device: Arc<dyn Device>,
        segment_bytes: usize,
        paths: Vec<Option<Path>>,
        acknowledgements: Box<dyn Transport>,
    ) -> Result<Self> {
        let link = |path: Path| {
            let (memory, signals) = match path {
                Path::Mapped {
                    own,
                    theirs,
                    signals,
                } => (Slots::Mapped { own, theirs }, signals),
                Path::Staged => (Slots::Unmade, None),
            };
            Link {
                memory,
                signals,
                taken: 0,
                freed: 0,
                lent: VecDeque::new(),
                back: 0,
                arrived: 0,
                read: 0,
                reading: VecDeque::new(),
            }
        };
        Ok(Self {
            stream: device.urgent_stream()?,
            device,
            segment_bytes,
            links: paths.into_iter().map(|path| path.map(link)).collect(),
            acknowledgements: Some(acknowledgements),
            events: Vec::new(),
            registered: Registered::default(),
            drained: None,
        })
    }

    /// Whether nothing must be allocated to reach `peer`.
    #[must_use]
    pub fn is_made(&self, peer: usize) -> bool {
        let link = self.links.get(peer).and_then(Option::as_ref);
        link.is_none_or(|link| !matches!(link.memory, Slots::Unmade))
    }

    /// `peer` is reached through `staging` from now on, if nothing was made for it before.
    pub fn install(&mut self, peer: usize, staging: Staging) {
        if let Some(Some(link)) = self.links.get_mut(peer)
            && matches!(link.memory, Slots::Unmade)
        {
            link.memory = Slots::Staged(staging);
        }
    }

    /// What the ranks have registered.
    pub fn registered(&mut self) -> &mut Registered {
        &mut self.registered
    }

    /// Whether `peer` reads what this rank has registered so.
    pub(super) fn lends(&self, number: u64, peer: usize) -> bool {
        self.is_mapped(peer) && self.registered.theirs(number, peer).is_some()
    }

    /// The bytes that `peer` says a message of `bytes` bytes is.
    pub(super) fn lent(&self, peer: usize, token: Token, bytes: usize) -> Option<Span> {
        let theirs = self.registered.theirs(token.number, peer)?;
        theirs.span(token.start, bytes).ok()
    }

    /// The registration that `memory` is the own part of.
    pub(super) fn number_of(&self, memory: &Memory) -> Option<u64> {
        self.registered.number_of(memory)
    }

    /// Peers whose memory is mapped, and those reached through the hosts.
    #[must_use]
    pub fn mapped_and_staged(&self) -> (usize, usize) {
        let links = self.links.iter().flatten();
        let (mapped, staged): (Vec<&Link>, Vec<&Link>) =
            links.partition(|link| matches!(link.memory, Slots::Mapped { .. }));
        (mapped.len(), staged.len())
    }

    pub(super) fn stream(&self) -> &Arc<dyn Stream> {
        &self.stream
    }

    /// How long segments are.
    #[must_use]
    pub fn segment_bytes(&self) -> usize {
        self.segment_bytes
    }

    /// An event behind all that the stream was told.
    pub(super) fn recorded(&mut self) -> Result<Event> {
        let event = match self.events.pop() {
            Some(event) => event,
            None => self.device.event()?,
        };
        self.stream.record(&event)?;
        Ok(event)
    }

    /// Takes an event back that nobody else has.
    pub(super) fn recycle(&mut self, event: Event) {
        self.events.push(event);
    }

    fn link(&mut self, peer: usize) -> Option<&mut Link> {
        self.links.get_mut(peer)?.as_mut()
    }

    /// Whether `peer` is told of segments, rather than sent them.
    #[must_use]
    pub fn is_mapped(&self, peer: usize) -> bool {
        let link = self.links.get(peer).and_then(Option::as_ref);
        link.is_some_and(|link| matches!(link.memory, Slots::Mapped { .. }))
    }

    /// The next slot for a segment to `peer`, if one is free, or will be when the stream comes to
    /// what it is told next.
    pub(super) fn take_slot(&mut self, peer: usize) -> Result<Option<usize>> {
        let stream = Arc::clone(&self.stream);
        let Some(link) = self.link(peer) else {
            return Ok(None);
        };
        if link.taken - link.freed >= SLOTS {
            return Ok(None);
        }
        link.taken += 1;
        let read_before = link.taken.saturating_sub(SLOTS);
        if let Some(signals) = &mut link.signals {
            signals.wait_for_read(&*stream, read_before)?;
        }
        Ok(Some((link.taken - 1) % SLOTS))
    }

    /// When the stream has done what it was told so far, the segments that were taken for `peer`
    /// can be handed over: the event tells, or the stream itself sees to it.
    pub(super) fn filled(&mut self, peer: usize) -> Result<Option<Event>> {
        if let Some(Some(link)) = self.links.get(peer)
            && let Some(signals) = &link.signals
        {
            signals.tell_handed_over(&*self.stream, link.taken)?;
            return Ok(None);
        }
        self.recorded().map(Some)
    }

    /// Counts a message of so many tokens as sent, which needs no slots.
    pub(super) fn take_none(&mut self, peer: usize, tokens: usize) {
        if let Some(link) = self.link(peer) {
            link.taken += tokens;
        }
    }

    /// Whether all of a message's tokens were acknowledged.
    pub(super) fn is_back(&self, peer: usize, sequence: u64, number: u32) -> bool {
        let link = self.links.get(peer).and_then(Option::as_ref);
        let is_it = |one: &Message| (one.sequence, one.number) == (sequence, number);
        link.is_none_or(|link| !link.lent.iter().any(is_it))
    }

    /// A segment is on its way: its slot is free, or is lent until `token` is acknowledged.
    pub(super) fn sent(&mut self, peer: usize, token: Option<Message>) {
        let Some(link) = self.link(peer) else { return };
        match token {
            None => link.freed += 1,
            Some(token) if link.lent.back() != Some(&token) => link.lent.push_back(token),
            Some(_) => {}
        }
    }

    /// Whether there is room for one more segment from `peer`; then its slot.
    pub(super) fn room(&mut self, peer: usize) -> Option<usize> {
        let link = self.link(peer)?;
        (link.arrived - link.read < SLOTS).then_some(link.arrived % SLOTS)
    }

    /// A segment has come from `peer`; returns how many had before.
    pub(super) fn came(&mut self, peer: usize) -> usize {
        let Some(link) = self.link(peer) else {
            return 0;
        };
        link.arrived += 1;
        link.arrived - 1
    }

    /// The stream is about to be told to read the first `segments` of all that came from `peer`.
    pub(super) fn await_segments(&mut self, peer: usize, segments: usize) -> Result<()> {
        let stream = Arc::clone(&self.stream);
        let signals = self.link(peer).and_then(|link| link.signals.as_mut());
        signals.map_or(Ok(()), |signals| {
            signals.wait_for_handed_over(&*stream, segments)
        })
    }

    /// The stream is about to be told to write over what was lent to `peer`, and which it has given
    /// back.
    pub(super) fn await_readers(&mut self, peer: usize) -> Result<()> {
        let stream = Arc::clone(&self.stream);
        let Some(link) = self.link(peer) else {
            return Ok(());
        };
        let freed = link.freed;
        let signals = link.signals.as_mut();
        signals.map_or(Ok(()), |signals| signals.wait_for_read(&*stream, freed))
    }

    /// Whether the stream waits for this peer's by itself.
    pub(super) fn is_signalled(&self, peer: usize) -> bool {
        let link = self.links.get(peer).and_then(Option::as_ref);
        link.is_some_and(|link| link.signals.is_some())
    }

    /// The peers that this rank's stream waits for.
    pub(in crate::engine) fn behind(&self) -> Vec<usize> {
        let is_behind = |(peer, link): (usize, &Option<Link>)| {
            let signals = link.as_ref()?.signals.as_ref()?;
            signals.is_behind().then_some(peer)
        };
        let links = self.links.iter().enumerate();
        links.filter_map(is_behind).collect()
    }

    pub(super) fn has_signals(&self) -> bool {
        self.signals().next().is_some()
    }

    pub(super) fn world_size(&self) -> usize {
        self.links.len()
    }

    fn signals(&self) -> impl Iterator<Item = &Signals> {
        let links = self.links.iter().flatten();
        links.filter_map(|link| link.signals.as_deref())
    }

    /// The ranks have given up, and what they lend is withdrawn: the stream goes on over whatever
    /// is there, from poll to poll.
    pub(in crate::engine) fn release(&mut self) {
        if !self.has_signals() {
            return;
        }
        if self.drained.is_none() {
            self.drained = self.recorded().ok();
        }
        // Also without an event, since then it is not known that the stream has come to its end.
        if self.drained.is_none() || self.is_draining() {
            self.signals().for_each(Signals::release);
        }
    }

    /// Whether the stream has not yet gone on to the end of what it was told before the ranks gave
    /// up.
    pub(in crate::engine) fn is_draining(&self) -> bool {
        let drained = self.drained.as_ref();
        drained.is_some_and(|event| matches!(event.is_done(), Ok(false)))
    }

    /// The stream was told to read what `tokens` of `message` from `peer` tell of, with which
    /// `segments` are read of all that came. They are acknowledged when `event` is done, or now,
    /// where the streams see to it.
    pub(super) fn reads(
        &mut self,
        peer: usize,
        (message, tokens): (Message, Range<usize>),
        segments: usize,
        event: Option<&Event>,
    ) -> Result<()> {
        let stream = Arc::clone(&self.stream);
        let Some(link) = self.link(peer) else {
            return Ok(());
        };
        let event = match &link.signals {
            Some(signals) => {
                signals.tell_read(&*stream, segments)?;
                None
            }
            None => event.cloned(),
        };
        link.reading.push_back(Reading {
            message,
            tokens,
            event,
        });
        Ok(())
    }

    /// Whether a segment that came from `peer` is still being read.
    pub(super) fn is_reading(&self, peer: usize) -> bool {
        let link = self.links.get(peer).and_then(Option::as_ref);
        link.is_some_and(|link| !link.reading.is_empty())
    }

    /// Sends the acknowledgements that are due, and takes those that have come.
    pub(in crate::engine) fn poll(&mut self) -> std::result::Result<bool, Failure> {
        let Some(acknowledgements) = &mut self.acknowledgements else {
            return Ok(false);
        };
        let mut advanced = false;
        for peer in 0..self.links.len() {
            let Some(link) = &mut self.links[peer] else {
                continue;
            };
            let is_mapped = matches!(link.memory, Slots::Mapped { .. });
            let broken = |error: LinkError| Failure::Link(Broken { peer, error });
            while let Some(reading) = link.reading.front_mut() {
                let event = reading.event.as_ref();
                if !event
                    .map_or(Ok(true), Event::is_done)
                    .map_err(Failure::Own)?
                {
                    break;
                }
                let Range { start, end } = reading.tokens;
                let some = (end - start).min(ACKNOWLEDGEMENTS.len());
                let acknowledged = if is_mapped {
                    let data = &ACKNOWLEDGEMENTS[..some];
                    let message = &reading.message;
                    acknowledgements
                        .send(peer, message, start, data)
                        .map_err(broken)?
                } else {
                    end - start
                };
                if acknowledged == 0 {
                    break;
                }
                link.read += acknowledged;
                reading.tokens.start += acknowledged;
                if reading.tokens.is_empty() {
                    let read = link.reading.pop_front();
                    let event = read.and_then(|reading| reading.event);
                    // The readings of one fold have it in common.
                    self.events.extend(event.filter(Event::is_sole));
                }
                advanced = true;
            }
            while let Some(token) = link.lent.front() {
                let mut bytes = [0; ACKNOWLEDGEMENTS.len()];
                let most = (token.bytes - link.back).min(bytes.len());
                let into = &mut bytes[..most];
                let came = acknowledgements.receive(peer, token, link.back, into);
                let came = came.map_err(broken)?;
                if came == 0 {
                    break;
                }
                advanced = true;
                link.back += came;
                link.freed += came;
                if link.back == token.bytes {
                    link.lent.pop_front();
                    link.back = 0;
                }
            }
        }
        acknowledgements.settle();
        Ok(advanced)
    }
}

impl Drop for DeviceLinks {
    /// Sees the stream dry: what it waits for may never come, and what it reads is freed next.
    fn drop(&mut self) {
        if self.behind().is_empty() && self.drained.is_none() {
            return;
        }
        self.release();
        for _ in 0..DEVICE_DRAIN_NAPS {
            if !self.is_draining() {
                return;
            }
            std::thread::sleep(DEVICE_NAP);
            self.release();
        }
    }
}
