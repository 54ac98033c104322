//! Events: points in streams.

use super::gpu::Gpu;
use super::ledger::Ledger;
use super::{check, lock};
use crate::error::Result;
use cudarc::driver::sys::{self as raw, CUevent, CUevent_flags, CUresult};
use std::sync::{Arc, Mutex};

/// A driver's event, without timing, which would make it slow.
#[derive(Debug)]
pub(super) struct RawEvent {
    gpu: Arc<Gpu>,
    event: CUevent,
}

// SAFETY: the driver's calls on events may come from any thread.
unsafe impl Send for RawEvent {}
// SAFETY: as for `Send`.
unsafe impl Sync for RawEvent {}

impl RawEvent {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        let _entered = gpu.enter()?;
        let mut event = std::ptr::null_mut();
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: the context is current; there is room for the pointer.
        let code = unsafe { raw::cuEventCreate(&raw mut event, flags) };
        check(code, "cuEventCreate")?;
        Ok(Self {
            gpu: gpu.clone(),
            event,
        })
    }

    pub(super) fn raw(&self) -> CUevent {
        self.event
    }

    /// Whether the latest recording is done, or there is none.
    pub(super) fn is_done(&self) -> Result<bool> {
        let _entered = self.gpu.enter()?;
        // SAFETY: the event is destroyed by `drop` alone.
        match unsafe { raw::cuEventQuery(self.event) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => check(code, "cuEventQuery").map(|()| true),
        }
    }
}

impl Drop for RawEvent {
    fn drop(&mut self) {
        let Ok(_entered) = self.gpu.enter() else {
            return;
        };
        // SAFETY: made by `new`, destroyed once. If it is recorded and not done yet, or a stream
        // waits for it, the driver keeps what it needs.
        let _ = unsafe { raw::cuEventDestroy_v2(self.event) };
    }
}

/// An event that lets go, when it is seen done, of what the operations before it used.
#[derive(Debug)]
pub struct Event {
    event: RawEvent,
    /// Where it was recorded last, if that was not seen done yet.
    latest: Mutex<Option<(Arc<Ledger>, u64)>>,
}

impl Event {
    /// An event that counts as done.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        Ok(Self {
            event: RawEvent::new(gpu)?,
            latest: Mutex::default(),
        })
    }

    pub(super) fn gpu(&self) -> &Arc<Gpu> {
        &self.event.gpu
    }

    pub(super) fn raw(&self) -> CUevent {
        self.event.raw()
    }

    /// Records it behind the ledger's latest operation. The stream is alive, its context current.
    pub(super) fn record(&self, ledger: &Arc<Ledger>, stream: raw::CUstream) -> Result<()> {
        let mut latest = lock(&self.latest);
        // SAFETY: the stream is alive, as the caller says, and so is the event.
        let call = || unsafe { raw::cuEventRecord(self.raw(), stream) };
        let number = ledger.number_at("cuEventRecord", call)?;
        *latest = Some((ledger.clone(), number));
        Ok(())
    }

    /// Whether the latest recording is done, or there is none.
    ///
    /// # Errors
    /// The driver's: an operation before it failed.
    pub fn is_done(&self) -> Result<bool> {
        let mut latest = lock(&self.latest);
        let Some((ledger, number)) = latest.as_ref() else {
            return Ok(true);
        };
        let is_done = self.event.is_done()?;
        if is_done {
            ledger.release(*number);
            *latest = None;
        }
        Ok(is_done)
    }
}
