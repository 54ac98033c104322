//! A GPU: its primary context, what it is, and what waits to be freed.

use super::driver::driver;
use super::kernels::Kernels;
use super::ledger::Ledger;
use super::{check, lock};
use crate::error::{Error, Result};
use crate::sys::pages::SharedWords;
use cudarc::driver::sys::{self as raw, CUdevice_attribute, CUdeviceptr};
use std::ffi::{CStr, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, OnceLock};

/// Room for a name; the driver's are shorter.
const NAME_BYTES: usize = 256;

/// What a GPU is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The product's name.
    pub name: String,
    /// Its number in this process.
    pub ordinal: usize,
    /// Its UUID, or that of the part of it that this process has.
    pub uuid: [u8; 16],
    /// The newest version of CUDA that the driver knows.
    pub driver_version: u32,
    /// Bytes of memory.
    pub memory_bytes: usize,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Whether streams write words of 64 bits; those of 32 they do.
    pub word_operations_64_bit: bool,
}

/// A GPU of this process.
pub struct Gpu {
    pub(super) device: raw::CUdevice,
    pub(super) context: raw::CUcontext,
    facts: Facts,
    pub(super) kernels: OnceLock<Kernels>,
    /// Of all streams that are there, or were dropped with operations under way.
    pub(super) ledgers: Mutex<Vec<Arc<Ledger>>>,
}

// SAFETY: the context is the primary one, which is never released here and may be made current in
// any thread; everything else is behind locks.
unsafe impl Send for Gpu {}
// SAFETY: as for `Send`.
unsafe impl Sync for Gpu {}

/// What may not be freed yet: of all GPUs, as freeing on one may wait for those that reach it.
struct Garbage {
    /// Waits for words that are not known to be over.
    waits: usize,
    pieces: Vec<(Arc<Gpu>, Piece)>,
}

static GARBAGE: Mutex<Garbage> = Mutex::new(Garbage {
    waits: 0,
    pieces: Vec::new(),
});

impl Garbage {
    fn empty(&mut self) {
        if self.waits > 0 {
            return;
        }
        for (gpu, piece) in std::mem::take(&mut self.pieces) {
            match gpu.enter() {
                Ok(_entered) => piece.free(),
                Err(_) => self.pieces.push((gpu, piece)),
            }
        }
    }
}

/// Something of the driver's that is nobody's any more.
pub(super) enum Piece {
    /// Memory that was allocated.
    Allocation(CUdeviceptr),
    /// A peer's memory that was opened; the other is there until it was closed.
    Imported(
        CUdeviceptr,
        #[expect(dead_code, reason = "it is there to be dropped")] Arc<()>,
    ),
    /// Pinned memory.
    Pinned(*mut c_void),
    /// Words that were registered.
    Registered(SharedWords),
}

// SAFETY: the pointer of pinned memory is the only reference to it that is left, and the driver
// frees it from any thread.
unsafe impl Send for Piece {}

impl Piece {
    /// Gives it back to the driver. The GPU's context is current.
    fn free(self) {
        // A failure leaves nothing to do: either the context has failed, and with it everything in
        // it is gone, or the piece leaks.
        // SAFETY: each piece came from the driver's matching call, is freed once, as it is
        // consumed, and no operation uses it: its last owner has dropped it, and operations own
        // what they name until they are done.
        let _ = unsafe {
            match &self {
                Piece::Allocation(address) => raw::cuMemFree_v2(*address),
                Piece::Imported(address, _) => raw::cuIpcCloseMemHandle(*address),
                Piece::Pinned(start) => raw::cuMemFreeHost(*start),
                Piece::Registered(words) => raw::cuMemHostUnregister(words.mapped().0.cast()),
            }
        };
    }
}

/// While this lives, the GPU's context is this thread's.
pub(super) struct Entered {
    is_pushed: bool,
    /// It belongs to the thread.
    thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.is_pushed {
            let mut popped = std::ptr::null_mut();
            // SAFETY: pops what `enter` pushed on this very thread; there is room for the pointer.
            let _ = unsafe { raw::cuCtxPopCurrent_v2(&raw mut popped) };
        }
    }
}

impl Gpu {
    /// GPU number `ordinal` of this process: the same value every time.
    ///
    /// # Errors
    /// [`Error::NoDevice`]: there is none; [`Error::Device`]: it cannot be used.
    pub fn open(ordinal: usize) -> Result<Arc<Gpu>> {
        static GPUS: Mutex<Vec<Arc<Gpu>>> = Mutex::new(Vec::new());
        let driver = driver()?;
        let mut gpus = lock(&GPUS);
        if let Some(gpu) = gpus.iter().find(|gpu| gpu.facts.ordinal == ordinal) {
            return Ok(gpu.clone());
        }
        if ordinal >= driver.gpus {
            let gpus = driver.gpus;
            return Err(Error::NoDevice(format!(
                "there is no GPU {ordinal}: this process may use {gpus}, counted from 0"
            )));
        }
        let device = device(ordinal)?;
        let facts = facts(device, ordinal, driver.version)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the device is the driver's; there is room for the pointer.
        let code = unsafe { raw::cuDevicePrimaryCtxRetain(&raw mut context, device) };
        check(code, "cuDevicePrimaryCtxRetain")?;
        let gpu = Arc::new(Gpu {
            device,
            context,
            facts,
            kernels: OnceLock::new(),
            ledgers: Mutex::default(),
        });
        gpus.push(gpu.clone());
        Ok(gpu)
    }

