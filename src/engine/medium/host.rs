//! Performs steps on host memory, using links to the peers and kernels that run on the CPU.

use super::{Broken, Medium, Moved, Operands, Part};
use crate::engine::log::Log;
use crate::engine::program::{Arithmetic, Endpoint, Piece, Space, rest};
use crate::limits::SHARED_SEGMENT_BYTES;
use crate::link::shm::exposed::Locator;
use crate::link::shm::local::Local;
use crate::link::shm::ring::INLINE_BYTES;
use crate::link::{Link, LinkError, Message, PARTS_AT_ONCE, Payload};

/// Maximum number of operands whose views are kept on the stack instead of in allocated memory.
const OPERANDS_AT_HAND: usize = 32;

/// A function that creates the link to a peer.
pub(crate) type Connect = Box<dyn FnMut(usize) -> Box<dyn Link> + Send>;

/// A function that creates the resources that the links to the ranks on this host share. It returns
/// `None` if this process lacks a required resource. In that case, the links report the error.
pub(crate) type MakeLocal = Box<dyn FnMut() -> Option<Local> + Send>;

/// A rank's links to the other ranks of its group, for one order of operations.
pub struct Links {
    /// This field is dropped first, so that no peer connects to a rank that is closing its links.
    connect: Connect,
    by_peer: Vec<Option<Box<dyn Link>>>,
    local: Option<Local>,
    /// Creates `local` when it is first needed, if it was not passed when the links were created.
    make_local: Option<MakeLocal>,
    /// `true` if anything was sent or read since the last flush.
    is_unflushed: bool,
}

impl Links {
    /// Creates the set of links to `world_size` ranks. `connect` creates each link when a program
    /// first needs it.
    #[must_use]
    pub fn new(world_size: usize, connect: Connect) -> Self {
        let mut by_peer = Vec::with_capacity(world_size);
        by_peer.resize_with(world_size, || None);
        Self {
            connect,
            by_peer,
            local: None,
            make_local: None,
            is_unflushed: false,
        }
    }

    /// Adds links to the ranks on this host. These links share `local`.
    #[must_use]
    pub fn with_local(mut self, links: crate::link::shm::LocalLinks, local: Local) -> Self {
        for (peer, link) in links {
            self.by_peer[peer] = Some(link);
        }
        self.local = Some(local);
        self
    }

    /// Sets the function that creates the resources that the links to the ranks on this host share.
    /// The function is called when the resources are first needed.
    #[must_use]
    pub fn with_local_later(mut self, make: MakeLocal) -> Self {
        self.make_local = Some(make);
        self
    }

    /// Creates the link to `peer` unless it already exists.
    pub(in crate::engine) fn open(&mut self, peer: usize) {
        if self.by_peer[peer].is_none() {
            self.by_peer[peer] = Some((self.connect)(peer));
            self.make_local();
        }
    }

    /// Returns the resources that the links to the ranks on this host share. Creates them if they
    /// do not exist yet.
    pub fn make_local(&mut self) -> Option<&mut Local> {
        if self.local.is_none() {
            self.local = self.make_local.as_mut().and_then(|make| make());
        }
        self.local.as_mut()
    }

    /// Returns the link to `peer` if it exists.
    pub fn link(&mut self, peer: usize) -> Option<&mut (dyn Link + 'static)> {
        self.by_peer[peer].as_deref_mut()
    }

    /// Returns the maximum number of bytes in a message that the link to `peer` accepts completely.
    #[must_use]
    pub fn capacity(&self, peer: usize) -> usize {
        let link = self.by_peer.get(peer).and_then(Option::as_ref);
        link.map_or(0, |one| one.capacity())
    }

    /// Returns the resources that the links to the ranks on this host share, if they exist.
    pub fn local(&mut self) -> Option<&mut Local> {
        self.local.as_mut()
    }

