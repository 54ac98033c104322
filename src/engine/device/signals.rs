//! Words by which the streams of two ranks hand each other segments without their hosts.
//!
//! Each rank has two words for each peer, in its own host memory, and the peer's streams write
//! them: how many segments the peer has handed over, and how many it has read, since the ranks were
//! linked. A stream is told to wait for a number only after the peer has *told* its own stream to
//! write it, and said so in a message. So whatever is waited for was enqueued somewhere before,
//! and no ring of streams that wait for each other can come about, however far the hosts run ahead.
//!
//! A rank that gives up writes its own words, and its stream goes on over whatever is there. What
//! it hands over from then on is worth nothing, and what others make of that neither: it has said
//! so before in the memory that the ranks of a host share ([`Transport::withdraw`]), and nobody
//! calls anything good, or sends it on, without having looked there.
//!
//! [`Transport::withdraw`]: crate::transport::Transport::withdraw

use crate::device::{Stream, Word};
use crate::error::Result;

/// A number that a peer counts up, and how much of it the own stream has waited for.
#[derive(Debug)]
struct Awaited {
    word: Word,
    count: usize,
}

impl Awaited {
    fn wait(&mut self, stream: &dyn Stream, count: usize) -> Result<()> {
        if count > self.count {
            stream.wait_word(&self.word, truncated(count))?;
            self.count = count;
        }
        Ok(())
    }

    fn is_behind(&self) -> bool {
        self.word.load().wrapping_sub(truncated(self.count)) > i32::MAX as u32
    }

    fn release(&self) {
        if self.is_behind() {
            self.word.store(truncated(self.count));
        }
    }
}

/// Words are compared as if on a circle, and far fewer than half of it are ever under way.
fn truncated(count: usize) -> u32 {
    count as u32
}

/// The words of one link.
#[derive(Debug)]
pub struct Signals {
    handed_over: Awaited,
    read: Awaited,
    tells_handed_over: Word,
    tells_read: Word,
}

impl Signals {
    /// Words that a rank needs for each peer.
    pub const WORDS: usize = 2;

    /// Words of a link, in this order: how many segments the peer has handed over, and how many it
    /// has read; all 0.
    #[must_use]
    pub fn new(own: [Word; 2], theirs: [Word; 2]) -> Self {
        let [handed_over, read] = own.map(|word| Awaited { word, count: 0 });
        let [tells_handed_over, tells_read] = theirs;
        Self {
            handed_over,
            read,
            tells_handed_over,
            tells_read,
        }
    }

    /// What `stream` is told from now on begins when the peer has handed over `count` segments,
    /// all told.
    pub(super) fn wait_for_handed_over(&mut self, stream: &dyn Stream, count: usize) -> Result<()> {
        self.handed_over.wait(stream, count)
    }

    /// The same, when the peer has read as many.
    pub(super) fn wait_for_read(&mut self, stream: &dyn Stream, count: usize) -> Result<()> {
        self.read.wait(stream, count)
    }

    /// When `stream` has done what it was told so far, the peer sees that `count` segments are
    /// handed over.
    pub(super) fn tell_handed_over(&self, stream: &dyn Stream, count: usize) -> Result<()> {
        stream.write_word(&self.tells_handed_over, truncated(count))
    }

    /// The same, that as many are read.
    pub(super) fn tell_read(&self, stream: &dyn Stream, count: usize) -> Result<()> {
        stream.write_word(&self.tells_read, truncated(count))
    }

    /// Whether the peer has not done yet what the own stream was told to wait for.
    pub(super) fn is_behind(&self) -> bool {
        self.handed_over.is_behind() || self.read.is_behind()
    }

    /// Lets the own stream go on, as far as the peer's stream does not write a smaller number over
    /// it: so until it has, again and again.
    pub(super) fn release(&self) {
        self.handed_over.release();
        self.read.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::device::fake::Fake;

    #[test]
    fn a_peer_that_is_behind_is_seen_around_the_circle() {
        let device = Fake::new();
        let (own, theirs) = (device.words(2).unwrap(), device.words(2).unwrap());
        let both = |words: &crate::device::Words| [0, 1].map(|at| words.word(at).unwrap());
        let stream = device.stream().unwrap();
        let mut signals = Signals::new(both(&own), both(&theirs));
        assert!(!signals.is_behind());
        let far = u32::MAX as usize + 5;
        own.word(0).unwrap().store(u32::MAX - 1);
        signals.wait_for_handed_over(&*stream, far).unwrap();
        assert!(signals.is_behind());
        // What was waited for already needs no second wait.
        signals.wait_for_handed_over(&*stream, far - 3).unwrap();
        let event = device.event().unwrap();
        stream.record(&event).unwrap();
        assert!(!event.is_done().unwrap());
        signals.release();
        stream.synchronize().unwrap();
        assert!(!signals.is_behind());
        assert!(event.is_done().unwrap());
        signals.tell_read(&*stream, far).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(theirs.word(1).unwrap().load(), 4);
        assert_eq!(theirs.word(0).unwrap().load(), 0);
    }
}
