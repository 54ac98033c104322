//! Which ranks are there, alive, and in agreement: the conversations between ranks as values.
//!
//! *Purpose.* [`handshake`] proves to each end of a new connection that the other holds the job's
//! secret; [`sealed`] is the stream of authenticated control messages that may follow;
//! [`hand_over`] is the message with which ranks of one host pass descriptors; [`call`]
//! is what a rank says it is doing; [`session`] finds the first error when ranks disagree,
//! leave or die, and how far all of them had come by then. [`members`] are the ranks of a group,
//! and by [`founding`] they agree on its number.
//!
//! *Invariants.* No clock: time comes in as a value. No I/O: what must be sent comes out as a
//! value. Any input, however malformed, ends in a state or an error, never in a panic, and before
//! a proof was checked makes us hold only a fixed number of bytes.
//!
//! *May import* `plan` (names of collectives and algorithms) and the base files.

#![forbid(unsafe_code)]

pub mod call;
pub mod founding;
pub mod hand_over;
pub mod handshake;
pub mod members;
pub mod message;
pub(crate) mod sealed;
pub mod session;
