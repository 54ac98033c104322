//! Memory: of the device, of peers, of the host.

use super::gpu::{Gpu, Piece};
use super::{HANDLE_BYTES, check};
use crate::error::{Error, Result};
use crate::sys::pages::SharedWords;
use cudarc::driver::sys::{self as raw, CUdeviceptr};
use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

/// Memory of a GPU.
pub struct Memory {
    gpu: Arc<Gpu>,
    address: CUdeviceptr,
    bytes: usize,
    owner: Owner,
}

/// What is to be done about memory when it is dropped.
enum Owner {
    /// It was allocated here.
    Own,
    /// A peer's; the address to close, and what is there until it was closed.
    Imported(CUdeviceptr, Arc<()>),
    /// Another GPU's in this process, which this one reaches.
    Peer(#[expect(dead_code, reason = "it is there to be dropped")] Arc<Memory>),
    /// A user's value, to be dropped.
    User(Box<dyn Any + Send + Sync>),
    /// A user's that has been lent, with the user's stream, which waits for this word.
    Lent(
        (Arc<Words>, usize, u32),
        #[expect(dead_code)] Box<dyn Any + Send + Sync>,
    ),
}

impl Memory {
    /// Memory from a plain allocation: only that can be exported, and not what is allocated in a
    /// stream's order.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self> {
        gpu.sweep();
        let _entered = gpu.enter()?;
        let mut address = 0;
        // SAFETY: the context is current; there is room for the address. Nothing is no length.
        let code = unsafe { raw::cuMemAlloc_v2(&raw mut address, bytes.max(1)) };
        check(code, "cuMemAlloc")
            .map_err(|error| Error::Device(format!("{bytes} bytes of device memory: {error}")))?;
        Ok(Self {
            gpu: gpu.clone(),
            address,
            bytes,
            owner: Owner::Own,
        })
    }

    /// The handle of its allocation, and where in it the memory begins.
    ///
    /// # Errors
    /// [`Error::Usage`] for memory that was not allocated here; the driver's.
    pub fn export(&self) -> Result<([u8; HANDLE_BYTES], u64)> {
        if !matches!(self.owner, Owner::Own) {
            return Err(Error::Usage(
                "only memory that this process allocated is exported".into(),
            ));
        }
        let _entered = self.gpu.enter()?;
        let mut handle = raw::CUipcMemHandle {
            reserved: [0; HANDLE_BYTES],
        };
        // SAFETY: the address is that of an allocation that lives; there is room for the handle.
        let code = unsafe { raw::cuIpcGetMemHandle(&raw mut handle, self.address) };
        check(code, "cuIpcGetMemHandle")?;
        let (base, _) = allocation(self.address)?;
        Ok((handle.reserved.map(|byte| byte as u8), self.address - base))
    }

    /// A peer's memory.
    ///
    /// # Errors
    /// The driver's: the handle is no longer good, or this process's own. The allocation is
    /// smaller.
    pub fn import(
        gpu: &Arc<Gpu>,
        handle: &[u8; HANDLE_BYTES],
        offset: u64,
        bytes: usize,
    ) -> Result<Self> {
        gpu.sweep();
        let _entered = gpu.enter()?;
        let handle = raw::CUipcMemHandle {
            reserved: handle.map(|byte| byte as std::ffi::c_char),
        };
        let flags = raw::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut base = 0;
        // SAFETY: the context is current; there is room for the address; a handle is plain bytes,
        // which the driver checks.
        let code = unsafe { raw::cuIpcOpenMemHandle_v2(&raw mut base, handle, flags) };
        check(code, "cuIpcOpenMemHandle")
            .map_err(|error| Error::Device(format!("a peer's memory: {error}")))?;
        // From here on it is closed whatever happens.
        let mut memory = Self {
            gpu: gpu.clone(),
            address: base,
            bytes,
            owner: Owner::Imported(base, Arc::default()),
        };
        let (start, length) = allocation(base)?;
        let end = offset.checked_add(bytes as u64);
        let room = (start + length as u64).saturating_sub(base);
        if end.is_none_or(|end| end > room) {
            return Err(Error::Device(format!(
                "a peer's memory: {bytes} bytes from {offset} on of {room}"
            )));
        }
        memory.address = base + offset;
        Ok(memory)
    }

