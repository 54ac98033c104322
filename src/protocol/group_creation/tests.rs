use super::*;

fn join(serial: u32, members: &[u32]) -> Notice {
    Notice::Join {
        serial,
        parent: 0,
        members: members.to_vec(),
    }
}

fn made(all: &[(usize, Notice)]) -> Vec<(usize, u32, u32)> {
    let one = |(to, notice): &(usize, Notice)| match notice {
        Notice::Made { serial, number } => (*to, *serial, *number - FIRST_MADE),
        other => panic!("{other:?}"),
    };
    all.iter().map(one).collect()
}

fn refused(all: &[(usize, Notice)]) -> (Vec<usize>, String) {
    let texts: Vec<String> = all
        .iter()
        .map(|(_, notice)| match notice {
            Notice::Refused { why, .. } => why.to_string(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    (all.iter().map(|(to, _)| *to).collect(), texts[0].clone())
}

#[test]
fn repeated_calls_create_separate_groups() {
    let mut registrar = Registrar::default();
    let list = [4, 2, 3];
    assert!(registrar.receive(2, join(0, &list)).is_empty());
    assert!(registrar.receive(2, join(1, &list)).is_empty());
    assert!(registrar.receive(3, join(9, &list)).is_empty());
    let first = registrar.receive(4, join(0, &list));
    assert_eq!(made(&first), [(2, 0, 0), (3, 9, 0), (4, 0, 0)]);
    assert!(registrar.receive(4, join(1, &list)).is_empty());
    let second = registrar.receive(3, join(10, &list));
    assert_eq!(made(&second), [(2, 1, 1), (3, 10, 1), (4, 1, 1)]);
}

#[test]
fn member_order_and_parent_distinguish_groups() {
    let mut registrar = Registrar::default();
    assert!(registrar.receive(0, join(0, &[0, 1])).is_empty());
    assert!(registrar.receive(1, join(0, &[1, 0])).is_empty());
    let elsewhere = Notice::Join {
        serial: 1,
        parent: 7,
        members: vec![0, 1],
    };
    assert!(registrar.receive(1, elsewhere).is_empty());
    let late = Notice::Withdraw {
        serial: 0,
        waited_ms: 2500,
    };
    let (receivers, text) = refused(&registrar.receive(0, late.clone()));
    assert_eq!(receivers, [0]);
    let expected = "rank 0 timed out waiting for the group of world ranks 0, 1 after 2.5 s: rank \
                    1 is waiting for the group of world ranks 1, 0 instead";
    assert!(text.starts_with(expected), "{text}");
    assert!(
        registrar.receive(0, late).is_empty(),
        "a request must be rejected only once"
    );
    // Other groups are not affected.
    let both = registrar.receive(0, join(1, &[1, 0]));
    assert_eq!(made(&both), [(0, 1, 0), (1, 0, 0)]);
}

#[test]
fn all_members_get_same_error_if_one_cannot_join() {
    for dies in [true, false] {
        let mut registrar = Registrar::default();
        assert!(registrar.receive(1, join(0, &[5, 1, 3])).is_empty());
        assert!(registrar.receive(2, join(0, &[2, 4])).is_empty());
        let notices = match dies {
            true => registrar.lost(5, "killed"),
            false => registrar.receive(5, Notice::Left),
        };
        let (receivers, text) = refused(&notices);
        assert_eq!(receivers, [1]);
        let what = if dies { "is gone" } else { "has left" };
        assert!(
            text.starts_with(&format!("rank 0 (world rank 5) {what}")),
            "{text}"
        );
        let (receivers, later) = refused(&registrar.receive(3, join(4, &[5, 1, 3])));
        assert_eq!((receivers, later), (vec![3], text));
        let others = registrar.receive(4, join(0, &[2, 4]));
        assert_eq!(made(&others), [(2, 0, 0), (4, 0, 0)]);
        assert_eq!(registrar.has_left(5), !dies);
    }
}

#[test]
fn malicious_requests_are_rejected_or_bounded() {
    let mut registrar = Registrar::default();
    let (receivers, text) = refused(&registrar.receive(1, join(0, &[2, 3])));
    assert_eq!(receivers, [1]);
    assert!(text.contains("world rank 1 is not in the group"), "{text}");
    for serial in 0..JOINS_OPEN_MAX as u32 {
        assert!(registrar.receive(1, join(serial, &[1, 9])).is_empty());
    }
    let (_, text) = refused(&registrar.receive(1, join(1000, &[1, 9])));
    assert!(text.contains("which is the limit"), "{text}");
    assert_eq!(registrar.gatherings.len(), JOINS_OPEN_MAX);
    // A list that names a rank twice never becomes complete.
    assert!(registrar.receive(2, join(0, &[2, 2])).is_empty());
    let forged = Notice::Made {
        serial: 0,
        number: 9,
    };
    assert!(registrar.receive(2, forged).is_empty());
}
