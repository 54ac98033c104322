//! A pretended stream: a thread that does what is enqueued, one after another.

use super::{FakeMemory, FakePinned, FakeWords, State};
use crate::device::Stream;
use crate::device::memory::{Completion, Event, PinnedSpan, Span, Word};
use crate::device::orders::{Cast, Fold, check_copy, check_host_copy};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::reduce::Kernel;
use half::{bf16, f16};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// What is done at once by a copy.
const COPY_BYTES: usize = 256 << 10;
/// Looks at a word before the stream sleeps between them.
const WORD_LOOKS: u32 = 200;
/// Between two looks at a word.
const WORD_NAP: Duration = Duration::from_micros(100);
/// The longest pause before an operation.
const PAUSE_MICROSECONDS_MAX: u64 = 400;

/// An operation; what it keeps goes with it when it is done.
type Order = Box<dyn FnOnce() + Send>;

#[derive(Debug)]
pub(super) struct FakeStream {
    state: Arc<State>,
    /// The thread ends when this is gone and everything is done.
    orders: Sender<Order>,
    is_captured: bool,
}

impl FakeStream {
    pub(super) fn new(state: Arc<State>, is_captured: bool) -> Result<Self> {
        let number = state.streams.fetch_add(1, Ordering::Relaxed);
        let mut pauses = state.options.pauses.map(|seed| Pauses::new(seed, number));
        let (orders, enqueued) = channel::<Order>();
        let work = move || {
            for order in enqueued {
                if let Some(pauses) = &mut pauses {
                    thread::sleep(pauses.next());
                }
                order();
            }
        };
        let builder = thread::Builder::new().name(format!("fake stream {number}"));
        let spawned = builder.spawn(work);
        spawned.map_err(|error| Error::system("a thread for a pretended stream", &error))?;
        Ok(Self {
            state,
            orders,
            is_captured,
        })
    }

    fn enqueue(&self, order: impl FnOnce() + Send + 'static) -> Result<()> {
        let sent = self.orders.send(Box::new(order));
        sent.map_err(|_| Error::Device("a pretended stream's thread is gone".into()))
    }

    fn part(&self, span: &Span) -> Result<Part> {
        let memory = span.memory().backing::<FakeMemory>()?;
        if memory.unique_id != self.state.description.unique_id {
            return Err(Error::Usage("the memory is on another GPU".into()));
        }
        let (at, bytes) = (span.offset(), span.bytes());
        Ok(Part { memory, at, bytes })
    }

    fn parts(&self, spans: &[Span]) -> Result<Vec<Part>> {
        spans.iter().map(|span| self.part(span)).collect()
    }
}

/// A span, as the stream's thread takes it.
struct Part {
    memory: Arc<FakeMemory>,
    at: usize,
    bytes: usize,
}

impl Part {
    fn read(&self) -> Vec<u8> {
        self.memory.check();
        let mut bytes = vec![0; self.bytes];
        self.memory.pages.read(self.at, &mut bytes);
        bytes
    }

    fn write(&self, bytes: &[u8]) {
        self.memory.pages.write(self.at, bytes);
    }
}

impl Stream for FakeStream {
    fn copy(&self, from: &Span, to: &Span) -> Result<()> {
        check_copy(from, to)?;
        let (from, to) = (self.part(from)?, self.part(to)?);
        self.enqueue(move || {
            from.memory.check();
            let mut through = vec![0; COPY_BYTES.min(from.bytes)];
            for start in (0..from.bytes).step_by(COPY_BYTES) {
                let through = &mut through[..COPY_BYTES.min(from.bytes - start)];
                from.memory.pages.read(from.at + start, through);
                to.memory.pages.write(to.at + start, through);
            }
        })
    }

    fn copy_to_host(&self, from: &Span, to: &PinnedSpan) -> Result<()> {
        check_host_copy(to, from)?;
        let from = self.part(from)?;
        let (pinned, at) = (to.backing::<FakePinned>()?, to.offset());
        self.enqueue(move || {
            let mut bytes = pinned.lock();
            from.memory
                .pages
                .read(from.at, &mut bytes[at..][..from.bytes]);
        })
    }

    fn copy_from_host(&self, from: &PinnedSpan, to: &Span) -> Result<()> {
        check_host_copy(from, to)?;
        let to = self.part(to)?;
        let (pinned, at) = (from.backing::<FakePinned>()?, from.offset());
        self.enqueue(move || to.write(&pinned.lock()[at..][..to.bytes]))
    }

    fn fold(&self, fold: &Fold<'_>) -> Result<()> {
        let kernel = Kernel::new(fold.dtype(), fold.op());
        let kernel = kernel.expect("invariant: a fold's operator is defined for its type");
        let operands = self.parts(fold.operands())?;
        let destinations = self.parts(fold.destinations())?;
        let mut spans = fold.operands().iter().chain(fold.destinations());
        let first = fold.destinations()[0].offset() % 16;
        if spans.any(|span| span.offset() % 16 != first) {
            self.state.crooked_folds.fetch_add(1, Ordering::Relaxed);
        }
        let divisor = fold.divisor();
        let planted = self.state.options.faults.skip_fold;
        if State::is_faulty(&self.state.folds, planted) {
            return Ok(());
        }
        self.enqueue(move || {
            let sources: Vec<_> = operands.iter().map(Part::read).collect();
            let sources: Vec<_> = sources.iter().map(Vec::as_slice).collect();
            let mut result = vec![0; operands[0].bytes];
            kernel.fold(&mut result, None, &sources, divisor);
            for destination in destinations {
                destination.write(&result);
            }
        })
    }

