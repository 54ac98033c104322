//! Ranks that wait for each other in different communicators, or send in a circle. The ranks are
//! simulated, or are processes over TCP and shared memory. Their errors report the deadlock, and no
//! other call ends early.

mod deadlocks;
mod long_waits;
mod mistakes;
mod processes;
mod simulated;
mod soak;

/// Text of an error if the waits of ranks form a circle.
const CIRCLE: &str = "; they wait for each other";
