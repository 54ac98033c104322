//! Opens GPUs and holds the state of each GPU: its primary context, its properties and its idle
//! pinned memory.

use super::check;
use super::driver::{Api, Context, Function, driver};
use super::kernels::{Kernels, load_module};
use super::pinned::Pinned;
use crate::error::{Error, Result};
use crate::lock::lock;
use std::ffi::{CStr, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock};

/// Size, in bytes, of the buffer for a name. The names that the driver returns are shorter.
const NAME_BYTES: usize = 256;
/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
const MULTIPROCESSOR_COUNT: i32 = 16;
/// `CU_MEMHOSTALLOC_PORTABLE` and `CU_MEMHOSTALLOC_DEVICEMAP`.
const HOST_ALLOC_FLAGS: u32 = 1 | 2;
/// Minimum size in bytes of an allocation of pinned memory. All sizes are powers of two, so that
/// memory can be reused.
const PINNED_BYTES_MIN: usize = 4096;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const CAPTURE_MODE_RELAXED: i32 = 2;

/// The properties of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// The product name.
    pub name: String,
    /// The index of the GPU in this process.
    pub ordinal: usize,
    /// The UUID of the GPU, or of the part of the GPU that this process can use.
    pub uuid: [u8; 16],
    /// The newest CUDA version that the driver supports, as 1000 × major + 10 × minor.
    pub driver_version: u32,
    /// Number of bytes of memory, including used memory.
    pub memory_bytes: usize,
    /// Number of multiprocessors.
    pub multiprocessors: usize,
}

/// A GPU that this process uses.
pub struct Gpu {
    pub(super) api: &'static Api,
    context: Context,
    device: i32,
    facts: Properties,
    /// Pinned memory that no stream or operation uses any longer.
    idle: Mutex<Vec<Arc<Pinned>>>,
    /// The reduction kernels, once they have been loaded.
    kernels: OnceLock<Kernels>,
}

// SAFETY: the context is the primary one, which is never released here and may be made current in
// any thread. Everything else is constant or behind a lock.
unsafe impl Send for Gpu {}
// SAFETY: as for `Send`.
unsafe impl Sync for Gpu {}

/// A guard that keeps the GPU's context current in this thread, and prevents the thread's driver
/// calls from disturbing graph captures.
pub(super) struct CurrentContext {
    api: &'static Api,
    is_pushed: bool,
    capture_mode: i32,
    /// Prevents the value from being moved to another thread.
    thread: PhantomData<*const ()>,
}

impl Drop for CurrentContext {
    fn drop(&mut self) {
        if self.is_pushed {
            let mut popped = std::ptr::null_mut();
            // SAFETY: pops what `enter` pushed on this same thread. There is room for the pointer.
            let _ = unsafe { (self.api.context_pop)(&raw mut popped) };
        }
        // SAFETY: the driver returned this mode for this same thread.
        let _ = unsafe { (self.api.exchange_capture_mode)(&raw mut self.capture_mode) };
    }
}

impl Gpu {
    /// Returns the GPU that has the index `ordinal` in this process. Each GPU is opened only once,
    /// and later calls return the same value.
    ///
    /// # Errors
    /// Returns `ErrorKind::NoDevice` if the GPU does not exist, or `ErrorKind::Device` if it cannot
    /// be used.
    pub fn open(ordinal: usize) -> Result<Arc<Gpu>> {
        static GPUS: Mutex<Vec<Arc<Gpu>>> = Mutex::new(Vec::new());
        let driver = driver()?;
        let mut gpus = lock(&GPUS);
        if let Some(gpu) = gpus.iter().find(|gpu| gpu.facts.ordinal == ordinal) {
            return Ok(gpu.clone());
        }
        if ordinal >= driver.gpus {
            let gpus = driver.gpus;
            return Err(Error::no_device(format!(
                "GPU {ordinal} is out of range: this process can use {gpus} GPUs, numbered from 0"
            )));
        }
        let api = &driver.api;
        let mut device = 0;
        // SAFETY: the driver writes one integer, for which there is room.
        let code = unsafe { (api.device_get)(&raw mut device, ordinal as i32) };
        check(code, "cuDeviceGet")?;
        let facts = facts(api, device, ordinal, driver.version)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the device is the driver's. There is room for the pointer.
        let code = unsafe { (api.primary_context_retain)(&raw mut context, device) };
        check(code, "cuDevicePrimaryCtxRetain")?;
        let gpu = Arc::new(Gpu {
            api,
            context,
            device,
            facts,
            idle: Mutex::default(),
            kernels: OnceLock::new(),
        });
        gpus.push(gpu.clone());
        Ok(gpu)
    }

    /// Returns the GPU's properties.
    #[must_use]
    pub fn facts(&self) -> &Properties {
        &self.facts
    }

    /// Compiles the kernels in `text` with the driver and loads them permanently. The driver may
    /// wait for all work on the GPU.
    ///
    /// # Errors
    /// Returns `ErrorKind::Usage` if the text is not PTX, or else the driver's error.
    pub fn load_kernels(&self, text: &str) -> Result<()> {
        if !is_ptx(text) {
            let what = "kernels must be PTX, which starts with a `.version` line";
            return Err(Error::usage(what));
        }
        let _entered = self.enter()?;
        load_module(self.api, text).map(|_| ())
    }

