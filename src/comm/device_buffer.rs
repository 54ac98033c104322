//! Provides buffers on a device.

use super::buffer::{Buffer, BufferMut, DeviceMemory, Memory, MemoryMut};
use crate::device::{self, Device, Stream};
use crate::dtype::Element;
use crate::engine::cache::bytes_of;
use crate::error::{Error, Result};
use crate::limits::BUFFER_AREAS_MAX;
use crate::lock::lock;
use crate::plan::Layout;
use crate::sys::cuda::{Pinned, Rows};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// A buffer of elements on a device, together with the stream on which the buffer is used.
///
/// Collectives on the buffer are ordered on that stream. A collective starts once all work that was
/// enqueued before it is done. Work that is enqueued after it starts once the collective has
/// completed or failed.
///
/// ```no_run
/// use ringtree::cuda::{Device, DeviceBuffer};
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
    /// Pinned memory through which contents have been copied, kept for reuse.
    areas: Mutex<Vec<Area>>,
    elements: PhantomData<T>,
}

/// Pinned memory, followed by a word that becomes `number` when the stream's last copy from or to
/// the memory is done.
struct Area {
    pinned: Arc<Pinned>,
    bytes: usize,
    number: u32,
}

/// Areas that streams still used when their buffers were dropped. They are checked again when a
/// buffer next needs pinned memory.
static PENDING_AREAS: Mutex<Vec<(Device, Area)>> = Mutex::new(Vec::new());

impl Area {
    /// Returns the pinned memory to the pool. If the stream is still using the memory, leaves this
    /// to [`Area::reclaim`].
    fn return_to_pool(self, device: &Device) {
        match self.is_free() {
            true => device.gpu().return_pinned(self.pinned),
            false => lock(&PENDING_AREAS).push((device.clone(), self)),
        }
    }

    /// Returns the areas of dropped buffers to the pool if no stream uses them any more.
    fn reclaim() {
        for (device, area) in lock(&PENDING_AREAS).extract_if(.., |(_, area)| area.is_free()) {
            device.gpu().return_pinned(area.pinned);
        }
    }

    fn is_free(&self) -> bool {
        let word = self.pinned.load(self.bytes);
        word.is_ok_and(|word| word == self.number)
    }

    /// Enqueues a write to the word. Once the word has been written, all work that was enqueued
    /// before is done.
    fn mark(&mut self, stream: &Stream) -> Result<()> {
        self.number = self.number.wrapping_add(1);
        stream.write_word(&self.pinned, self.bytes, self.number)
    }
}

impl<T: Element> DeviceBuffer<T> {
    /// Creates a buffer on `device` that contains a copy of `content`, for use on `stream`.
    ///
    /// # Errors
    /// Returns an [`Error`] of kind [`ErrorKind::Usage`](crate::ErrorKind::Usage) if `stream`
    /// belongs to a different GPU, or of kind [`ErrorKind::Device`](crate::ErrorKind::Device) if
    /// the driver fails.
    pub fn new(device: &Device, stream: &Stream, content: &[T]) -> Result<Self> {
        let mut buffer = Self::allocate(device, stream, content.len())?;
        buffer.write(content)?;
        Ok(buffer)
    }

    /// Creates a buffer of `count` zeros. The device itself writes the zeros.
    pub(super) fn zeros(device: &Device, stream: &Stream, count: usize) -> Result<Self> {
        let buffer = Self::allocate(device, stream, count)?;
        stream.clear(&buffer.memory)?;
        Ok(buffer)
    }

    /// Creates a buffer with undefined contents.
    fn allocate(device: &Device, stream: &Stream, count: usize) -> Result<Self> {
        // A device cannot allocate zero bytes.
        let memory = device::allocate(device, bytes_of(count, T::DTYPE)?.max(1))?;
        let mut buffer = Self::from_memory(device, stream, memory);
        buffer.count = count;
        Ok(buffer)
    }

    /// Creates a buffer that uses all of `memory`, which can be a cudarc slice wrapped by
    /// [`Device::wrap_slice`], or memory at an address
    /// ([`Memory::from_raw`](device::Memory::from_raw)).
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

    /// Returns a buffer that consists of the elements in `range` of this buffer. Both buffers share
    /// the memory, which lives until both are dropped.
    ///
    /// # Errors
    /// Returns an [`Error`] of kind [`ErrorKind::Usage`](crate::ErrorKind::Usage) if `range` is out
    /// of range.
    pub fn slice(&self, range: Range<usize>) -> Result<Self> {
        let bytes = |count: usize| count.saturating_mul(size_of::<T>());
        let memory = self.memory.part(bytes(range.start), bytes(range.len()))?;
        Ok(Self::from_memory(&self.device, &self.stream, memory))
    }

    /// Consumes the buffer and returns its memory. You can then, for example, recover a cudarc
    /// slice with [`Device::unwrap_slice`].
    #[must_use]
    pub fn into_memory(self) -> device::Memory {
        self.memory.clone()
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns `true` if the buffer has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Enqueues a copy of `content` to the start of the buffer and returns immediately. You may
    /// modify `content` as soon as this method has returned.
    ///
    /// The data is copied through pinned memory, which the buffer keeps for reuse. If the stream is
    /// still using that memory, this method pins additional memory, which takes extra time and
    /// space.
    ///
    /// # Errors
    /// Returns an [`Error`] of kind [`ErrorKind::Usage`](crate::ErrorKind::Usage) if `content` is
    /// longer than the buffer, or of kind [`ErrorKind::Device`](crate::ErrorKind::Device) if the
    /// driver fails.
    pub fn write(&mut self, content: &[T]) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(content);
        if content.len() > self.count {
            return Err(Error::usage(format!(
                "cannot write {} elements to a buffer of {} elements",
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

    /// Waits until all work enqueued on the stream is done, and returns the contents of the buffer.
    ///
    /// # Errors
    /// Returns an [`Error`] of kind [`ErrorKind::Device`](crate::ErrorKind::Device) if the driver
    /// fails.
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

    /// Returns at least `bytes` bytes of pinned memory that no stream is using. The memory is
    /// either reused or newly allocated.
    fn area(&self, bytes: usize) -> Result<Area> {
        let mut areas = lock(&self.areas);
        let free = areas.iter().position(Area::is_free);
        if let Some(area) = free.map(|at| areas.swap_remove(at)) {
            if area.bytes >= bytes {
                return Ok(area);
            }
            self.device.gpu().return_pinned(area.pinned);
        }
        drop(areas);
        Area::reclaim();
        let bytes = bytes.next_multiple_of(64);
        let pinned = self.device.gpu().take_pinned(bytes + size_of::<u32>())?;
        let area = Area {
            pinned,
            bytes,
            number: 0,
        };
        area.pinned.store(area.bytes, 0)?;
        Ok(area)
    }

    /// Keeps `area` for reuse, unless the buffer already keeps enough areas.
    fn keep(&self, area: Area) {
        let mut areas = lock(&self.areas);
        match areas.len() < BUFFER_AREAS_MAX {
            true => areas.push(area),
            false => area.return_to_pool(&self.device),
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
        for area in lock(&self.areas).drain(..) {
            area.return_to_pool(&self.device);
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
