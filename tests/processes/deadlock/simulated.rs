//! Tests deadlocks and long waits of simulated ranks, in virtual time.

use super::deadlocks::DEADLOCKS;
use super::mistakes::{MISTAKES, expected_parts, train};
use super::{CIRCLE, long_waits};
use ringtree::sim::{World, sleep};
use ringtree::{Error, ErrorKind, Result};

/// Checks that the error of each rank reports the deadlock and contains `parts`. A rank may learn
/// some of them from another rank whose call ended earlier.
fn check_errors(ends: &[Result<()>], parts: &[&str]) {
    for end in ends {
        let text = end.as_ref().map_err(Error::to_string).unwrap_err();
        for part in parts.iter().chain(&[CIRCLE]) {
            assert!(text.contains(part), "no {part} in: {text}");
        }
    }
}

#[test]
fn timeout_error_reports_deadlock_after_usual_mistakes() {
    for (_, mistake) in MISTAKES {
        for ranks in [2, 3, 5] {
            let folder = tempfile::tempdir().unwrap();
            let world = World::new(ranks);
            let ends = world.run(|comm| train(comm, mistake, folder.path()));
            check_errors(&ends, expected_parts(mistake));
        }
    }
}

#[test]
fn timeout_error_reports_complete_circle() {
    for (_, program, ranks, parts) in DEADLOCKS {
        check_errors(&World::new(ranks).run(program), parts);
    }
}

#[test]
fn late_calls_complete() {
    let world = World::new(3);
    for seed in 0..20 {
        let world = World {
            network: ringtree::sim::NetworkConfig {
                seed,
                ..world.network.clone()
            },
            ..world.clone()
        };
        let ends = world.run(|comm| long_waits::second_thread(comm, &sleep));
        assert_eq!(ends, vec![Ok(()); 3], "a second thread");
        let ends = world.run(|comm| long_waits::computing(comm, &sleep));
        assert_eq!(ends, vec![Ok(()); 3], "a rank that computes");
    }
    let ends = world.run(|comm| long_waits::future_pending(comm, &sleep));
    assert_eq!(ends, vec![Ok(()); 3], "a future");
    let ends = world.run(|comm| long_waits::late_member(comm, &sleep));
    assert_eq!(ends, vec![Ok(()); 3], "a group");
}

/// If another thread or rank may still make the missing call, no rank reports a deadlock.
#[test]
fn unconfirmed_circle_is_not_reported() {
    let other = World::new(2).run(long_waits::other_caller);
    assert_eq!(other[1], Ok(()));
    let any = World::new(3).run(|comm| long_waits::any_sender(comm, &sleep));
    for (ends, waits) in [
        (other, "rank 0 in barrier #3"),
        (any, "ranks 0, 2 in barrier #2"),
    ] {
        let error = ends[0].as_ref().unwrap_err();
        let text = error.to_string();
        let part = format!(r#"rank 1 waits for {waits} of 1 u8, by flat, on "y""#);
        let is_right =
            error.kind() == ErrorKind::Deadline && text.contains(&part) && !text.contains(CIRCLE);
        assert!(is_right, "no {part} in: {text}");
    }
}

#[test]
fn untimed_call_ends_by_timeout_of_other_rank() {
    let ends = World::new(2).run(long_waits::one_untimed);
    let error = ends[1].as_ref().unwrap_err();
    let (is_timeout, text) = (error.kind() == ErrorKind::Deadline, error.to_string());
    let part = r#"on "y" after 4.0 s: rank 0 waits for rank 1 in barrier #2 of 1 u8"#;
    assert!(
        is_timeout && text.contains(part) && text.contains(CIRCLE),
        "{text}"
    );
    assert!(ends[0].is_err());
}
