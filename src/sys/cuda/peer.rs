//! Several GPUs: whether one can read another's memory.

use super::check;
use super::driver::driver;
use super::gpu::{Gpu, device, uuid};
use crate::error::Result;
use cudarc::driver::sys::{self as raw, CUresult};

impl Gpu {
    /// Whether this GPU can read the memory of the one with this UUID, itself among them. Of a GPU
    /// that this process does not see that is not known.
    #[must_use]
    pub fn can_reach(&self, unique_id: &[u8; 16]) -> bool {
        self.facts().uuid == *unique_id || self.finds_peer(unique_id).unwrap_or(false)
    }

    fn finds_peer(&self, unique_id: &[u8; 16]) -> Result<bool> {
        for ordinal in 0..driver()?.gpus {
            let peer = device(ordinal)?;
            if uuid(peer)? == *unique_id {
                let mut can = 0;
                // SAFETY: both devices are the driver's; there is room for the integer.
                let code = unsafe { raw::cuDeviceCanAccessPeer(&raw mut can, self.device, peer) };
                check(code, "cuDeviceCanAccessPeer")?;
                return Ok(can != 0);
            }
        }
        Ok(false)
    }

    /// From now on what this GPU is told can use what is allocated on `other` in this process.
    pub(super) fn enable_peer(&self, other: &Gpu) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: this context is current; the other one is retained for the life of the process.
        match unsafe { raw::cuCtxEnablePeerAccess(other.context, 0) } {
            CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            code => check(code, "cuCtxEnablePeerAccess"),
        }
    }
}