    /// Compiles and loads all reduction kernels now. While it does so, the driver may wait for all
    /// work on the GPU. That must not happen at the first launch.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn load_reductions(&self) -> Result<()> {
        if self.kernels.get().is_some() {
            return Ok(());
        }
        let _entered = self.enter()?;
        let _ = self.kernels.set(Kernels::load(self.api)?);
        Ok(())
    }

    /// Returns the reduction kernel with this name if the kernels have been loaded.
    pub(super) fn kernel(&self, name: &CStr) -> Option<Function> {
        self.kernels.get()?.find(name)
    }

    /// Returns at least `bytes` initialized bytes that no other code uses.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn take_pinned(&self, bytes: usize) -> Result<Arc<Pinned>> {
        let bytes = bytes.max(PINNED_BYTES_MIN).next_power_of_two();
        let mut idle = lock(&self.idle);
        if let Some(at) = idle.iter().position(|one| one.bytes() == bytes) {
            return Ok(idle.swap_remove(at));
        }
        drop(idle);
        let _entered = self.enter()?;
        let mut start: *mut c_void = std::ptr::null_mut();
        // SAFETY: the context is current, and there is room for the pointer.
        let code = unsafe { (self.api.mem_host_alloc)(&raw mut start, bytes, HOST_ALLOC_FLAGS) };
        check(code, "cuMemHostAlloc").map_err(|error| {
            Error::device(format!(
                "cannot allocate {bytes} bytes of pinned memory: {error}"
            ))
        })?;
        let mut address = 0;
        // SAFETY: the memory was just allocated to be mapped, and there is room for the address.
        let code = unsafe { (self.api.mem_host_get_device_pointer)(&raw mut address, start, 0) };
        check(code, "cuMemHostGetDevicePointer")?;
        let start = NonNull::new(start.cast::<u8>());
        let start = start.ok_or_else(|| Error::device("cuMemHostAlloc returned a null pointer"))?;
        // SAFETY: the allocation has `bytes` bytes, and no other code has its address yet.
        unsafe { start.write_bytes(0, bytes) };
        // SAFETY: the bytes have just been initialized and are never freed, and no other code has
        // their address.
        Ok(Arc::new(unsafe { Pinned::of(start, address, bytes, None) }))
    }

    /// Keeps the memory for later requests if this is the last clone. Otherwise, only drops this
    /// clone. No stream may use the memory any longer.
    pub(crate) fn return_pinned(&self, pinned: Arc<Pinned>) {
        if Arc::strong_count(&pinned) == 1 {
            lock(&self.idle).push(pinned);
        }
    }

    /// Returns the driver's handle for the GPU.
    pub(super) fn device(&self) -> i32 {
        self.device
    }

    /// Returns `true` if `context` is the context that this GPU uses.
    pub(super) fn is_context(&self, context: Context) -> bool {
        self.context == context
    }

    /// Makes the context current in this thread, and prevents the thread's driver calls from
    /// disturbing captures.
    pub(super) fn enter(&self) -> Result<CurrentContext> {
        let mut capture_mode = CAPTURE_MODE_RELAXED;
        // SAFETY: the driver exchanges one integer, for which there is room.
        let code = unsafe { (self.api.exchange_capture_mode)(&raw mut capture_mode) };
        check(code, "cuThreadExchangeStreamCaptureMode")?;
        let mut entered = CurrentContext {
            api: self.api,
            is_pushed: false,
            capture_mode,
            thread: PhantomData,
        };
        let mut current = std::ptr::null_mut();
        // SAFETY: there is room for the pointer.
        let code = unsafe { (self.api.context_get_current)(&raw mut current) };
        check(code, "cuCtxGetCurrent")?;
        if current != self.context {
            // SAFETY: the context is retained for the life of the process.
            let code = unsafe { (self.api.context_push)(self.context) };
            check(code, "cuCtxPushCurrent")?;
            entered.is_pushed = true;
        }
        Ok(entered)
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Properties { ordinal, name, .. } = &self.facts;
        write!(formatter, "Gpu({ordinal}, {name})")
    }
}

/// Returns `true` if the driver would interpret `text` as PTX. The driver also accepts binaries,
/// and trusts the lengths in them.
fn is_ptx(text: &str) -> bool {
    let is_comment = |line: &&str| line.is_empty() || line.starts_with("//");
    let mut lines = text.lines().map(str::trim_start);
    let first = lines.find(|line| !is_comment(line));
    first.is_some_and(|line| line.starts_with(".version"))
}

fn facts(api: &Api, device: i32, ordinal: usize, driver_version: u32) -> Result<Properties> {
    let mut name = [0; NAME_BYTES];
    // SAFETY: the driver writes at most `NAME_BYTES` characters, the last of them zero.
    let code = unsafe { (api.device_get_name)(name.as_mut_ptr(), NAME_BYTES as i32, device) };
    check(code, "cuDeviceGetName")?;
    name[NAME_BYTES - 1] = 0;
    // SAFETY: the array contains a zero.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    let mut uuid = [0; 16];
    // SAFETY: there is room for the 16 bytes.
    let code = unsafe { (api.device_get_uuid)(&raw mut uuid, device) };
    check(code, "cuDeviceGetUuid")?;
    let (mut memory_bytes, mut multiprocessors) = (0, 0);
    // SAFETY: there is room for the value.
    let code = unsafe { (api.device_total_mem)(&raw mut memory_bytes, device) };
    check(code, "cuDeviceTotalMem")?;
    // SAFETY: as above.
    let code = unsafe {
        (api.device_get_attribute)(&raw mut multiprocessors, MULTIPROCESSOR_COUNT, device)
    };
    check(code, "cuDeviceGetAttribute")?;
    Ok(Properties {
        name: name.to_string_lossy().into_owned(),
        ordinal,
        uuid,
        driver_version,
        memory_bytes,
        multiprocessors: usize::try_from(multiprocessors).unwrap_or(0),
    })
}