    fn cast(&self, cast: &Cast<'_>) -> Result<()> {
        let ((from, from_dtype), (to, to_dtype)) = (cast.from(), cast.to());
        let (from, to) = (self.part(from)?, self.part(to)?);
        let scale = cast.scale();
        self.enqueue(move || {
            let from = from.read();
            to.write(&converted(&from, from_dtype, to_dtype, scale));
        })
    }

    fn record(&self, event: &Event) -> Result<()> {
        let event = event.backing::<FakeEvent>()?;
        let point = Arc::new(Point::default());
        *event.lock() = Some(point.clone());
        self.enqueue(move || point.reach())
    }

    fn wait(&self, event: &Event) -> Result<()> {
        let event = event.backing::<FakeEvent>()?;
        let point = event.lock().clone();
        let planted = self.state.options.faults.skip_wait;
        if State::is_faulty(&self.state.waits, planted) {
            return Ok(());
        }
        let Some(point) = point else {
            return Ok(());
        };
        self.enqueue(move || point.wait())
    }

    fn write_word(&self, word: &Word, value: u32) -> Result<()> {
        self.state.check_word_operations()?;
        let (words, at) = (word.backing::<FakeWords>()?, word.at());
        self.enqueue(move || words.shared.store(at, value))
    }

    fn wait_word(&self, word: &Word, value: u32) -> Result<()> {
        self.state.check_word_operations()?;
        let (words, at) = (word.backing::<FakeWords>()?, word.at());
        let planted = self.state.options.faults.skip_wait;
        if State::is_faulty(&self.state.waits, planted) {
            return Ok(());
        }
        let state = self.state.clone();
        state.waiting.fetch_add(1, Ordering::SeqCst);
        self.enqueue(move || {
            let mut looks = 0;
            while (words.shared.load(at).wrapping_sub(value)).cast_signed() < 0 {
                looks += 1;
                if looks < WORD_LOOKS {
                    thread::yield_now();
                } else {
                    thread::sleep(WORD_NAP);
                }
            }
            state.waiting.fetch_sub(1, Ordering::SeqCst);
        })
    }

    fn is_captured(&self) -> Result<bool> {
        Ok(self.is_captured)
    }

    fn synchronize(&self) -> Result<()> {
        let point = Arc::new(Point::default());
        let reached = point.clone();
        self.enqueue(move || reached.reach())?;
        point.wait();
        Ok(())
    }
}

/// The elements of `from`, in the other type. As on a GPU, every NaN becomes the canonical one.
fn converted(from: &[u8], from_dtype: Dtype, to_dtype: Dtype, scale: f32) -> Vec<u8> {
    let mut result = Vec::with_capacity(from.len() * 2);
    for element in from.chunks_exact(from_dtype.size()) {
        let wide = match (from_dtype, element) {
            (Dtype::F16, &[low, high]) => f16::from_le_bytes([low, high]).to_f32(),
            (Dtype::Bf16, &[low, high]) => bf16::from_le_bytes([low, high]).to_f32(),
            _ => f32::from_le_bytes(element.try_into().expect("invariant: four bytes")),
        };
        let wide = match wide * scale {
            product if product.is_nan() => f32::NAN,
            product => product,
        };
        match to_dtype {
            Dtype::F16 => result.extend(f16::from_f32(wide).to_le_bytes()),
            Dtype::Bf16 => result.extend(bf16::from_f32(wide).to_le_bytes()),
            _ => result.extend(wide.to_le_bytes()),
        }
    }
    result
}

/// One recording of an event.
#[derive(Debug, Default)]
struct Point {
    is_reached: Mutex<bool>,
    reached: Condvar,
}

impl Point {
    fn reach(&self) {
        *self
            .is_reached
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
        self.reached.notify_all();
    }

    fn wait(&self) {
        let is_reached = self.is_reached.lock();
        let is_reached = is_reached.unwrap_or_else(PoisonError::into_inner);
        let waited = self.reached.wait_while(is_reached, |reached| !*reached);
        drop(waited);
    }
}

/// The latest recording.
#[derive(Debug, Default)]
pub(super) struct FakeEvent {
    latest: Mutex<Option<Arc<Point>>>,
}

impl FakeEvent {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<Point>>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Completion for FakeEvent {
    fn is_done(&self) -> Result<bool> {
        let is_reached = |point: &Arc<Point>| {
            let is_reached = point.is_reached.lock();
            *is_reached.unwrap_or_else(PoisonError::into_inner)
        };
        Ok(self.lock().as_ref().is_none_or(is_reached))
    }
}

/// Pauses, one after another (the generator is SplitMix64, by G. L. Steele, D. Lea and C. H.
/// Flood, 2014). One in four operations has one.
struct Pauses {
    state: u64,
}

impl Pauses {
    fn new(seed: u64, stream: u64) -> Self {
        let state = seed ^ stream.wrapping_mul(0xd6e8_feb8_6659_fd93);
        Self { state }
    }

    fn next(&mut self) -> Duration {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let microseconds = (mixed >> 8) % PAUSE_MICROSECONDS_MAX;
        Duration::from_micros(if mixed.is_multiple_of(4) {
            microseconds
        } else {
            0
        })
    }
}
