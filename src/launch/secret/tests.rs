use super::*;
use crate::protocol::handshake::Secret;

#[test]
fn random_secrets_are_valid_and_distinct() {
    let made = random().unwrap();
    assert!(Secret::from_hex(&made).is_some());
    assert_ne!(random().unwrap(), made);
}
