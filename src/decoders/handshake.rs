//! Decodes the messages that authenticate connections and descriptors.
//!
//! The fuzzer cannot guess a MAC. So some inputs describe how to change, in transit, the bytes that
//! honest ends exchange.

use super::{Decoder, Input};
use crate::protocol::fd_passing::{Claim, FD_MESSAGE_BYTES, FdMessage, Nonce, TOKEN_BYTES, Token};
use crate::protocol::handshake::{
    Acceptor, ConnectionKey, Expected, HELLO_BYTES, Hello, Initiator, Output, Purpose, Secret,
};
use crate::protocol::sealed::{Direction, Opener, Sealer};

/// Bytes that an unauthenticated peer sends to a listener.
pub(super) const ACCEPTOR: Decoder = Decoder {
    name: "acceptor",
    run: |bytes| {
        let mut acceptor = acceptor();
        let mut input = Input(bytes);
        while !input.is_empty() {
            match acceptor.input(input.take(acceptor.bytes_wanted())) {
                Ok(Output::Reply(_)) => assert!(!acceptor.is_proven()),
                Ok(Output::Done { .. }) => panic!("an unauthenticated peer was accepted"),
                Ok(Output::Refuse { proven, .. }) => assert!(proven.is_none()),
                Err(refusal) => assert!(!refusal.to_string().is_empty()),
            }
        }
    },
    seeds: || vec![[initiator(HELLO).1, vec![0; 32]].concat()],
};

/// Bytes with which an unauthenticated peer answers a rank that has connected to it.
pub(super) const INITIATOR: Decoder = Decoder {
    name: "initiator",
    run: |bytes| {
        let mut initiator = initiator(HELLO).0;
        let mut input = Input(bytes);
        while !input.is_empty() {
            match initiator.input(input.take(initiator.bytes_wanted())) {
                Ok(Output::Reply(_)) => {}
                Ok(_) => panic!("an unauthenticated peer was accepted"),
                Err(refusal) => assert!(!refusal.to_string().is_empty()),
            }
        }
    },
    seeds: || {
        let reply = |frame: &[u8]| match acceptor().input(frame) {
            Ok(Output::Reply(reply) | Output::Refuse { reply, .. }) => reply,
            other => panic!("{other:?}"),
        };
        let (_, hello) = initiator(HELLO);
        let mut of_next_version = hello.clone();
        of_next_version[8] += 1;
        let (challenge, refusal) = (reply(&hello), reply(&of_next_version));
        vec![[&challenge[..], &challenge].concat(), refusal]
    },
};

/// The fields of a hello, followed by the numbers to add to the bytes that two honest ends
/// exchange.
pub(super) const TAMPERED: Decoder = Decoder {
    name: "tampered",
    run: tampered,
    seeds: || {
        let mut fields = vec![0];
        for word in [
            HELLO.world_size,
            0,
            HELLO.attempt.into(),
            HELLO.from,
            HELLO.to,
        ] {
            fields.extend(word.to_le_bytes());
        }
        let changed = [&fields[..], &[0; HELLO_BYTES + 50], &[1]].concat();
        vec![fields, changed]
    },
};

/// A sealed stream that arrives in pieces. Its bytes are either arbitrary, or arbitrary messages
/// that are sealed first.
pub(super) const SEALED: Decoder = Decoder {
    name: "sealed",
    run: sealed,
    seeds: || {
        let mut bytes = vec![0, 64];
        Sealer::new(key(), Direction::FromAcceptor).seal(b"message", &mut bytes);
        vec![bytes, vec![1, 3, 1, 0, 4, 0, 9, 9, 9, 9, 0]]
    },
};

pub(super) const FD_MESSAGE: Decoder = Decoder {
    name: "hand-over",
    run: |bytes| {
        let Some(claim) = Claim::decode(bytes) else {
            return;
        };
        let honest = claim.said.encode(&secret(), &nonce());
        assert_eq!(claim.is_proven(&secret(), &nonce()), honest[..] == *bytes);
    },
    seeds: || {
        let message = FdMessage {
            attempt: 1,
            channel: 8,
            from: 2,
            to: 3,
        };
        let honest = message.encode(&secret(), &nonce()).to_vec();
        let unproven = [&honest[..FD_MESSAGE_BYTES - 1], &[0]].concat();
        vec![honest, unproven]
    },
};

