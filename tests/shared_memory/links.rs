//! What the engine relies on in links of shared memory.

use crate::world::channel;
use ringtree::limits::SHARED_SEGMENT_BYTES;
use ringtree::transport::{Addressee, Message, Transport};

fn message(sequence: u64, bytes: usize) -> Message {
    Message {
        sequence,
        digest: 1,
        number: 0,
        bytes,
    }
}

/// Two messages of any length that is promised are taken whole, however many went before, whatever
/// the receiver has answered, and even if the sender looks at none of it.
#[test]
fn a_link_holds_two_messages_whose_sender_does_not_listen() {
    for bytes in [1, 8, 40, 41, 1000, SHARED_SEGMENT_BYTES] {
        let mut links = channel(2);
        assert_eq!(links[0].holds_bytes(1), SHARED_SEGMENT_BYTES);
        let data = vec![3; bytes];
        let mut into = data.clone();
        for sequence in 0..200 {
            let message = message(sequence, bytes);
            assert_eq!(links[0].send(1, &message, 0, &data), Ok(bytes));
            let second = Message {
                number: 1,
                ..message
            };
            assert_eq!(links[0].send(1, &second, 0, &data), Ok(bytes));
            for message in [message, second] {
                assert_eq!(links[1].receive(0, &message, 0, &mut into), Ok(bytes));
                // An answer, as long as there is room for it.
                let answer = links[1].send(0, &message, 0, &[0]);
                assert!(answer.is_ok());
            }
        }
    }
}

#[test]
fn a_message_to_several_is_taken_by_all_or_by_none() {
    let mut links = channel(3);
    let to = [1, 2].map(|peer| Addressee { peer, number: 0 });
    let mut into = [0; 100];
    let mut taken = 0;
    while links[0].publish(&to, &message(taken, 100), 0, &[7; 100]) == Ok(100) {
        taken += 1;
    }
    assert!(taken >= 2);
    for sequence in 0..taken {
        let message = message(sequence, 100);
        assert_eq!(links[1].receive(0, &message, 0, &mut into), Ok(100));
    }
    // One is through with everything, the other with nothing.
    assert_eq!(
        links[0].publish(&to, &message(taken, 100), 0, &[7; 100]),
        Ok(0)
    );
    assert_eq!(links[1].fetch(0, &message(taken, 100), 0), Ok(0));
    assert_eq!(links[2].receive(0, &message(0, 100), 0, &mut into), Ok(100));
    assert_eq!(
        links[0].publish(&to, &message(taken, 100), 0, &[7; 100]),
        Ok(100)
    );
    assert_eq!(
        links[1].receive(0, &message(taken, 100), 0, &mut into),
        Ok(100)
    );
    assert_eq!(into, [7; 100]);
}
