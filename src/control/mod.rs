//! Connects the processes of a job so that they can exchange control messages for as long as each
//! process runs.
//!
//! *Purpose.*
//! - The control thread owns authenticated connections for small messages. They form a star: each
//!   rank has one connection to rank 0, which relays messages. A [`ControlHandle`] sends messages,
//!   and a [`Handler`] receives them. The control thread also accepts and dials data connections,
//!   and watches the processes of the other ranks on its host ([`process`]).
//! - [`local`] passes descriptors and wake-ups between the ranks on a host.
//! - [`peer`] describes a rank and determines which ranks can share memory.
//! - `connections` is also used by `bootstrap`, which opens these connections when a rank joins,
//!   and by the launchers on a job's hosts.
//! - `report` writes a rank's reports to its launcher.
//!
//! *Invariants.* Until a handshake has succeeded, a remote end can make this process read only
//! frames of fixed size and hold only a limited number of connections, each for a limited time. The
//! control thread sleeps unless there is something to do.
//!
//! *May import* `link`, `protocol` and the base files.

#![forbid(unsafe_code)]

mod acceptor;
pub(crate) mod cancel;
pub(crate) mod channel;
pub(crate) mod connections;
pub(crate) mod descriptors;
pub(crate) mod failure;
pub(crate) mod handle;
pub(crate) mod handshake;
pub(crate) mod local;
pub(crate) mod membership;
pub(crate) mod message;
pub(crate) mod notices;
pub(crate) mod peer;
pub(crate) mod process;
pub(crate) mod report;
pub(crate) mod thread;
mod user;
pub(crate) mod wait;

pub(crate) use handle::{ControlHandle, Handler};
pub(crate) use local::LocalPeers;
pub(crate) use membership::Membership;
