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
mod tests {
    use super::*;
    use crate::limits::CONTROL_MESSAGE_BYTES_MAX;
    use crate::protocol::sealed::SEALED_BYTES_MAX;
    use proptest::prelude::*;

    fn relay(payload: Vec<u8>) -> Relay {
        Relay {
            from: u32::MAX,
            to: TO_ALL,
            group: u32::MAX,
            payload,
        }
    }

    #[test]
    fn longest_message_fits_sealed_limit() {
        let message = relay(vec![255; CONTROL_MESSAGE_BYTES_MAX]);
        let bytes = encode(&message);
        assert!(bytes.len() <= SEALED_BYTES_MAX);
        assert_eq!(decode(&bytes), Some(message));
    }

    #[test]
    fn truncated_or_extended_message_is_rejected() {
        let mut bytes = encode(&relay(vec![1, 2, 3]));
        assert_eq!(decode::<Relay>(&bytes[..bytes.len() - 1]), None);
        bytes.push(0);
        assert_eq!(decode::<Relay>(&bytes), None);
    }

    #[test]
    fn length_beyond_message_is_rejected() {
        // These varints are from, to and group, followed by a payload that claims 2^63 bytes.
        let bytes = [
            0, 0, 0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01,
        ];
        assert_eq!(decode::<Relay>(&bytes), None);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<Relay>(&bytes);
        }
    }
}
