//! Defines the messages between ranks that rank 0 forwards. Every message of the control plane is a
//! serde type, encoded in the postcard format.

pub(crate) use crate::protocol::message::{decode, encode};
use serde::{Deserialize, Serialize};

/// Value of [`Relay::to`] in a message to every rank except its sender.
pub(super) const TO_ALL: u32 = u32::MAX;

/// A message between two ranks, which rank 0 forwards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Relay {
    pub(crate) from: u32,
    /// A rank, or [`TO_ALL`].
    pub(crate) to: u32,
    pub(crate) group: u32,
    pub(crate) payload: Vec<u8>,
}

#[cfg(test)]
mod tests;
