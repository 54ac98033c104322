use super::*;
use proptest::prelude::*;

const FD_MESSAGE: FdMessage = FdMessage {
    attempt: 3,
    channel: 0x0102_0304,
    from: 5,
    to: 6,
};

fn nonce(last: u8) -> Nonce {
    Nonce::new(&[Token([1; TOKEN_BYTES]), Token([last; TOKEN_BYTES])])
}

#[test]
fn flipped_bit_invalidates_proof() {
    let secret = Secret::new([9; 32]);
    let bytes = FD_MESSAGE.encode(&secret, &nonce(2));
    for bit in 0..8 * FD_MESSAGE_BYTES {
        let mut changed = bytes;
        changed[bit / 8] ^= 1 << (bit % 8);
        let claim = Claim::decode(&changed);
        assert!(!claim.is_some_and(|claim| claim.is_proven(&secret, &nonce(2))));
    }
    assert!(Claim::decode(&bytes[1..]).is_none());
}

#[test]
fn proof_is_invalid_for_other_nonce_or_secret() {
    let secret = Secret::absent();
    let claim = Claim::decode(&FD_MESSAGE.encode(&secret, &nonce(2))).unwrap();
    assert!(claim.is_proven(&secret, &nonce(2)));
    assert!(!claim.is_proven(&secret, &nonce(3)));
    assert!(!claim.is_proven(&Secret::new([1; 32]), &nonce(2)));
}

#[test]
fn tokens_are_not_printed() {
    assert_eq!(format!("{:?}", Token([77; TOKEN_BYTES])), "Token(hidden)");
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        prop_assert!(Claim::decode(&bytes).is_none());
    }
}
