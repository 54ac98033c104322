//! What must hold of every run, one invariant a file.
//!
//! *Purpose.* Each file has one function `check` that looks at an [`Outcome`] and returns a
//! sentence if its invariant is broken. Tests apply all that fit the faults they inject.
//!
//! *Invariants.* A checker only reads; it knows no algorithm and no script.
//!
//! *May import* `sim::cluster` and the base files.
//!
//! [`Outcome`]: super::cluster::Outcome

pub mod agreement;
pub mod exact;
pub mod no_hang;
pub mod order;
pub mod same_error;
