//! A real GPU, through CUDA's driver: what `sys::cuda` does safely, behind the traits of this room,
//! and the kernels of `reduce::gpu`.

use super::memory::{Completion, Event, HostBytes, HostWords, Memory, Pinned, PinnedSpan};
use super::memory::{Span, Word, Words};
use super::orders::{Cast, Fold, check_copy, check_host_copy};
use super::{Description, Device, Exported, Stream};
use crate::dtype::{Dtype, Element};
use crate::error::{Error, Result};
use crate::limits::{DEVICE_DESTINATIONS_MAX, DEVICE_SOURCES_MAX};
use crate::op::ReduceOp;
use crate::reduce::gpu;
use crate::sys::cuda::{self, Gpu};
use crate::sys::pages::SharedWords;
use cudarc::driver::{CudaSlice, CudaStream};
use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// How many GPUs this process may use, at least one.
///
/// # Errors
/// [`Error::NoDevice`] says why there is none.
pub fn count() -> Result<usize> {
    cuda::gpu_count()
}

/// A GPU; clones are one.
#[derive(Clone)]
pub struct Cuda {
    gpu: Arc<Gpu>,
    description: Description,
}

impl Cuda {
    /// GPU number `ordinal` of this process, with all kernels loaded.
    ///
    /// ```
    /// use ringtree::{Error, device::cuda::Cuda};
    ///
    /// match Cuda::open(0) {
    ///     Ok(gpu) => println!("{gpu:?}"),
    ///     Err(Error::NoDevice(why)) => println!("{why}"), // "no CUDA here: ..."
    ///     Err(error) => println!("there is a GPU, but {error}"),
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoDevice`] says why there is none; [`Error::Device`]: it cannot be used.
    pub fn open(ordinal: usize) -> Result<Self> {
        let cuda = Self::describe(ordinal)?;
        let names: Vec<_> = kernels().into_iter().collect();
        cuda.gpu.load_kernels(gpu::PTX, &names)?;
        Ok(cuda)
    }

    /// As [`Cuda::open`], without kernels: to look at, not to fold with.
    ///
    /// # Errors
    /// As [`Cuda::open`].
    pub fn describe(ordinal: usize) -> Result<Self> {
        let gpu = Gpu::open(ordinal)?;
        let facts = gpu.facts();
        let description = Description {
            name: facts.name.clone(),
            ordinal,
            unique_id: facts.uuid,
            driver_version: facts.driver_version,
            memory_bytes: facts.memory_bytes,
            multiprocessors: facts.multiprocessors as usize,
            // The driver's words of 32 bits need no capability of the GPU since CUDA 11.7.
            word_operations: true,
            word_operations_64_bit: facts.word_operations_64_bit,
        };
        Ok(Self { gpu, description })
    }

    /// The user's stream, to be ordered with others. It is kept as long as this is.
    ///
    /// # Errors
    /// [`Error::Usage`]: it is of another context than the GPU's primary one.
    pub fn wrap_stream(&self, stream: Arc<CudaStream>) -> Result<Arc<dyn Stream>> {
        let stream = cuda::wrap_stream(&self.gpu, stream)?;
        Ok(Arc::new(CudaOrders { stream }))
    }

    /// The slice's memory. Its first use is on `stream`, after all that cudarc knows of.
    ///
    /// # Errors
    /// As [`Cuda::wrap_stream`].
    pub fn wrap_slice<T: Element>(
        &self,
        slice: CudaSlice<T>,
        stream: &CudaStream,
    ) -> Result<Memory> {
        Ok(as_memory(cuda::wrap_slice(&self.gpu, slice, stream)?))
    }

    /// Gives the slice back, once all operations that use it were seen done.
    ///
    /// # Errors
    /// The memory, if a span or an operation of it is left, or it is not of such a slice.
    pub fn unwrap_slice<T: Element>(memory: Memory) -> std::result::Result<CudaSlice<T>, Memory> {
        let bytes = memory.bytes();
        let Ok(inner) = memory.backing::<cuda::Memory>() else {
            return Err(memory);
        };
        drop(memory);
        cuda::unwrap_slice(inner).map_err(|inner| Memory::new(inner, bytes))
    }

    /// Lends the slice's memory and leaves the slice with the user. `user`, wrapped as `stream`,
    /// stands still until the memory is dropped and all operations that use it were seen done;
    /// `word`, which must not have reached `value` before, is `value` then.
    ///
    /// # Errors
    /// [`Error::Usage`]: another context's, or a word that is there already; [`Error::Device`].
    pub fn lend_slice<T: Element>(
        slice: &mut CudaSlice<T>,
        user: &Arc<CudaStream>,
        stream: &dyn Stream,
        (word, value): (&Word, u32),
    ) -> Result<Memory> {
        let stream: &dyn std::any::Any = stream;
        let Some(stream) = stream.downcast_ref::<CudaOrders>() else {
            return Err(Error::Usage(
                "a slice of CUDA is lent on a stream of CUDA".into(),
            ));
        };
        let gate = (word.backing()?, word.at(), value);
        let memory = cuda::lend_slice(slice, (user, &stream.stream), gate)?;
        Ok(as_memory(memory))
    }
}

/// The names of all kernels.
fn kernels() -> BTreeSet<&'static str> {
    let mut names = BTreeSet::new();
    for &dtype in Dtype::ALL {
        for &op in ReduceOp::ALL {
            names.extend([false, true].map(|divides| gpu::fold_entry(dtype, op, divides)));
        }
        for half in [Dtype::F16, Dtype::Bf16] {
            let casts = [(dtype, half), (half, dtype)];
            names.extend(
                casts.map(|(from, to)| {
                    gpu::cast(from, to, 0, 0, 0, 1.0, 1).map(|launch| launch.entry)
                }),
            );
        }
    }
    names.into_iter().flatten().collect()
}

fn as_memory(memory: cuda::Memory) -> Memory {
    let bytes = memory.bytes();
    Memory::new(Arc::new(memory), bytes)
}

impl fmt::Debug for Cuda {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.gpu.fmt(formatter)
    }
}

impl Device for Cuda {
    fn description(&self) -> &Description {
        &self.description
    }

    fn allocate(&self, bytes: usize) -> Result<Memory> {
        Ok(as_memory(cuda::Memory::new(&self.gpu, bytes)?))
    }

    fn export(&self, memory: &Memory) -> Result<Exported> {
        let (handle, offset) = memory.backing::<cuda::Memory>()?.export()?;
        Ok(Exported { handle, offset })
    }

    fn import(&self, exported: &Exported, bytes: usize) -> Result<Memory> {
        let (handle, offset) = (&exported.handle, exported.offset);
        let memory = cuda::Memory::import(&self.gpu, handle, offset, bytes)?;
        let open = memory.open();
        Ok(Memory::imported(Arc::new(memory), bytes, open))
    }

    fn can_reach(&self, unique_id: &[u8; 16]) -> bool {
        self.gpu.can_reach(unique_id)
    }

    fn adopt(&self, memory: &Memory) -> Result<Memory> {
        let inner = memory.backing::<cuda::Memory>()?;
        if inner.is_of(&self.gpu) {
            return Ok(memory.clone());
        }
        Ok(as_memory(cuda::Memory::of_peer(&self.gpu, inner)?))
    }

    fn pin(&self, bytes: usize) -> Result<Pinned> {
        let pinned = cuda::Pinned::new(&self.gpu, bytes)?;
        Ok(Pinned::new(Arc::new(pinned), bytes))
    }

    fn words(&self, count: usize) -> Result<Words> {
        let shared = SharedWords::new(count);
        let shared = shared.map_err(|error| Error::system("words to wait for", &error))?;
        let words = cuda::Words::register(&self.gpu, shared)?;
        Ok(Words::new(Arc::new(words)))
    }

    fn open_words(&self, file: OwnedFd) -> Result<Words> {
        let shared = SharedWords::open(file);
        let shared = shared.map_err(|error| Error::system("a peer's words", &error))?;
        let words = cuda::Words::register(&self.gpu, shared)?;
        Ok(Words::new(Arc::new(words)))
    }

    fn stream(&self) -> Result<Arc<dyn Stream>> {
        let stream = cuda::Stream::new(&self.gpu)?;
        Ok(Arc::new(CudaOrders { stream }))
    }

    fn urgent_stream(&self) -> Result<Arc<dyn Stream>> {
        let stream = cuda::Stream::urgent(&self.gpu)?;
        Ok(Arc::new(CudaOrders { stream }))
    }

    fn event(&self) -> Result<Event> {
        Ok(Event::new(Arc::new(cuda::Event::new(&self.gpu)?)))
    }
}

/// A stream, told what to do.
#[derive(Debug)]
struct CudaOrders {
    stream: cuda::Stream,
}

/// A span's memory and where in it the span begins.
fn place(span: &Span) -> Result<(Arc<cuda::Memory>, usize)> {
    Ok((span.memory().backing()?, span.offset()))
}

fn host_place(span: &PinnedSpan) -> Result<(Arc<cuda::Pinned>, usize)> {
    Ok((span.backing()?, span.offset()))
}

fn address(span: &Span) -> Result<u64> {
    let (memory, at) = place(span)?;
    memory.address(at, span.bytes())
}

impl CudaOrders {
    fn multiprocessors(&self) -> u32 {
        self.stream.facts().multiprocessors
    }

    fn launch<'a, A: bytemuck::Pod>(
        &self,
        launch: &gpu::Launch<A>,
        spans: impl Iterator<Item = &'a Span> + Clone,
    ) -> Result<()> {
        // That the memories are of this kind was seen when their addresses were made.
        let memories = spans.filter_map(|span| place(span).ok().map(|(memory, _)| memory));
        let grid = (launch.blocks, gpu::BLOCK_THREADS);
        let argument = bytemuck::bytes_of(&launch.arguments);
        self.stream.launch(launch.entry, grid, argument, memories)
    }
}

impl Stream for CudaOrders {
    fn copy(&self, from: &Span, to: &Span) -> Result<()> {
        check_copy(from, to)?;
        self.stream.copy(place(from)?, place(to)?, to.bytes())
    }

    fn copy_to_host(&self, from: &Span, to: &PinnedSpan) -> Result<()> {
        check_host_copy(to, from)?;
        let (from, to, bytes) = (place(from)?, host_place(to)?, to.bytes());
        self.stream.copy_to_host(from, to, bytes)
    }

    fn copy_from_host(&self, from: &PinnedSpan, to: &Span) -> Result<()> {
        check_host_copy(from, to)?;
        let (from, to, bytes) = (host_place(from)?, place(to)?, to.bytes());
        self.stream.copy_from_host(from, to, bytes)
    }

    fn fold(&self, fold: &Fold<'_>) -> Result<()> {
        let (operands, destinations) = (fold.operands(), fold.destinations());
        let mut addresses = [0; DEVICE_SOURCES_MAX + DEVICE_DESTINATIONS_MAX];
        let spans = operands.iter().chain(destinations);
        for (place, span) in addresses.iter_mut().zip(spans.clone()) {
            *place = address(span)?;
        }
        if fold.elements() == 0 {
            return Ok(());
        }
        let (sources, rest) = addresses.split_at(operands.len());
        let launch = gpu::fold(
            fold.dtype(),
            fold.op(),
            sources,
            &rest[..destinations.len()],
            fold.elements(),
            fold.divisor(),
            self.multiprocessors(),
        );
        let launch = launch.expect("invariant: a fold's operator is defined for its type");
        self.launch(&launch, spans)
    }

    fn cast(&self, cast: &Cast<'_>) -> Result<()> {
        let ((from, from_dtype), (to, to_dtype)) = (cast.from(), cast.to());
        let (source, destination) = (address(from)?, address(to)?);
        if cast.elements() == 0 {
            return Ok(());
        }
        let launch = gpu::cast(
            from_dtype,
            to_dtype,
            source,
            destination,
            cast.elements(),
            cast.scale(),
            self.multiprocessors(),
        );
        let launch = launch.expect("invariant: a cast is between types that have one");
        self.launch(&launch, [from, to].into_iter())
    }

    fn record(&self, event: &Event) -> Result<()> {
        self.stream.record(&*event.backing::<cuda::Event>()?)
    }

    fn wait(&self, event: &Event) -> Result<()> {
        self.stream.wait(&*event.backing::<cuda::Event>()?)
    }

    fn write_word(&self, word: &Word, value: u32) -> Result<()> {
        self.stream.write_word(word.backing()?, word.at(), value)
    }

    fn wait_word(&self, word: &Word, value: u32) -> Result<()> {
        self.stream.wait_word(word.backing()?, word.at(), value)
    }

    fn is_captured(&self) -> Result<bool> {
        self.stream.is_captured()
    }

    fn synchronize(&self) -> Result<()> {
        self.stream.synchronize()
    }
}

impl HostBytes for cuda::Pinned {
    fn bytes_mut(&mut self) -> &mut [u8] {
        cuda::Pinned::bytes_mut(self)
    }
}

impl HostWords for cuda::Words {
    fn shared(&self) -> &SharedWords {
        cuda::Words::shared(self)
    }
}

impl Completion for cuda::Event {
    fn is_done(&self) -> Result<bool> {
        cuda::Event::is_done(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_that_are_loaded_are_those_of_the_text() {
        let entries = gpu::PTX.split(".visible .entry ").skip(1);
        let in_text: BTreeSet<_> = entries
            .map(|entry| entry.split_once('(').unwrap().0)
            .collect();
        assert_eq!(kernels(), in_text);
    }
}