    /// Sends `data`, which begins at byte `offset` of a message, to every peer in `to`. If
    /// `exposes` is `true` and all peers can read the bytes, exposes them in place instead. Returns
    /// the number of bytes that were sent, which is the same for all peers.
    ///
    /// # Errors
    /// Returns [`Broken`] if a link is broken.
    pub fn send(
        &mut self,
        to: &[Endpoint],
        message: &Message,
        offset: usize,
        data: &[u8],
        exposes: bool,
    ) -> Moved {
        let exposed = exposes.then(|| self.locate(to, data)).flatten();
        self.is_unflushed = true;
        if let ([one], None) = (to, exposed) {
            return self.send_one(*one, message, offset, Payload::Bytes(&[data]));
        }
        let segment_bytes = match &self.local {
            Some(local) => local.segment_bytes(),
            None => SHARED_SEGMENT_BYTES,
        };
        let mut taken = 0;
        while taken < data.len() && self.have_room(to) {
            let bytes = (data.len() - taken).min(segment_bytes);
            let piece = &data[taken..taken + bytes];
            let (mut staged, parts) = (None, [piece]);
            let payload = match (exposed, &mut self.local) {
                (Some(mut locator), _) => {
                    locator.start += taken;
                    locator.bytes = bytes;
                    Payload::Exposed(locator)
                }
                (None, Some(local)) if bytes > INLINE_BYTES => {
                    staged = local.stage(piece, &mut self.by_peer);
                    let Some(staged) = staged else { break };
                    Payload::Staged(staged)
                }
                _ => Payload::Bytes(&parts),
            };
            for one in to {
                self.send_one(*one, message, offset + taken, payload)?;
                if let (Some(staged), Some(local)) = (staged, &mut self.local) {
                    let position = self.by_peer[one.peer]
                        .as_ref()
                        .map_or(0, |one| one.position());
                    local.note_reader(staged, one.peer, position);
                }
            }
            taken += bytes;
        }
        Ok(taken)
    }

    /// Returns the location at which every peer in `to` can read `data`, or `None` if any of them
    /// cannot read it. Peers on other hosts cannot read memory of this host.
    fn locate(&self, to: &[Endpoint], data: &[u8]) -> Option<Locator> {
        let local = self.local.as_ref()?;
        let is_local = |one: &Endpoint| local.peers().any(|peer| peer == one.peer);
        to.iter().all(is_local).then(|| local.locate(data))?
    }

    #[inline]
    fn send_one(
        &mut self,
        to: Endpoint,
        message: &Message,
        offset: usize,
        payload: Payload<'_>,
    ) -> Moved {
        let message = Message {
            number: to.number,
            ..*message
        };
        match &mut self.by_peer[to.peer] {
            Some(link) => broken_by(to.peer, link.send(&message, offset, payload)),
            None => Ok(0),
        }
    }

    fn have_room(&mut self, to: &[Endpoint]) -> bool {
        to.iter().all(|one| {
            self.by_peer[one.peer]
                .as_mut()
                .is_some_and(|one| one.has_room())
        })
    }

    /// Stores the bytes of `message` that have arrived, beginning with byte `offset`. Returns the
    /// number of stored bytes.
    ///
    /// # Errors
    /// Returns [`Broken`] if the link is broken, or if the bytes belong to a different call.
    #[inline]
    pub fn receive(
        &mut self,
        peer: usize,
        message: &Message,
        offset: usize,
        into: &mut [u8],
    ) -> Moved {
        self.is_unflushed = true;
        match &mut self.by_peer[peer] {
            Some(link) => broken_by(peer, link.receive(message, offset, into)),
            None => Ok(0),
        }
    }

    /// Wakes sleeping peers on this host to which something was sent.
    #[inline]
    pub fn flush(&mut self) {
        if std::mem::take(&mut self.is_unflushed)
            && let Some(local) = &self.local
        {
            for peer in local.peers() {
                if let Some(link) = &mut self.by_peer[peer] {
                    link.flush();
                }
            }
        }
    }
}

#[inline]
fn broken_by(peer: usize, moved: Result<usize, LinkError>) -> Moved {
    moved.map_err(|error| Broken { peer, error })
}

/// The memory that an operation uses. For an in-place call, `input` is empty and `output` is the
/// call's buffer.
pub(crate) struct Buffers<'a> {
    /// Memory that is only read.
    pub input: &'a [u8],
    /// Memory that is written.
    pub output: &'a mut [u8],
    /// Memory for intermediate results.
    pub scratch: &'a mut [u8],
}

impl Buffers<'_> {
    #[inline]
    fn read(&self, piece: Piece) -> &[u8] {
        let whole = match piece.space {
            Space::Input => self.input,
            Space::Output | Space::Buffer => &*self.output,
            Space::Scratch => &*self.scratch,
        };
        &whole[piece.offset..piece.offset + piece.bytes]
    }

    #[inline]
    fn write(&mut self, piece: Piece) -> &mut [u8] {
        let whole = match piece.space {
            // Programs never write the input.
            Space::Input => &mut [],
            Space::Output | Space::Buffer => &mut *self.output,
            Space::Scratch => &mut *self.scratch,
        };
        &mut whole[piece.offset..piece.offset + piece.bytes]
    }

    /// Splits the memory into `into`, which can be written, and all other memory, which can be
    /// read.
    #[inline]
    fn split(&mut self, into: Piece) -> (&mut [u8], ReadableRest<'_>) {
        let (whole, other) = match into.space {
            Space::Scratch => (&mut *self.scratch, &*self.output),
            _ => (&mut *self.output, &*self.scratch),
        };
        let (before, rest) = whole.split_at_mut(into.offset);
        let (target, after) = rest.split_at_mut(into.bytes);
        let beside = ReadableRest {
            input: self.input,
            other,
            before,
            after,
            into,
        };
        (target, beside)
    }
}

