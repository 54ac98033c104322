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
        panic!("a challenge");
    };
    let Output::Reply(proof) = initiator.input(&challenge).unwrap() else {
        panic!("a proof");
    };
    match acceptor.input(&proof).unwrap() {
        Output::Reply(verdict) => {
            assert!(acceptor.is_proven());
            let end = initiator.input(&verdict).unwrap();
            let Output::Done { reply, .. } = &end else {
                panic!("a confirmation");
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
            let told = initiator.input(&reply);
            let end = Output::Refuse {
                reply,
                proven,
                refusal,
            };
            (told, end)
        }
        Output::Done { .. } => panic!("done before it is confirmed"),
    }
}

#[test]
fn both_ends_agree_on_the_hello_and_on_a_key() {
    let (left, right) = run(&secret(5), &secret(5), hello(), expected());
    let (
        Ok(Output::Done { key, .. }),
        Output::Done {
            hello: told,
            key: other,
            ..
        },
    ) = (left, right)
    else {
        panic!("both done");
    };
    assert_eq!(told, hello());
    assert_eq!(key.0, other.0);
    assert_ne!(key.0, [5; 32]);
}

#[test]
fn a_wrong_secret_is_refused_by_name_and_nothing_is_believed() {
    let (left, right) = run(&secret(5), &secret(6), hello(), expected());
    assert_eq!(left.unwrap_err(), Refusal::Secret);
    let Output::Refuse {
        reply,
        proven,
        refusal,
    } = right
    else {
        panic!("refused");
    };
    assert_eq!((proven, refusal), (None, Refusal::Secret));
    assert_eq!(reply[16..], [0; 32], "a MAC for an unauthenticated peer");
}

#[test]
fn each_disagreement_has_its_own_refusal_on_both_ends() {
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
    for (said, why) in cases {
        let (left, right) = run(&secret(5), &secret(5), said, expected());
        assert_eq!(left.unwrap_err(), why);
        let Output::Refuse { proven, .. } = right else {
            panic!("refused");
        };
        assert_eq!(proven, Some(said));
    }
}

#[test]
fn another_version_is_named_to_both_ends() {
    let (mut initiator, mut first) = Initiator::new(&secret(5), hello(), [1; 32]);
    first[8] = 77;
    let mut acceptor = Acceptor::new(&secret(5), expected(), [2; 32]);
    let Output::Refuse {
        mut reply, refusal, ..
    } = acceptor.input(&first).unwrap()
    else {
        panic!("refused");
    };
    assert_eq!(refusal, Refusal::Version { theirs: 77 });
    reply[4] = 78;
    let told = initiator.input(&reply).unwrap_err();
    assert_eq!(told, Refusal::Version { theirs: 78 });
}

#[test]
fn a_proof_is_worth_nothing_under_another_nonce() {
    let (mut initiator, first) = Initiator::new(&secret(5), hello(), [1; 32]);
    let mut one = Acceptor::new(&secret(5), expected(), [2; 32]);
    let mut other = Acceptor::new(&secret(5), expected(), [3; 32]);
    let Ok(Output::Reply(challenge)) = one.input(&first) else {
        panic!("a challenge");
    };
    other.input(&first).unwrap();
    let Ok(Output::Reply(proof)) = initiator.input(&challenge) else {
        panic!("a proof");
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
fn an_acceptor_without_the_secret_is_found_out() {
    let (mut initiator, _) = Initiator::new(&secret(5), hello(), [1; 32]);
    let challenge = answer(KIND_CHALLENGE, 0, 0, &[2; 32]);
    let Ok(Output::Reply(proof)) = initiator.input(&challenge) else {
        panic!("a proof");
    };
    let reflected: [u8; 32] = proof.try_into().unwrap();
    let verdict = answer(KIND_ACCEPTED, 0, 0, &reflected);
    assert_eq!(initiator.input(&verdict).unwrap_err(), Refusal::Impostor);
}

#[test]
fn a_secret_is_never_printed() {
    let printed = format!("{:?}", secret(0xAB));
    assert!(
        !printed.contains("ab") && !printed.contains("171"),
        "{printed}"
    );
}

proptest! {
    #[test]
    fn garbage_ends_an_acceptor_without_a_connection(
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
    fn any_change_of_any_frame_prevents_the_connection(
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
    fn garbage_never_panics_an_initiator(
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
