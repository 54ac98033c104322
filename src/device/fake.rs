//! A device pretended in host memory: for tests, for machines without a GPU, and for finding out
//! whether a check finds faults. It is as slow and as strict as it can be:
//!
//! - Each stream is a thread that does its operations in order, with random pauses if asked for,
//!   so that what was not waited for shows as a wrong result.
//! - Its memory is in files without a name, reached by those threads alone. The host gets at it
//!   through pinned memory only.
//! - A handle names this process and a descriptor; another process of the same user opens it
//!   through `/proc` and finds the memory, or an error if it was freed. Nothing is left behind.
//! - As on a GPU, a process cannot import its own memory, and an owner keeps what others have
//!   imported: [`freed_too_early`] counts what was not.

mod stream;

use super::memory::{Event, HostBytes, HostWords, Memory, Pinned, Words};
use super::{Description, Device, Exported, HANDLE_BYTES, Stream};
use crate::error::{Error, Result};
use crate::limits::FAKE_DEVICE_BYTES;
use crate::sys::pages::{SharedBytes, SharedWords};
use rustix::fs::fstat;
use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use stream::{FakeEvent, FakeStream};

/// What a handle begins with.
const HANDLE_MARK: &[u8; 8] = b"rt-fake\n";

/// Longer than any call is held up that others can end.
const ALLOCATING_WAITS_MAX: Duration = Duration::from_secs(10);
/// Between two looks whether streams still wait.
const ALLOCATING_NAP: Duration = Duration::from_micros(100);

/// What goes wrong on purpose, so that a check can be seen to find it. Operations are counted over
/// the device, from 0, in the order in which they are enqueued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// This fold leaves its destinations as they are.
    pub skip_fold: Option<u64>,
    /// This wait, for an event or a word, does not wait.
    pub skip_wait: Option<u64>,
}

static FREED_TOO_EARLY: AtomicU64 = AtomicU64::new(0);

/// How often this process has used or closed another's memory after its owner had freed it.
#[must_use]
pub fn freed_too_early() -> u64 {
    FREED_TOO_EARLY.load(Ordering::Relaxed)
}

/// How a pretended device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Pretended devices of equal number, in whatever process, are one GPU.
    pub gpu: u8,
    /// The other GPUs whose memory it can reach, by their numbers.
    pub peers: &'static [u8],
    /// Pauses before operations, drawn from this seed.
    pub pauses: Option<u64>,
    /// Whether streams can write words and wait for them.
    pub word_operations: bool,
    /// Whether allocating and pinning wait until no stream waits for a word, as a driver's calls
    /// may; in vain for so long that it is clear that nobody will write it, they fail.
    pub allocating_waits: bool,
    /// What goes wrong.
    pub faults: Faults,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            gpu: 0,
            peers: &[],
            pauses: None,
            word_operations: true,
            allocating_waits: false,
            faults: Faults::default(),
        }
    }
}

/// The pretended device; clones are one.
#[derive(Clone, Debug)]
pub struct Fake {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    options: Options,
    description: Description,
    allocated_bytes: AtomicUsize,
    folds: AtomicU64,
    crooked_folds: AtomicU64,
    waits: AtomicU64,
    streams: AtomicU64,
    pins: AtomicU64,
    /// Waits for words that are not over.
    waiting: AtomicUsize,
}

/// The unique id of a pretended GPU.
fn unique_id(gpu: u8) -> [u8; 16] {
    let mut unique_id = *b"ringtree fake  0";
    unique_id[15] = gpu;
    unique_id
}

impl State {
    /// Whether the operation counted by `counter` is the one to go wrong.
    fn is_faulty(counter: &AtomicU64, planted: Option<u64>) -> bool {
        Some(counter.fetch_add(1, Ordering::Relaxed)) == planted
    }

    fn check_word_operations(&self) -> Result<()> {
        if self.options.word_operations {
            return Ok(());
        }
        Err(Error::Device(
            "this pretended device has no word operations".into(),
        ))
    }
}

impl State {
    /// What allocating does first.
    fn wait_for_streams(&self) -> Result<()> {
        let start = Instant::now();
        while self.options.allocating_waits && self.waiting.load(Ordering::SeqCst) > 0 {
            if start.elapsed() > ALLOCATING_WAITS_MAX {
                return Err(Error::Device(
                    "allocating waits for a stream that waits for a word, which nobody writes"
                        .into(),
                ));
            }
            std::thread::sleep(ALLOCATING_NAP);
        }
        Ok(())
    }
}

impl Fake {
    /// A device without pauses or faults.
    #[must_use]
    pub fn new() -> Self {
        Self::with(Options::default())
    }

