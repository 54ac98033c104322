//! Re-exports for the command, the tests and the benches of this repository.
//!
//! No part of the public API: any of it may change in any version. Every function is sound but
//! those of [`unchecked`], which are `unsafe` and state their contracts.

/// Settings that the command reads.
pub mod bootstrap {
    pub use crate::bootstrap::TuningSource;
    pub use crate::bootstrap::environment::{check_names, listed};
    pub use crate::bootstrap::settings::check_environment;
    pub use crate::bootstrap::sharing::Findings;
}

/// Programs, and the engine that runs them.
pub mod engine {
    pub use crate::engine::Engine;
    pub use crate::engine::bind::{Lengths, Placement};
    pub use crate::engine::cache::{Cache, Key, Prepared};
    pub use crate::engine::group::{End, Group, Memory, Order, Start};
    pub use crate::engine::medium::host::Links;
    pub use crate::engine::program::{
        Action, Arithmetic, Endpoint, Piece, Program, ProgramStep, Space,
    };
}

/// Links between two ranks.
pub mod link {
    pub use crate::link::frame::Header;
    pub use crate::link::stream::StreamLink;
    pub use crate::link::tcp::{DataStream, Inbox, Reactor, TcpLink, set_options};
    pub use crate::link::{Link, LinkError, Message, Payload};

    /// Links through shared memory.
    pub mod shm {
        pub use crate::link::shm::exposed::{Allocation, Own};
        pub use crate::link::shm::layout::Layout;
        pub use crate::link::shm::local::Local;
        pub use crate::link::shm::ring::{CELL_WORDS, CELLS, Head, INLINE_BYTES, Receiver, Sender};
        pub use crate::link::shm::{LocalLinks, Wake, links};
        pub use crate::sys::shared::{OwnRegion, PeerRegion, ReadWords, WriteWords};
    }
}

/// Conversations between ranks, as values.
pub mod protocol {
    pub use crate::protocol::{call, founding, hand_over, handshake, members, message, session};
}

/// Reductions and memory.
pub mod compute {
    pub use crate::reduce::{Kernel, scale};
    #[cfg(feature = "cuda")]
    pub use crate::sys::cuda::launch as gpu;
    pub use crate::sys::memory::{Region, lend, lend_both};
}

/// Ways to share memory that the compiler does not check.
///
/// All functions here have one contract. The memory is reached through this library's own links
/// alone, in the order in which the engine calls them: they read only what its owner has published
/// and the reader has not acknowledged yet. Nothing writes those bytes meanwhile.
///
/// This is the only file outside of `sys` with the word `unsafe`: it declares functions, and has no
/// unsafe block.
#[allow(unsafe_code)]
pub mod unchecked {
    use crate::link::shm::{self, exposed};
    use crate::sys::shared::{OwnRegion, PeerRegion};
    use std::io;
    use std::os::fd::OwnedFd;

    /// Makes the region of one of `places` ranks. Returns it and the file that the others map.
    ///
    /// # Errors
    /// Returns the operating system's error.
    ///
    /// # Safety
    /// See the module.
    pub unsafe fn region(places: usize) -> io::Result<(OwnRegion, OwnedFd)> {
        shm::region(places)
    }

    /// Maps the region of another of `places` ranks.
    ///
    /// # Errors
    /// The file is no such region; or the system's error.
    ///
    /// # Safety
    /// See the module.
    pub unsafe fn peer_region(places: usize, file: &OwnedFd) -> io::Result<PeerRegion> {
        shm::peer_region(places, file)
    }

    /// Makes memory of `bytes` bytes that peers can read. Returns it and the file that they map.
    ///
    /// # Errors
    /// Returns the operating system's error.
    ///
    /// # Safety
    /// See the module. Memory that a call sends from in place counts as published until the call
    /// has completed or the memory is revoked.
    pub unsafe fn memory(bytes: usize) -> io::Result<(OwnRegion, OwnedFd)> {
        exposed::memory(bytes)
    }

    /// Maps the memory of another rank that has made `bytes` bytes.
    ///
    /// # Errors
    /// The file is no such memory; or the system's error.
    ///
    /// # Safety
    /// See the module.
    pub unsafe fn peer_memory(bytes: usize, file: &OwnedFd) -> io::Result<PeerRegion> {
        exposed::peer_memory(bytes, file)
    }
}
