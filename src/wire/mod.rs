//! Frames as bytes.
//!
//! *Purpose.* The one header of the data path, encoded and decoded on slices.
//!
//! *Invariants.* `decode(encode(h)) == h`; decoding never allocates, and no length read here makes
//! anybody allocate: the receiver holds the plan and knows what must come.
//!
//! *May import* only the base files.

#![forbid(unsafe_code)]

pub mod frame;
