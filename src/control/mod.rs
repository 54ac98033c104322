//! The control plane: what runs between the ranks of a job for as long as the process lives.
//!
//! *Purpose.* Authenticated connections for small messages, and the thread that owns them. The
//! ranks form a star: each has one connection to rank 0, which relays. A [`ControlHandle`] sends,
//! a [`Handler`] is called with what arrives. The same thread accepts and dials data connections.
//! It also watches the processes of the host's other ranks ([`process`]).
//! [`local`] passes descriptors and wake-ups between the ranks of one host. [`peer`] describes a
//! rank and says which ranks can share memory. `bootstrap` makes these connections when a rank
//! joins, and the launchers of a job's hosts use the same ones (`connections`). `report` is what a
//! rank leaves for its launcher.
//!
//! *Invariants.* Until a handshake has succeeded, a remote end can make this process read only
//! frames of fixed size and hold only a bounded number of connections, each for a bounded time.
//! The control thread sleeps unless something happens.
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