    /// The memory of another GPU of this process, as this one uses it.
    ///
    /// # Errors
    /// The driver's: it cannot be reached.
    pub fn of_peer(gpu: &Arc<Gpu>, memory: Arc<Memory>) -> Result<Self> {
        gpu.enable_peer(&memory.gpu)?;
        Ok(Self {
            gpu: gpu.clone(),
            address: memory.address,
            bytes: memory.bytes,
            owner: Owner::Peer(memory),
        })
    }

    /// A user's memory, which dropping `value` frees.
    ///
    /// # Safety
    /// The memory is of this GPU's primary context and lives until `value` is dropped.
    pub(super) unsafe fn of_user(
        gpu: &Arc<Gpu>,
        address: CUdeviceptr,
        bytes: usize,
        value: Box<dyn Any + Send + Sync>,
    ) -> Self {
        Self {
            gpu: gpu.clone(),
            address,
            bytes,
            owner: Owner::User(value),
        }
    }

    /// A user's memory until this is dropped: then the word of `gate` becomes its value.
    ///
    /// # Safety
    /// The memory is of this GPU's primary context and lives until the word has that value and
    /// `stream` was dropped.
    pub(super) unsafe fn lent(
        gpu: &Arc<Gpu>,
        address: CUdeviceptr,
        bytes: usize,
        gate: (Arc<Words>, usize, u32),
        stream: Box<dyn Any + Send + Sync>,
    ) -> Self {
        Self {
            gpu: gpu.clone(),
            address,
            bytes,
            owner: Owner::Lent(gate, stream),
        }
    }

    /// The user's value; the memory itself where it is none of that type.
    pub(super) fn into_user<T: Any>(mut self) -> std::result::Result<Box<T>, Self> {
        if !matches!(&self.owner, Owner::User(value) if value.is::<T>()) {
            return Err(self);
        }
        // Whatever is left is dropped without effect.
        let owner = std::mem::replace(&mut self.owner, Owner::User(Box::new(())));
        match owner {
            Owner::User(value) => Ok(value.downcast().expect("invariant: it was of that type")),
            _ => unreachable!("invariant: it was a user's"),
        }
    }

    pub(super) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Of a peer's memory, what is there until it was closed.
    #[must_use]
    pub fn open(&self) -> Weak<()> {
        match &self.owner {
            Owner::Imported(_, open) => Arc::downgrade(open),
            _ => Weak::new(),
        }
    }

    /// Whether streams of this GPU use it.
    #[must_use]
    pub fn is_of(&self, gpu: &Arc<Gpu>) -> bool {
        Arc::ptr_eq(&self.gpu, gpu)
    }

    /// Its length.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of the `bytes` bytes from `at` on, which is none of the host's.
    ///
    /// # Errors
    /// [`Error::Usage`]: they reach beyond the end.
    pub fn address(&self, at: usize, bytes: usize) -> Result<u64> {
        check_range(at, bytes, self.bytes)?;
        Ok(self.address + at as u64)
    }
}

fn check_range(at: usize, bytes: usize, of_bytes: usize) -> Result<()> {
    if at.checked_add(bytes).is_none_or(|end| end > of_bytes) {
        return Err(Error::Usage(format!(
            "{bytes} bytes from {at} on of {of_bytes}"
        )));
    }
    Ok(())
}

/// Base and length of the allocation that `address` lies in. The context is current.
fn allocation(address: CUdeviceptr) -> Result<(CUdeviceptr, usize)> {
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: there is room for both; the driver checks the address.
    let code = unsafe { raw::cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, address) };
    check(code, "cuMemGetAddressRange")?;
    Ok((base, bytes))
}

