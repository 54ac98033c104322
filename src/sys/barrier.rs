//! The fence between a thread that goes to sleep and the threads that may have to wake it.
//!
//! The sleeper sets its flag, then looks for work once more; a waker publishes work, then looks at
//! the flag. One of the two must see what the other wrote, which needs a full fence between write
//! and look on both sides. A waker's fence would add the time of a cache line's transfer to every
//! message. So the sleeper, which has time, lets the kernel put the fence into every running thread
//! (`membarrier`), and a waker only keeps the compiler from reordering. Where the kernel does not
//! offer this, both sides fence.

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence, fence};

/// `MEMBARRIER_CMD_GLOBAL_EXPEDITED` and the registration for it, of `linux/membarrier.h` (Linux
/// 4.16).
const GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes numbers alone and touches no memory of the process.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether this process's threads take part in the kernel's fences, and it may ask for them.
#[must_use]
pub(crate) fn is_kernel_fencing() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED
        .get_or_init(|| membarrier(REGISTER_GLOBAL_EXPEDITED) && membarrier(GLOBAL_EXPEDITED))
}

/// The sleeper's fence: after it the sleeper sees what any waker wrote before it, and a waker that
/// looks later sees what the sleeper wrote before it.
pub(crate) fn fence_of_sleeper() {
    fence(Ordering::SeqCst);
    if is_kernel_fencing() {
        // It has worked before; if it fails now, a sleep lasts its full, bounded, time.
        membarrier(GLOBAL_EXPEDITED);
        fence(Ordering::SeqCst);
    }
}

/// The waker's fence; `by_kernel` where the sleeper and this process have [`is_kernel_fencing`].
#[inline]
pub(crate) fn fence_of_waker(by_kernel: bool) {
    if by_kernel {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}
