//! Buffers on a device.

use super::buffer::{Buffer, BufferMut, DeviceMemory, Memory, MemoryMut};
use crate::device::{self, Device, Stream};
use crate::dtype::Element;
use crate::engine::cache::bytes_of;
use crate::error::{Error, Result};
use crate::limits::BUFFER_AREAS_MAX;
use crate::plan::layout::Layout;
use crate::sys::cuda::{Pinned, Rows};
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Elements on a device, and the stream by which they are used. Collectives on it are ordered on
/// that stream: they begin when what was enqueued before is done, and what is enqueued after begins
/// when they have ended.
///
/// ```no_run
/// use ringtree::{Device, DeviceBuffer};
///
/// # fn main() -> ringtree::Result<()> {
/// let device = Device::open(0)?;
/// let stream = device.stream()?;
/// let mut buffer = DeviceBuffer::new(&device, &stream, &[1.0f32, 2.0])?;
/// assert_eq!(buffer.read()?, [1.0, 2.0]);
/// # Ok(()) }
/// ```
pub struct DeviceBuffer<T: Element> {
    device: Device,
    stream: Stream,
    memory: device::Memory,
    count: usize,
    /// What content passed through, kept for the next time.
    areas: Mutex<Vec<Area>>,
    elements: PhantomData<T>,
}

/// Pinned memory, and behind its bytes a word that becomes `number` when the stream's last copy
/// from or to it is done.
struct Area {
    pinned: Arc<Pinned>,
    bytes: usize,
    number: u32,
}

/// Areas that streams still used when their buffers were dropped. The next buffer that asks for
/// pinned memory looks at them again.
static LEFT: Mutex<Vec<(Device, Area)>> = Mutex::new(Vec::new());

impl Area {
    /// Gives the pinned memory back for the next buffer, once the stream no longer uses it.
    fn leave(self, device: &Device) {
        match self.is_free() {
            true => self.pinned.give_back(device.gpu()),
            false => lock(&LEFT).push((device.clone(), self)),
        }
    }

    /// Gives back the areas of dropped buffers that no stream uses any more.
    fn reclaim() {
        for (device, area) in lock(&LEFT).extract_if(.., |(_, area)| area.is_free()) {
            area.pinned.give_back(device.gpu());
        }
    }

    fn word_at(&self) -> usize {
        self.bytes
    }

    fn is_free(&self) -> bool {
        let word = self.pinned.load(self.word_at());
        word.is_ok_and(|word| word == self.number)
    }

