//! Bringing ranks together, and keeping a small control channel between them.
//!
//! *Purpose.* [`settings`] from the environment, the rendezvous, the authenticated [`join()`], the
//! [`control`] star (every rank has one connection to rank 0, which relays), and the listener that
//! data connections come in by. All of that is owned by one control thread per process, asleep
//! unless something happens. [`sharing`] tells which ranks can share memory; by [`near`] they hand
//! it to each other and wake each other.
//!
//! *Invariants.* Before a handshake ends a peer can make us read only fixed-size frames, hold only
//! a bounded number of pending connections, each for a bounded time. Sockets bind to the address
//! that routes to the rendezvous, never to the wildcard. Without a secret only loopback is used.
//!
//! *May import* `link`, `protocol`, `wire`, `sys` and the base files.

#![forbid(unsafe_code)]

mod address;
mod channel;
mod client;
pub mod control;
mod control_loop;
mod door;
mod greeting;
pub mod join;
mod messages;
pub mod near;
mod rendezvous;
pub mod settings;
pub mod sharing;
#[cfg(test)]
mod tests;
mod tuning;

pub use control::{ControlHandle, Handler, Membership};
pub use join::{Joined, join};
pub use messages::Peer;
pub use near::Near;
pub use settings::{Settings, TransportChoice};
pub use tuning::TuningSource;
