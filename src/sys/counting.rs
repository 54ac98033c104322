//! Counts the allocated bytes of each thread, for unit tests.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on unchanged to the system's allocator. The counters are constants
// without a destructor, so reading them allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the promises of `alloc`.
        let start = unsafe { System.alloc(layout) };
        if !start.is_null() {
            HELD.set(HELD.get() + layout.size() as isize);
            MOST.set(MOST.get().max(HELD.get()));
        }
        start
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as isize);
        // SAFETY: the pointer came from `alloc` above, and so from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Runs `work`. Returns its result, and the maximum number of bytes that this thread had allocated
/// during the run, not counting the bytes that it had allocated before.
pub(crate) fn most_held_in<R>(work: impl FnOnce() -> R) -> (R, usize) {
    let before = HELD.get();
    MOST.set(before);
    let result = work();
    (result, (MOST.get() - before).cast_unsigned())
}