    /// The word says so when the stream has done what it was told so far.
    fn mark(&mut self, stream: &Stream) -> Result<()> {
        self.number = self.number.wrapping_add(1);
        stream.write_word(&self.pinned, self.word_at(), self.number)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Element> DeviceBuffer<T> {
    /// A buffer on `device`, used on `stream`, with this content.
    ///
    /// # Errors
    /// The device's.
    pub fn new(device: &Device, stream: &Stream, content: &[T]) -> Result<Self> {
        let mut buffer = Self::allocate(device, stream, content.len())?;
        buffer.write(content)?;
        Ok(buffer)
    }

    /// A buffer of `count` zeros, which the device makes itself.
    pub(super) fn zeros(device: &Device, stream: &Stream, count: usize) -> Result<Self> {
        let buffer = Self::allocate(device, stream, count)?;
        stream.clear(&buffer.memory)?;
        Ok(buffer)
    }

    /// A buffer of undefined content.
    fn allocate(device: &Device, stream: &Stream, count: usize) -> Result<Self> {
        // A device cannot allocate zero bytes.
        let memory = device.allocate(bytes_of(count, T::DTYPE)?.max(1))?;
        let mut buffer = Self::from_memory(device, stream, memory);
        buffer.count = count;
        Ok(buffer)
    }

    /// A buffer that is `memory`, whole, such as a slice of cudarc's that was wrapped.
    #[must_use]
    pub fn from_memory(device: &Device, stream: &Stream, memory: device::Memory) -> Self {
        Self {
            device: device.clone(),
            stream: stream.clone(),
            count: memory.bytes() / size_of::<T>(),
            memory,
            areas: Mutex::default(),
            elements: PhantomData,
        }
    }

    /// The memory. It is freed when its last clone is dropped.
    #[must_use]
    pub fn device_memory(&self) -> &device::Memory {
        &self.memory
    }

    /// The memory, such as a slice of cudarc's that is to be unwrapped.
    #[must_use]
    pub fn into_memory(self) -> device::Memory {
        self.memory.clone()
    }

    /// How many elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Enqueues a copy of `content`, from the buffer's start on, and returns at once; `content` may
    /// be changed then. The pinned memory that it passes through is kept for the next time; while
    /// the stream still uses it, more is pinned, which is cheap neither in time nor in memory.
    ///
    /// # Errors
    /// [`Error::usage`] if it is longer than the buffer; the device's.
    pub fn write(&mut self, content: &[T]) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(content);
        if content.len() > self.count {
            return Err(Error::usage(format!(
                "{} elements for a buffer of {}",
                content.len(),
                self.count
            )));
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let mut area = self.area(bytes.len())?;
        let region = area.pinned.region(0, bytes.len());
        region?.bytes_mut().copy_from_slice(bytes);
        let rows = Rows::one(0, 0, bytes.len());
        self.stream.copy_out(&area.pinned, &self.memory, &rows)?;
        area.mark(&self.stream)?;
        self.keep(area);
        Ok(())
    }

    /// The content, when everything that the stream was told is done: this waits for it.
    ///
    /// # Errors
    /// The device's.
    pub fn read(&self) -> Result<Vec<T>> {
        let mut content = vec![T::zeroed(); self.len()];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut content);
        if bytes.is_empty() {
            return Ok(content);
        }
        let area = self.area(bytes.len())?;
        let rows = Rows::one(0, 0, bytes.len());
        self.stream.copy_in(&self.memory, &area.pinned, &rows)?;
        self.stream.synchronize()?;
        bytes.copy_from_slice(area.pinned.region(0, bytes.len())?.bytes());
        self.keep(area);
        Ok(content)
    }

    /// Pinned memory of at least `bytes` bytes that no stream uses: what was kept, or more.
    fn area(&self, bytes: usize) -> Result<Area> {
        let mut areas = lock(&self.areas);
        let free = areas.iter().position(Area::is_free);
        if let Some(area) = free.map(|at| areas.swap_remove(at)) {
            if area.bytes >= bytes {
                return Ok(area);
            }
            area.pinned.give_back(self.device.gpu());
        }
        drop(areas);
        Area::reclaim();
        let bytes = bytes.next_multiple_of(64);
        let pinned = Pinned::take(self.device.gpu(), bytes + size_of::<u32>())?;
        let area = Area {
            pinned,
            bytes,
            number: 0,
        };
        area.pinned.store(area.word_at(), 0)?;
        Ok(area)
    }

    /// Keeps it for the next time, unless there are enough.
    fn keep(&self, area: Area) {
        let mut areas = lock(&self.areas);
        match areas.len() < BUFFER_AREAS_MAX {
            true => areas.push(area),
            false => area.leave(&self.device),
        }
    }

    fn part(&self) -> DeviceMemory {
        DeviceMemory {
            memory: self.memory.clone(),
            count: self.len(),
            stream: self.stream.clone(),
        }
    }
}

impl<T: Element> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        let areas = self.areas.get_mut().unwrap_or_else(PoisonError::into_inner);
        for area in areas.drain(..) {
            area.leave(&self.device);
        }
    }
}

impl<T: Element> Buffer for DeviceBuffer<T> {
    type Element = T;

    fn memory(&self) -> Memory<'_, T> {
        Memory::Device(self.part())
    }

    fn layout(&self) -> Layout<'_> {
        Layout::Even
    }
}

impl<T: Element> BufferMut for DeviceBuffer<T> {
    fn memory_mut(&mut self) -> MemoryMut<'_, T> {
        MemoryMut::Device(self.part())
    }
}

impl<T: Element> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "DeviceBuffer({} of {})", self.len(), T::DTYPE)
    }
}