impl Drop for Memory {
    fn drop(&mut self) {
        match &self.owner {
            Owner::Own => self.gpu.discard(Piece::Allocation(self.address)),
            Owner::Imported(base, open) => {
                self.gpu.discard(Piece::Imported(*base, open.clone()));
            }
            Owner::Peer(_) | Owner::User(_) => {}
            Owner::Lent((words, at, value), _) => words.shared().store(*at, *value),
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Memory({} bytes of {:?})", self.bytes, self.gpu)
    }
}

/// Host memory that the GPU copies from and to.
#[derive(Debug)]
pub struct Pinned {
    gpu: Arc<Gpu>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain bytes that this value alone owns; the GPU uses them only for operations that share
// the value, and then nobody has the `&mut` by which the host reaches them.
unsafe impl Send for Pinned {}
// SAFETY: as for `Send`; a shared `Pinned` gives no access to the bytes.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Zeros.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self> {
        gpu.sweep();
        let _entered = gpu.enter()?;
        let mut start: *mut c_void = std::ptr::null_mut();
        let flags = raw::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: the context is current; there is room for the pointer.
        let code = unsafe { raw::cuMemHostAlloc(&raw mut start, bytes.max(1), flags) };
        check(code, "cuMemHostAlloc")
            .map_err(|error| Error::Device(format!("{bytes} bytes of pinned memory: {error}")))?;
        let start = NonNull::new(start.cast::<u8>());
        let start = start.ok_or_else(|| Error::Device("cuMemHostAlloc gave nothing".into()))?;
        // SAFETY: the allocation has so many bytes, which nobody else knows of.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Self {
            gpu: gpu.clone(),
            start,
            bytes,
        })
    }

    /// The bytes.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the allocation has so many bytes, initialised by `new`. `&mut self` means that
        // no operation shares the value, so the GPU does not use them: operations that did are
        // done, and the stream saw that before it let go, which orders their writes before this.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }

    pub(super) fn at(&self, at: usize, bytes: usize) -> Result<*mut c_void> {
        check_range(at, bytes, self.bytes)?;
        Ok(self.start.as_ptr().wrapping_add(at).cast())
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let start = self.start.as_ptr().cast();
        self.gpu.discard(Piece::Pinned(start));
    }
}

/// Shared words that the GPU can reach.
#[derive(Debug)]
pub struct Words {
    gpu: Arc<Gpu>,
    /// None only while it is being dropped.
    shared: Option<SharedWords>,
    address: CUdeviceptr,
}

impl Words {
    /// Makes them known to the GPU.
    ///
    /// # Errors
    /// The driver's.
    pub fn register(gpu: &Arc<Gpu>, shared: SharedWords) -> Result<Self> {
        gpu.sweep();
        let _entered = gpu.enter()?;
        let (start, bytes) = shared.mapped();
        let flags = raw::CU_MEMHOSTREGISTER_PORTABLE | raw::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: whole pages that are mapped as long as `shared` lives, which outlives the
        // registration: it goes with the `Piece` that ends it. The GPU's writes are to words that
        // the host reaches as atomics alone.
        let code = unsafe { raw::cuMemHostRegister_v2(start.cast(), bytes, flags) };
        check(code, "cuMemHostRegister")?;
        let mut words = Self {
            gpu: gpu.clone(),
            shared: Some(shared),
            address: 0,
        };
        // SAFETY: the memory was just registered for this; there is room for the address.
        let code =
            unsafe { raw::cuMemHostGetDevicePointer_v2(&raw mut words.address, start.cast(), 0) };
        check(code, "cuMemHostGetDevicePointer")?;
        Ok(words)
    }

    /// The words.
    #[must_use]
    pub fn shared(&self) -> &SharedWords {
        self.shared.as_ref().expect("invariant: not dropped")
    }

    pub(super) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    pub(super) fn address(&self, at: usize) -> Result<CUdeviceptr> {
        check_range(at, 1, self.shared().count())?;
        Ok(self.address + (at * size_of::<u32>()) as u64)
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.take() {
            self.gpu.discard(Piece::Registered(shared));
        }
    }
}
