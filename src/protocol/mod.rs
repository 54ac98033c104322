//! Who is there, who may speak, and who agrees: the conversations between ranks as values.
//!
//! *Purpose.* [`handshake`] proves to each end of a new connection that the other holds the job's
//! secret; [`sealed`] is the stream of authenticated control messages that may follow.
//!
//! *Invariants.* State machines over bytes and values: no socket, clock or thread. No input, however
//! made, makes them panic or hold more than a fixed number of bytes before a proof was checked.
//!
//! *May import* only the base files.

#![forbid(unsafe_code)]

pub mod handshake;
pub mod sealed;
