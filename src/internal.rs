//! Re-exports for this repository's adapters, command, tests and benchmarks.
//!
//! This module is not part of the public API and can change in any version. Every function is
//! sound, except those of [`unchecked`], which are `unsafe` and state their contract.

/// Settings, addresses and checks that the command reads.
pub mod bootstrap {
    pub use crate::bootstrap::TuningSource;
    pub use crate::bootstrap::address::{host_name, segment_bytes};
    pub use crate::bootstrap::environment::{
        VARIABLES, Variable, check_names, host_and_port, listed,
    };
    pub use crate::bootstrap::placement::launchers;
    pub use crate::bootstrap::settings::{check_environment, check_settings};
    pub use crate::bootstrap::sharing::Findings;
    pub use crate::sys::interfaces::addresses as interface_addresses;
}

/// Functions that send values encoded by another language, in the same way as `comm::values` sends
/// values.
pub mod values {
    pub use crate::comm::values::{
        all_gather, broadcast, gather, receive_bytes as receive, send_bytes as send,
    };
}

/// Calls and helpers that only this repository's other packages, tests and benchmarks need.
pub mod calls {
    pub use crate::comm::any::collective;
    pub use crate::comm::info::device_path_line;
    pub use crate::comm::measure::measure;
    #[cfg(feature = "cuda")]
    pub use crate::comm::on_device::plan_on_device;
    pub use crate::comm::pairs::{start_recv_any, wait_with_sender};
    pub use crate::comm::shared_buffer::is_shared;
}

/// Data-parallel training with custom hooks, gradients outside host memory, and state that is saved
/// without a [`Run`](crate::ddp::Run).
#[cfg(feature = "ddp")]
pub mod ddp {
    pub use crate::ddp::backward::set_gradient_sync;
    pub use crate::ddp::carried::{averaged_place, place, with_carrier};
    pub use crate::ddp::carrier::{Carrier, Place};
    pub use crate::ddp::hooks::{BucketInfo, Exchange, Hook, Next, Plain};
    pub use crate::ddp::marks::{agreed_mark, mark};
    pub use crate::ddp::state::{hook_state, order, restore, restore_hook};
    pub use crate::ddp::trace::{dropped, is_on};
    pub use crate::ddp::values::Values;
}

/// Errors that only this repository's adapters create.
pub mod errors {
    use crate::error::Error;

    /// Creates the error that reports the loss of `rank`, as detected by that rank itself.
    #[must_use]
    pub fn lost(rank: usize, text: impl Into<String>) -> Error {
        Error::peer_lost(rank, text).with_rank(rank)
    }
}

/// Events, for bindings whose programs cannot have a `tracing` subscriber.
pub mod events {
    pub use crate::event::{Receiver, set_receiver};
}

/// Programs and the engine that runs them.
pub mod engine {
    pub use crate::engine::Engine;
    pub use crate::engine::bind::{Lengths, Placement};
    pub use crate::engine::cache::{Cache, Key, Prepared};
    pub use crate::engine::group::{End, Group, Memory, Order, Start};
    pub use crate::engine::medium::host::Links;
    pub use crate::engine::program::{
        Action, Arithmetic, Endpoint, Piece, Program, ProgramStep, Space,
    };
    pub use crate::engine::stats::Transport;
}

/// Functions of the launcher that the command needs too.
#[cfg(feature = "launch")]
pub mod launch {
    pub use crate::bootstrap::placement::node::{Node, node};
    pub use crate::launch::run::local_job;
    pub use crate::launch::streams::tell;
    pub use crate::sys::process::bind_to_parent;
}

/// Functions that describe GPUs, allocate their memory, and load kernels that other programs
/// supply.
#[cfg(feature = "cuda")]
pub mod cuda {
    pub use crate::device::{Description, allocate, description, load_kernels};
}

pub use crate::dtype::rust;

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

/// The protocols between ranks, as state machines that do no I/O.
pub mod protocol {
    pub use crate::protocol::{
        call, fd_passing, group_creation, handshake, members, message, session,
    };
}

/// All limits of the library.
pub mod limits {
    pub use crate::limits::*;
}

/// The simulated network that connects the ranks of a [`World`](crate::sim::World).
pub mod sim {
    pub use crate::lock::lock;
    pub use crate::sim::connector::{SimStream, links, links_among};
    pub use crate::sim::faults::SplitMix64;
    pub use crate::sim::network::{ControlMessage, Network, Uplinks};
    pub use crate::sim::schedule::{Baton, Deadlock};
    pub use crate::sim::world::run_on;
}

/// Reductions and memory.
pub mod compute {
    pub use crate::reduce::{Kernel, scale};
    #[cfg(feature = "cuda")]
    pub use crate::sys::cuda::launch as gpu;
    pub use crate::sys::memory::{Region, lend, lend_both};
}

/// Functions that share memory in ways that the compiler cannot check.
///
/// All of these functions have the same contract. The memory is accessed only through this
/// library's links, in the order in which the engine calls the links. The links read only bytes
/// that the owner of the memory has published and that the reader has not acknowledged yet. Nothing
/// writes those bytes in the meantime.
///
/// This is the only file outside `sys` that contains the word `unsafe`. It declares unsafe
/// functions but contains no unsafe block.
#[allow(unsafe_code)]
pub mod unchecked {
    use crate::link::shm::{self, exposed};
    use crate::sys::shared::{OwnRegion, PeerRegion};
    use std::io;
    use std::os::fd::OwnedFd;

    /// Creates the region of one rank in a group of `places` ranks. Returns the region and the file
    /// that the other ranks map.
    ///
    /// # Errors
    /// Returns the operating system's error.
    ///
    /// # Safety
    /// See the module documentation.
    pub unsafe fn region(places: usize) -> io::Result<(OwnRegion, OwnedFd)> {
        shm::region(places)
    }

    /// Maps the region of another rank in a group of `places` ranks.
    ///
    /// # Errors
    /// Returns an error if the file is not such a region or if the operating system reports an
    /// error.
    ///
    /// # Safety
    /// See the module documentation.
    pub unsafe fn peer_region(places: usize, file: &OwnedFd) -> io::Result<PeerRegion> {
        shm::peer_region(places, file)
    }

    /// Allocates `bytes` bytes of memory that peers can read. Returns the memory and the file that
    /// the peers map.
    ///
    /// # Errors
    /// Returns the operating system's error.
    ///
    /// # Safety
    /// See the module documentation. Memory that a call sends from in place counts as published
    /// until the call has completed or the memory is revoked.
    pub unsafe fn memory(bytes: usize) -> io::Result<(OwnRegion, OwnedFd)> {
        exposed::memory(bytes)
    }

    /// Maps the `bytes` bytes of memory that another rank has allocated.
    ///
    /// # Errors
    /// Returns an error if the file is not such memory or if the operating system reports an error.
    ///
    /// # Safety
    /// See the module documentation.
    pub unsafe fn peer_memory(bytes: usize, file: &OwnedFd) -> io::Result<PeerRegion> {
        exposed::peer_memory(bytes, file)
    }
}
