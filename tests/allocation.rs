//! In the steady state a call allocates nothing: three real ranks, each on a thread, with
//! an allocator that counts what the calling threads ask for.

use ringtree::{Communicator, ReduceOp};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::TcpListener;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` above, hence from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const SIZES: [usize; 4] = [1, 1000, 50_000, 600_000];

fn calls(comm: &Communicator, data: &mut [f32]) -> ringtree::Result<()> {
    for size in SIZES {
        comm.all_reduce(&mut data[..size], ReduceOp::Max)?;
        comm.broadcast(&mut data[..size], 1)?;
        comm.reduce_scatter(&mut data[..size], ReduceOp::Max)?;
        comm.all_gather(&mut data[..size])?;
        comm.barrier()?;
    }
    Ok(())
}

/// Allocations of this rank's thread in the calls after the warm-up.
fn rank(rank: usize, rendezvous: &str) -> ringtree::Result<usize> {
    let builder = Communicator::builder().rank(rank).world_size(3);
    let comm = builder.rendezvous(rendezvous).connect()?;
    let mut data = vec![rank as f32; SIZES[SIZES.len() - 1]];
    for _ in 0..20 {
        calls(&comm, &mut data)?;
    }
    let before = ALLOCATIONS.get();
    for _ in 0..20 {
        calls(&comm, &mut data)?;
    }
    Ok(ALLOCATIONS.get() - before)
}

#[test]
fn a_warm_call_allocates_nothing() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let rendezvous = free.local_addr().unwrap().to_string();
    drop(free);
    let allocations = std::thread::scope(|scope| {
        let ranks = [0, 1, 2].map(|number| {
            let rendezvous = &rendezvous;
            scope.spawn(move || rank(number, rendezvous))
        });
        ranks.map(|rank| rank.join().unwrap())
    });
    assert_eq!(allocations, [Ok(0), Ok(0), Ok(0)]);
}
