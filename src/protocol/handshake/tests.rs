use super::*;
use proptest::prelude::*;

fn hello() -> Hello {
    Hello {
        purpose: Purpose::Data,
        world_size: 4,
        group: 9,
        epoch: 3,
        attempt: 1,
        from: 1,
        to: 2,
    }
}

fn expected() -> Expected {
    Expected {
        purpose: Purpose::Data,
        world_size: 4,
        rank: 2,
        attempt: 1,
    }
}

fn secret(byte: u8) -> Secret {
    Secret::new([byte; 32])
}

/// Runs a complete handshake. Returns the results of the initiator and the acceptor.
fn run(
    initiator_secret: &Secret,
    acceptor_secret: &Secret,
    hello: Hello,
    expected: Expected,
) -> (Result<Output, Refusal>, Output) {
    let (mut initiator, first) = Initiator::new(initiator_secret, hello, [1; 32]);
    let mut acceptor = Acceptor::new(acceptor_secret, expected, [2; 32]);
    let Output::Reply(challenge) = acceptor.input(&first).unwrap() else {
        panic!("expected a challenge");
    };
    let Output::Reply(proof) = initiator.input(&challenge).unwrap() else {
        panic!("expected a proof");
    };
    match acceptor.input(&proof).unwrap() {
        Output::Reply(verdict) => {
            assert!(acceptor.is_proven());
            let end = initiator.input(&verdict).unwrap();
            let Output::Done { reply, .. } = &end else {
                panic!("expected a confirmation");
            };
            let confirmed = acceptor.input(reply).unwrap();
            (Ok(end), confirmed)
        }
        Output::Refuse {
            reply,
            proven,
            refusal,
        } => {
            assert!(!acceptor.is_proven());
            let result = initiator.input(&reply);
            let end = Output::Refuse {
                reply,
                proven,
                refusal,
            };
            (result, end)
        }
        Output::Done { .. } => panic!("the acceptor must wait for the confirmation"),
    }
}

#[test]
fn both_ends_agree_on_hello_and_key() {
    let (left, right) = run(&secret(5), &secret(5), hello(), expected());
    let (
        Ok(Output::Done { key, .. }),
        Output::Done {
            hello: received,
            key: other,
            ..
        },
    ) = (left, right)
    else {
        panic!("both ends must finish");
    };
    assert_eq!(received, hello());
    assert_eq!(key.0, other.0);
    assert_ne!(key.0, [5; 32]);
}

#[test]
fn wrong_secret_is_rejected_without_proof() {
    let (left, right) = run(&secret(5), &secret(6), hello(), expected());
    assert_eq!(left.unwrap_err(), Refusal::Secret);
    let Output::Refuse {
        reply,
        proven,
        refusal,
    } = right
    else {
        panic!("expected a refusal");
    };
    assert_eq!((proven, refusal), (None, Refusal::Secret));
    assert_eq!(
        reply[16..],
        [0; 32],
        "an unauthenticated peer must not get a MAC"
    );
}

#[test]
fn each_mismatch_is_reported_to_both_ends() {
    let cases = [
        (
            Hello {
                attempt: 0,
                world_size: 8,
                ..hello()
            },
            Refusal::Attempt { ours: 0, theirs: 1 },
        ),
        (
            Hello {
                world_size: 8,
                ..hello()
            },
            Refusal::WorldSize { ours: 8, theirs: 4 },
        ),
        (
            Hello {
                purpose: Purpose::Control,
                ..hello()
            },
            Refusal::Purpose,
        ),
        (Hello { from: 4, ..hello() }, Refusal::Rank),
        (Hello { from: 2, ..hello() }, Refusal::Rank),
        (
            Hello { to: 3, ..hello() },
            Refusal::Addressee { acceptor: 2 },
        ),
    ];
    for (sent, why) in cases {
        let (left, right) = run(&secret(5), &secret(5), sent, expected());
        assert_eq!(left.unwrap_err(), why);
        let Output::Refuse { proven, .. } = right else {
            panic!("expected a refusal");
        };
        assert_eq!(proven, Some(sent));
    }
}

