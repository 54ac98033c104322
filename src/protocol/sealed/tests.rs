use super::*;
use proptest::prelude::*;

fn ends() -> (Sealer, Opener) {
    let key = ConnectionKey([7; 32]);
    let sealer = Sealer::new(key.clone(), Direction::FromInitiator);
    (sealer, Opener::new(key, Direction::FromInitiator))
}

#[test]
fn messages_survive_arbitrary_splits() {
    let (mut sealer, mut opener) = ends();
    let mut bytes = Vec::new();
    let sent: Vec<Vec<u8>> = vec![vec![], vec![1; 5], vec![2; SEALED_BYTES_MAX]];
    for message in &sent {
        sealer.seal(message, &mut bytes);
    }
    let mut received = Vec::new();
    for piece in bytes.chunks(777) {
        opener.feed(piece);
        while let Some(message) = opener.next_message().unwrap() {
            received.push(message);
        }
    }
    assert_eq!(received, sent);
}

#[test]
fn repeated_or_reflected_message_is_rejected() {
    let (mut sealer, mut opener) = ends();
    let mut bytes = Vec::new();
    sealer.seal(b"once", &mut bytes);
    opener.feed(&bytes);
    assert_eq!(opener.next_message().unwrap().unwrap(), b"once");
    opener.feed(&bytes);
    assert_eq!(opener.next_message(), Err(Broken::Forged));

    let key = ConnectionKey([7; 32]);
    let mut other_way = Opener::new(key, Direction::FromAcceptor);
    other_way.feed(&bytes);
    assert_eq!(other_way.next_message(), Err(Broken::Forged));
}

proptest! {
    #[test]
    fn flipped_bit_never_yields_message(
        message in proptest::collection::vec(any::<u8>(), 0..200), bit in any::<usize>()
    ) {
        let (mut sealer, mut opener) = ends();
        let mut bytes = Vec::new();
        sealer.seal(&message, &mut bytes);
        let bit = bit % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        opener.feed(&bytes);
        prop_assert!(!matches!(opener.next_message(), Ok(Some(_))));
    }

    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let (_, mut opener) = ends();
        opener.feed(&bytes);
        prop_assert!(!matches!(opener.next_message(), Ok(Some(_))));
    }
}
