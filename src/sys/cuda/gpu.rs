//! A GPU: its primary context, what it is, and the pinned memory that nothing uses.

use super::driver::{Api, Context, Module, driver};
use super::kernels::Kernels;
use super::memory::Pinned;
use super::{check, lock};
use crate::error::{Error, Result};
use std::ffi::{CStr, CString};
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, OnceLock};

/// Room for a name; the driver's are shorter.
const NAME_BYTES: usize = 256;
/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
const MULTIPROCESSOR_COUNT: i32 = 16;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const CAPTURE_MODE_RELAXED: i32 = 2;

/// What a GPU is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The product's name.
    pub name: String,
    /// Its number in this process.
    pub ordinal: usize,
    /// Its UUID, or that of the part of it that this process has.
    pub uuid: [u8; 16],
    /// The newest version of CUDA that the driver knows, as 1000 × major + 10 × minor.
    pub driver_version: u32,
    /// Bytes of memory, used or not.
    pub memory_bytes: usize,
    /// Multiprocessors.
    pub multiprocessors: usize,
}

/// A GPU of this process.
pub struct Gpu {
    pub(super) api: &'static Api,
    context: Context,
    device: i32,
    facts: Facts,
    /// Pinned memory that no stream and no operation uses any more.
    pub(super) idle: Mutex<Vec<Arc<Pinned>>>,
    /// Once they were asked for.
    pub(super) kernels: OnceLock<Kernels>,
}

// SAFETY: the context is the primary one, which is never released here and may be made current in
// any thread; everything else is constant or behind a lock.
unsafe impl Send for Gpu {}
// SAFETY: as for `Send`.
unsafe impl Sync for Gpu {}

/// While this lives, the GPU's context is this thread's, and what it asks of the driver leaves
/// captures of graphs alone.
pub(super) struct Entered {
    api: &'static Api,
    is_pushed: bool,
    capture_mode: i32,
    /// It belongs to the thread.
    thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.is_pushed {
            let mut popped = std::ptr::null_mut();
            // SAFETY: pops what `enter` pushed on this very thread; there is room for the pointer.
            let _ = unsafe { (self.api.context_pop)(&raw mut popped) };
        }
        // SAFETY: the mode is the one that the driver gave for this very thread.
        let _ = unsafe { (self.api.exchange_capture_mode)(&raw mut self.capture_mode) };
    }
}

impl Gpu {
    /// GPU number `ordinal` of this process: the same value every time.
    ///
    /// # Errors
    /// [`Error::no_device`]: there is none; [`Error::device`]: it cannot be used.
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
                "there is no GPU {ordinal}: this process may use {gpus}, counted from 0"
            )));
        }
        let api = &driver.api;
        let mut device = 0;
        // SAFETY: the driver writes one integer, for which there is room.
        let code = unsafe { (api.device_get)(&raw mut device, ordinal as i32) };
        check(code, "cuDeviceGet")?;
        let facts = facts(api, device, ordinal, driver.version)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the device is the driver's; there is room for the pointer.
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

    /// What it is.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Has the driver compile and load a text of kernels, for good; it may wait for everything that
    /// the GPU was told to do.
    ///
    /// # Errors
    /// The text is no PTX; or the driver's.
    pub fn load_kernels(&self, text: &str) -> Result<()> {
        if !is_ptx(text) {
            let what = "kernels must be PTX, which starts with a `.version` line";
            return Err(Error::usage(what));
        }
        let _entered = self.enter()?;
        self.load(text).map(|_| ())
    }

    /// Loads a text of kernels for good, where the context is current.
    pub(super) fn load(&self, text: &str) -> Result<Module> {
        let text = CString::new(text).map_err(|_| Error::usage("kernels with a zero"))?;
        let mut module = std::ptr::null_mut();
        // SAFETY: the context is current; the text ends with zero; there is room for the pointer.
        let code = unsafe { (self.api.module_load_data)(&raw mut module, text.as_ptr().cast()) };
        check(code, "cuModuleLoadData").map(|()| module)
    }

    /// The driver's number of it.
    pub(super) fn device(&self) -> i32 {
        self.device
    }

    /// Whether `context` is the one used here.
    pub(super) fn is_context(&self, context: Context) -> bool {
        self.context == context
    }

    /// Makes the context current in this thread, and its calls harmless to captures.
    pub(super) fn enter(&self) -> Result<Entered> {
        let mut capture_mode = CAPTURE_MODE_RELAXED;
        // SAFETY: the driver swaps one integer, for which there is room.
        let code = unsafe { (self.api.exchange_capture_mode)(&raw mut capture_mode) };
        check(code, "cuThreadExchangeStreamCaptureMode")?;
        let mut entered = Entered {
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
        let Facts { ordinal, name, .. } = &self.facts;
        write!(formatter, "Gpu({ordinal}, {name})")
    }
}

/// Returns whether the driver reads `text` as PTX. It also takes binaries, and trusts the lengths
/// in them.
fn is_ptx(text: &str) -> bool {
    let is_comment = |line: &&str| line.is_empty() || line.starts_with("//");
    let mut lines = text.lines().map(str::trim_start);
    let first = lines.find(|line| !is_comment(line));
    first.is_some_and(|line| line.starts_with(".version"))
}

fn facts(api: &Api, device: i32, ordinal: usize, driver_version: u32) -> Result<Facts> {
    let mut name = [0; NAME_BYTES];
    // SAFETY: the driver writes at most so many characters, the last of them zero.
    let code = unsafe { (api.device_get_name)(name.as_mut_ptr(), NAME_BYTES as i32, device) };
    check(code, "cuDeviceGetName")?;
    name[NAME_BYTES - 1] = 0;
    // SAFETY: the array holds a zero.
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
    Ok(Facts {
        name: name.to_string_lossy().into_owned(),
        ordinal,
        uuid,
        driver_version,
        memory_bytes,
        multiprocessors: usize::try_from(multiprocessors).unwrap_or(0),
    })
}