/// The memory that can be read while `into` is being written. This is all memory except `into`.
struct ReadableRest<'a> {
    input: &'a [u8],
    /// Either the output or the scratch, whichever does not contain `into`.
    other: &'a [u8],
    /// The bytes before `into` in the same memory.
    before: &'a [u8],
    /// The bytes after `into` in the same memory.
    after: &'a [u8],
    into: Piece,
}

impl<'a> ReadableRest<'a> {
    /// Returns the bytes of a piece that is disjoint from `into`.
    #[inline]
    fn read(&self, piece: Piece) -> &'a [u8] {
        let is_scratch = |piece: Piece| piece.space == Space::Scratch;
        let end = self.into.offset + self.into.bytes;
        let (whole, start) = if piece.space == Space::Input {
            (self.input, piece.offset)
        } else if is_scratch(piece) != is_scratch(self.into) {
            (self.other, piece.offset)
        } else if piece.offset < end {
            (self.before, piece.offset)
        } else {
            (self.after, piece.offset - end)
        };
        &whole[start..start + piece.bytes]
    }
}

/// The medium for one operation on bytes in host memory.
pub(crate) struct HostMedium<'a> {
    /// Links of the group.
    pub links: &'a mut Links,
    /// Memory that the operation uses.
    pub buffers: Buffers<'a>,
    /// The kernel and the element size.
    pub arithmetic: &'a Arithmetic,
    /// Sequence number of the operation.
    pub sequence: u64,
    /// Digest of the operation's call.
    pub digest: u32,
    /// The log in which steps are recorded, if recording was requested.
    pub log: Option<&'a mut Log>,
}

impl HostMedium<'_> {
    #[inline]
    fn message(&self, number: u32, part: Part) -> Message {
        Message {
            sequence: self.sequence,
            digest: self.digest,
            number,
            bytes: part.message_bytes,
        }
    }

    /// Returns the number of bytes that have arrived from every message, rounded down to complete
    /// elements and limited to `most`.
    #[inline(always)]
    fn arrived(&mut self, from: &[Endpoint], part: Part, most: usize) -> Moved {
        let mut bytes = most;
        for one in from {
            let message = self.message(one.number, part);
            let Some(link) = &mut self.links.by_peer[one.peer] else {
                return Ok(0);
            };
            let visible = broken_by(one.peer, link.fetch(&message, part.offset))?;
            if visible == 0 {
                return Ok(0);
            }
            bytes = bytes.min(visible);
        }
        Ok(bytes - bytes % self.arithmetic.element_bytes)
    }

    /// Consumes `bytes` bytes of every message.
    #[inline(always)]
    fn consume(&mut self, from: &[Endpoint], bytes: usize) -> Moved {
        self.links.is_unflushed = true;
        for one in from {
            if let Some(link) = &mut self.links.by_peer[one.peer] {
                let consumed = link.consume(bytes);
                broken_by(one.peer, consumed.map(|()| bytes))?;
            }
        }
        Ok(bytes)
    }
}

/// Returns the first `bytes` visible bytes of a message.
#[inline]
fn view<'a>(by_peer: &'a [Option<Box<dyn Link>>], from: &Endpoint, bytes: usize) -> &'a [u8] {
    let link = by_peer[from.peer].as_ref();
    link.map_or(&[], |link| link.view(bytes))
}

