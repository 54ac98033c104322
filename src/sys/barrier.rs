//! Implements the fence between a thread that is about to sleep and the threads that may have to
//! wake it.
//!
//! The sleeper sets its flag and then checks for work once more. A waker publishes work and then
//! checks the flag. At least one of them must see what the other wrote, so both need a full fence
//! between the write and the check. In a waker, the fence would add the time for a cache-line
//! transfer to every message. So the sleeper, which has time to spare, makes the kernel execute a
//! fence in every running thread (`membarrier`), and a waker only prevents the compiler from
//! reordering the two accesses. If the kernel does not support this, both sides execute a fence.

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence, fence};

/// `MEMBARRIER_CMD_GLOBAL_EXPEDITED` and its registration, from `linux/membarrier.h` (Linux 4.16).
const GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes only numbers and touches no memory of the process.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Returns `true` if this process's threads take part in the kernel's fences and this process may
/// request such fences.
#[must_use]
pub(crate) fn is_kernel_fencing() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED
        .get_or_init(|| membarrier(REGISTER_GLOBAL_EXPEDITED) && membarrier(GLOBAL_EXPEDITED))
}

/// Executes the sleeper's fence. Afterwards, the sleeper sees what wakers wrote before the fence,
/// and a waker that checks later sees what the sleeper wrote before the fence.
pub(crate) fn sleeper_fence() {
    fence(Ordering::SeqCst);
    if is_kernel_fencing() {
        // The call has succeeded before. If it fails now, a wake-up may be missed, and the sleep
        // lasts for its full, limited time.
        membarrier(GLOBAL_EXPEDITED);
        fence(Ordering::SeqCst);
    }
}

/// Executes the waker's fence. `by_kernel` must be `true` only if [`is_kernel_fencing`] returns
/// `true` both in the sleeper and in this process.
#[inline]
pub(crate) fn waker_fence(by_kernel: bool) {
    if by_kernel {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}
