//! A link that does as little as its contract allows.

use crate::world::Random;
use ringtree::internal::link::{Link, LinkError, Message, Payload};

/// A link that often accepts nothing, returns only a few whole elements at a time, and is late in
/// reporting that its peer has read data. Like shared memory, it accepts a message completely, and
/// never refuses one after it has promised space for it.
pub(crate) struct Stingy {
    link: Box<dyn Link>,
    has_promised: bool,
    random: Random,
}

impl Stingy {
    pub(crate) fn new(link: Box<dyn Link>, random: Random) -> Self {
        Self {
            link,
            has_promised: false,
            random,
        }
    }

    /// Returns how many of `bytes` bytes to pass on: none, some, or all.
    fn some(&mut self, bytes: usize) -> usize {
        match self.random.below(4) {
            0 => 0,
            1 => bytes,
            _ => self.random.below(bytes + 1) / 8 * 8,
        }
    }
}

type Moved = Result<usize, LinkError>;

impl Link for Stingy {
    fn send(&mut self, message: &Message, offset: usize, payload: Payload<'_>) -> Moved {
        let has_promised = std::mem::take(&mut self.has_promised);
        if !has_promised && self.random.below(2) == 0 {
            return Ok(0);
        }
        self.link.send(message, offset, payload)
    }
    fn receive(&mut self, message: &Message, offset: usize, into: &mut [u8]) -> Moved {
        let bytes = self.some(into.len());
        self.link.receive(message, offset, &mut into[..bytes])
    }
    fn fetch(&mut self, message: &Message, offset: usize) -> Moved {
        let visible = self.link.fetch(message, offset)?;
        Ok(self.some(visible))
    }
    fn view(&self, bytes: usize) -> &[u8] {
        self.link.view(bytes)
    }
    fn consume(&mut self, bytes: usize) -> Result<(), LinkError> {
        self.link.consume(bytes)
    }
    fn is_ready(&self) -> bool {
        self.link.is_ready()
    }
    fn capacity(&self) -> usize {
        self.link.capacity()
    }
    fn has_room(&mut self) -> bool {
        self.has_promised = self.random.below(2) == 0 && self.link.has_room();
        self.has_promised
    }
    fn position(&self) -> usize {
        self.link.position()
    }
    fn is_acknowledged(&mut self, position: usize) -> bool {
        self.random.below(2) == 0 && self.link.is_acknowledged(position)
    }
    fn flush(&mut self) {
        self.link.flush();
    }
}
