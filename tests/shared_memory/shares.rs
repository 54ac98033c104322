//! Creates and maps the memory that the ranks of a test share.

use ringtree::internal::link::shm::{OwnRegion, PeerRegion};
use ringtree::internal::unchecked;
use std::os::fd::OwnedFd;

// Honest ranks access this memory only through links, which keep the contract. A liar breaks the
// contract on purpose, as a hostile process would: it writes to memory that a reader reads. Each
// rank has a separate mapping, so the compiler does not see two ways to the same memory. The tests
// show what a reader makes of arbitrary bytes.

/// Creates the region of one of `places` ranks. Returns the region and the file that the other
/// ranks map.
pub(crate) fn region(places: usize) -> (OwnRegion, OwnedFd) {
    // SAFETY: as explained above.
    unsafe { unchecked::region(places) }.expect("memory can be shared")
}

/// Maps the region of another rank, one of `places` ranks.
pub(crate) fn peer_region(places: usize, file: &OwnedFd) -> PeerRegion {
    // SAFETY: as explained above.
    unsafe { unchecked::peer_region(places, file) }.expect("the file is a region")
}

/// Creates memory of `bytes` bytes that peers can read. Returns the memory and the file that the
/// peers map.
pub(crate) fn memory(bytes: usize) -> (OwnRegion, OwnedFd) {
    // SAFETY: as explained above.
    unsafe { unchecked::memory(bytes) }.expect("memory can be shared")
}

/// Maps memory of `bytes` bytes that another rank has created.
pub(crate) fn peer_memory(bytes: usize, file: &OwnedFd) -> PeerRegion {
    // SAFETY: as explained above.
    unsafe { unchecked::peer_memory(bytes, file) }.expect("the file is shared memory")
}
