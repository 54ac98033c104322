//! Memory that the ranks of a test share.

use ringtree::internal::link::shm::{OwnRegion, PeerRegion};
use ringtree::internal::unchecked;
use std::os::fd::OwnedFd;

// Honest ranks reach what these return through links alone, which keep the contract. A liar breaks
// it on purpose, as a hostile process would: it writes what a reader reads. Each rank has a mapping
// of its own, so the compiler sees no two ways to one memory. The tests say what a reader makes of
// any bytes.

/// Makes the region of one of `places` ranks. Returns it and the file that the others map.
pub(crate) fn region(places: usize) -> (OwnRegion, OwnedFd) {
    // SAFETY: as said above.
    unsafe { unchecked::region(places) }.expect("memory can be shared")
}

/// Maps the region of another of `places` ranks.
pub(crate) fn peer_region(places: usize, file: &OwnedFd) -> PeerRegion {
    // SAFETY: as said above.
    unsafe { unchecked::peer_region(places, file) }.expect("it is a region")
}

/// Makes memory of `bytes` bytes that peers can read. Returns it and the file that they map.
pub(crate) fn memory(bytes: usize) -> (OwnRegion, OwnedFd) {
    // SAFETY: as said above.
    unsafe { unchecked::memory(bytes) }.expect("memory can be shared")
}

/// Maps the memory of another rank that has made `bytes` bytes.
pub(crate) fn peer_memory(bytes: usize, file: &OwnedFd) -> PeerRegion {
    // SAFETY: as said above.
    unsafe { unchecked::peer_memory(bytes, file) }.expect("it is such memory")
}
