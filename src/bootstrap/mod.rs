//! The join: how a rank finds the others and becomes one of them. It ends where `control` begins.
//!
//! *Purpose.* [`settings`] from the [`environment`], the rendezvous at rank 0, and the
//! authenticated [`join()`] that gives every rank the table of all peers. It leaves the connections
//! that it made to the control thread. [`sharing`] finds out whether this process can share memory.
//! [`unique_id`] and [`store`] are starts that a program carries itself.
//!
//! *Invariants.* Sockets bind to the address that routes to the rendezvous, never to the wildcard.
//! Without a secret only loopback is used. A join that fails says why in one line, on every rank
//! that has come, within the timeout. A join that is cancelled leaves no thread and no socket.
//!
//! *May import* `control`, `link`, `protocol`, `sys` and the base files.

#![forbid(unsafe_code)]

pub(crate) mod address;
mod by_id;
mod client;
pub(crate) mod environment;
pub(crate) mod join;
mod listen;
pub(crate) mod messages;
mod rendezvous;
pub(crate) mod settings;
pub(crate) mod sharing;
pub(crate) mod start;
pub(crate) mod store;
#[cfg(test)]
mod tests;
pub(crate) mod tuning;
pub(crate) mod unique_id;

pub use tuning::TuningSource;