    /// A device that is as `options` say.
    #[must_use]
    pub fn with(options: Options) -> Self {
        let unique_id = unique_id(options.gpu);
        let description = Description {
            name: "a pretended device in host memory".into(),
            ordinal: usize::from(options.gpu),
            unique_id,
            driver_version: 0,
            memory_bytes: FAKE_DEVICE_BYTES,
            multiprocessors: 1,
            word_operations: options.word_operations,
            word_operations_64_bit: false,
        };
        let state = State {
            options,
            description,
            allocated_bytes: AtomicUsize::new(0),
            folds: AtomicU64::new(0),
            crooked_folds: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            streams: AtomicU64::new(0),
            pins: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
        };
        Self {
            state: Arc::new(state),
        }
    }

    /// Bytes allocated here and not freed yet.
    #[must_use]
    pub fn allocated_bytes(&self) -> usize {
        self.state.allocated_bytes.load(Ordering::SeqCst)
    }

    /// Folds and waits enqueued so far: what [`Faults`] count.
    #[must_use]
    pub fn folds_and_waits(&self) -> (u64, u64) {
        let counters = [&self.state.folds, &self.state.waits];
        let [folds, waits] = counters.map(|counter| counter.load(Ordering::Relaxed));
        (folds, waits)
    }

    /// How often host memory was pinned.
    #[must_use]
    pub fn pins(&self) -> u64 {
        self.state.pins.load(Ordering::Relaxed)
    }

    /// Folds enqueued so far whose buffers do not all lie alike in their 16 bytes, which a GPU does
    /// element by element.
    #[must_use]
    pub fn crooked_folds(&self) -> u64 {
        self.state.crooked_folds.load(Ordering::Relaxed)
    }

    /// A stream that says it is being captured.
    ///
    /// # Errors
    /// [`Error::System`]: no thread.
    pub fn captured_stream(&self) -> Result<Arc<dyn Stream>> {
        Ok(Arc::new(FakeStream::new(self.state.clone(), true)?))
    }
}

impl Default for Fake {
    fn default() -> Self {
        Self::new()
    }
}

impl Device for Fake {
    fn description(&self) -> &Description {
        &self.state.description
    }

    fn allocate(&self, bytes: usize) -> Result<Memory> {
        self.state.wait_for_streams()?;
        let state = self.state.clone();
        let taken = state.allocated_bytes.fetch_add(bytes, Ordering::SeqCst);
        // Made first, so that dropping it takes the bytes off the count again.
        let allocation = Allocation { state, bytes };
        if taken.saturating_add(bytes) > FAKE_DEVICE_BYTES {
            return Err(Error::Device(format!(
                "{bytes} bytes of device memory: {taken} of {FAKE_DEVICE_BYTES} are taken"
            )));
        }
        let pages = SharedBytes::new(bytes + FLAG_BYTES)
            .map_err(|error| Error::system("memory for a pretended device", &error))?;
        // Whoever reads what nobody wrote shall see that it is undefined.
        pages.write(0, &vec![0xa5; bytes]);
        let memory = FakeMemory {
            pages: Arc::new(pages),
            unique_id: self.state.description.unique_id,
            bytes,
            origin: Origin::Own(allocation),
        };
        Ok(Memory::new(Arc::new(memory), bytes))
    }

    fn export(&self, memory: &Memory) -> Result<Exported> {
        let fake = memory.backing::<FakeMemory>()?;
        if !matches!(fake.origin, Origin::Own(_)) {
            return Err(Error::Usage(
                "imported memory is exported by its owner alone".into(),
            ));
        }
        let file = fake.pages.file();
        let parts = [
            u64::from(std::process::id()),
            file.as_raw_fd() as u64,
            inode(&file)?,
            memory.bytes() as u64,
        ];
        let mut handle = [0; HANDLE_BYTES];
        handle[..8].copy_from_slice(HANDLE_MARK);
        for (place, part) in handle[8..].chunks_mut(8).zip(parts) {
            place.copy_from_slice(&part.to_le_bytes());
        }
        // Which GPU it is of.
        handle[40..56].copy_from_slice(&fake.unique_id);
        Ok(Exported { handle, offset: 0 })
    }

    fn import(&self, exported: &Exported, bytes: usize) -> Result<Memory> {
        let refused = |why: &str| Error::Device(format!("a peer's memory: {why}"));
        let handle = &exported.handle;
        if handle[..8] != *HANDLE_MARK || exported.offset != 0 {
            return Err(refused("the handle is none of a pretended device"));
        }
        if !<[u8; 16]>::try_from(&handle[40..56]).is_ok_and(|on| self.can_reach(&on)) {
            return Err(refused("it is on a GPU that this one does not reach"));
        }
        let mut parts = handle[8..40].chunks(8).map(|part| {
            let part = part.try_into().expect("invariant: chunks of eight");
            u64::from_le_bytes(part)
        });
        let mut next = || parts.next().expect("invariant: four parts");
        let (process, descriptor, expected_inode, length) = (next(), next(), next(), next());
        if process == u64::from(std::process::id()) {
            return Err(refused("it is this process's own, which needs no import"));
        }
        if bytes as u64 > length {
            return Err(refused(&format!("{bytes} bytes of {length}")));
        }
        let path = format!("/proc/{process}/fd/{descriptor}");
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let file = opened.map_err(|error| refused(&format!("it is not there: {error}")))?;
        if inode(&file)? != expected_inode {
            return Err(refused("it was freed"));
        }
        let pages =
            SharedBytes::open(OwnedFd::from(file)).map_err(|error| refused(&error.to_string()))?;
        let there = Arc::default();
        let open = Arc::downgrade(&there);
        let memory = FakeMemory {
            pages: Arc::new(pages),
            unique_id: self.state.description.unique_id,
            bytes: length as usize,
            origin: Origin::Imported(there),
        };
        Ok(Memory::imported(Arc::new(memory), bytes, open))
    }

