//! Checks that calls do not allocate memory once they are warmed up. Three ranks run on threads,
//! and the allocator counts the allocations of the calling threads.

#![allow(clippy::unwrap_used)]

#[path = "support/address.rs"]
mod address;

use address::reserved_address;
use ringtree::internal::limits::CALLS_REMEMBERED;
use ringtree::{Communicator, ReduceOp};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on unchanged to the system's allocator.
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
const RANKS: usize = 3;

/// The buffers for a rank's calls, each long enough for the longest call.
struct Buffers {
    input: Vec<f32>,
    data: Vec<f32>,
}

fn in_place(comm: &Communicator, Buffers { data, .. }: &mut Buffers) -> ringtree::Result<()> {
    for size in SIZES {
        comm.all_reduce(&mut data[..size], ReduceOp::Max)?;
        comm.broadcast(&mut data[..size], 1)?;
        comm.reduce_scatter(&mut data[..size], ReduceOp::Max)?;
        comm.all_gather(&mut data[..size])?;
        comm.barrier()?;
    }
    Ok(())
}

fn into(comm: &Communicator, Buffers { input, data }: &mut Buffers) -> ringtree::Result<()> {
    for size in SIZES {
        let block = comm.block(size).len();
        comm.all_reduce_into(&input[..size], &mut data[..size], ReduceOp::Max)?;
        comm.reduce_into(&input[..size], &mut data[..size], ReduceOp::Max, 1)?;
        comm.all_gather_into(&input[..block], &mut data[..size])?;
    }
    Ok(())
}

/// The output has space for only one block, so the library needs other memory for the data that
/// passes through this rank.
fn reduce_scatter_into(comm: &Communicator, buffers: &mut Buffers) -> ringtree::Result<()> {
    for size in SIZES {
        let output = &mut buffers.data[..comm.block(size).len()];
        comm.reduce_scatter_into(&buffers.input[..size], output, ReduceOp::Max)?;
    }
    Ok(())
}

type Calls = fn(&Communicator, &mut Buffers) -> ringtree::Result<()>;

/// Returns the number of allocations that this rank's thread made in the calls after the warm-up.
fn rank(rank: usize, rendezvous: &str, calls: Calls) -> ringtree::Result<usize> {
    let builder = Communicator::builder().rank(rank).world_size(RANKS);
    let comm = builder.rendezvous(rendezvous).connect()?;
    let longest = vec![rank as f32; SIZES[SIZES.len() - 1]];
    let mut buffers = Buffers {
        input: longest.clone(),
        data: longest,
    };
    // A rank remembers its last calls. Until it remembers `CALLS_REMEMBERED` calls, each call may
    // allocate memory.
    for _ in 0..CALLS_REMEMBERED / SIZES.len() {
        calls(&comm, &mut buffers)?;
    }
    let before = ALLOCATIONS.get();
    for _ in 0..20 {
        calls(&comm, &mut buffers)?;
    }
    Ok(ALLOCATIONS.get() - before)
}

/// Returns each rank's number of allocations.
fn allocations(calls: Calls) -> [ringtree::Result<usize>; RANKS] {
    let rendezvous = reserved_address();
    std::thread::scope(|scope| {
        let ranks = [0, 1, 2].map(|number| {
            let rendezvous = &rendezvous;
            scope.spawn(move || rank(number, rendezvous, calls))
        });
        ranks.map(|rank| rank.join().unwrap())
    })
}

#[test]
fn warm_call_in_place_does_not_allocate() {
    assert_eq!(allocations(in_place), [Ok(0), Ok(0), Ok(0)]);
}

#[test]
fn warm_call_into_output_does_not_allocate() {
    assert_eq!(allocations(into), [Ok(0), Ok(0), Ok(0)]);
}

#[test]
fn warm_reduce_scatter_into_block_does_not_allocate() {
    assert_eq!(allocations(reduce_scatter_into), [Ok(0), Ok(0), Ok(0)]);
}