    /// What it is.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Whether `context` is the one used here.
    pub(super) fn is_context(&self, context: raw::CUcontext) -> bool {
        self.context == context
    }

    /// Makes the context current in this thread.
    pub(super) fn enter(&self) -> Result<Entered> {
        let mut current = std::ptr::null_mut();
        // SAFETY: the driver is initialised, or there were no `Gpu`; there is room for the pointer.
        let code = unsafe { raw::cuCtxGetCurrent(&raw mut current) };
        check(code, "cuCtxGetCurrent")?;
        let is_pushed = current != self.context;
        if is_pushed {
            // SAFETY: the context is retained for the life of the process.
            let code = unsafe { raw::cuCtxPushCurrent_v2(self.context) };
            check(code, "cuCtxPushCurrent")?;
        }
        Ok(Entered {
            is_pushed,
            thread: PhantomData,
        })
    }

    /// Frees `piece`, now or when no stream waits for a word.
    pub(super) fn discard(self: &Arc<Self>, piece: Piece) {
        let mut garbage = lock(&GARBAGE);
        garbage.pieces.push((self.clone(), piece));
        garbage.empty();
    }

    /// Lets go of what streams keep for operations that are done.
    pub(super) fn sweep(&self) {
        let ledgers = lock(&self.ledgers).clone();
        if let Ok(_entered) = self.enter() {
            for ledger in &ledgers {
                ledger.look();
            }
        }
        drop(ledgers);
        lock(&self.ledgers).retain(|ledger| !ledger.is_over());
    }
}

/// A stream's wait for a word, counted until the value is dropped.
pub(super) struct Wait(());

impl Wait {
    pub(super) fn begin() -> Self {
        // If something is being freed, this waits for it: the wait must not begin before.
        lock(&GARBAGE).waits += 1;
        Self(())
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let mut garbage = lock(&GARBAGE);
        garbage.waits -= 1;
        garbage.empty();
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "Gpu({}, {})",
            self.facts.ordinal, self.facts.name
        )
    }
}

/// The driver's name for GPU `ordinal` of this process, which there is.
pub(super) fn device(ordinal: usize) -> Result<raw::CUdevice> {
    let mut device = 0;
    // SAFETY: the driver is initialised; it writes one integer, for which there is room.
    let code = unsafe { raw::cuDeviceGet(&raw mut device, ordinal as i32) };
    check(code, "cuDeviceGet").map(|()| device)
}

pub(super) fn uuid(device: raw::CUdevice) -> Result<[u8; 16]> {
    let mut uuid = raw::CUuuid { bytes: [0; 16] };
    // SAFETY: there is room for the value.
    let code = unsafe { raw::cuDeviceGetUuid_v2(&raw mut uuid, device) };
    check(code, "cuDeviceGetUuid")?;
    Ok(uuid.bytes.map(|byte| byte as u8))
}

fn facts(device: raw::CUdevice, ordinal: usize, driver_version: u32) -> Result<Facts> {
    let mut name = [0; NAME_BYTES];
    // SAFETY: the driver writes at most so many characters, the last of them zero.
    let code = unsafe { raw::cuDeviceGetName(name.as_mut_ptr(), NAME_BYTES as i32, device) };
    check(code, "cuDeviceGetName")?;
    name[NAME_BYTES - 1] = 0;
    // SAFETY: the array holds a zero.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    let mut memory_bytes = 0;
    // SAFETY: there is room for the value.
    let code = unsafe { raw::cuDeviceTotalMem_v2(&raw mut memory_bytes, device) };
    check(code, "cuDeviceTotalMem")?;
    let attribute = |attribute: CUdevice_attribute| {
        let mut value = 0;
        // SAFETY: there is room for the value.
        let code = unsafe { raw::cuDeviceGetAttribute(&raw mut value, attribute, device) };
        check(code, "cuDeviceGetAttribute").map(|()| value)
    };
    let multiprocessors = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let word_operations_64_bit =
        attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)?;
    Ok(Facts {
        name: name.to_string_lossy().into_owned(),
        ordinal,
        uuid: uuid(device)?,
        driver_version,
        memory_bytes,
        multiprocessors: multiprocessors.unsigned_abs(),
        word_operations_64_bit: word_operations_64_bit != 0,
    })
}