const HELLO: Hello = Hello {
    purpose: Purpose::Control,
    world_size: 4,
    group: 0,
    epoch: 0,
    attempt: 1,
    from: 2,
    to: 0,
};

fn secret() -> Secret {
    Secret::new([7; 32])
}

fn nonce() -> Nonce {
    Nonce::new(&[Token([1; TOKEN_BYTES]), Token([2; TOKEN_BYTES])])
}

fn initiator(hello: Hello) -> (Initiator, Vec<u8>) {
    Initiator::new(&secret(), hello, [1; 32])
}

fn acceptor() -> Acceptor {
    let expected = Expected {
        purpose: HELLO.purpose,
        world_size: HELLO.world_size,
        rank: HELLO.to,
        attempt: HELLO.attempt,
    };
    Acceptor::new(&secret(), expected, [2; 32])
}

/// Returns the key of the connection between two honest ends.
fn key() -> ConnectionKey {
    let (mut initiator, mut frame) = initiator(HELLO);
    let mut acceptor = acceptor();
    for _ in 0..2 {
        let Ok(Output::Reply(reply)) = acceptor.input(&frame) else {
            panic!("the acceptor rejected an honest initiator");
        };
        frame = match initiator.input(&reply) {
            Ok(Output::Reply(reply)) => reply,
            Ok(Output::Done { key, .. }) => return key,
            other => panic!("the initiator rejected an honest acceptor: {other:?}"),
        };
    }
    panic!("the handshake has more than four frames");
}

fn tampered(bytes: &[u8]) {
    let mut input = Input(bytes);
    let purposes = [Purpose::Control, Purpose::Data, Purpose::Launch];
    let hello = Hello {
        purpose: purposes[usize::from(input.byte()) % purposes.len()],
        world_size: input.word(),
        group: input.word(),
        attempt: u16::from_le_bytes(input.array()),
        epoch: u16::from_le_bytes(input.array()),
        from: input.word(),
        to: input.word(),
    };
    let ((mut initiator, mut frame), mut acceptor) = (initiator(hello), acceptor());
    let mut is_changed = false;
    let mut travel = |frame: &mut Vec<u8>| {
        for byte in frame {
            let change = input.byte();
            *byte = byte.wrapping_add(change);
            is_changed |= change != 0;
        }
        is_changed
    };
    let mut is_accepted = false;
    loop {
        let is_changed = travel(&mut frame);
        frame = match acceptor.input(&frame) {
            Ok(Output::Reply(reply)) => reply,
            Ok(Output::Done { hello: proven, .. }) => {
                assert!(is_accepted && !is_changed && proven == hello);
                return;
            }
            Ok(Output::Refuse { reply, proven, .. }) => {
                assert!(proven.is_none_or(|proven| proven == hello));
                reply
            }
            Err(_) => return,
        };
        let is_changed = travel(&mut frame);
        frame = match initiator.input(&frame) {
            Ok(Output::Reply(reply)) => reply,
            Ok(Output::Done { reply, .. }) => {
                assert!(!is_changed);
                is_accepted = true;
                reply
            }
            Ok(Output::Refuse { .. }) => panic!("an initiator must reject by closing"),
            Err(_) => return,
        };
    }
}

fn sealed(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (is_honest, piece) = (input.byte() % 2 == 1, usize::from(input.byte()) + 1);
    let mut sealer = Sealer::new(key(), Direction::FromAcceptor);
    let mut opener = Opener::new(key(), Direction::FromAcceptor);
    let mut sent = Vec::new();
    let mut stream = Vec::new();
    while is_honest && !input.is_empty() {
        let length = input.byte();
        let message = input.take(length.into());
        sealer.seal(message, &mut stream);
        sent.push(message);
    }
    if !is_honest {
        stream = input.0.to_vec();
        // A seed contains only this message in sealed form, so no other message may be opened.
        sent.push(b"message");
    }
    let mut opened = 0;
    for piece in stream.chunks(piece) {
        opener.feed(piece);
        loop {
            match opener.next_message() {
                Ok(Some(message)) => assert_eq!(message, sent[opened], "a message was forged"),
                Ok(None) => break,
                Err(_) if is_honest => panic!("an honest message was rejected"),
                Err(_) => return,
            }
            opened += 1;
        }
    }
    assert!(!is_honest || opened == sent.len());
}
