use super::super::cause::Confidence;
use super::*;

fn cause(remedy: Remedy) -> Cause {
    Cause {
        standing: Confidence::Exit,
        remedy,
        ..Cause::last("rank 1 failed".to_owned())
    }
}

fn line_and_is_restart(status: Status) -> (String, bool) {
    match status {
        Status::Restart { cause, .. } => (cause.line(None), true),
        Status::Final(cause) => (cause.line(None), false),
        other => panic!("{other:?}"),
    }
}

#[test]
fn restarts_are_limited_and_depend_on_remedy() {
    let mut restarts = Restarts::new(2);
    let (text, again) = line_and_is_restart(restarts.after(&cause(Remedy::Restart)));
    assert!(again && text == "rank 1 failed; restart 1 of 2", "{text}");
    let (text, again) = line_and_is_restart(restarts.after(&cause(Remedy::Correction)));
    assert!(!again && text.contains("usage error"), "{text}");
    assert_eq!(
        line_and_is_restart(restarts.after(&cause(Remedy::Nothing))),
        ("rank 1 failed".to_owned(), false)
    );
    assert!(line_and_is_restart(restarts.after(&cause(Remedy::Restart))).1);
    assert_eq!(restarts.next(None).0, 2);
    assert_eq!(
        line_and_is_restart(restarts.after(&cause(Remedy::Restart))),
        ("rank 1 failed; no restarts left".to_owned(), false)
    );
    let without = line_and_is_restart(Restarts::new(0).after(&cause(Remedy::Correction)));
    assert_eq!(without, ("rank 1 failed".to_owned(), false));
}

#[test]
fn pauses_grow_and_are_bounded() {
    let pauses: Vec<_> = [1, 2, 3, u16::MAX].map(pause_before).into();
    assert_eq!(pauses[0], PAUSE_FIRST);
    assert!(pauses.is_sorted() && pauses[1] > pauses[0]);
    assert_eq!(pauses[3], PAUSE_MAX);
}
