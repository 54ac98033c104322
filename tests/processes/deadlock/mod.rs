//! Ranks that wait for each other in different communicators, or send in a circle: simulated ones,
//! and processes over TCP and shared memory. They are told so, and no call ends early.

mod end;
mod go_on;
mod mistakes;
mod processes;
mod simulated;
mod soak;

/// What is said where the waits of ranks form a circle.
const CIRCLE: &str = "; they wait for each other";
