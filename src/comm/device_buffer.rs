//! Buffers on a device.

use super::buffer::{Buffer, BufferMut, DeviceMemory, Memory, MemoryMut};
use crate::device::{self, Device, Event, Pinned, Stream};
use crate::dtype::Element;
use crate::error::Result;
use crate::limits::BUFFER_AREAS_MAX;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

/// Elements on a device, and the stream by which they are used. Collectives on it are ordered on
/// that stream: they begin when what was enqueued before is done, and what is enqueued after begins
/// when they have ended.
///
/// ```
/// use ringtree::comm::device_buffer::DeviceBuffer;
/// use ringtree::device::{Device, fake::Fake};
/// use std::sync::Arc;
///
/// # fn main() -> ringtree::Result<()> {
/// let device: Arc<dyn Device> = Arc::new(Fake::new());
/// let stream = device.stream()?;
/// let mut buffer = DeviceBuffer::new(&device, &stream, &[1.0f32, 2.0])?;
/// assert_eq!(buffer.read()?, [1.0, 2.0]);
/// # Ok(()) }
/// ```
pub struct DeviceBuffer<T: Element> {
    device: Arc<dyn Device>,
    stream: Arc<dyn Stream>,
    memory: device::Memory,
    count: usize,
    /// What content passed through, kept for the next time.
    areas: Mutex<Vec<Area>>,
    elements: PhantomData<T>,
}

/// Pinned memory, and an event behind its last copy to the device.
struct Area {
    pinned: Pinned,
    event: Event,
}

impl Area {
    /// Whether no stream uses it any more.
    fn is_free(&mut self) -> Result<bool> {
        Ok(self.event.is_done()? && self.pinned.bytes_mut().is_ok())
    }
}

impl<T: Element> DeviceBuffer<T> {
    /// A buffer on `device`, used on `stream`, with this content.
    ///
    /// # Errors
    /// The device's.
    pub fn new(device: &Arc<dyn Device>, stream: &Arc<dyn Stream>, content: &[T]) -> Result<Self> {
        // A device has no memory of no bytes.
        let bytes = size_of_val(content).max(1);
        let mut buffer = Self {
            memory: device.allocate(bytes)?,
            count: content.len(),
            device: Arc::clone(device),
            stream: Arc::clone(stream),
            areas: Mutex::default(),
            elements: PhantomData,
        };
        if !content.is_empty() {
            buffer.write(content)?;
        }
        // Most buffers are never written by the host again.
        buffer.areas = Mutex::default();
        Ok(buffer)
    }

    /// A buffer that is `memory`, whole, such as a slice of cudarc's that was wrapped.
    #[must_use]
    pub fn from_memory(
        device: &Arc<dyn Device>,
        stream: &Arc<dyn Stream>,
        memory: device::Memory,
    ) -> Self {
        Self {
            device: Arc::clone(device),
            stream: Arc::clone(stream),
            count: memory.bytes() / size_of::<T>(),
            memory,
            areas: Mutex::default(),
            elements: PhantomData,
        }
    }

    /// The memory, which is kept as long as anybody has it.
    #[must_use]
    pub fn device_memory(&self) -> &device::Memory {
        &self.memory
    }

    /// The memory, such as a slice of cudarc's that is to be unwrapped.
    #[must_use]
    pub fn into_memory(self) -> device::Memory {
        self.memory
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
    /// [`crate::Error::Usage`] if it is longer than the buffer; the device's.
    pub fn write(&mut self, content: &[T]) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(content);
        let to = self.memory.span(0, bytes.len())?;
        let mut area = self.area(bytes.len())?;
        area.pinned.bytes_mut()?[..bytes.len()].copy_from_slice(bytes);
        let from = area.pinned.span(0, bytes.len())?;
        self.stream.copy_from_host(&from, &to)?;
        self.stream.record(&area.event)?;
        self.keep(area);
        Ok(())
    }

    /// The content, when everything that the stream was told is done: this waits for it.
    ///
    /// # Errors
    /// The device's.
    pub fn read(&self) -> Result<Vec<T>> {
        let bytes = self.len() * size_of::<T>();
        if bytes == 0 {
            return Ok(Vec::new());
        }
        let mut area = match self.kept(bytes)? {
            Some(area) => area,
            None => {
                // This waits for the stream anyway, and then what was kept is free.
                self.stream.synchronize()?;
                self.area(bytes)?
            }
        };
        let from = self.memory.span(0, bytes)?;
        self.stream
            .copy_to_host(&from, &area.pinned.span(0, bytes)?)?;
        self.stream.synchronize()?;
        let mut content = vec![T::zeroed(); self.len()];
        let read = &area.pinned.bytes_mut()?[..bytes];
        bytemuck::cast_slice_mut(&mut content).copy_from_slice(read);
        self.keep(area);
        Ok(content)
    }

    /// Pinned memory of at least `bytes` bytes that no stream uses: what was kept, or more.
    fn area(&self, bytes: usize) -> Result<Area> {
        if let Some(area) = self.kept(bytes)? {
            return Ok(area);
        }
        Ok(Area {
            pinned: self.device.pin(bytes)?,
            event: self.device.event()?,
        })
    }

    /// What was kept, is free and long enough; what is free and too short makes room.
    fn kept(&self, bytes: usize) -> Result<Option<Area>> {
        let mut areas = self.areas.lock().unwrap_or_else(PoisonError::into_inner);
        let mut short = None;
        for at in 0..areas.len() {
            if areas[at].is_free()? {
                if areas[at].pinned.bytes() >= bytes {
                    return Ok(Some(areas.swap_remove(at)));
                }
                short = Some(at);
            }
        }
        if let Some(short) = short {
            areas.swap_remove(short);
        }
        Ok(None)
    }

    fn keep(&self, area: Area) {
        let mut areas = self.areas.lock().unwrap_or_else(PoisonError::into_inner);
        if areas.len() < BUFFER_AREAS_MAX {
            areas.push(area);
        }
    }

    fn part(&self) -> DeviceMemory {
        DeviceMemory {
            span: self.memory.whole(),
            count: self.len(),
            stream: Arc::clone(&self.stream),
        }
    }
}

impl<T: Element> Buffer for DeviceBuffer<T> {
    type Element = T;

    fn memory(&self) -> Memory<'_, T> {
        Memory::Device(self.part())
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
