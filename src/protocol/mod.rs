//! Who is alive and who agrees.
//!
//! *Purpose.* State machines without I/O: [`call`] is what a rank says it is doing, [`session`]
//! finds the one first cause when ranks disagree, leave or die.
//!
//! *Invariants.* No clock: time comes in as a value. No I/O: what must be sent comes out as a
//! value. Any input, however malformed, ends in a state or an error, never in a panic.
//!
//! *May import* only the base files.

#![forbid(unsafe_code)]

pub mod call;
pub mod message;
pub mod session;
