//! Joins the ranks into a world: each rank finds rank 0 and receives the table of all ranks.
//!
//! *Purpose.* Reads the [`settings`] from the [`environment`] and runs the authenticated [`join()`]
//! at rank 0's rendezvous, where every rank receives the table of all peers. The connections are
//! then passed on to the control thread. [`sharing`] checks whether this process can share memory.
//! With [`unique_id`] and [`store`], a program can organize the join itself.
//!
//! *Invariants.* Sockets bind to the address that routes to the rendezvous or to the interface that
//! the user chose, never to the wildcard address, except in [`munge`]. Without a secret, only
//! loopback addresses are used. If a join fails, every rank that has joined reports the cause in
//! one line within the timeout. A canceled join leaves no thread and no socket behind.
//!
//! *May import* `control`, `link`, `protocol`, `sys` and the base files.

#![forbid(unsafe_code)]

pub(crate) mod address;
mod by_id;
mod client;
pub(crate) mod environment;
mod exchange;
pub(crate) mod join;
mod launcher_directory;
mod listen;
pub(crate) mod messages;
mod munge;
pub(crate) mod placement;
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
