//! Tests ranks that wait for each other in different communicators, or that send in a circle. The
//! ranks are simulated, or are processes over TCP and shared memory. Their errors must report the
//! deadlock, and no other call may end early.

mod deadlocks;
mod long_waits;
mod mistakes;
mod processes;
mod simulated;
mod soak;

/// Part of the error if ranks wait for each other in a circle.
const CIRCLE: &str = "; they wait for each other";