impl Medium for HostMedium<'_> {
    #[inline]
    fn send(&mut self, to: &[Endpoint], part: Part, piece: Piece, exposes: bool) -> Moved {
        let message = self.message(0, part);
        let data = self.buffers.read(piece);
        self.links.send(to, &message, part.offset, data, exposes)
    }

    fn send_pieces(&mut self, to: Endpoint, part: Part, pieces: &[Piece], bytes: usize) -> Moved {
        let message = self.message(0, part);
        let mut parts = [&[][..]; PARTS_AT_ONCE];
        let (mut used, mut offered) = (0, 0);
        while used < parts.len() && offered < bytes {
            let piece = rest(pieces, part.offset + offered, bytes - offered);
            parts[used] = self.buffers.read(piece);
            (used, offered) = (used + 1, offered + piece.bytes);
        }
        self.links.is_unflushed = true;
        let payload = Payload::Bytes(&parts[..used]);
        self.links.send_one(to, &message, part.offset, payload)
    }

    #[inline]
    fn store(&mut self, from: Endpoint, part: Part, into: Piece) -> Moved {
        let message = self.message(from.number, part);
        let into = self.buffers.write(into);
        self.links.receive(from.peer, &message, part.offset, into)
    }

    #[inline]
    fn reduce(&mut self, operands: Operands<'_>, part: Part, into: Piece) -> Moved {
        let Operands {
            from,
            own,
            completes,
        } = operands;
        let bytes = self.arrived(from, part, into.bytes)?;
        let Some(kernel) = self.arithmetic.kernel.as_ref().filter(|_| bytes > 0) else {
            return Ok(0);
        };
        let divisor = self.arithmetic.divisor.filter(|_| completes);
        let into = self.buffers.write(Piece { bytes, ..into });
        let by_peer = &self.links.by_peer;
        match from {
            [one] => kernel.fold(into, own, &[view(by_peer, one, bytes)], divisor),
            few if few.len() <= OPERANDS_AT_HAND => {
                let mut views = [&[][..]; OPERANDS_AT_HAND];
                for (slot, one) in views.iter_mut().zip(few) {
                    *slot = view(by_peer, one, bytes);
                }
                kernel.fold(into, own, &views[..few.len()], divisor);
            }
            many => {
                let views: Vec<_> = many.iter().map(|one| view(by_peer, one, bytes)).collect();
                kernel.fold(into, own, &views, divisor);
            }
        }
        self.consume(from, bytes)
    }

    fn reduce_from(
        &mut self,
        operands: Operands<'_>,
        own: Piece,
        part: Part,
        into: Piece,
    ) -> Moved {
        let Operands {
            from,
            own: at,
            completes,
        } = operands;
        let bytes = self.arrived(from, part, into.bytes)?;
        let Some(kernel) = self.arithmetic.kernel.as_ref().filter(|_| bytes > 0) else {
            return Ok(0);
        };
        let divisor = self.arithmetic.divisor.filter(|_| completes);
        let first = |piece: Piece| Piece { bytes, ..piece };
        let (into, beside) = self.buffers.split(first(into));
        let own = beside.read(first(own));
        let count = from.len() + 1;
        let (mut few, mut many) = ([&[][..]; OPERANDS_AT_HAND], Vec::new());
        let views = if count <= OPERANDS_AT_HAND {
            &mut few[..count]
        } else {
            many.resize(count, &[][..]);
            &mut many
        };
        let by_peer = &self.links.by_peer;
        let mut peers = from.iter().map(|one| view(by_peer, one, bytes));
        for (place, slot) in views.iter_mut().enumerate() {
            *slot = match at {
                Some(at) if at == place => own,
                _ => peers.next().unwrap_or_default(),
            };
        }
        kernel.fold(into, None, views, divisor);
        self.consume(from, bytes)
    }

    fn copy(&mut self, from: Piece, to: Piece) {
        let (to, beside) = self.buffers.split(to);
        to.copy_from_slice(beside.read(from));
    }

    fn fold(&mut self, from: &[Vec<Piece>], offset: usize, into: Piece, completes: bool) {
        let Some(kernel) = self.arithmetic.kernel.as_ref().filter(|_| into.bytes > 0) else {
            return;
        };
        let divisor = self.arithmetic.divisor.filter(|_| completes);
        let operand = |one: &Vec<Piece>| rest(one, offset, into.bytes);
        let lies_there = |one: &Vec<Piece>| operand(one) == into;
        let own = from.iter().position(lies_there);
        let (target, beside) = self.buffers.split(into);
        let others = from.iter().filter(|one| !lies_there(one));
        let count = from.len() - usize::from(own.is_some());
        let (mut few, mut many) = ([&[][..]; OPERANDS_AT_HAND], Vec::new());
        let views = if count <= OPERANDS_AT_HAND {
            &mut few[..count]
        } else {
            many.resize(count, &[][..]);
            &mut many
        };
        for (slot, one) in views.iter_mut().zip(others) {
            *slot = beside.read(operand(one));
        }
        kernel.fold(target, own, views, divisor);
    }

    #[inline]
    fn is_ready(&self, peer: usize) -> bool {
        self.links.by_peer[peer]
            .as_ref()
            .is_some_and(|one| one.is_ready())
    }

    fn position(&self, peer: usize) -> usize {
        self.links.by_peer[peer]
            .as_ref()
            .map_or(0, |one| one.position())
    }

    #[inline]
    fn is_acknowledged(&mut self, peer: usize, position: usize) -> bool {
        self.links.by_peer[peer]
            .as_mut()
            .is_none_or(|one| one.is_acknowledged(position))
    }

    #[inline]
    fn element_bytes(&self) -> usize {
        self.arithmetic.element_bytes
    }

    #[inline]
    fn flush(&mut self) {
        self.links.flush();
    }

    #[inline]
    fn tries(&mut self) {
        if let Some(log) = &mut self.log {
            log.tries();
        }
    }

    #[inline]
    fn moved(&mut self, step: usize, is_first: bool, is_last: bool) {
        if let Some(log) = &mut self.log {
            log.moved(self.sequence, step, is_first, is_last);
        }
    }
}