    fn can_reach(&self, other: &[u8; 16]) -> bool {
        let mut peers = self.state.options.peers.iter();
        self.state.description.unique_id == *other || peers.any(|gpu| unique_id(*gpu) == *other)
    }

    fn adopt(&self, memory: &Memory) -> Result<Memory> {
        let unique_id = self.state.description.unique_id;
        let fake = memory.backing::<FakeMemory>()?;
        if fake.unique_id == unique_id {
            return Ok(memory.clone());
        }
        if !self.can_reach(&fake.unique_id) {
            let why = "memory of another device is not reached from this one";
            return Err(Error::Device(why.into()));
        }
        let adopted = FakeMemory {
            pages: fake.pages.clone(),
            unique_id,
            bytes: fake.bytes,
            origin: Origin::Adopted(fake),
        };
        Ok(Memory::new(Arc::new(adopted), memory.bytes()))
    }

    fn pin(&self, bytes: usize) -> Result<Pinned> {
        self.state.wait_for_streams()?;
        self.state.pins.fetch_add(1, Ordering::Relaxed);
        let pinned = FakePinned {
            bytes: Mutex::new(vec![0; bytes]),
        };
        Ok(Pinned::new(Arc::new(pinned), bytes))
    }

    fn words(&self, count: usize) -> Result<Words> {
        self.state.wait_for_streams()?;
        let shared = SharedWords::new(count);
        let shared = shared.map_err(|error| Error::system("words to wait for", &error))?;
        Ok(Words::new(Arc::new(FakeWords { shared })))
    }

    fn open_words(&self, file: OwnedFd) -> Result<Words> {
        let shared = SharedWords::open(file);
        let shared = shared.map_err(|error| Error::system("a peer's words", &error))?;
        Ok(Words::new(Arc::new(FakeWords { shared })))
    }

    fn stream(&self) -> Result<Arc<dyn Stream>> {
        Ok(Arc::new(FakeStream::new(self.state.clone(), false)?))
    }

    fn urgent_stream(&self) -> Result<Arc<dyn Stream>> {
        // Each stream has a thread of its own.
        self.stream()
    }

    fn event(&self) -> Result<Event> {
        Ok(Event::new(Arc::new(FakeEvent::default())))
    }
}

/// By which a file is told from another that later has its number.
fn inode(file: &impl std::os::fd::AsFd) -> Result<u64> {
    let found = fstat(file).map_err(|error| Error::system("memory of a device", &error.into()))?;
    Ok(found.st_ino)
}

/// Bytes counted as taken.
#[derive(Debug)]
struct Allocation {
    state: Arc<State>,
    bytes: usize,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let taken = &self.state.allocated_bytes;
        taken.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

#[derive(Debug)]
struct FakeMemory {
    pages: Arc<SharedBytes>,
    /// Whose streams may use it.
    unique_id: [u8; 16],
    /// Its length. A flag follows, which is set once the owner has freed it.
    bytes: usize,
    origin: Origin,
}

/// Bytes of that flag.
const FLAG_BYTES: usize = 1;

impl FakeMemory {
    /// Before every use.
    fn check(&self) {
        let mut flag = [0; FLAG_BYTES];
        if matches!(self.origin, Origin::Imported(_)) {
            self.pages.read(self.bytes, &mut flag);
        }
        if flag != [0; FLAG_BYTES] {
            FREED_TOO_EARLY.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for FakeMemory {
    fn drop(&mut self) {
        self.check();
        if matches!(self.origin, Origin::Own(_)) {
            self.pages.write(self.bytes, &[1; FLAG_BYTES]);
        }
    }
}

/// How a device came by memory.
#[derive(Debug)]
#[expect(dead_code, reason = "what it holds is there to be dropped")]
enum Origin {
    Own(Allocation),
    /// Another process's; the value is there until the memory was closed.
    Imported(Arc<()>),
    /// From another device of this process.
    Adopted(Arc<FakeMemory>),
}

#[derive(Debug)]
struct FakePinned {
    bytes: Mutex<Vec<u8>>,
}

impl FakePinned {
    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HostBytes for FakePinned {
    fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = self.bytes.get_mut();
        bytes.unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct FakeWords {
    shared: SharedWords,
}

impl HostWords for FakeWords {
    fn shared(&self) -> &SharedWords {
        &self.shared
    }
}
