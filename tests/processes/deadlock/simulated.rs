//! Simulated ranks, in virtual time.

use super::end::ENDS;
use super::mistakes::{MISTAKES, told, train};
use super::{CIRCLE, go_on};
use ringtree::sim::{World, sleep};
use ringtree::{Error, ErrorKind, Result};

/// Each rank is told that they wait for each other, and these things; in part through another
/// rank, whose call ended before.
fn are_told(ends: &[Result<()>], parts: &[&str]) {
    for end in ends {
        let text = end.as_ref().map_err(Error::to_string).unwrap_err();
        for part in parts.iter().chain(&[CIRCLE]) {
            assert!(text.contains(part), "no {part} in: {text}");
        }
    }
}

#[test]
fn after_each_of_the_usual_mistakes_the_deadline_tells_who_waits_for_whom() {
    for (_, mistake) in MISTAKES {
        for ranks in [2, 3, 5] {
            let folder = tempfile::tempdir().unwrap();
            let world = World::new(ranks);
            let ends = world.run(|comm| train(comm, mistake, folder.path()));
            are_told(&ends, told(mistake));
        }
    }
}

#[test]
fn ranks_in_a_circle_are_told_of_all_of_it() {
    for (_, program, ranks, parts) in ENDS {
        are_told(&World::new(ranks).run(program), parts);
    }
}

#[test]
fn what_is_merely_late_goes_on() {
    let world = World::new(3);
    for seed in 0..20 {
        let world = World {
            network: ringtree::sim::NetworkConfig {
                seed,
                ..world.network.clone()
            },
            ..world.clone()
        };
        let ends = world.run(|comm| go_on::second_thread(comm, &sleep));
        assert_eq!(ends, vec![Ok(()); 3], "a second thread");
        let ends = world.run(|comm| go_on::computing(comm, &sleep));
        assert_eq!(ends, vec![Ok(()); 3], "a rank that computes");
    }
    let ends = world.run(|comm| go_on::future_pending(comm, &sleep));
    assert_eq!(ends, vec![Ok(()); 3], "a future");
    let ends = world.run(|comm| go_on::late_member(comm, &sleep));
    assert_eq!(ends, vec![Ok(()); 3], "a group");
}

/// Where another thread or rank may still come, no rank says that they wait for each other.
#[test]
fn no_rank_tells_of_a_circle_that_it_has_not_seen() {
    let other = World::new(2).run(go_on::other_caller);
    assert_eq!(other[1], Ok(()));
    let any = World::new(3).run(|comm| go_on::any_sender(comm, &sleep));
    for (ends, waits) in [
        (other, "rank 0 in barrier #3"),
        (any, "ranks 0, 2 in barrier #2"),
    ] {
        let error = ends[0].as_ref().unwrap_err();
        let text = error.to_string();
        let part = format!(r#"rank 1 waits for {waits} of 1 u8, by flat, on "y""#);
        let is_told =
            error.kind() == ErrorKind::Deadline && text.contains(&part) && !text.contains(CIRCLE);
        assert!(is_told, "no {part} in: {text}");
    }
}

#[test]
fn a_patient_wait_is_ended_by_the_others_timeout() {
    let ends = World::new(2).run(go_on::patient);
    let error = ends[1].as_ref().unwrap_err();
    let (is_timeout, text) = (error.kind() == ErrorKind::Deadline, error.to_string());
    let part = r#"on "y" after 4.0 s: rank 0 waits for rank 1 in barrier #2 of 1 u8"#;
    assert!(
        is_timeout && text.contains(part) && text.contains(CIRCLE),
        "{text}"
    );
    assert!(ends[0].is_err());
}
