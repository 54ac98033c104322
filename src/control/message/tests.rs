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