#[test]
fn version_mismatch_is_reported_to_both_ends() {
    let (mut initiator, mut first) = Initiator::new(&secret(5), hello(), [1; 32]);
    first[8] = 77;
    let mut acceptor = Acceptor::new(&secret(5), expected(), [2; 32]);
    let Output::Refuse {
        mut reply, refusal, ..
    } = acceptor.input(&first).unwrap()
    else {
        panic!("expected a refusal");
    };
    assert_eq!(refusal, Refusal::Version { theirs: 77 });
    reply[4] = 78;
    let received = initiator.input(&reply).unwrap_err();
    assert_eq!(received, Refusal::Version { theirs: 78 });
}

#[test]
fn proof_is_invalid_for_different_nonce() {
    let (mut initiator, first) = Initiator::new(&secret(5), hello(), [1; 32]);
    let mut one = Acceptor::new(&secret(5), expected(), [2; 32]);
    let mut other = Acceptor::new(&secret(5), expected(), [3; 32]);
    let Ok(Output::Reply(challenge)) = one.input(&first) else {
        panic!("expected a challenge");
    };
    other.input(&first).unwrap();
    let Ok(Output::Reply(proof)) = initiator.input(&challenge) else {
        panic!("expected a proof");
    };
    assert!(matches!(
        other.input(&proof),
        Ok(Output::Refuse {
            refusal: Refusal::Secret,
            ..
        })
    ));
}

#[test]
fn acceptor_without_secret_is_detected() {
    let (mut initiator, _) = Initiator::new(&secret(5), hello(), [1; 32]);
    let challenge = acceptor_frame(KIND_CHALLENGE, 0, 0, &[2; 32]);
    let Ok(Output::Reply(proof)) = initiator.input(&challenge) else {
        panic!("expected a proof");
    };
    let reflected: [u8; 32] = proof.try_into().unwrap();
    let verdict = acceptor_frame(KIND_ACCEPTED, 0, 0, &reflected);
    assert_eq!(initiator.input(&verdict).unwrap_err(), Refusal::Impostor);
}

#[test]
fn secret_is_never_printed() {
    let printed = format!("{:?}", secret(0xAB));
    assert!(
        !printed.contains("ab") && !printed.contains("171"),
        "{printed}"
    );
}

proptest! {
    #[test]
    fn acceptor_never_accepts_garbage(
        frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..130), 1..5)
    ) {
        let mut acceptor = Acceptor::new(&secret(5), expected(), [2; 32]);
        for frame in frames {
            let output = acceptor.input(&frame);
            let accepted = matches!(output, Ok(Output::Done { .. }));
            prop_assert!(!accepted);
            prop_assert!(acceptor.bytes_wanted() <= 256);
        }
    }

    #[test]
    fn modified_frame_prevents_connection(
        which in 0..5_usize, at in any::<usize>(), change in 1..=255_u8
    ) {
        let spoil = |step: usize, frame: &mut Vec<u8>| {
            if step == which {
                let at = at % frame.len();
                frame[at] ^= change;
            }
        };
        let (mut initiator, mut frame) = Initiator::new(&secret(5), hello(), [1; 32]);
        let mut acceptor = Acceptor::new(&secret(5), expected(), [2; 32]);
        for step in 0..5 {
            spoil(step, &mut frame);
            let output = if step % 2 == 0 {
                acceptor.input(&frame)
            } else {
                initiator.input(&frame)
            };
            match output {
                Ok(Output::Reply(reply)) => frame = reply,
                Ok(Output::Done { reply, .. }) if step == 3 && which == 4 => frame = reply,
                Ok(Output::Done { .. }) => prop_assert!(false, "frame {which} was not protected"),
                Ok(Output::Refuse { .. }) | Err(_) => return Ok(()),
            }
        }
    }

    #[test]
    fn initiator_never_accepts_garbage(
        frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 1..5)
    ) {
        let (mut initiator, _) = Initiator::new(&secret(5), hello(), [1; 32]);
        for frame in frames {
            let output = initiator.input(&frame);
            let accepted = matches!(output, Ok(Output::Done { .. }));
            prop_assert!(!accepted);
        }
    }
}
