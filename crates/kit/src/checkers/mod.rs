//! Checks the invariants of runs, with one invariant per file.
//!
//! *Purpose.* Each file has a function `check`, which inspects an [`Outcome`] and returns a message
//! if its invariant is broken. Tests apply all checkers that fit the faults they inject.
//!
//! *Invariants.* A checker only reads the outcome. It does not depend on the algorithm or the
//! script.
//!
//! *May import* `sim::cluster` and the base files.
//!
//! [`Outcome`]: super::cluster::Outcome

pub mod agreement;
pub mod exact;
pub mod no_hang;
pub mod order;
pub mod same_error;
