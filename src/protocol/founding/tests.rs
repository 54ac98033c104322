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
fn first_calls_make_one_group_and_second_calls_another() {
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
fn lists_in_another_order_and_of_other_parents_are_other_groups() {
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
    let (told, text) = refused(&registrar.receive(0, late.clone()));
    assert_eq!(told, [0]);
    let expected = "rank 0 timed out waiting for the group of world ranks 0, 1 after 2.5 s: rank \
                    1 is waiting for the group of world ranks 1, 0 instead";
    assert!(text.starts_with(expected), "{text}");
    assert!(registrar.receive(0, late).is_empty(), "rejected twice");
    // Other groups are not affected.
    let both = registrar.receive(0, join(1, &[1, 0]));
    assert_eq!(made(&both), [(0, 1, 0), (1, 0, 0)]);
}

#[test]
fn whoever_waits_for_a_rank_that_cannot_come_is_told_the_same_and_so_is_who_comes_later() {
    for dies in [true, false] {
        let mut registrar = Registrar::default();
        assert!(registrar.receive(1, join(0, &[5, 1, 3])).is_empty());
        assert!(registrar.receive(2, join(0, &[2, 4])).is_empty());
        let told = match dies {
            true => registrar.lost(5, "killed"),
            false => registrar.receive(5, Notice::Left),
        };
        let (told, text) = refused(&told);
        assert_eq!(told, [1]);
        let what = if dies { "is gone" } else { "has left" };
        assert!(
            text.starts_with(&format!("rank 0 (world rank 5) {what}")),
            "{text}"
        );
        let (told, later) = refused(&registrar.receive(3, join(4, &[5, 1, 3])));
        assert_eq!((told, later), (vec![3], text));
        let others = registrar.receive(4, join(0, &[2, 4]));
        assert_eq!(made(&others), [(2, 0, 0), (4, 0, 0)]);
        assert_eq!(registrar.has_left(5), !dies);
    }
}

#[test]
fn a_rank_that_lies_takes_little_memory_and_speaks_for_no_other() {
    let mut registrar = Registrar::default();
    let (told, text) = refused(&registrar.receive(1, join(0, &[2, 3])));
    assert_eq!(told, [1]);
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
