//! Simulated ranks, in virtual time.

use crate::mistakes::{MISTAKES, told, train};
use crate::{end, go_on};
use ringtree::sim::network::Network;
use ringtree::sim::simulate::{World, sleep};
use ringtree::{Communicator, Error, Result};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The ends of all ranks, within ten seconds of virtual time.
fn soon(ranks: usize, code: impl Fn(&Communicator) -> Result<()> + Sync) -> Vec<Result<()>> {
    let world = World::new(ranks);
    let network = Arc::new(Mutex::new(Network::new(world.network.clone(), ranks)));
    let ends = world.run_on(&network, code);
    let took = network.lock().unwrap().now();
    assert!(took < Duration::from_secs(10), "{took:?}: {ends:?}");
    ends
}

/// One story, on every rank.
fn story(ends: &[Result<()>]) -> String {
    let errors: Vec<&Error> = ends.iter().map(|end| end.as_ref().unwrap_err()).collect();
    assert!(errors.iter().all(|one| one.is_mismatch()), "{errors:?}");
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert!(texts.iter().all(|one| *one == texts[0]), "{texts:?}");
    texts[0].clone()
}

#[test]
fn each_of_the_usual_mistakes_is_told_within_seconds_on_every_rank() {
    for (_, mistake) in MISTAKES {
        for ranks in [2, 3, 5] {
            let folder = tempfile::tempdir().unwrap();
            let ends = soon(ranks, |comm| train(comm, mistake, folder.path()));
            let text = story(&ends);
            for part in told(mistake) {
                assert!(text.contains(part), "{mistake:?}, no {part} in: {text}");
            }
            assert!(text.contains("rank 0 waits in "), "{text}");
            let others = match ranks {
                2 => "rank 1 waits in ".to_owned(),
                3 => "ranks 1, 2 wait in ".to_owned(),
                _ => "ranks 1, 2, 3, 4 wait in ".to_owned(),
            };
            assert!(text.contains(&others), "{text}");
        }
    }
}

#[test]
fn a_circle_of_groups_and_one_with_a_message_are_told() {
    let ends = soon(4, end::grid);
    let errors: Vec<_> = ends.iter().map(|end| end.as_ref().unwrap_err()).collect();
    for error in errors {
        let text = error.to_string();
        for part in [
            r#"rank 0 waits in barrier #2 of 1 u8, by flat, on "0-1""#,
            r#"rank 3 waits in barrier #2 of 1 u8, by flat, on "0-3""#,
        ] {
            assert!(error.is_mismatch() && text.contains(part), "{text}");
        }
    }
    let text = story(&soon(2, end::message));
    assert!(
        text.contains("rank 0 waits in send-recv #1 of 8 f32 to rank 0 from rank 1, on the comm"),
        "{text}"
    );
    assert!(text.contains(r#"on "sums""#), "{text}");
}

#[test]
fn what_is_merely_late_goes_on() {
    let world = World::new(3);
    for seed in 0..20 {
        let world = World {
            network: ringtree::sim::network::NetworkConfig {
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
}

#[test]
fn a_patient_wait_is_ended_by_the_others_timeout() {
    let ends = World::new(2).run(go_on::patient);
    let error = ends[1].as_ref().unwrap_err();
    assert!(error.is_timeout(), "{error}");
    let text = error.to_string();
    let part =
        r#"on "y" after 4.0 s, its timeout: rank 0 waits in barrier #2 of 1 u8, by flat, on "x""#;
    assert!(text.contains(part), "{text}");
    assert!(ends[0].is_err());
}
