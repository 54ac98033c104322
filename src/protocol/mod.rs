//! Implements the protocols between ranks as state machines that do no I/O.
//!
//! *Purpose.*
//! - [`handshake`] lets each end of a new connection prove that it holds the job's secret.
//! - [`sealed`] defines the stream of authenticated control messages that may follow the handshake.
//! - [`fd_passing`] defines the message with which ranks on one host pass descriptors to each
//!   other.
//! - [`call`] describes a call, and [`message`] defines the control messages within a group.
//! - [`session`] determines the first error when ranks disagree, leave or die, and the last
//!   training step that all ranks had completed by then.
//! - [`members`] maps the ranks of a group to world ranks.
//! - [`group_creation`] lets the members of a new group agree on its number.
//! - [`pmi`] exchanges a value with the launcher of an MPI program.
//!
//! *Invariants.* No code here reads a clock: callers pass the time as a value. No code here does
//! I/O: messages to send are returned as values. Any input, however malformed, leads to a state or
//! an error, never to a panic. Until a proof has been checked, an input makes this process hold
//! only a fixed number of bytes.
//!
//! *May import* `plan` (names of collectives and algorithms) and the base files.

#![forbid(unsafe_code)]

pub mod call;
pub mod fd_passing;
pub mod group_creation;
pub mod handshake;
pub mod members;
pub mod message;
pub(crate) mod pmi;
pub(crate) mod sealed;
pub mod session;
