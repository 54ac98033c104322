//! A stream that goes on while a collective runs.

use super::Stream;
use super::memory::{Event, PinnedSpan, Span, Word};
use super::orders::{Cast, Fold};
use crate::error::Result;
use std::sync::Arc;

/// A stream that collectives do not hold back: they begin when what it was told before is done, but
/// what it is told afterwards does not wait for them. So it computes on while gradients travel.
/// Whoever uses the memory again waits at the host first
/// ([`Communicator::synchronize`](crate::Communicator::synchronize)). As no stream stands still,
/// the driver's calls that wait for all streams (freeing memory, loading a kernel for the first
/// time) wait for nobody's word.
///
/// It is told everything else as the stream that it is made of.
///
/// ```
/// use ringtree::comm::device_buffer::DeviceBuffer;
/// use ringtree::device::{Device, Stream, Unheld, fake::Fake};
/// use ringtree::{Communicator, ReduceOp};
/// use std::sync::Arc;
///
/// # fn rank(comm: &Communicator) -> ringtree::Result<()> {
/// let device: Arc<dyn Device> = Arc::new(Fake::new());
/// comm.attach(&device)?;
/// let stream = device.stream()?;
/// let unheld: Arc<dyn Stream> = Arc::new(Unheld::new(Arc::clone(&stream)));
/// let mut gradients = DeviceBuffer::new(&device, &unheld, &[1.0f32; 1000])?;
/// comm.all_reduce(&mut gradients, ReduceOp::Sum)?;
/// // What `stream` is told here is done meanwhile.
/// comm.synchronize()?;
/// assert_eq!(gradients.read()?[0], comm.world_size() as f32);
/// # Ok(()) }
/// # let builder = Communicator::builder().rank(0).world_size(1);
/// # rank(&builder.rendezvous("127.0.0.1:0").connect().unwrap()).unwrap();
/// ```
#[derive(Debug)]
pub struct Unheld {
    stream: Arc<dyn Stream>,
}

impl Unheld {
    /// `stream`, not to be held back.
    #[must_use]
    pub fn new(stream: Arc<dyn Stream>) -> Self {
        Self { stream }
    }
}

impl Stream for Unheld {
    fn copy(&self, from: &Span, to: &Span) -> Result<()> {
        self.stream.copy(from, to)
    }

    fn copy_to_host(&self, from: &Span, to: &PinnedSpan) -> Result<()> {
        self.stream.copy_to_host(from, to)
    }

    fn copy_from_host(&self, from: &PinnedSpan, to: &Span) -> Result<()> {
        self.stream.copy_from_host(from, to)
    }

    fn fold(&self, fold: &Fold<'_>) -> Result<()> {
        self.stream.fold(fold)
    }

    fn cast(&self, cast: &Cast<'_>) -> Result<()> {
        self.stream.cast(cast)
    }

    fn record(&self, event: &Event) -> Result<()> {
        self.stream.record(event)
    }

    fn wait(&self, event: &Event) -> Result<()> {
        self.stream.wait(event)
    }

    fn write_word(&self, word: &Word, value: u32) -> Result<()> {
        self.stream.write_word(word, value)
    }

    /// Waits for nothing: this is how a collective holds a stream back.
    fn wait_word(&self, _: &Word, _: u32) -> Result<()> {
        Ok(())
    }

    fn is_captured(&self) -> Result<bool> {
        self.stream.is_captured()
    }

    fn synchronize(&self) -> Result<()> {
        self.stream.synchronize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, fake::Fake};

    #[test]
    fn it_goes_on_where_its_stream_would_wait() {
        let device = Fake::new();
        let stream = device.stream().unwrap();
        let unheld = Unheld::new(Arc::clone(&stream));
        let words = device.words(1).unwrap();
        let word = words.word(0).unwrap();
        unheld.wait_word(&word, 1).unwrap();
        // Would never return.
        unheld.synchronize().unwrap();
        unheld.write_word(&word, 1).unwrap();
        stream.wait_word(&word, 1).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(word.load(), 1);
    }
}
